"""Modules of Flax NNX and Equinox as custom models: the same as their twins in torch, and what is refused."""

import json
import subprocess
import sys

import pytest

from tests.support.command import invoke
from tests.support.custom import checks_of, said_of

pytestmark = pytest.mark.jax

NETS = """
from dpcompare import CustomModel

def in_torch(num_classes):
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
            self.norm = nn.BatchNorm2d(8)
            self.deep = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False), nn.Conv2d(8, 12, 1)])
            self.channels = nn.Dropout2d(0.25)
            self.hidden = nn.Linear(12, 16)
            self.features = nn.Dropout(0.5)
            self.spread = nn.BatchNorm1d(16, affine=False)
            self.layer_norm = nn.LayerNorm(16, eps=1e-6)
            self.classifier = nn.Linear(16, num_classes)
            self.shifts = nn.Embedding(3, 16)

        def forward(self, images):
            import torch

            x = self.channels(self.norm(self.stem(images)).relu())
            for convolution in self.deep:
                x = convolution(x).relu()
            x = self.spread(self.features(self.hidden(x.mean((2, 3))).relu()))
            return self.classifier(self.layer_norm(x) + self.shifts(torch.tensor([0, 2])).sum(0))

    return Net()

def in_flax(num_classes, epsilon=1e-5, stem_padding=1):
    from flax import nnx
    from jax import numpy as jnp

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.stem = nnx.Conv(3, 8, (3, 3), strides=2, padding=stem_padding, rngs=rngs)
            self.norm = nnx.BatchNorm(8, momentum=0.9, epsilon=epsilon, rngs=rngs)
            self.deep = nnx.List([
                nnx.Conv(8, 8, (3, 3), feature_group_count=2, use_bias=False, rngs=rngs),
                nnx.Conv(8, 12, (1, 1), rngs=rngs),
            ])
            self.channels = nnx.Dropout(0.25, broadcast_dims=(1, 2), rngs=rngs)
            self.hidden = nnx.Linear(12, 16, rngs=rngs)
            self.features = nnx.Dropout(0.5)
            self.spread = nnx.BatchNorm(16, momentum=0.9, use_bias=False, use_scale=False, rngs=rngs)
            self.layer_norm = nnx.LayerNorm(16, rngs=rngs)
            self.classifier = nnx.Linear(16, num_classes, rngs=rngs)
            self.shifts = nnx.Embed(3, 16, rngs=rngs)

        def __call__(self, images, rngs=None, deterministic=None):
            x = self.channels(nnx.relu(self.norm(self.stem(images))))
            for convolution in self.deep:
                x = nnx.relu(convolution(x))
            x = self.spread(self.features(nnx.relu(self.hidden(x.mean((1, 2)))), rngs=rngs))
            return self.classifier(self.layer_norm(x) + self.shifts(jnp.array([0, 2])).sum(0))

    return Net(nnx.Rngs(0))

def without_state_in_torch(num_classes):
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
            self.norm = nn.GroupNorm(4, 8)
            self.hidden = nn.ModuleList([nn.Linear(8, 16)])
            self.layer_norm = nn.LayerNorm(16)
            self.classifier = nn.Linear(16, num_classes)

        def forward(self, images):
            x = self.norm(self.stem(images)).relu().mean((2, 3))
            for layer in self.hidden:
                x = layer(x).relu()
            return self.classifier(self.layer_norm(x))

    return Net()

def in_equinox(num_classes, stem_padding=1):
    import equinox as eqx
    import jax

    class Net(eqx.Module):
        stem: eqx.nn.Conv2d
        norm: eqx.nn.GroupNorm
        hidden: list
        drop: eqx.nn.Dropout
        layer_norm: eqx.nn.LayerNorm
        classifier: eqx.nn.Linear

        def __init__(self, key):
            of_stem, of_hidden, of_classifier = jax.random.split(key, 3)
            self.stem = eqx.nn.Conv2d(3, 8, 3, stride=2, padding=stem_padding, key=of_stem)
            self.norm = eqx.nn.GroupNorm(4, 8)
            self.hidden = [eqx.nn.Linear(8, 16, key=of_hidden)]
            self.drop = eqx.nn.Dropout(0.5)
            self.layer_norm = eqx.nn.LayerNorm(16)
            self.classifier = eqx.nn.Linear(16, num_classes, key=of_classifier)

        def __call__(self, image):
            x = jax.nn.relu(self.norm(self.stem(image))).mean((1, 2))
            for layer in self.hidden:
                x = jax.nn.relu(layer(x))
            return self.classifier(self.layer_norm(self.drop(x)))

    return Net(jax.random.key(0))

of_equinox = CustomModel(torch=without_state_in_torch, jax=in_equinox)
same = CustomModel(torch=in_torch, jax=in_flax)
equinox_shifted = CustomModel(
    torch=without_state_in_torch, jax=lambda num_classes: in_equinox(num_classes, stem_padding=((2, 0), (2, 0)))
)
shifted = CustomModel(torch=in_torch, jax=lambda num_classes: in_flax(num_classes, stem_padding=((2, 0), (2, 0))))
other_epsilon = CustomModel(torch=in_torch, jax=lambda num_classes: in_flax(num_classes, epsilon=1e-3))
"""


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "modes", "asked", "shown"),
    [
        (
            *("same", ("ddp", "spmd", "jit")),
            {"replicas": 2, "batchnorm": "sync", "regularization": "shared"},
            {"regularization", "BatchNorm statistics"},
        ),
        (
            *("same", ("ddp", "spmd", "multiprocess"), {"replicas": 2, "regularization": "shared"}),
            {"regularization", "BatchNorm statistics"},
        ),
        ("of_equinox", ("ddp", "spmd", "jit"), {"replicas": 2, "batchnorm": "sync"}, {"gradient"}),
    ],
    ids=["one batch", "batches of replicas", "of equinox"],
)
@pytest.mark.usefixtures("warm")
def test_a_module_computes_what_its_twin_does(elsewhere, model, modes, asked, shown):
    (elsewhere / "nets.py").write_text(NETS)
    checks = checks_of(f"nets:{model}", ("torch", "jax"), modes, **asked)
    assert [check for check in checks if not check.passed] == []
    assert shown <= {check.name for check in checks}


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("model", ["shifted", "equinox_shifted"])
@pytest.mark.usefixtures("warm")
def test_the_layer_of_a_module_that_differs_is_named(elsewhere, model):
    (elsewhere / "nets.py").write_text(NETS)
    asked = {} if model == "equinox_shifted" else {"regularization": "shared"}
    checks = {check.name: check for check in checks_of(f"nets:{model}", ("torch", "jax"), ("single",), **asked)}
    assert "the first layer that differs is stem: by" in checks["evaluation logits"].detail


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_another_epsilon_is_named_before_the_first_run(elsewhere):
    (elsewhere / "nets.py").write_text(NETS)
    arms = ["torch:single", "jax:single", "--model", "nets:other_epsilon", "--image-size", "17", "--out", "study"]
    refused = invoke("compare", *arms, "--regularization", "shared", "--dataset", "synthetic-mini", "--steps", "8")
    assert refused.code == 2
    found = "norm: epsilon 1e-05 in torch, 0.001 in jax; in Flax write epsilon=1e-05"
    assert found in " ".join(refused.stderr.split())
    assert not (elsewhere / "study").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_dropout_of_equinox_is_said_to_drop_nothing(elsewhere):
    (elsewhere / "nets.py").write_text(NETS)
    asked = ["jax:single", "--model", "nets:of_equinox", "--image-size", "17", "--dataset", "synthetic-mini"]
    trained = invoke("run", *asked, "--steps", "2", "--run-dir", "trained")
    assert trained.code == 0, trained.stderr
    said = "dropout of nets:of_equinox (drop) drops nothing: Equinox draws dropout from a key, and a step has none"
    assert said in " ".join(trained.stderr.split())
    refused = invoke("run", *asked, "--regularization", "shared", "--run-dir", "refused")
    assert refused.code == 2
    assert "drop drops nothing: Equinox draws dropout from a key" in " ".join(refused.stderr.split())


MODULES = """
import equinox as eqx
import jax
import numpy as np
from flax import linen, nnx

class Tied(nnx.Module):
    def __init__(self, num_classes):
        self.first = nnx.Linear(48, 48, rngs=nnx.Rngs(0))
        self.second = nnx.Linear(48, num_classes, rngs=nnx.Rngs(0))
        self.third = self.second

class Other(nnx.Module):
    def __init__(self, num_classes):
        self.first = nnx.LinearGeneral((4, 4, 3), num_classes, axis=(1, 2, 3), rngs=nnx.Rngs(0))

class Odd(nnx.Module):
    def __init__(self, num_classes):
        self.drop = nnx.Dropout(0.5, broadcast_dims=(1,))

class Noisy(nnx.Module):
    def __init__(self, num_classes):
        self.first = nnx.Linear(48, num_classes, rngs=nnx.Rngs(0))

    def __call__(self, images, rngs):
        x = self.first(images.reshape(len(images), -1))
        return x + jax.random.normal(rngs.noise(), x.shape)

class Hidden(nnx.Module):
    def __init__(self, num_classes):
        self.layers = nnx.data({"first": nnx.Linear(48, num_classes, rngs=nnx.Rngs(0))})

class Drawing(nnx.Module):
    def __init__(self, num_classes):
        self.rngs = nnx.Rngs(0)
        self.first = nnx.Linear(48, num_classes, rngs=self.rngs)

class Typed(nnx.Module):
    def __init__(self, num_classes):
        self.first = nnx.Linear(48, num_classes, dtype=jax.numpy.bfloat16, rngs=nnx.Rngs(0))

class Precise(nnx.Module):
    def __init__(self, num_classes):
        self.first = nnx.Linear(48, num_classes, precision="highest", rngs=nnx.Rngs(0))

class TypedNorm(nnx.Module):
    def __init__(self, num_classes):
        self.norm = nnx.LayerNorm(48, dtype=jax.numpy.bfloat16, rngs=nnx.Rngs(0))

class TypedTensors(nnx.Module):
    def __init__(self, num_classes):
        self.first = nnx.Linear(48, num_classes, param_dtype=jax.numpy.bfloat16, rngs=nnx.Rngs(0))

class Frozen(nnx.Module):
    def __init__(self, num_classes):
        self.first = nnx.Linear(48, num_classes, rngs=nnx.Rngs(0))
        self.first.kernel = nnx.Variable(self.first.kernel[...])

class Halved(nnx.Dropout):
    def __call__(self, features):
        return super().__call__(features) / 2

class Scaled(nnx.Module):
    def __init__(self, num_classes):
        self.drop = Halved(0.5)

class Within(nnx.Module):
    def __init__(self, num_classes):
        self.block = Told(num_classes)

    def __call__(self, images):
        return self.block(images)

class Deaf(nnx.Module):
    def __init__(self, num_classes):
        self.first = nnx.Linear(48, num_classes, rngs=nnx.Rngs(0))

    def __call__(self, images, mask):
        return self.first(images.reshape(len(images), -1))

class Flat(nnx.Module):
    def __init__(self, num_classes):
        self.first = nnx.Linear(48, num_classes, rngs=nnx.Rngs(0))

    def __call__(self, images):
        return self.first(images.reshape(len(images), -1))

class Forced(Flat):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.drop = nnx.Dropout(0.5)

    def __call__(self, images):
        return self.drop(super().__call__(images), deterministic=False)

class Following(Flat):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.deterministic = False
        self.drop = nnx.Dropout(0.25)
        self.norm = nnx.LayerNorm(num_classes, dtype=jax.numpy.float32, rngs=nnx.Rngs(0))

    def __call__(self, images):
        return self.drop(self.norm(super().__call__(images)), deterministic=self.deterministic)

class Switched(Flat):
    training = True

class Stale(Flat):
    follows = True

    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.norm = nnx.BatchNorm(num_classes, rngs=nnx.Rngs(0))

    def __call__(self, images):
        return self.norm(super().__call__(images), use_running_average=self.follows)

class Fresh(Stale):
    follows = False

def alone(num_classes):
    return (
        lambda: {"first.weight": np.ones((num_classes, 48), np.float32)},
        lambda tensors, images, training, axis_name: images.reshape(len(images), -1) @ tensors["first.weight"].T,
    )

class Told(Flat):
    def __call__(self, images, train=True):
        return super().__call__(images)

class Branching(Flat):
    def __call__(self, images):
        x = super().__call__(images)
        return x if x.mean() > 0 else -x

class Probable(Flat):
    def __call__(self, images):
        return jax.nn.softmax(super().__call__(images))

class Seeded(nnx.Module):
    def __init__(self, num_classes, *, rngs):
        self.first = nnx.Linear(48, num_classes, rngs=rngs)

class Bridged(nnx.Module):
    def __init__(self, num_classes):
        self.inner = nnx.bridge.ToNNX(linen.Dense(num_classes), rngs=nnx.Rngs(0))

def unmade(num_classes):
    return nnx.eval_shape(lambda: Flat(num_classes))

class Keyed(eqx.Module):
    first: eqx.nn.Linear

    def __init__(self, num_classes):
        self.first = eqx.nn.Linear(48, num_classes, key=jax.random.key(0))

    def __call__(self, image, key):
        return self.first(image.reshape(-1))

class Backwards(eqx.Module):
    first: eqx.nn.ConvTranspose2d

    def __init__(self, num_classes):
        self.first = eqx.nn.ConvTranspose2d(3, num_classes, 4, key=jax.random.key(0))

def chained(num_classes):
    layers = eqx.nn.Linear(48, num_classes, key=jax.random.key(0)), eqx.nn.Lambda(jax.nn.relu)
    return eqx.nn.Sequential([eqx.nn.Lambda(jax.numpy.ravel), eqx.nn.Sequential(layers)])

def chained_state(num_classes):
    return eqx.nn.Sequential([eqx.nn.BatchNorm(3, "batch", mode="batch")])

class Linen(linen.Module):
    num_classes: int = 4

class Stateful(eqx.Module):
    norm: eqx.nn.BatchNorm

    def __init__(self, num_classes):
        self.norm = eqx.nn.BatchNorm(3, "batch", mode="batch")

class Sharing(eqx.Module):
    both: eqx.nn.Shared

    def __init__(self, num_classes):
        layers = [eqx.nn.Linear(48, 48, key=jax.random.key(number)) for number in range(2)]
        self.both = eqx.nn.Shared(layers, where=lambda each: each[1].weight, get=lambda each: each[0].weight)

class Pairing(eqx.Module):
    weight: jax.Array

    def __call__(self, x):
        return x * self.weight, None

class Odds(eqx.Module):
    extra: dict
    pair: Pairing
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, num_classes):
        self.extra = {"weight": jax.numpy.ones(3)}
        self.pair, self.norm = Pairing(jax.numpy.ones(3)), eqx.nn.LayerNorm(3)
        self.head = eqx.nn.Linear(3, num_classes, key=jax.random.key(0))

    def __call__(self, image):
        pixels, _ = self.pair((image.reshape(3, -1).T * self.extra["weight"]))
        return self.head(jax.vmap(self.norm)(pixels).mean(0))

class Twice(eqx.Module):
    first: eqx.nn.Linear
    second: eqx.nn.Linear

    def __init__(self, num_classes):
        self.first = eqx.nn.Linear(48, num_classes, key=jax.random.key(0))
        self.second = self.first
"""


REFUSED = {
    "Tied": "has one tensor under two names, second.kernel and third.kernel; expected a tensor of its",
    "Other": "has first.kernel of a LinearGeneral, a layer that dpcompare does not know; expected layers of",
    "Odd": "has the dropout drop with broadcast_dims=(1,); expected none, or (1, 2), which drops whole channels",
    "Noisy": "'nets:Noisy' draws random numbers (rngs.noise) when it is called; expected layers of nnx.Dropout",
    "Hidden": "has tensors outside its layers: layers.first.bias, layers.first.kernel; expected layers as",
    "Drawing": "and random numbers in nnx.Dropout alone",
    "Typed": "has a Linear with dtype=bfloat16; expected the default, since --precision and",
    "Precise": "has a Linear with precision=highest; expected the default, since",
    "TypedNorm": "has a LayerNorm with dtype=bfloat16; expected the default, since",
    "TypedTensors": "has a Linear with param_dtype=bfloat16; expected the default, since",
    "Frozen": "has first.kernel as an nnx.Variable; expected an nnx.Param, since every tensor of a model is trained",
    "Scaled": "has the dropout drop of its own class Halved; expected nnx.Dropout, without changes",
    "Forced": "model: the dropout drop is called with deterministic=False, so that it would drop in evaluation too; ",
    "Following": "Layer(name='drop', tensors={}, settings={'rate': 0.25",  # it is taken
    "Switched": "Switched has the attribute training, which train() and eval() do not set; expected none, since",
    "Stale": "the running statistic norm.running_mean stays as it is in training; expected BatchNorm that is always",
    "Fresh": "the running statistic norm.running_var changes in evaluation; expected BatchNorm that is always",
    "alone": "apply of 'nets:alone' gives an array of shape (2, 4) in jax; expected the pair (logits, dict of new",
    "Deaf": "requires the argument mask, and dpcompare passes images alone; expected a default, or a module without it",
    "Told": "Told takes the argument train when it is called; expected no such argument, or None as its default, since",
    "Within": "Told takes the argument train when it is called; expected no such argument, or None as its default",
    "Branching": "cannot be compiled by JAX (Attempted boolean conversion of traced array",
    "Probable": "gives probabilities in jax: the outputs of an image sum to 1; expected logits, without a softmax",
    "Seeded": "'Seeded' takes the arguments num_classes, rngs; expected a class or a function that makes a model",
    "Bridged": "has a module of flax.linen (inner), whose tensors are made when it is first called; expected layers",
    "unmade": "has shapes without values; expected a module made outside nnx.eval_shape",
    "Linen": "rewrite a module of flax.linen with flax.nnx, or give a pair of functions",
    "Stateful": "has a BatchNorm, which keeps a state; expected layers without one, such as GroupNorm, or a",
    "chained_state": "has a BatchNorm, which keeps a state; expected layers without one, such as GroupNorm, or a",
    "Keyed": "requires the argument key, and dpcompare passes images alone; expected the default None, since layers of",
    "Backwards": "has a ConvTranspose2d, whose layout is not known here; expected Linear, Conv2d, LayerNorm",
    "Sharing": "has a Shared, which gives one tensor to several layers; expected a tensor of its own for each layer",
    "Odds": "Layer(name='head', tensors={'weight': (4, 3), 'bias': (4,)}",  # it is taken
    "chained": "Layer(name='layers.1.layers.0', tensors={'weight': (4, 48), 'bias': (4,)}",  # it is taken
    "Twice": "has one tensor under two names, first.weight and second.weight; expected a tensor of its own for",
}


@pytest.mark.slow
def test_modules_that_cannot_be_taken_are_refused(elsewhere):
    (elsewhere / "nets.py").write_text(MODULES)
    said = said_of("jax", REFUSED)
    assert {name: words for name, words in REFUSED.items() if words not in said[name]} == {}, said


NARROW = """
import json, sys
import jax
from jax import numpy as jnp
from dpcompare import Workload
from dpcompare.backends.jax.model import build_model

sys.path.insert(0, ".")
model = build_model(Workload(model=f"nets:{sys.argv[1]}", image_size=17, precision="bfloat16"), 10)
tensors = {name: jnp.asarray(value) for name, value in model.init().items()}
def types(training, *names):
    def logits(tensors, images):
        return model.apply(tensors, images, None, training=training, axis_name=None)
    made = jax.make_jaxpr(logits)(tensors, jnp.zeros((2, 17, 17, 3)))
    return [str(each.outvars[0].aval.dtype) for each in made.eqns if each.primitive.name in names]
print(json.dumps({
    "products": types(True, "conv_general_dilated", "dot_general"), "deviations": types(False, "rsqrt")
}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("model", "products", "norms"), [("same", 5, 3), ("of_equinox", 3, 2)])
def test_in_bfloat16_norms_alone_stay_in_float32(elsewhere, model, products, norms):
    (elsewhere / "nets.py").write_text(NETS)
    done = subprocess.run([sys.executable, "-c", NARROW, model], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    # Those of BatchNorm by its running variance or of GroupNorm, and of LayerNorm.
    assert json.loads(done.stdout) == {"products": ["bfloat16"] * products, "deviations": ["float32"] * norms}
