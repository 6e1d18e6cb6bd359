"""What torch is asked for on GPUs: their C functions keep a record, and tensors keep their values on the host."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.marks import with_cuda_build

pytestmark = [pytest.mark.torch, pytest.mark.slow, *with_cuda_build()]

REPOSITORY = Path(__file__).parents[2]

CALLS = """
import json
from types import SimpleNamespace

import numpy as np
import torch

from dpcompare import Cluster, RunConfig, Workload
from dpcompare.backends.torch.dp import DpBackend
from dpcompare.backends.torch.feed import DeviceFeed
from dpcompare.backends.torch.precision import Precision, _takes_tf32
from dpcompare.backends.torch.single import SingleDevice
from dpcompare.backends.torch.stages import StagedModel
from dpcompare.data.augmentation import UNCHANGED
from dpcompare.data.batches import DeviceBatch, HostBatch
from dpcompare.data.pixels import normalised
from dpcompare.models.architectures import MODELS
from tests.support import fake_gpus

fake_gpus.install(4)
GPU = torch.device("cuda", 3)


def config(mode="single", num_gpus=1, *, tune=None, **workload):
    workload = Workload(model="toy-bn", image_size=32, dataset="synthetic-mini", global_batch_size=16, **workload)
    cluster = Cluster.partition(1, num_gpus, gpus=[str(number) for number in range(num_gpus)])
    return RunConfig(framework="torch", mode=mode, workload=workload, cluster=cluster, tune=tune or {})


def backend(kind, made, device=GPU):
    bare = object.__new__(kind)  # without inputs: only what is called below
    bare.config, bare.workload = made, made.workload
    bare.parallel, bare.precision = kind.parallelism(made), Precision(made)
    bare.parallel.device = device
    bare.inputs = SimpleNamespace(num_classes=10)
    return bare


def host_batch(flips):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 5, 3), dtype=np.uint8)
    return HostBatch(
        pixels=pixels, tables=normalised(UNCHANGED.brightnesses), flips=flips, labels=np.arange(4, dtype=np.int32),
        weights=np.ones(4, np.float32), global_count=4, step=1, indices=np.arange(4),
    )


def placed(flips):
    one = backend(SingleDevice, config())
    one.device_feed = DeviceFeed(GPU, torch.float32, torch.contiguous_format)
    given = host_batch(flips)
    fake_gpus.calls.clear()
    (batch,) = one.prefetch_to_device([lambda: given])
    calls = list(fake_gpus.calls)
    looked_up = "images" in vars(given)
    fake_gpus.calls.clear()
    one.parallel.local_devices = lambda: [GPU]
    one.synchronize()
    return {
        "calls": calls, "looked up": looked_up, "bytes": given.pixels.nbytes, "device": str(batch.images.device),
        "same": np.array_equal(batch.images.permute(0, 2, 3, 1).cpu().numpy(), given.images),
        "waited for": list(fake_gpus.calls),
    }


def evaluated(kind, made, device):
    parts = []
    one = backend(kind, made, device)
    one._training = False
    linear = torch.nn.Linear(5, 10, dtype=torch.float64).to(device)

    def local(images, drop_masks=None):
        parts.append(len(images))
        return linear(images)

    one._local = local
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(16, 5, dtype=torch.float64, generator=generator).to(device)
    labels = torch.randint(0, 10, (16,), generator=generator).to(device)
    weights = (torch.arange(16) < 13).double().to(device)  # the last rows are padding
    batch = DeviceBatch(images=images, labels=labels, weights=weights, global_count=13)
    sums = one.evaluate_step(batch)
    logits = linear(images)
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none") * weights
    expected = torch.stack([losses.sum(), ((logits.argmax(1) == labels) * weights).sum(), weights.sum()])
    of_sums = list(parts)
    predicted = one.logits(batch, training=False)
    assert (predicted.argmax(1) == logits.argmax(1).cpu().numpy()).all()
    assert parts[len(of_sums):] == of_sums, parts
    return of_sums, float((sums - expected).abs().max()), bool(torch.equal(sums, expected)), str(sums.device)


from benchmarks.bare.torch_loop import compute_as


def switches(profile, configure):
    opposite = profile == "strict"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = opposite
    torch.backends.cudnn.benchmark = False
    configure()
    return torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def of_the_loop(profile):
    Precision(config(profile=profile)).configure()


def layout_of_features(layout):
    one = backend(SingleDevice, config(profile="native", tune={"memory_layout": layout}))
    one.initial_state = lambda: None
    one.setup()
    seen = []
    next(layer for layer in one.model.modules() if isinstance(layer, torch.nn.Conv2d)).register_forward_hook(
        lambda module, inputs, output: seen.append(output.is_contiguous(memory_format=torch.channels_last))
    )
    one._local(one.blank_images(4).contiguous(memory_format=one.features_layout))
    return seen


def staged(cuts):
    # Where the logits of a model come out whose stages are on two GPUs, and where its parameters are.
    one = backend(SingleDevice, config())
    layers = MODELS["toy-bn"].layers
    model = StagedModel(one.build_model(), layers, cuts, [torch.device("cuda", 0), torch.device("cuda", 1)]).eval()
    devices = {str(parameter.device) for parameter in model.parameters()}
    with torch.no_grad():
        return str(model(torch.zeros(2, 3, 32, 32, device="cuda:0")).device), sorted(devices)


def compiled(value):
    made = config(profile="native", tune={"compilation": value})
    computation = backend(SingleDevice, made)._compiled(torch.nn.Identity())
    asked = getattr(computation, "get_compiler_config", None)
    return asked and bool(asked().get("triton.cudagraphs"))


def after(switch, value):
    # What a run has that is strict, after a module has used torch's newer switches.
    switch(value)
    of_the_loop("strict")
    newer = [getattr(each, "fp32_precision", "none") for each in (torch.backends, torch.backends.cudnn)]
    found = _takes_tf32(), newer
    switch("tf32")
    return *found, _takes_tf32()


SWITCHES = {
    "all": lambda value: setattr(torch.backends, "fp32_precision", value),
    "cuDNN": lambda value: setattr(torch.backends.cudnn, "fp32_precision", value),
    "convolutions": lambda value: setattr(torch.backends.cudnn.conv, "fp32_precision", value),
    "matrix products": lambda value: setattr(torch.backends.cuda.matmul, "fp32_precision", value),
}


def left_out(value, skipped, breaks):
    made = backend(SingleDevice, config(profile="native", tune={"compilation": value}))
    if made._compile_mode:
        torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] = skipped
        torch._dynamo.utils.counters["graph_break"] = breaks
    return made._compilation_found()


on_cpu = config("dp", 4).model_copy(update={"cluster": Cluster.partition(1, 4, device="cpu")})
torch.manual_seed(0)
counted = backend(DpBackend, config("dp", 4), torch.device("cuda", 0))
fake_gpus.calls.clear()
counted.reset_peak_memory()
reset = [call[1] for call in fake_gpus.calls if call[0] == "reset_peak_memory"]
found = {
    "placed": placed(np.array([True, False, False, True])),
    "without flips": placed(None),
    "parts": {
        "dp": evaluated(DpBackend, config("dp", 4), torch.device("cuda", 0)),
        "micro-batches": evaluated(SingleDevice, config(accumulate=2), GPU),
        "single": evaluated(SingleDevice, config(), GPU),
        "CPU": evaluated(DpBackend, on_cpu, torch.device("cpu")),
    },
    "switches": {
        profile: [switches(profile, lambda: configure(profile)) for configure in (compute_as, of_the_loop)]
        for profile in ("strict", "native")
    },
    "layouts": {layout: layout_of_features(layout) for layout in ("NCHW", "NHWC")},
    "stages": [staged([cut]) for cut in range(1, len(MODELS["toy-bn"].layers))],
    "compiled": {value: compiled(value) for value in ("none", "torch.compile", "reduce-overhead")},
    "left out": [
        left_out("none", 1, {}), left_out("torch.compile", 0, {}), left_out("reduce-overhead", 2, {}),
        left_out("reduce-overhead", 2, {"a reason": 1, "another": 3}),
    ],
    "newer switches": {name: after(switch, "tf32") for name, switch in SWITCHES.items()},
    "reset": reset,
    "peaks": [counted.parallel.peak_memory_bytes(), sum(torch.cuda.max_memory_allocated(gpu) for gpu in range(4))],
}
fake_gpus.calls.clear()
cpu = backend(DpBackend, on_cpu, torch.device("cpu"))
cpu.reset_peak_memory()
found["CPU"] = [cpu.parallel.peak_memory_bytes(), fake_gpus.calls]
print(json.dumps(found, default=str))
"""


@pytest.fixture(scope="module")
def asked():
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


SIDE, COMPUTING = 1, 0


def streams(calls, kind):
    """The stream in which, or for which, each call of a kind was made."""
    return [call[1][0] for call in calls if call[0] == kind]


def test_a_copied_batch_is_waited_for_by_the_device_alone(asked):
    calls = asked["placed"]["calls"]
    assert calls[0] == ["set_device", 3]  # before anything touches a GPU in that thread
    assert streams(calls, "copy") == [SIDE] * 5  # pixels, their table, flips, labels, weights
    kinds = [call[0] for call in calls]
    last_copy = max(number for number, kind in enumerate(kinds) if kind == "copy")
    assert kinds.index("wait") > kinds.index("record_event") > last_copy
    assert (streams(calls, "record_event"), streams(calls, "wait")) == ([SIDE], [COMPUTING])
    assert streams(calls, "record_stream") == [COMPUTING] * 3  # images, labels, weights: what the step reads
    assert "synchronize" not in kinds
    assert asked["placed"]["same"]
    assert asked["placed"]["device"] == "cuda:3"


def test_bytes_go_over_the_bus_not_floats(asked):
    without = asked["without flips"]
    assert ["pin", "torch.uint8", without["bytes"]] in without["calls"]
    assert not without["looked up"]  # by the host


def test_the_clock_waits_for_computing_and_not_for_next_copies(asked):
    assert asked["placed"]["waited for"] == [["synchronize", [COMPUTING, 3, 1]]]


def test_compilation_is_in_the_mode_that_was_asked_for(asked):
    assert asked["compiled"] == {"none": None, "torch.compile": False, "reduce-overhead": True}


def test_a_gpu_evaluates_as_many_rows_as_a_replica_trains_with(asked):
    parts = asked["parts"]
    assert parts["dp"][0] == [4, 4, 4, 4]
    assert parts["micro-batches"][0] == [8, 8]
    assert parts["single"][0] == [16]
    assert all(difference < 1e-12 for _, difference, _, _ in parts.values())
    assert parts["CPU"] == [[16], 0.0, True, "cpu"]  # the same digits as in one part


def test_the_bare_loops_have_the_arithmetic_of_their_profile(asked):
    assert asked["switches"] == {"strict": [[True, False, False]] * 2, "native": [[True, True, True]] * 2}


def test_newer_switches_that_a_module_has_set_are_reset_or_read(asked):
    """Else strict convolutions inherit TF32, and `describe` raises when the training is done."""
    for before_setup, newer, after_setup in asked["newer switches"].values():
        assert (before_setup, newer) == (False, ["none", "none"])
        assert after_setup is True


def test_what_the_compiler_left_out_is_said(asked):
    assert asked["left out"] == [
        {},
        {"compilation": "torch.compile"},
        {"compilation": "reduce-overhead (CUDA graphs skipped: 2)"},
        {"compilation": "reduce-overhead (CUDA graphs skipped: 2, graph breaks: 4)"},
    ]


def test_an_evaluation_stays_on_the_gpu_in_each_layout(asked):
    assert [asked["parts"][name][3] for name in ("dp", "single")] == ["cuda:0", "cuda:3"]
    assert asked["layouts"] == {"NCHW": [False], "NHWC": [True]}
    assert asked["stages"]
    assert all(stage == ["cuda:0", ["cuda:0", "cuda:1"]] for stage in asked["stages"])


def test_the_peak_of_memory_is_reset_and_read_of_each_gpu(asked):
    assert asked["reset"] == [0, 1, 2, 3]
    assert asked["peaks"][0] == asked["peaks"][1] > 0
    assert asked["CPU"] == [None, []]
