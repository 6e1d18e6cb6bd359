"""Custom models and datasets: the worked example of the docs, pairs that are not the same model, and refusals."""

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from dpcompare.backends.custom_model import described_layers, tensor_shapes
from dpcompare.data.custom import custom_dataset
from dpcompare.data.prepare import prepare, source_of
from dpcompare.errors import RequestError
from dpcompare.experiments.checks import _relative
from dpcompare.experiments.collection import collect
from dpcompare.launch.inputs import _store_by_content
from dpcompare.models.custom import CustomModel, custom_model, refuse_made
from dpcompare.models.initial_weights import custom_weights
from dpcompare.results.result import RunResult
from dpcompare.system.python_environment import is_custom
from tests.support.command import invoke
from tests.support.custom import said_of
from tests.support.marks import KERAS
from tests.support.studies import counted_runs

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SQUARES = ["--dataset", "small_resnet:squares", "--image-size", "32", "--global-batch-size", "16"]
BOTH = ["--arm", "torch:single", "--arm", "tensorflow:single"]
SHORT = ["--steps", "4", "--warmup-steps", "1", "--device", "cpu"]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A current directory of a user's, with the example in it."""
    (tmp_path / "small_resnet.py").write_text((EXAMPLES / "small_resnet.py").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("small_resnet", "mine"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    # The commands that the tests start: where they run, and where this repository is.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(EXAMPLES.parent.parent), os.environ.get("PYTHONPATH", "")]))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "own"),
    [("a.b:c", True), ("net:model", True), ("toy-cnn", False), ("C:/photos", False), ("a:b:c", False), (":x", False)],
)
def test_what_counts_as_a_name_of_ones_own(name, own):
    assert is_custom(name) is own


def test_weights_do_not_depend_on_the_order_of_the_tensors():
    shapes = {"conv.weight": (8, 3, 3, 3), "norm.weight": (8,), "norm.running_mean": (8,), "fc.weight": (5, 8)}
    one, other = custom_weights(shapes, seed=3), custom_weights(dict(reversed(shapes.items())), seed=3)
    assert all(np.array_equal(one[name], other[name]) for name in shapes)
    assert (one["norm.weight"] == 1).all()
    assert (one["norm.running_mean"] == 0).all()
    assert np.abs(one["fc.weight"]).max() <= 8**-0.5
    assert not np.array_equal(one["conv.weight"], custom_weights(shapes, seed=4)["conv.weight"])


def test_the_dataset_of_the_example(elsewhere):
    store = prepare("small_resnet:squares", elsewhere / "store", 32)
    assert {name: split.count for name, split in store.manifest.splits.items()} == {"train": 256, "validation": 64}
    assert store.manifest.classes == ("upper left", "upper right", "lower left", "lower right")
    expected = custom_dataset("small_resnet:squares").splits["train"][0]
    assert np.array_equal(store.split("train").images[7], expected[7][0])
    assert store.split("train").labels[7] == expected[7][1]


MINE = """
import numpy as np
class Data:
    class_names = ("a", "b")
    def __init__(self, item): self.item = item
    def __len__(self): return 10
    def __getitem__(self, index): return self.item
black = np.zeros((4, 4, 3), np.uint8)
good = Data((black, 1))
label = Data((black, 2))
nothing = Data(None)
numbers = [1, 2]
parts = {"train": good, "test": good}
class Other(Data): class_names = ("b", "a")
named = {"train": good, "validation": Other((black, 1))}
def failing(): raise OSError("no disk")
class Unnamed(Data): class_names = None
unnamed = Unnamed((black, 1))
"""


def test_a_fifth_of_a_single_dataset_is_held_out(elsewhere):
    (elsewhere / "mine.py").write_text(MINE)
    splits = custom_dataset("mine:good").splits
    assert sorted(splits["train"][1] + splits["validation"][1]) == list(range(10))
    assert len(splits["validation"][1]) == 2


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mine:gone", "'mine:gone' cannot be imported"),
        ("no_such_module:x", "cannot be imported"),
        ("mine:label", "class index 2 of 2 classes"),
        ("mine:nothing", "item 0 of 'mine:nothing' .train. cannot be taken"),
        ("mine:numbers", "of type list, which lacks class_names"),
        ("mine:parts", "expected train and validation"),
        ("mine:failing", "no disk"),
        ("mine:named", "other class_names in its splits"),
        ("mine:Data", r"failed \(TypeError"),
        ("mine:unnamed", r"'mine:unnamed' cannot be taken \(TypeError"),
        ("leaving:x", r"cannot be imported \(SystemExit"),
    ],
)
def test_a_dataset_that_is_none_is_named(elsewhere, name, says):
    (elsewhere / "mine.py").write_text(MINE)
    (elsewhere / "leaving.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(RequestError, match=says):
        prepare(name, elsewhere / "store", 8)


def test_a_damaged_cache_of_ones_own_data_is_made_again(elsewhere):
    (elsewhere / "mine.py").write_text(MINE)
    prepared = _store_by_content.__wrapped__  # by another command each time
    store = prepared(source_of("mine:good"), 8, 0, None)
    np.save(store.path / "train-labels.npy", np.zeros(8, np.int32))
    assert prepared(source_of("mine:good"), 8, 0, None).path == store.path
    assert prepared(source_of("mine:good"), 8, 0, None).split("train").labels.tolist() == [1] * 8


NO_MODELS = """
from dpcompare import CustomModel
class Built:
    parameters = ()
    def __call__(self): pass
number, built = 3, Built()
net = CustomModel(jax=print)
def late():
    return net
def failing():
    raise OSError("no disk")
"""


def test_what_is_no_model_is_named(elsewhere):
    (elsewhere / "mine.py").write_text(NO_MODELS)
    (elsewhere / "empty.py").write_text("from dpcompare import CustomModel\nmodel = CustomModel()\n")
    for name, says in (
        ("mine:number", "'mine:number' is of type int; expected a class or a function that makes a model"),
        ("mine:built", "'mine:built' is of type Built; expected a class or a function that makes a model"),
        ("empty:model", r"^model: received CustomModel\(\) without a factory; expected one at least: torch=\.\.\."),
    ):
        with pytest.raises(RequestError, match=says):
            custom_model(name)
    assert custom_model("mine:late") is custom_model("mine:net")
    with pytest.raises(RequestError, match="without a factory for torch"):
        CustomModel(jax=print).build("torch", 32, 10)
    with pytest.raises(RequestError, match=r"received 3 as CustomModel\(torch=\.\.\.\); expected a class or a fun"):
        CustomModel(torch=3)


PLAIN = """
class Both:
    def __init__(self, image_size, num_classes): self.made = image_size, num_classes
class Swapped:
    def __init__(self, num_classes, image_size=7, dropout=0.5): self.made = image_size, num_classes, dropout
class Classes:
    def __init__(self, num_classes=10): self.made = num_classes
class Bare:
    made = ()
class Channels:
    def __init__(self, channels): pass
class Wide:
    def __init__(self, width, num_classes): pass
def dropping(image_size, dropout): pass
def hidden(hidden_size, classes): pass
def other_names(size, classes): return Both(size, classes)
def any_number(*arguments): return Both(*arguments)
def none(): return Bare()
"""


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("Both", (32, 4)),
        ("Swapped", (32, 4, 0.5)),
        ("Classes", 4),
        ("Bare", ()),
        ("other_names", (32, 4)),
        ("any_number", (32, 4)),
        ("none", ()),
    ],
)
def test_a_plain_class_or_function_is_called_with_what_it_takes(elsewhere, name, made):
    (elsewhere / "mine.py").write_text(PLAIN)
    for framework in ("torch", "tensorflow", "jax"):
        assert custom_model(f"mine:{name}").build(framework, 32, 4).made == made


def test_a_class_with_other_arguments_is_refused(elsewhere):
    (elsewhere / "mine.py").write_text(PLAIN)
    with pytest.raises(RequestError, match="'Channels' takes the arguments channels; expected a class or a function"):
        custom_model("mine:Channels").build("torch", 32, 4)
    for name, arguments in (
        ("Wide", "width, num_classes"),
        ("dropping", "image_size, dropout"),
        ("hidden", "hidden_size, classes"),
    ):
        with pytest.raises(RequestError, match=f"'{name}' takes the arguments {arguments}; expected a class or a func"):
            custom_model(f"mine:{name}").build("torch", 32, 4)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (3, "model: the torch factory of 'mine:net' gave 3, of type int; expected a torch.nn.Module"),
        (None, "gave None, of type NoneType; expected a torch.nn.Module"),
        ([], "gave a list; expected a torch.nn.Module"),
        (type("Net", (), {"__module__": "keras.models"})(), "gave a Net; expected a torch.nn.Module, or a run of tens"),
    ],
)
def test_what_a_factory_made_is_named(made, says):
    assert says in str(refuse_made("mine:net", "torch", made, "a torch.nn.Module"))


REFUSED = """
from dpcompare import CustomModel
def torch_model(image_size, num_classes):
    from torch import nn
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * image_size * image_size, num_classes + 1))
net = CustomModel(torch=torch_model)
wrong = CustomModel(torch=lambda image_size, num_classes: "a model")
def scaled(image_size, num_classes):
    import torch
    module = torch_model(image_size, num_classes - 1)
    module.register_parameter("scale", torch.nn.Parameter(torch.ones(3)))
    return module
strange = CustomModel(torch=scaled)
def untracked_norm(image_size, num_classes):
    from torch import nn
    norm = nn.BatchNorm2d(3, track_running_stats=False)
    return nn.Sequential(norm, torch_model(image_size, num_classes - 1))
untracked = CustomModel(torch=untracked_norm)
def probable(image_size, num_classes):
    from torch import nn
    return nn.Sequential(torch_model(image_size, num_classes - 1), nn.Softmax(1))
def tied(image_size, num_classes):
    from torch import nn
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), first, second, nn.Linear(3, num_classes))
def failing():
    raise OSError("no disk")
def wide(num_classes, width):
    return torch_model(32, num_classes)
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("mine:net", r"'mine:net' gives (2, 5) for 2 images in torch; expected logits (2, 4)"),
        ("mine:wrong", "the torch factory of 'mine:wrong' gave 'a model', of type str; expected a torch.nn.Module"),
        ("mine:untracked", "'mine:untracked' made its BatchNorm '0' with track_running_stats=False or momentum"),
        ("mine:gone", "'mine:gone' cannot be imported"),
        ("mine:probable", "'mine:probable' gives probabilities in torch"),
        ("mine:tied", "one tensor under two names, 2.weight and 3.weight"),
        ("mine:failing", "'mine:failing' failed in torch (OSError: no disk)"),
        ("mine:wide", "'wide' takes the arguments num_classes, width; expected"),
        ("mine:strange", "no rule of initial values: scale (3,); expected names that end in .weight, .bias,"),
    ],
)
def test_a_model_that_gives_something_else_is_refused_at_once(elsewhere, model, says):
    (elsewhere / "mine.py").write_text(REFUSED)
    refused = invoke(
        "run", "--framework", "torch", "--mode", "single", "--model", model, *SQUARES, *SHORT, "--run-dir", "run"
    )
    assert refused.code == 2, refused.stderr
    assert says in refused.stderr
    assert not (elsewhere / "run").exists()


NOT_AS_WRITTEN = """
import torch
from torch import nn

def of(*layers):
    return lambda num_classes: nn.Sequential(nn.Flatten(), *layers, nn.Linear(48, num_classes))

class Rectified(nn.BatchNorm1d):
    def forward(self, features):
        return super().forward(features).relu()

class Blurred(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.ones(3, 1, 3, 3))

    def forward(self, features):
        return features

class Apart(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.head, self.norm = of()(num_classes), nn.BatchNorm1d(num_classes)

    def forward(self, images):
        logits = self.head(images)
        return self.norm(logits) if self.training else logits

class Parametric(nn.PReLU):
    pass

parametric = of(Parametric())
backwards = lambda num_classes: nn.Sequential(nn.ConvTranspose2d(3, 3, 1), of()(num_classes))
frozen = of(nn.Linear(48, 48).requires_grad_(False))
blurred = of(Blurred())
rectified = of(Rectified(48))
untracked = of(nn.BatchNorm1d(48, track_running_stats=False))
class Held(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.head = of(nn.BatchNorm1d(48, affine=False), nn.LayerNorm(48))(num_classes)
        self.register_buffer("place", torch.ones(1), persistent=False)

    def forward(self, images):
        return self.head(images)
"""
NOT_AS_WRITTEN_SAYS = {
    "parametric": "has the layer '1', PReLU of torch, for whose tensors there is no rule of initial values; ",
    "backwards": "has the layer '0', ConvTranspose2d of torch, for whose tensors there is no rule of initial values; ",
    "frozen": "has the parameter 1.weight with requires_grad=False; expected parameters that are trained",
    "blurred": "has the buffer 1.weight, which would be drawn or averaged by rules that are not its own; expected no",
    "rectified": "'momentum': 0.9, 'own forward': True}",  # it is taken, but not with --batchnorm sync
    "untracked": "made its BatchNorm '1' with track_running_stats=False or momentum=None; expected running statistics",
    "Apart": "BatchNorm 'norm' of 'nets:Apart' is not called in evaluation; expected a model that calls it there too",
    "Held": "name='head.2', tensors={'weight': (48,), 'bias': (48,)}, settings={'epsilon': 1e-05}",  # it is taken
}


@pytest.mark.torch
@pytest.mark.slow
def test_modules_of_torch_that_would_train_as_others_are_refused(elsewhere):
    (elsewhere / "nets.py").write_text(NOT_AS_WRITTEN)
    said = said_of("torch", NOT_AS_WRITTEN_SAYS)
    assert {name: words for name, words in NOT_AS_WRITTEN_SAYS.items() if words not in said[name]} == {}, said


STRANGE = """
import os, subprocess, sys, threading, time
import torch
from dpcompare.models.custom import CustomModel

LAYERS = [("norm", 3), ("fc", 5)]

def network(size, num_classes):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(size * size * 3, num_classes))

class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")

class Base(BaseException):
    pass

def thread():
    threading.Thread(target=time.sleep, args=(10**6,)).start()

def child():
    if os.fork() == 0:
        time.sleep(10**6)

def daemon():
    subprocess.Popen(["sleep", "90"], start_new_session=True)

def exits():
    sys.exit(3)

def leaves():
    os._exit(0)

def closes():
    os.closerange(0, 3)

def mute():
    raise Mute

def base():
    raise Base("no exception")

def waits():
    time.sleep(10**6)

def of(name):
    def build(size, num_classes):
        globals()[name]()
        return network(size, num_classes)
    return CustomModel(torch=build)

for name in ("thread", "child", "daemon", "exits", "leaves", "closes", "mute", "base", "waits"):
    globals()[f"model_{name}"] = of(name)
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("exits", "failed in torch (SystemExit: 3)"),
        ("leaves", "ended with exit status 0 before the model was there; it printed nothing"),
        ("thread", None),
        *(
            pytest.param(kind, says, marks=pytest.mark.slow)
            for kind, says in (
                ("mute", "failed in torch (Mute, whose text cannot be had (ValueError))"),
                ("base", "failed in torch (Base: no exception)"),
                (
                    "waits",
                    "was not built in torch within 6 s; expected a model that is, or more time with --start-timeout",
                ),
                ("child", None),
                ("daemon", None),
                ("closes", None),
            )
        ),
    ],
)
def test_whatever_a_model_does_it_is_described_or_refused(elsewhere, kind, says):
    (elsewhere / "strange.py").write_text(STRANGE)
    limit = 6.0 if kind == "waits" else 600.0
    if says is None:
        shapes = tensor_shapes(f"strange:model_{kind}", "torch", sys.executable, 8, 4, limit)
        assert shapes == {"1.weight": (4, 192), "1.bias": (4,)}
    else:
        with pytest.raises(RequestError) as refused:
            tensor_shapes(f"strange:model_{kind}", "torch", sys.executable, 8, 4, limit)
        assert says in str(refused.value)


ENDS = """
import os, sys
import torch
from dpcompare.models.custom import CustomModel

class Ending(torch.nn.Module):
    def __init__(self, size, num_classes, end):
        super().__init__()
        self.fc, self.end, self.steps = torch.nn.Linear(size * size * 3, num_classes), end, 0

    def forward(self, images):
        self.steps += self.training
        if self.steps == 5 and os.environ.get("TEST_ENDS") and sys.argv[0].endswith("worker.py"):
            self.end()
        return self.fc(images.flatten(1))

exits = CustomModel(torch=lambda size, num_classes: Ending(size, num_classes, lambda: sys.exit(0)))
leaves = CustomModel(torch=lambda size, num_classes: Ending(size, num_classes, lambda: os._exit(0)))
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "mode", "says"), [
    ("exits", "single", "SystemExit: 0"),
    ("leaves", "single", "its exit status was 0, so its own code ended it"),
    ("leaves", "ddp", "its exit status was 0, so its own code ended it"),
])  # fmt: skip
def test_a_model_that_ends_its_process_fails_with_its_step(elsewhere, monkeypatch, kind, mode, says):
    (elsewhere / "ends.py").write_text(ENDS)
    monkeypatch.setenv("TEST_ENDS", "1")
    options = ["--image-size", "8", "--global-batch-size", "8", "--steps", "8", "--device", "cpu"]
    done = invoke("run", f"torch:{mode}", "--model", f"ends:{kind}", *options)
    assert done.code == 1
    assert says in done.stderr
    assert re.search(r"last steps: process 0: [0-4]\b", done.stderr)


def test_other_tensors_differ_without_end():
    one = {"a.weight": np.ones(3)}
    assert _relative(one, {"a.weight": np.ones(3)}) == 0
    for other in ({"b.weight": np.ones(3)}, {"a.weight": np.ones(4)}, {}):
        assert _relative(one, other) == float("inf")


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_the_example_trains_the_same_in_both_frameworks(elsewhere):
    losses = []
    for framework, mode in (("torch", "single"), ("tensorflow", "single")):
        done = invoke("run", "--framework", framework, "--mode", mode, "--model", "small_resnet:model", *SQUARES,
                         *SHORT, "--precision", "float64", "--json", "--run-dir", framework)  # fmt: skip
        assert done.code == 0, done.stderr
        losses.append(done.json["train_loss"])
    assert np.abs(np.subtract(*losses)).max() < 1e-10
    with (elsewhere / "small_resnet.py").open("a") as module:
        module.write("# changed\n")
    again = invoke("run", "--framework", "torch", "--mode", "single", "--model", "small_resnet:model", *SQUARES,
                      *SHORT, "--precision", "float64", "--run-dir", "again")  # fmt: skip
    assert again.code == 0, again.stderr
    assert "- source of the model: " in invoke("report", "torch", "again", "--full").stdout
    assert "- source of the model: " not in invoke("report", "torch", "tensorflow", "--full").stdout


IN_JAX = """
import numpy as np
from dpcompare import CustomModel
def jax_model(image_size, num_classes, gives=None):
    def init():
        return {"fc.weight": np.zeros((num_classes, 3)), "fc.bias": np.zeros(num_classes),
                "norm.weight": np.ones(3), "norm.bias": np.zeros(3),
                "norm.running_mean": np.zeros(3), "norm.running_var": np.ones(3)}
    def apply(tensors, images, *, training, axis_name):
        return images.mean((1, 2)) @ tensors["fc.weight"].T + tensors["fc.bias"], {}
    return init, apply
forgetful = CustomModel(jax=jax_model)
wider = CustomModel(jax=lambda image_size, num_classes: jax_model(image_size, num_classes + 1))
none = CustomModel(jax=lambda image_size, num_classes: 3)
of_torch = CustomModel(torch=print)
"""


@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("mine:forgetful", "gives no new norm.running_mean, norm.running_var in training in jax; expected apply to"),
        ("mine:wider", "gives (2, 5) for 2 images in jax; expected logits (2, 4)"),
        ("mine:none", "the jax factory of 'mine:none' gave 3, of type int; expected a module of flax.nnx"),
        ("mine:of_torch", "received one without a factory for jax; give CustomModel(jax=...)"),
    ],
)
def test_a_model_that_is_none_in_jax_is_refused(elsewhere, model, says):
    (elsewhere / "mine.py").write_text(IN_JAX)
    with pytest.raises(RequestError) as refused:
        tensor_shapes(model, "jax", sys.executable, 8, 4)
    assert says in str(refused.value)


@pytest.mark.torch
@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.usefixtures("warm", "first_group")
def test_the_example_is_the_same_in_jax_unless_a_layer_differs(elsewhere):
    arguments = ["--frameworks", "torch,jax", "--precision", "float64", "--image-size", "32", "--quick", "--json"]
    modes = ["--modes", "ddp,spmd", "--replicas", "2"]
    proved = invoke("verify", "--model", "small_resnet:model", *modes, *arguments)
    assert proved.code == 0, proved.stderr
    whole = (elsewhere / "small_resnet.py").read_text()
    padding = "[(padding, padding)] * 2"
    assert padding in whole
    shifted = 'name == "block1_conv2"'
    (elsewhere / "mine.py").write_text(whole.replace(padding, f"[(2, 0) if {shifted} else (padding, padding)] * 2"))
    refuted = invoke("verify", "--model", "mine:model", "--modes", "single", "--replicas", "1", *arguments)
    assert refuted.code == 3
    assert "the first layer that differs is block1_conv2" in refuted.stderr


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.usefixtures("warm", "first_group")
def test_a_run_in_bfloat16_is_verified(elsewhere):
    """NumPy has no such type for the features of its layers."""
    small = [
        "--dataset",
        "synthetic-mini",
        "--image-size",
        "32",
        "--steps",
        "4",
        "--warmup-steps",
        "1",
        "--device",
        "cpu",
    ]
    asked = ["--model", "small_resnet:model", "--precision", "bfloat16", *small, "--no-late-step", "--run-dir", "run"]
    done = invoke("run", "torch:single", *asked)
    assert done.code == 0, done.stderr
    proved = invoke("verify", "--like", "run")
    assert proved.code == 0, proved.stdout + proved.stderr


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("warm", "first_group")
def test_a_pair_with_another_padding_is_refuted_by_layer(elsewhere):
    whole = (elsewhere / "small_resnet.py").read_text()
    padded = "        padded = layers.ZeroPadding2D(1)(x)\n"
    assert padded in whole
    other = '        padded = layers.ZeroPadding2D(((2, 0), (2, 0)) if name == "block1_conv1" else 1)(x)\n'
    (elsewhere / "mine.py").write_text(whole.replace(padded, other))
    arguments = ["--modes", "single", "--replicas", "1", "--precision", "float64", "--image-size", "32", "--json"]
    refuted = invoke("verify", "--model", "mine:model", *arguments)
    assert refuted.code == 3
    assert "the first layer that differs is block1_conv1" in refuted.stderr
    assert invoke("verify", "--model", "small_resnet:model", *arguments).code == 0


UNNAMED = """
from dpcompare import CustomModel
def torch_model(image_size, num_classes):
    from torch import nn
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(4 * 8 * 8, num_classes))
def as_usual(image_size, num_classes):
    from keras import Sequential, layers
    return Sequential([
        layers.Conv2D(4, 3, strides=2, padding="same"), layers.BatchNormalization(), layers.ReLU(),
        layers.MaxPooling2D(2), layers.Flatten(), layers.Dense(num_classes)])
def as_told(image_size, num_classes):
    from keras import Sequential, layers
    return Sequential([
        layers.ZeroPadding2D(1), layers.Conv2D(4, 3, strides=2, padding="valid"),
        layers.BatchNormalization(epsilon=1e-05, momentum=0.9), layers.ReLU(),
        layers.MaxPooling2D(2), layers.Permute((3, 1, 2)), layers.Flatten(), layers.Dense(num_classes)])
usual = CustomModel(torch=torch_model, tensorflow=as_usual)
told = CustomModel(torch=torch_model, tensorflow=as_told)
"""


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.usefixtures("warm")
def test_what_differs_is_told_before_the_first_run(elsewhere):
    """As users write them: layers with other names, other padding, another BatchNorm, and flattened otherwise."""
    (elsewhere / "mine.py").write_text(UNNAMED)
    refused = invoke("compare", *BOTH, "--model", "mine:usual", *SQUARES, *SHORT, "--out", "study")
    assert refused.code == 2, refused.stderr
    assert "0 / conv2d: padding 1 in torch, ((0, 1), (0, 1)) in tensorflow; in Keras write" in refused.stderr
    assert "1 / batch_normalization: epsilon 1e-05 in torch, 0.001 in tensorflow" in refused.stderr
    assert "1 / batch_normalization: momentum (part kept) 0.9 in torch, 0.99" in refused.stderr
    assert "4 / flatten: flattens channels, rows, columns in torch, rows, columns, channels in" in refused.stderr
    assert not (elsewhere / "study").exists()


OF_TORCH = """
from torch import nn
class Net(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.head, self.conv = nn.Linear(4, num_classes), nn.Conv2d(3, 4, 3)
    def forward(self, images):
        return self.head(self.conv(images).mean((2, 3)))
"""
OF_KERAS = """
from keras import Sequential, layers
def net(num_classes):
    return Sequential([layers.Conv2D(4, 3), layers.GlobalAveragePooling2D(), layers.Dense(num_classes)])
"""


@pytest.mark.torch
@pytest.mark.slow
def test_a_class_of_torch_is_taken_as_it_is(elsewhere):
    """Its layers are in the order in which they compute, not in that of its attributes."""
    (elsewhere / "mine.py").write_text(OF_TORCH)
    conv, head = described_layers("mine:Net", "torch", sys.executable, 32, 4)
    assert (conv.name, head.name) == ("conv", "head")
    assert head.tensors == {"weight": (4, 4), "bias": (4,)}
    assert conv.settings["padding"] == ((0, 0), (0, 0))


@pytest.mark.tensorflow
@pytest.mark.slow
def test_a_function_of_keras_is_taken_as_it_is(elsewhere):
    """A Sequential without an input is built, and each layer has its tensors in torch's layouts."""
    (elsewhere / "mine.py").write_text(OF_KERAS)
    conv, head = described_layers("mine:net", "tensorflow", sys.executable, 32, 4)
    assert conv.tensors == {"weight": (4, 3, 3, 3), "bias": (4,)}
    assert head.tensors == {"weight": (4, 4), "bias": (4,)}
    assert conv.settings["sides"] == (32, 32)


@pytest.mark.torch
@KERAS
@pytest.mark.slow
def test_keras_fit_trains_models_of_keras_alone(elsewhere):
    """The other modes take it, so a study would begin, and only that arm would fail."""
    (elsewhere / "mine.py").write_text(OF_TORCH)
    arms = ("torch:single", "torch:keras-fit", "--model", "mine:Net")
    refused = invoke("compare", *arms, *SQUARES, *SHORT, "--out", "study")
    assert refused.code == 2
    assert "is not a Keras model in torch; torch keras-fit trains only Keras models" in refused.stderr
    assert not (elsewhere / "study").exists()


@pytest.mark.torch
@pytest.mark.jax
@pytest.mark.slow
def test_a_class_of_torch_is_none_of_another_framework(elsewhere):
    (elsewhere / "mine.py").write_text(OF_TORCH)
    with pytest.raises(RequestError, match=r"the jax factory of 'mine:Net' gave a Net; expected a module of flax\.nnx"):
        tensor_shapes("mine:Net", "jax", sys.executable, 32, 4)


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_layers_with_other_names_start_from_the_same_weights(elsewhere):
    (elsewhere / "mine.py").write_text(UNNAMED)
    options = ["--precision", "float64", "--repeats", "1", "--late-step", "--out", "study"]
    done = invoke("compare", *BOTH, "--model", "mine:told", *SQUARES, *SHORT, *options, "--json")
    assert done.code == 0, done.stderr
    names = {"conv2d": "0", "batch_normalization": "1", "dense": "5"}
    assert "matched by order and shape: conv2d = 0, batch_normalization = 1, dense = 5" in done.stderr
    runs = [RunResult.load(run) for run in counted_runs(elsewhere / "study")]
    assert [run.config["inputs"]["layers"] for run in runs] == [{"tensorflow": names}] * 2
    assert len({run.weights_sha256 for run in runs}) == 1
    assert np.abs(np.subtract(*(run.train_loss for run in runs))).max() < 1e-10
    assert [run.late_step.problem or run.late_step.left_out for run in runs] == [None, None]
    assert done.json["verdict"] == "COMPARABLE"
    assert done.json["layers"] == [line for line in done.stderr.splitlines() if "matched by order" in line]
    assert done.json["layers"][0] in invoke("report", "study", "--full").stdout


DROPPING = """
import jax
import numpy as np
import torch
from jax import numpy as jnp
from dpcompare import CustomModel
class Net(torch.nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.conv, self.drop, self.channels = torch.nn.Conv2d(3, 4, 3), torch.nn.Dropout(0.2), torch.nn.Dropout2d(0.25)
        self.head, self.last = torch.nn.Linear(4, num_classes), torch.nn.Dropout(0.5)
        self.same, self.in_a_list = self.drop, [self.last]
    def forward(self, images):
        features = self.same(torch.relu(self.conv(images)))
        if self.training:
            features = self.channels(features)
        return self.head(self.in_a_list[0](features.mean((2, 3))))
def in_keras(num_classes):
    import keras
    from keras import layers
    model = keras.Sequential([keras.Input((8, 8, 3))])
    for layer in (
        layers.Conv2D(4, 3, activation="relu"), layers.Dropout(0.2), layers.SpatialDropout2D(0.25),
        layers.GlobalAveragePooling2D(), layers.Dropout(0.5), layers.Dense(num_classes),
    ):
        model.add(layer)
    return model
def in_jax(num_classes):
    def init():
        return {"conv.weight": np.zeros((4, 3, 3, 3)), "conv.bias": np.zeros(4),
                "head.weight": np.zeros((num_classes, 4)), "head.bias": np.zeros(num_classes)}
    def apply(tensors, images, *, training, axis_name, drop):
        x = jax.lax.conv_general_dilated(
            images, tensors["conv.weight"], (1, 1), "VALID", dimension_numbers=("NHWC", "OIHW", "NHWC"))
        x = drop("drop", jnp.maximum(x + tensors["conv.bias"], 0), 0.2)
        x = drop("channels", x, 0.25, draws=4)
        return drop("last", x.mean((1, 2)), 0.5) @ tensors["head.weight"].T + tensors["head.bias"], {}
    return init, apply
model = CustomModel(torch=Net, tensorflow=in_keras, jax=in_jax)
class Functional(Net):
    def forward(self, images):
        return torch.nn.functional.dropout(super().forward(images), 0.5, self.training)
"""


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.usefixtures("warm", "first_group")
def test_dropout_of_a_custom_model_is_drawn_once_for_all(elsewhere):
    """One by one, by channels and on flat features, on one device and on two.

    In torch one module has two names, one is called in training only, one through a list; Keras has called its layers
    once for each `add`.
    """
    (elsewhere / "mine.py").write_text(DROPPING)
    data = ["--dataset", "synthetic-mini", "--image-size", "8", "--global-batch-size", "16", *SHORT]
    arms = [*BOTH, "--arm", "jax:single", "--arm", "torch:ddp", "--arm", "tensorflow:mirrored", "--devices", "2"]
    options = ["--precision", "float64", "--repeats", "1", "--late-step", "--out", "study", "--json"]
    done = invoke("compare", *arms, "--model", "mine:model", *data, *options, "--regularization", "shared")
    assert done.code == 0, done.stderr
    runs = [run for arm in collect([Path("study")]).arms for run in arm.completed]
    assert len(runs) == 5
    drops = [(drop["name"], drop["rate"], drop["features"]) for drop in runs[0].config["inputs"]["drops"]]
    assert drops == [("drop", 0.2, 4 * 6 * 6), ("channels", 0.25, 4), ("last", 0.5, 4)]
    losses = np.array([run.train_loss for run in runs])
    assert np.ptp(losses, axis=0).max() < 1e-12
    assert [run.late_step.problem or run.late_step.left_out for run in runs] == [None] * 5
    report = invoke("report", "study").stdout
    assert "On 1 device: all are comparable." in report
    assert "On 2 devices: all are comparable." in report
    fast = ["--replicas", "1", "--precision", "float64", "--image-size", "8", "--regularization", "shared"]
    assert invoke("verify", "--quick", "--model", "mine:model", "--modes", "single", *fast).code == 0
    assert invoke("verify", "--like", "study/runs/round-01/tensorflow-single-1x1").code == 0
    off = invoke("compare", *arms, "--model", "mine:model", *data, "--out", "off")
    assert off.code == 2
    assert (
        "drop in torch drops features (rate 0.2), which differ between frameworks; pass --regularization shared"
        in off.stderr
    )
    alone = invoke("run", "torch:single", "--model", "mine:Functional", *data, "--regularization", "shared")
    assert alone.code == 2
    assert "it draws random numbers in training, outside its layers of dropout; expected nn.Dropout" in alone.stderr
