"""Initial weights from files of both frameworks and from timm's hub, as one file for both."""

import json
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import h5py
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.models.architectures import MODELS
from dpcompare.models.initial_weights import initial_weights
from dpcompare.models.weights import Source, classifier_of, fit, load_source, prepare_weights, read_source
from tests.support.command import invoke, python

B0 = Workload(model="efficientnet-b0", image_size=32)
SMALL = Workload(model="toy-bn", image_size=32)


def prepared(workload, num_classes, cache):
    source = load_source(workload.weights, workload.model, workload.image_size, cache)
    return prepare_weights(workload.model, workload.image_size, workload.seed, num_classes, source, cache)


def published_file(path, model="efficientnet-b0", num_classes=1000, seed=7):
    """A file like timm's: other values than the drawn ones, 1,000 classes, and a count of steps."""
    weights = initial_weights(model, 32, num_classes, seed)
    rng = np.random.default_rng(seed)
    weights = {name: (value + 0.01 * rng.standard_normal(value.shape)).astype("f4") for name, value in weights.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights | {"bn1.num_batches_tracked": np.array(5, np.int64)}, path)
    return weights


def test_a_file_of_other_classes_gets_a_head_from_the_seed(tmp_path):
    theirs = published_file(tmp_path / "b0.safetensors")
    workload = B0.model_copy(update={"weights": str(tmp_path / "b0.safetensors"), "seed": 3})
    path = prepared(workload, 10, tmp_path / "cache")
    ours = load_file(path)
    assert classifier_of(path) == "drawn"
    drawn = initial_weights("efficientnet-b0", 32, 10, seed=3)
    assert ours.keys() == drawn.keys()
    for name, value in ours.items():
        expected = drawn if name.startswith("classifier.") else theirs
        assert np.array_equal(value, expected[name]), name


def test_a_head_of_as_many_classes_is_kept(tmp_path):
    theirs = published_file(tmp_path / "b0.safetensors", num_classes=10)
    workload = B0.model_copy(update={"weights": str(tmp_path / "b0.safetensors")})
    path = prepared(workload, 10, tmp_path / "cache")
    assert np.array_equal(load_file(path)["classifier.weight"], theirs["classifier.weight"])
    assert classifier_of(path) == "from file"


def test_a_file_without_a_head_gets_one(tmp_path):
    weights = initial_weights("toy-bn", 32, 10, 0)
    backbone = {name: value for name, value in weights.items() if not name.startswith("classifier.")}
    save_file(backbone, tmp_path / "backbone.safetensors")
    workload = SMALL.model_copy(update={"weights": str(tmp_path / "backbone.safetensors")})
    assert classifier_of(prepared(workload, 10, tmp_path / "cache")) == "drawn"


def test_a_file_that_changed_is_read_again(tmp_path):
    workload = SMALL.model_copy(update={"weights": str(tmp_path / "own.safetensors")})
    paths = []
    for seed in (1, 2):
        published_file(tmp_path / "own.safetensors", model="toy-bn", num_classes=10, seed=seed)
        paths.append(prepared(workload, 10, tmp_path / "cache"))
    first, second = map(load_file, paths)
    assert not np.array_equal(first["conv_stem.weight"], second["conv_stem.weight"])


MAKE_TIMM_FILE = """
import sys, timm, torch
from safetensors.torch import save_file
torch.manual_seed(1)
model = timm.create_model("tf_efficientnet_b0", num_classes=7).eval()
for norm in (module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)):
    torch.nn.init.uniform_(norm.running_mean, -0.2, 0.2)
    torch.nn.init.uniform_(norm.running_var, 0.5, 1.5)
save_file(model.state_dict(), sys.argv[1] + "/own.safetensors")
"""

# With the normalisation that Keras keeps inside the model.
MAKE_KERAS_FILES = """
import sys
import keras
keras.utils.set_random_seed(1)
model = keras.applications.EfficientNetB0(weights=None, classes=7, input_shape=(64, 64, 3))
for layer in model.layers:
    if isinstance(layer, keras.layers.BatchNormalization):
        layer.moving_mean.assign(keras.random.uniform(layer.moving_mean.shape, -0.2, 0.2))
        layer.moving_variance.assign(keras.random.uniform(layer.moving_variance.shape, 0.5, 1.5))
for name in ("own.weights.h5", "own.keras", "own.h5"):
    (model.save_weights if "weights" in name else model.save)(sys.argv[1] + "/" + name)
import numpy as np
from safetensors.numpy import save_file
save_file({f"{layer.name}/{variable.name}": np.ascontiguousarray(variable.numpy())
           for layer in model.layers for variable in layer.weights}, sys.argv[1] + "/expected.safetensors")
"""


@pytest.fixture(scope="module")
def keras_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keras")
    python("-c", MAKE_KERAS_FILES, str(folder))
    return folder


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("name", ["own.weights.h5", "own.keras", "own.h5"])
def test_every_kind_of_keras_file_is_read_tensor_by_tensor(keras_files, name):
    source = read_source((keras_files / name).read_bytes(), name)
    expected = load_file(keras_files / "expected.safetensors")
    ours, _ = fit(source, initial_weights("efficientnet-b0", 64, 7, seed=0), "efficientnet-b0")
    assert np.array_equal(ours["conv_stem.weight"], expected["stem_conv/kernel"].transpose(3, 2, 0, 1))
    assert np.array_equal(ours["blocks.0.0.conv_dw.weight"], expected["block1a_dwconv/kernel"].transpose(2, 3, 0, 1))
    assert np.array_equal(ours["blocks.6.0.bn3.running_var"], expected["block7a_project_bn/moving_variance"])
    assert np.array_equal(ours["blocks.1.1.se.conv_reduce.bias"], expected["block2b_se_reduce/bias"])
    assert np.array_equal(ours["classifier.weight"], expected["predictions/kernel"].T)
    values = sum(value.size for name, value in expected.items() if not name.startswith("normalization"))
    assert sum(value.size for value in ours.values()) == values


def probed(weights, run_dir):
    """What torch computes with weights from a file: the arrays of a probe, evaluation logits among them."""
    from dpcompare import run
    from dpcompare.results import predictions as arrays

    workload = B0.model_copy(
        update={"weights": str(weights), "dataset": "synthetic-mini", "steps": 1, "warmup_steps": 0, "seed": 3}
        | {"precision": "float64", "global_batch_size": 4}
    )
    cluster = Cluster.partition(device="cpu")
    config = RunConfig(framework="torch", mode="single", workload=workload, cluster=cluster, task="probe")
    run(prepare_inputs(config), run_dir)
    return arrays.load(run_dir, [0])


TIMM_COMPUTES = """
import sys, numpy, timm, torch
from safetensors.torch import load_file
rows = numpy.load(sys.argv[1] + "/rows.npz")
model = timm.create_model("tf_efficientnet_b0", num_classes=7).double().eval()
model.load_state_dict(load_file(sys.argv[1] + "/own.safetensors"))
model.reset_classifier(0)
features = model(torch.from_numpy(rows["images"]).double().permute(0, 3, 1, 2)).detach().numpy()
numpy.save(sys.argv[1] + "/features.npy", features)
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_file_of_timm_computes_what_timm_computes(tmp_path):
    """In torch; the others compute the same from equal weights, as tests/contract/test_modes.py shows for B0."""
    python("-c", MAKE_TIMM_FILE, str(tmp_path))
    arrays = probed(tmp_path / "own.safetensors", tmp_path / "torch")
    logits = arrays["evaluation_logits"]
    assert logits.std() > 1e-3
    np.savez(tmp_path / "rows.npz", images=arrays["rows.images"])
    python("-c", TIMM_COMPUTES, str(tmp_path))
    head = initial_weights("efficientnet-b0", 32, logits.shape[1], seed=3)
    features = np.load(tmp_path / "features.npy")
    expected = features @ head["classifier.weight"].T.astype(np.float64) + head["classifier.bias"]
    np.testing.assert_allclose(logits, expected, rtol=1e-10)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub on this machine that has timm's file of B0, and a list of what it was asked for."""
    asked = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format, *arguments):
            asked.append(self.path)

    root = tmp_path / "hub"
    file = root / "timm" / MODELS["efficientnet-b0"].published / "resolve" / "main" / "model.safetensors"
    weights = published_file(file)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield weights, asked, file
    server.shutdown()
    server.server_close()
    thread.join()


def test_published_weights_are_fetched_once(hub, tmp_path):
    theirs, asked, _ = hub
    workload = B0.model_copy(update={"weights": "imagenet"})
    ours = load_file(prepared(workload, 10, tmp_path / "cache"))
    assert np.array_equal(ours["conv_head.weight"], theirs["conv_head.weight"])
    again = prepared(workload.model_copy(update={"seed": 1}), 10, tmp_path / "cache")
    assert not np.array_equal(load_file(again)["classifier.weight"], ours["classifier.weight"])
    assert len(asked) == 1


def test_a_download_that_broke_off_is_not_kept(hub, tmp_path):
    _, _, file = hub
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(RequestError, match="cannot be fetched"):
        prepared(B0.model_copy(update={"weights": "imagenet"}), 10, tmp_path / "cache")
    assert not list((tmp_path / "cache" / "published").iterdir())


@pytest.mark.parametrize("wrong", ["another model", "a page"])
def test_an_answer_that_is_something_else_is_not_kept(hub, tmp_path, wrong):
    _, _, file = hub
    if wrong == "a page":
        file.write_text("<html>sign in to the network</html>")
    else:
        published_file(file, model="toy-bn")
    with pytest.raises(RequestError, match="cannot be fetched"):
        prepared(B0.model_copy(update={"weights": "imagenet"}), 10, tmp_path / "cache")
    assert not list((tmp_path / "cache" / "published").iterdir())


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:port", "http://127.0.0.1 9", "nonsense"])
def test_an_endpoint_that_is_none_is_refused(endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(RequestError, match="cannot be fetched"):
        prepared(B0.model_copy(update={"weights": "imagenet"}), 10, tmp_path / "cache")


def test_without_network_the_error_says_what_to_download(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    workload = B0.model_copy(update={"weights": "imagenet"})
    with pytest.raises(RequestError) as refused:
        prepared(workload, 10, tmp_path)
    message = str(refused.value)
    assert "http://127.0.0.1:9/timm/tf_efficientnet_b0.aa_in1k/resolve/main/model.safetensors" in message
    place = Path(message.split("put it at ")[1].split(", or")[0])
    published_file(place)
    assert prepared(workload, 10, tmp_path).is_file()


def saved(change):
    """A writer of a file with the initial weights of toy-bn, changed."""
    return lambda path: save_file(change(initial_weights("toy-bn", 32, 10, 0)), path)


def without(name):
    return saved(lambda weights: {other: value for other, value in weights.items() if other != name})


def torch_pickle(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"")


def bfloat16(path):
    header = json.dumps({"a": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(2))


def damaged_hdf5(path):
    with h5py.File(path, "w") as file:
        for number in range(40):
            file[f"layers/conv2d_{number}/vars/0"] = np.ones((3, 3, 3, 8))
    path.write_bytes(path.read_bytes()[:2000] + bytes(100_000))


def two_models(path):
    with h5py.File(path, "w") as file:
        for number in range(2):
            file[f"layers/functional_{number}/layers/conv2d/vars/0"] = np.ones((1, 1, 3, 8))
            file[f"layers/functional_{number}/layers/conv2d/vars"].attrs["name"] = "stem_conv"


def elsewhere(kind):
    """An HDF5 file whose values are those of another file of this machine."""

    def write(path):
        other = path.with_name("private.h5")
        with h5py.File(other, "w") as private:
            private["secret"] = np.ones(4)
        with h5py.File(path, "w") as file:
            group = file.create_group("layers/conv2d/vars")
            group.attrs["name"] = "stem_conv"
            if kind == "raw":
                group.create_dataset("0", shape=(4,), dtype="u1", external=[(str(other), 0, 4)])
            elif kind == "virtual":
                layout = h5py.VirtualLayout(shape=(4,), dtype="f8")
                layout[:] = h5py.VirtualSource(str(other), "secret", shape=(4,))
                group.create_virtual_dataset("0", layout)
            else:
                group["0"] = h5py.ExternalLink(str(other), "/secret")

    return write


def huge(path):
    """Kilobytes that become 800 GB."""
    with h5py.File(path, "w") as file:
        file.create_dataset("layers/conv2d/vars/0", shape=(100_000, 1_000_000), dtype="f8", chunks=True, compression=9)


def zip_bomb(path):
    """Its directory says that a member of 100 bytes becomes 2^40."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model.weights.h5", bytes(100))
        archive.getinfo("model.weights.h5").file_size = 2**40


def damaged_zip(path):
    """The member's compressed bytes are none."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.weights.h5", bytes(100_000))
    content = bytearray(path.read_bytes())
    content[50:60] = b"\xff" * 10
    path.write_bytes(content)


BROKEN = {
    "a damaged zip": damaged_zip,
    "values in another file": elsewhere("raw"),
    "values of another file": elsewhere("virtual"),
    "a link to another file": elsewhere("link"),
    "values without end": huge,
    "a zip bomb": zip_bomb,
    "missing": lambda path: None,
    "a folder": lambda path: path.mkdir(),
    "no weights at all": lambda path: path.write_text("hello"),
    "a pickle of torch": torch_pickle,
    "another model": lambda path: published_file(path, model="mlp"),
    "a tensor too many": saved(lambda weights: weights | {"extra.weight": np.zeros(3, np.float32)}),
    "a tensor too few": without("bn2.running_var"),
    "bfloat16": bfloat16,
    "not a number": saved(lambda weights: weights | {"bn2.bias": weights["bn2.bias"] * np.nan}),
    "too large for float32": saved(lambda weights: weights | {"bn2.bias": np.full(8, 1e300)}),
    "half a head": without("classifier.bias"),
    "a transposed head": saved(
        lambda weights: weights | {"classifier.weight": np.ascontiguousarray(weights["classifier.weight"].T)}
    ),
    "damaged HDF5": damaged_hdf5,
    "two models": two_models,
}
"""Kind of file -> what writes it."""


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("values in another file", r"cannot be read \(the values of its layers/conv2d/vars/0 are in another file\)"),
        ("values of another file", r"cannot be read \(the values of its layers/conv2d/vars/0 are in another file\)"),
        ("a link to another file", r"cannot be read \(its layers/conv2d/vars/0 is a link to another file\)"),
        (
            "values without end",
            "its values are of 800,000,000,000 bytes when unpacked, expected at most 2,147,483,648",
        ),
        ("a damaged zip", "cannot be read .*Error -3 while decompressing data"),
        ("a zip bomb", "cannot be read .*1,099,511,627,776 bytes when unpacked"),
        ("missing", "cannot be read .*; expected random, zero-init, imagenet, or a safetensors"),
        ("a folder", "cannot be read .*; expected random, zero-init, imagenet, or a safetensors"),
        ("bfloat16", r"cannot be read \(a is of type BF16; save it in float32\)"),
        ("not a number", "does not fit toy-bn: bn2.bias has values that are not finite;"),
        ("too large for float32", "does not fit toy-bn: bn2.bias has values that are not finite;"),
        ("half a head", "does not fit toy-bn: classifier.bias is missing;"),
        ("a transposed head", r"does not fit toy-bn: classifier.weight has shape \(8, 10\), expected \(10, 8\);"),
        ("damaged HDF5", "cannot be read"),
        ("two models", "holds conv_stem.weight twice"),
        (
            "no weights at all",
            r"cannot be read .*expected a safetensors file or one of torch.save \(.pth\) with the names of timm",
        ),
        ("a pickle of torch", "cannot be read .*expected a safetensors file"),
        ("another model", "does not fit toy-bn: conv_stem.weight is missing.* and 14 more"),
        ("a tensor too many", "does not fit toy-bn: extra.weight is not one of its tensors;"),
        ("a tensor too few", "does not fit toy-bn: bn2.running_var is missing;"),
    ],
)
def test_a_file_that_is_not_the_models_is_refused(kind, message, tmp_path):
    path = tmp_path / "file"
    BROKEN[kind](path)
    with pytest.raises(RequestError, match=message):
        prepared(SMALL.model_copy(update={"weights": str(path)}), 10, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_imagenet_weights_of_a_model_that_has_none_are_refused(tmp_path):
    with pytest.raises(RequestError, match=r"none are published for toy-bn; expected .*efficientnet-b0"):
        Workload(model="toy-bn", image_size=32, weights="imagenet")
    with pytest.raises(RequestError, match="cannot be read"):
        load_source("~no-such-user/file", SMALL.model, SMALL.image_size, tmp_path)


def test_weights_are_refused_before_a_dataset_is_prepared(photos, monkeypatch, tmp_path):
    monkeypatch.setenv("DPCOMPARE_CACHE_DIR", str(tmp_path / "cache"))
    workload = SMALL.model_copy(update={"weights": "nowhere.h5", "dataset": str(photos)})
    cluster = Cluster.partition(device="cpu")
    with pytest.raises(RequestError, match=r"nowhere.h5.* cannot be read"):
        prepare_inputs(RunConfig(framework="torch", mode="single", workload=workload, cluster=cluster))
    assert not (tmp_path / "cache").exists()


@pytest.mark.torch
def test_the_command_refuses_before_anything_starts(tmp_path):
    refused = invoke("run", "--framework", "torch", "--mode", "single", "--weights", "nowhere.h5")
    assert refused.code == 2
    assert "received 'nowhere.h5', which cannot be read" in refused.stderr
    assert not (Path.cwd() / "runs").exists()


def test_every_model_of_a_paper_has_published_weights():
    published = {name for name, model in MODELS.items() if model.published}
    assert published == {name for name, model in MODELS.items() if model.native_image_size}


@pytest.mark.process
@pytest.mark.slow
def test_a_file_in_which_hdf5_hangs_is_refused(monkeypatch):
    """Found by fuzzing, with HDF5 1.14.6."""
    monkeypatch.setattr("dpcompare.models.keras_file.LONGEST_SECONDS", 3.0)
    content = (Path(__file__).parent / "endless.h5").read_bytes()
    with pytest.raises(RequestError, match=r"cannot be read \(HDF5 did not end within 3 s\)"):
        read_source(content, "endless.h5")


@pytest.mark.process
def test_a_keras_file_is_read_under_a_limit_of_address_space(tmp_path):
    with h5py.File(tmp_path / "file.h5", "w") as file:
        group = file.create_group("layers/fc1/vars")
        group.attrs["name"] = "fc1"
        group["0"] = np.ones((4, 3), "f4")
    script = "import resource, sys; from pathlib import Path; from dpcompare.models.weights import read_source\n"
    script += "resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))\n"
    script += "print(sorted(read_source(Path(sys.argv[1]).read_bytes(), 'file').tensors))"
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "file.h5")], capture_output=True, text=True)
    assert done.stdout == "['fc1.weight']\n", done.stderr


def test_residual_branches_can_begin_with_adding_nothing(tmp_path):
    drawn = {
        zero_init: load_file(prepare_weights("resnet18", 32, 0, 10, None, tmp_path, zero_init=zero_init))
        for zero_init in (False, True)
    }
    ends = {f"layer{stage}.{block}.bn2.weight" for stage in (1, 2, 3, 4) for block in (0, 1)}
    assert {name for name in drawn[True] if not np.array_equal(drawn[True][name], drawn[False][name])} == ends
    assert not any(drawn[True][name].any() for name in ends)
    assert set(MODELS["resnet50"].ends_of_branches) >= {"layer1.0.bn3.weight", "layer4.2.bn3.weight"}


def test_zero_init_is_refused_of_a_model_without_such_branches():
    with pytest.raises(ValueError, match="received zero-init with vgg16; expected random or a file, or one"):
        Workload(model="vgg16", weights="zero-init")


RESNET_OF_KERAS = ("conv1_conv", "conv2_block1_0_conv", "conv2_block1_1_bn")


@pytest.mark.parametrize("tensor", ["{layer}.weight", "{layer}.{layer}_W_1:0"], ids=["now", "of an old .h5"])
@pytest.mark.parametrize(
    ("layers", "model", "cause"),
    [
        (RESNET_OF_KERAS, "resnet50-narrow", "(its layers are named as in Keras's ResNet version 1, whose"),
        ((*RESNET_OF_KERAS, "conv2_block1_preact_bn"), "resnet50-narrow", None),
        (("block1_conv1", "fc1"), "vgg16-narrow", "(its layers are named as in Keras's VGG, which was trained on"),
    ],
    ids=["ResNet version 1", "ResNet version 2", "VGG"],
)
def test_models_of_keras_that_are_not_ours_are_named(layers, model, cause, tensor):
    tensors = {tensor.format(layer=layer): np.zeros(3) for layer in layers}
    source = Source(name="keras.h5", sha256="0", tensors=tensors)
    with pytest.raises(RequestError) as refused:
        fit(source, initial_weights(model, 32, 10, 0), model)
    assert cause is None or cause in str(refused.value)
    assert ("its layers are named" in str(refused.value)) == (cause is not None)


@pytest.mark.parametrize("shape", [(), (0, 512, 7, 7), (64,)], ids=["a number", "nothing", "a vector"])
def test_a_damaged_dense_layer_of_timm_is_refused_by_name(shape):
    drawn = initial_weights("vgg16-narrow", 64, 10, 0)
    theirs = {name: value for name, value in drawn.items() if not name.startswith("classifier.0")}
    theirs |= {"pre_logits.fc1.weight": np.zeros(shape), "pre_logits.fc1.bias": drawn["classifier.0.bias"]}
    with pytest.raises(RequestError, match=r"classifier\.0\.weight has shape"):
        fit(Source(name="timm", sha256="0", tensors=theirs), drawn, "vgg16-narrow")


def test_a_file_with_a_layer_under_both_names_is_refused():
    drawn = initial_weights("vgg16-narrow", 64, 10, 0)
    both = drawn | {"pre_logits.fc1.weight": drawn["classifier.0.weight"][:, :, None, None] + 1}
    with pytest.raises(RequestError, match=r"pre_logits\.fc1\.weight is not one of its tensors"):
        fit(Source(name="both", sha256="0", tensors=both), drawn, "vgg16-narrow")


def test_a_model_with_other_layers_has_a_file_of_its_own(tmp_path, monkeypatch):
    first = prepare_weights("resnet50-narrow", 32, 0, 10, None, tmp_path)
    other = replace(MODELS["resnet50-narrow"], shapes=MODELS["resnet18"].shapes)
    monkeypatch.setitem(MODELS, "resnet50-narrow", other)
    assert prepare_weights("resnet50-narrow", 32, 0, 10, None, tmp_path) != first


def test_vgg_of_timm_has_convolutions_for_dense_layers():
    drawn = initial_weights("vgg16-narrow", 64, 10, 0)
    theirs = dict(drawn)
    for name, kernel in (("pre_logits.fc1", 2), ("pre_logits.fc2", 1)):
        dense = {"pre_logits.fc1": "classifier.0", "pre_logits.fc2": "classifier.3"}[name]
        weight = theirs.pop(f"{dense}.weight")
        theirs |= {f"{name}.weight": weight.reshape(len(weight), -1, kernel, kernel)}
        theirs |= {f"{name}.bias": theirs.pop(f"{dense}.bias")}
    theirs |= {f"head.fc.{tensor}": theirs.pop(f"classifier.6.{tensor}") for tensor in ("weight", "bias")}
    fitted, classifier = fit(Source(name="timm", sha256="0", tensors=theirs), drawn, "vgg16-narrow")
    assert classifier == "from file"
    assert list(fitted) == list(drawn)
    assert all(np.array_equal(fitted[name], drawn[name]) for name in drawn)
