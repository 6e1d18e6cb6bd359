"""One Keras model in TensorFlow, torch and JAX: the same in all modes, and what is refused."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from dpcompare import Cluster, RunConfig, Workload, run
from dpcompare.backends.custom_model import described_layers
from dpcompare.errors import RequestError
from tests.support.custom import checks_of, said_of
from tests.support.marks import KERAS, in_each_framework_of_keras, with_mark

NETS = """
import keras
from dpcompare import CustomModel

def net(image_size, num_classes, embeds=True):
    layers = keras.layers
    images = keras.Input((image_size, image_size, 3))
    x = layers.Conv2D(8, 3, strides=2, padding="same", name="stem")(images)
    x = layers.BatchNormalization(name="norm")(x)
    x = layers.SpatialDropout2D(0.25)(layers.ReLU()(x))
    x = layers.DepthwiseConv2D(3, padding="same", use_bias=False, name="deep")(x)
    x = layers.GlobalAveragePooling2D()(layers.GroupNormalization(4)(x))
    x = layers.Dropout(0.5)(layers.Dense(16, activation="relu", name="hidden")(x))
    if embeds:
        is_bright = keras.ops.cast(keras.ops.max(images, (1, 2)) > 1, "int32")
        x = layers.Add()([x, layers.GlobalAveragePooling1D()(layers.Embedding(2, 16, name="brightness")(is_bright))])
    return keras.Model(images, layers.Dense(num_classes)(layers.LayerNormalization()(x)))

everywhere = CustomModel(keras=net)
without_embedding = CustomModel(keras=lambda image_size, num_classes: net(image_size, num_classes, embeds=False))

def looks_up(image_size, num_classes):
    layers = keras.layers
    images = keras.Input((image_size, image_size, 3))
    is_bright = keras.ops.cast(keras.ops.max(images, (1, 2)) > 1, "int32")
    return keras.Model(images, layers.Dense(num_classes)(layers.Flatten()(layers.Embedding(2, 16)(is_bright))))

def without_arguments():
    layers = keras.layers
    images = keras.Input((17, 17, 3))
    return keras.Sequential([images, layers.Conv2D(4, 9), layers.MaxPooling2D(4), layers.Flatten(), layers.Dense(10)])

def own_statistics(image_size, num_classes):
    layers = keras.layers
    images = keras.Input((image_size, image_size, 3))
    x = layers.BatchNormalization(scale=False)(layers.Conv2D(4, 3, activation="relu")(images))
    return keras.Model(images, layers.Dense(num_classes)(layers.Flatten()(layers.MaxPooling2D()(x))))
"""


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def other_settings(elsewhere, monkeypatch):
    """A user's Keras, which computes with another framework, in another type and layout."""
    settings = {"backend": "numpy", "floatx": "float16", "image_data_format": "channels_first", "epsilon": 0.1}
    (elsewhere / "keras.json").write_text(json.dumps(settings))
    monkeypatch.setenv("KERAS_HOME", str(elsewhere))
    monkeypatch.setenv("KERAS_BACKEND", "openvino")


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.usefixtures("warm", "other_settings")
def test_a_model_of_keras_is_the_same_in_all_frameworks():
    modes = ("fsdp", "mirrored", "spmd", "jit")
    asked = {"batchnorm": "sync", "regularization": "shared"}
    checks = checks_of("nets:everywhere", ("torch", "tensorflow", "jax"), modes, replicas=2, **asked)
    assert [check for check in checks if not check.passed] == []
    assert {"evaluation logits", "gradient", "regularization", "BatchNorm statistics"} <= {each.name for each in checks}


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.parametrize(
    "modes",
    [
        pytest.param(("dp", "mirrored", "spmd"), id="one process"),
        pytest.param(("ddp", "multiworker", "multiprocess"), id="two processes", marks=pytest.mark.long),
    ],
)
@pytest.mark.usefixtures("warm")
def test_batchnorm_of_each_replica_is_the_same_too(elsewhere, modes):
    checks = checks_of("nets:own_statistics", ("torch", "tensorflow", "jax"), modes, replicas=2)
    assert [check for check in checks if not check.passed] == []
    assert "BatchNorm statistics" in {check.name for check in checks}


@pytest.mark.slow
@pytest.mark.parametrize("framework", in_each_framework_of_keras())
@pytest.mark.usefixtures("warm", "other_settings")
def test_fit_trains_a_model_of_keras_as_the_loop_does(tmp_path, framework):
    """In torch and JAX, Keras's dropout drops nothing unless the host draws; in TensorFlow the host draws for both."""
    regularization, model = ("shared", "without_embedding") if framework == "tensorflow" else ("off", "everywhere")
    workload = Workload(
        model=f"nets:{model}", image_size=17, dataset="synthetic-mini", global_batch_size=16, steps=3,
        warmup_steps=0, precision="float64", regularization=regularization,
    )  # fmt: skip
    cluster, said = Cluster.partition(1, 1, device="cpu"), []
    fit, loop = (
        run(
            *(RunConfig(framework=framework, mode=mode, workload=workload, cluster=cluster), tmp_path / mode),
            remark=said.append,
        )
        for mode in ("keras-fit", "single")
    )
    idle = f"dropout of nets:everywhere (spatial_dropout2d, dropout) drops nothing in {framework} unless the host draws"
    assert [line.partition("draws it: ")[2] for line in said if line.startswith(idle)] == (
        []
        if framework == "tensorflow"
        else ["choose another mode than keras-fit, with --regularization shared", "pass --regularization shared"]
    )
    assert np.abs(np.array(fit.train_loss) - loop.train_loss).max() < 1e-12


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.usefixtures("elsewhere")
def test_fit_in_tensorflow_squares_each_lookup_of_an_embedding(tmp_path):
    """As soon as this fails, Keras squares the sum, as torch and JAX do: `describe` and the page need not say it."""
    workload = Workload(
        model="nets:looks_up", image_size=17, dataset="synthetic-mini", global_batch_size=16, steps=4, warmup_steps=0,
    )  # fmt: skip
    cluster = Cluster.partition(1, 1, device="cpu")
    config = RunConfig(framework="tensorflow", mode="keras-fit", workload=workload, cluster=cluster, late_step=True)
    result = run(config, tmp_path / "fit")
    assert result.settings["optimizer"]["embedding gradients"] == "squared per lookup"
    assert "exp_avg_sq" in result.late_step.problem


@pytest.mark.slow
@pytest.mark.parametrize("framework", in_each_framework_of_keras())
@pytest.mark.usefixtures("other_settings")
def test_settings_of_a_user_change_no_layer(framework):
    layers = {layer.name: layer for layer in described_layers("nets:everywhere", framework, sys.executable, 17, 10)}
    assert layers["stem"].tensors == {"weight": (8, 3, 3, 3), "bias": (8,)}
    assert layers["brightness"].tensors == {"weight": (2, 16)}
    assert layers["deep"].tensors == {"weight": (8, 1, 3, 3)}
    assert layers["norm"].settings == {"epsilon": 0.001, "momentum": 0.99}
    assert layers["dense"].tensors == {"weight": (10, 16), "bias": (10,)}
    assert layers["dropout"].settings["draws"] == 16


@pytest.mark.slow
@pytest.mark.parametrize("framework", in_each_framework_of_keras())
@pytest.mark.usefixtures("other_settings")
def test_a_function_without_arguments_has_our_settings_too(framework):
    """It is called once to see what it makes, which fails in the user's layout; names are still counted from 0."""
    layers = described_layers("nets:without_arguments", framework, sys.executable, 17, 10)
    first, last = (layer for layer in layers if layer.tensors)
    assert (first.name, first.tensors["weight"]) == ("conv2d", (4, 3, 9, 9))
    assert last.name == "dense"


TWICE = """
import dpcompare as dp
import nets

workload = dp.Workload(
    image_size=32, dataset="synthetic-mini", global_batch_size=16, steps=2, warmup_steps=0, batchnorm="sync"
)
for model in (dp.CustomModel(keras=nets.own_statistics), "nets:own_statistics") * 2:
    here = dp.Cluster.partition(1, 1, device="cpu")
    with dp.backend("tensorflow", "single", workload, cluster=here, model=model) as training:
        print([float(training.step(batch)) for batch in training.batches()])
"""


@pytest.mark.tensorflow
@pytest.mark.slow
def test_each_training_of_a_process_starts_from_the_same_weights(elsewhere):
    """They are drawn by the names of layers, which Keras would count on."""
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    losses = done.stdout.splitlines()
    assert (len(losses), len(set(losses))) == (4, 1)


IN_TORCH, IN_TENSORFLOW, IN_JAX = in_each_framework_of_keras()


@pytest.mark.slow
@pytest.mark.parametrize(  # JAX makes a layer at a time, for a minute
    "framework", [IN_TORCH, IN_TENSORFLOW, with_mark(IN_JAX, pytest.mark.long)]
)
@pytest.mark.usefixtures("other_settings")
def test_a_model_of_keras_that_has_a_name_has_our_layout(framework):
    """Its function imports Keras: it is called before the settings of keras.json are replaced, and fails by them."""
    layers = described_layers("keras:MobileNet", framework, sys.executable, 32, 10)
    assert layers[0].tensors == {"weight": (32, 3, 3, 3)}
    assert layers[-1].tensors["bias"] == (10,)


NARROW = """
import json, sys
import jax
from jax import numpy as jnp
from dpcompare import Workload
from dpcompare.backends.jax.model import build_model
from dpcompare.backends.keras import compute_with

compute_with("jax")
model = build_model(Workload(model="nets:net", image_size=17, precision="bfloat16"), 10)
tensors = {name: jnp.asarray(value) for name, value in model.init().items()}
made = jax.make_jaxpr(lambda tensors, images: model.apply(tensors, images, None, training=True, axis_name=None))(
    tensors, jnp.zeros((2, 17, 17, 3))
)
products = [each for each in made.eqns if each.primitive.name in ("conv_general_dilated", "dot_general")]
print(json.dumps({
    "kept": sorted({str(each.dtype) for each in tensors.values()}),
    "products": [str(each.outvars[0].aval.dtype) for each in products],
}))
"""


@pytest.mark.jax
@KERAS
@pytest.mark.slow
@pytest.mark.usefixtures("other_settings")
def test_products_in_jax_are_in_bfloat16(elsewhere):
    done = subprocess.run([sys.executable, "-c", NARROW], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {"kept": ["float32"], "products": ["bfloat16"] * 4}


@pytest.mark.slow
@pytest.mark.parametrize("framework", [IN_TORCH, IN_TENSORFLOW])
@pytest.mark.usefixtures("warm", "elsewhere")
def test_a_model_of_keras_trains_in_bfloat16(tmp_path, framework):
    workload = Workload(
        model="nets:net", image_size=17, dataset="synthetic-mini", global_batch_size=16, steps=2, warmup_steps=0,
        regularization="shared",
    )  # fmt: skip
    cluster = Cluster.partition(1, 1, device="cpu")
    losses = {}
    for precision in ("bfloat16", "float32"):
        asked = RunConfig(
            framework=framework, mode="single", workload=workload.changed(precision=precision), cluster=cluster
        )
        losses[precision] = np.array(run(asked, tmp_path / precision).train_loss)
    apart = np.abs(losses["bfloat16"] / losses["float32"] - 1)
    assert apart.min() > 1e-6
    assert apart.max() < 0.05


BY_TORCH = """
import keras

class OfTorch(keras.layers.Layer):
    def call(self, x):
        import torch
        return torch.tanh(x)

def tanh(x):
    import torch
    return torch.tanh(x)

def of(layer, num_classes):
    last = keras.layers.Flatten(), keras.layers.Dense(num_classes)
    return keras.Sequential([keras.Input((4, 4, 3)), layer, *last])

def net(num_classes):
    return of(OfTorch(), num_classes)

def function(num_classes):
    return of(keras.layers.Lambda(tanh, output_shape=(4, 4, 3)), num_classes)
"""


@pytest.mark.torch
@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.parametrize("net", ["net", "function"])
def test_a_layer_of_one_framework_is_refused_in_another(elsewhere, net):
    (elsewhere / "nets.py").write_text(BY_TORCH)
    with pytest.raises(
        RequestError, match=r"(?s)failed in jax .*; a layer of yours that calls another framework needs keras\.ops"
    ):
        described_layers(f"nets:{net}", "jax", sys.executable, 4, 4)
    assert described_layers(f"nets:{net}", "torch", sys.executable, 4, 4)


MODELS = """
import keras
import numpy as np
from dpcompare import CustomModel

layers = keras.layers

def of(*hidden):
    def made(num_classes):
        last = layers.Flatten(), layers.Dense(num_classes)
        return keras.Sequential([keras.Input((4, 4, 3)), layers.Dense(3), *hidden, *last])
    return made

class OnTheHost(layers.Layer):
    def call(self, x):
        if isinstance(x, keras.KerasTensor) or str(x.device) == "meta":
            return x
        return keras.ops.convert_to_tensor(np.asarray(x.detach()))

class ByNumpy(layers.Layer):
    def call(self, x):
        return x if isinstance(x, keras.KerasTensor) else keras.ops.convert_to_tensor(np.tanh(np.asarray(x)))

class Subclass(keras.Model):
    def __init__(self, num_classes):
        super().__init__()
        self.last = layers.Dense(num_classes)

    def call(self, images):
        return self.last(layers.Flatten()(images))

class OwnDropout(layers.Dropout):
    def call(self, inputs, training=False):
        return 2 * super().call(inputs, training=training)

class OwnNorm(layers.BatchNormalization):
    pass

class Composed(layers.Layer):
    def __init__(self):
        super().__init__()
        self.drop = layers.Dropout(0.5)

    def call(self, x):
        return self.drop(x)

class Noisy(layers.Layer):
    def call(self, x):
        return x + keras.random.normal(x.shape[1:])

class Penalty(layers.Layer):
    def call(self, x):
        self.add_loss(keras.ops.mean(x**2))
        return x

class Scaled(keras.Model):
    def call(self, images, training=None):
        return 0.1 * super().call(images, training=training)

class Tied(layers.Layer):
    def __init__(self, other):
        super().__init__()
        self.other = other.kernel

    def call(self, x):
        return x @ self.other

class Stopped(layers.Layer):
    def call(self, x):
        return keras.ops.stop_gradient(x)

class Kernel(layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 3), name="kernel")

    def call(self, x):
        return x @ self.kernel

def scaled(num_classes):
    model = of()(num_classes)
    return Scaled(model.inputs, model.outputs)

def tied(num_classes):
    first = layers.Dense(3, use_bias=False, name="one")
    first.build((None, 4, 4, 3))
    return of(first, Tied(first))(num_classes)

def of_own_policy(num_classes):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return of()(num_classes)
    finally:
        keras.config.set_dtype_policy(before)

class Doubled(keras.Sequential):
    def compute_loss(self, *arguments, **options):
        return 2 * super().compute_loss(*arguments, **options)

class Stepping(keras.Sequential):
    def train_step(self, *arguments):
        return super().train_step(*arguments)

typed = of(layers.Dense(3, dtype="float64", name="wide"))
transposed = of(layers.Conv2DTranspose(3, 2, name="up"))
own_kernel = of(Kernel(name="own"))
stopped = of(layers.Dense(3, name="before"), Stopped())
regularized = of(layers.Dense(3, kernel_regularizer="l2", name="held"))
active = of(layers.Dense(3, activity_regularizer="l2", name="active"))
penalized = of(Penalty())
doubled = lambda num_classes: Doubled(of()(num_classes).layers)
stepping = lambda num_classes: Stepping(of()(num_classes).layers)
probable = lambda num_classes: keras.Sequential([*of()(num_classes).layers, layers.Softmax()])

frozen = of(layers.Dense(3, trainable=False, name="still"))
noisy = of(layers.GaussianNoise(0.1))
unseeded = of(Noisy())
own_dropout = of(OwnDropout(0.5))
own_norm = of(OwnNorm())
composed = of(Composed())
normalization = of(layers.Normalization())
by_numpy = of(ByNumpy())
on_the_host = of(OnTheHost())
taken = of(layers.Dense(3, name="training"))
renamed = CustomModel(keras=taken, layer_names={"fine": "training"})
nested = of(keras.Sequential([layers.Dense(3), layers.Dense(3)]))
no_logits = lambda num_classes: keras.Sequential([keras.Input((4, 4, 3)), layers.Dense(num_classes)])
"""

OF_GRAPHS = {
    "stopped": "computes no gradient for dense_1.weight, dense_1.bias, before.weight, before.bias in {framework}; "
}
IN_ALL = {
    "regularized": "held/kernel has a regularizer or a constraint, which dpcompare's steps would ignore",
    "active": "active has a regularizer or a constraint, which dpcompare's steps",
    "penalized": "one of its layers calls `add_loss`, which dpcompare's steps would ignore; expected a model",
    "doubled": "Doubled has a `compute_loss` of its own, which dpcompare's steps",
    "stepping": "Stepping has a `train_step` of its own, which dpcompare's steps",
    "probable": "gives probabilities in {framework}: the outputs of an image sum to 1; expected logits, without a soft",
    "scaled": "Scaled has a `call` of its own, which dpcompare's steps would ignore; expected a model without it",
    "tied": "has one tensor under two names, one.weight and tied.weight; expected a tensor of its own",
    "typed": "has the layer wide with a dtype of its own, float64, where the run has float32; expected layers without",
    "of_own_policy": "with a dtype of its own, mixed_float16, where the run has float32; expected layers",
    "frozen": "has the layer still with trainable=False; expected layers that are trained",
    "normalization": "has the tensor normalization.mean, which is not trained; expected no others than BatchNorm's",
    "transposed": "has the kernel of up (Conv2DTranspose), whose layout is not known here; expected kernels of",
    "own_kernel": "has the kernel of own (Kernel), whose layout is not known here; expected kernels of DepthwiseConv2D",
    "composed": "has layers inside its layer composed (Composed); expected layers that contain no others: write",
    "nested": "has layers inside its layer sequential (Sequential); expected layers that contain no others: go on",
    "no_logits": "gives (None, 4, 4, 4) in {framework}; expected logits (None, 4)",
    "Subclass": "whose layers Keras does not know before it is called; expected a keras.Sequential, or a functional",
}
NOT_AS_A_FUNCTION = {
    "own_dropout": "has the layer own_dropout of its own class OwnDropout; expected Keras's class, without changes",
    "own_norm": "has the layer own_norm of its own class OwnNorm; expected Keras's class, without changes",
    "noisy": "draws random numbers in gaussian_noise (GaussianNoise); expected layers of Dropout alone to do so",
}
OF_TRACES = {"by_numpy": "cannot be compiled by JAX (The numpy.ndarray conversion method __array__() was called on"}
OF_TORCH = {
    "unseeded": "draws random numbers in training outside its layers of dropout; expected keras.layers.Dropout",
    "taken": "the layer training has a name that torch's modules use themselves; expected another name, or",
    "renamed": "Layer(name='fine', tensors={{'weight': (3, 3), 'bias': (3,)}}",  # it is taken
    "on_the_host": "computes no gradient for dense_1.weight, dense_1.bias in torch; expected layers that compute with",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "refused"),
    [
        pytest.param("torch", IN_ALL | NOT_AS_A_FUNCTION | OF_GRAPHS | OF_TORCH, marks=[pytest.mark.torch, KERAS]),
        pytest.param("jax", IN_ALL | NOT_AS_A_FUNCTION | OF_TRACES, marks=[pytest.mark.jax, KERAS]),
        pytest.param("tensorflow", IN_ALL | OF_GRAPHS, marks=pytest.mark.tensorflow),
    ],
)
def test_models_of_keras_that_cannot_be_taken_are_refused(elsewhere, framework, refused):
    (elsewhere / "nets.py").write_text(MODELS)
    said = said_of(framework, refused)
    expected = {name: words.format(framework=framework) for name, words in refused.items()}
    assert {name: words for name, words in expected.items() if words not in said[name]} == {}, said


IN_PROCESS = """
import torch
import dpcompare as dp
from dpcompare.backends.keras.settings import made_with

here = dp.Cluster.partition(device="cpu")
workload = dp.Workload(
    image_size=32, dataset="synthetic-mini", global_batch_size=16, steps=2, warmup_steps=0, batchnorm="sync"
)
import nets

def refused(call):
    try:
        call()
    except dp.RequestError as error:
        return str(error)
    raise AssertionError("it was not refused")

training = dp.backend("torch", "single", workload, cluster=here, model=nets.everywhere)
with training:
    losses = [float(training.step(batch)) for batch in training.batches()]
    assert training.backend.describe().settings.get("batchnorm_kernels") in (None, "the model's own")
import keras
assert keras.backend.backend() == "torch" and len(losses) == 2
assert isinstance(made_with("jax", "float32", 17, lambda: torch.nn.Linear(2, 2)), torch.nn.Linear)
told = refused(lambda: made_with("jax", "float32", 17, lambda: nets.net(17, 10)))
assert told.startswith("Keras was imported in this process to compute with torch, and a run of jax needs it to")
noisy = dp.CustomModel(keras=lambda: keras.Sequential([
    keras.Input((32, 32, 3)), keras.layers.GaussianNoise(0.1), keras.layers.Flatten(), keras.layers.Dense(10)
]))
made = dp.backend("torch", "single", workload, cluster=here, model=noisy)
assert "draws random numbers in gaussian_noise" in refused(made.__enter__)
held = dp.CustomModel(keras=lambda: keras.Sequential([
    keras.Input((32, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(10, kernel_regularizer="l2")
]))
for mode in ("single", "keras-fit"):
    only_adam = dp.Workload(image_size=32, dataset="synthetic-mini", global_batch_size=16, steps=2, warmup_steps=0)
    made = dp.backend("torch", mode, only_adam, cluster=here, model=held)
    assert "has a regularizer or a constraint" in refused(made.__enter__)
"""


@pytest.mark.torch
@KERAS
@pytest.mark.slow
def test_a_program_of_its_own_trains_a_model_of_keras(elsewhere):
    environment = os.environ | {"KERAS_BACKEND": "torch"}  # it imports Keras before dpcompare could choose
    done = subprocess.run([sys.executable, "-c", IN_PROCESS], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
