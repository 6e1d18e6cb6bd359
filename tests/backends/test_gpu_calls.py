"""What torch is asked for on GPUs that are not there: stubs keep a record, tensors hold no values."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

HEAD = """
import json
from datetime import timedelta
from types import SimpleNamespace
import torch
from dpcompare import Cluster, RunConfig, Workload
from dpcompare.backends.torch.ddp import DistributedDataParallel
from dpcompare.backends.torch.dp import DataParallel
from dpcompare.backends.torch.single import SingleDevice
from dpcompare.data.batches import DeviceBatch


def config(mode="single", num_gpus=1, *, stages=1, tune=None, **workload):
    workload = Workload(model="toy-bn", image_size=32, dataset="synthetic-mini", global_batch_size=16, **workload)
    cluster = Cluster.partition(1, num_gpus, gpus=[str(number) for number in range(num_gpus)])
    return RunConfig(
        framework="torch", mode=mode, workload=workload, cluster=cluster, stages=stages, tune=tune or {}
    )


def backend(kind, made):
    bare = object.__new__(kind)  # without inputs: only what is called below
    bare.config, bare.workload = made, made.workload
    bare.inputs = SimpleNamespace(num_classes=10)
    return bare
"""


REPOSITORY = Path(__file__).parents[2]


def printed(script):
    done = subprocess.run([sys.executable, "-c", HEAD + script], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


CALLS = """
import os
calls = []
torch.cuda.set_device = lambda device: calls.append(["set_device", str(device)])
torch.distributed.get_rank, torch.distributed.get_world_size = lambda: 1, lambda: 2


def init_process_group(backend, *, timeout, device_id):
    calls.append(["init_process_group", backend, device_id and str(device_id)])


torch.distributed.init_process_group = init_process_group
os.environ["LOCAL_RANK"] = "1"
joined = {}
for name, made in {"one GPU": config("ddp", 2), "two stages": config("ddp", 4, stages=2)}.items():
    calls.clear()
    backend(DistributedDataParallel, made).connect()
    joined[name] = list(calls)
calls.clear()
on_cpu = config("ddp", 2).model_copy(update={"cluster": Cluster.partition(1, 2, device="cpu")})
backend(DistributedDataParallel, on_cpu).connect()
joined["CPU"] = list(calls)

compiled = []
torch.compile = lambda computation, *, mode: compiled.append(mode) or computation
for value in ("none", "torch.compile", "reduce-overhead"):
    backend(SingleDevice, config(profile="native", tune={"compilation": value}))._compiled(torch.nn.Identity())


class OnGpu:
    type = "cuda"


def evaluated(kind, made, device):
    parts = []
    one = backend(kind, made)
    one.device, one._training = device, False
    linear = torch.nn.Linear(5, 10, dtype=torch.float64)

    def local(images, drop_masks=None):
        parts.append(len(images))
        return linear(images)

    one._local = local
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(16, 5, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, 10, (16,), generator=generator)
    weights = (torch.arange(16) < 13).double()  # the last rows are padding
    sums = one.evaluate_step(DeviceBatch(images=images, labels=labels, weights=weights, global_count=13))
    logits = linear(images)
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none") * weights
    expected = torch.stack([losses.sum(), ((logits.argmax(1) == labels) * weights).sum(), weights.sum()])
    of_logits = len(parts)
    predicted = one.logits(DeviceBatch(images=images, labels=labels, weights=weights, global_count=13), training=False)
    assert (predicted.argmax(1) == logits.argmax(1).numpy()).all()
    assert parts[of_logits:] == parts[:of_logits], parts
    parts = parts[:of_logits]
    return parts, float((sums - expected).abs().max()), bool(torch.equal(sums, expected))


torch.manual_seed(0)
parts = {
    "dp": evaluated(DataParallel, config("dp", 4), OnGpu()),
    "micro-batches": evaluated(SingleDevice, config(accumulate=2), OnGpu()),
    "single": evaluated(SingleDevice, config(), OnGpu()),
    "CPU": evaluated(DataParallel, on_cpu, torch.device("cpu")),
}

from benchmarks.bare.torch_loop import compute_as

def switches(profile, configure):
    opposite = profile == "strict"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = opposite
    torch.backends.cudnn.benchmark = False
    configure()
    return torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def of_the_loop(profile):
    run = backend(SingleDevice, config(profile=profile))
    run._configure_devices()
    run._configure_precision()


switched = {
    profile: [switches(profile, lambda: configure(profile)) for configure in (compute_as, of_the_loop)]
    for profile in ("strict", "native")
}
print(json.dumps({"joined": joined, "compiled": compiled, "parts": parts, "switches": switched}))
"""


@pytest.fixture(scope="module")
def asked():
    return printed(CALLS)


def test_a_process_with_one_gpu_says_which_before_nccl_connects(asked):
    assert asked["joined"] == {
        "one GPU": [["set_device", "cuda:1"], ["init_process_group", "nccl", "cuda:1"]],
        "two stages": [["set_device", "cuda:2"], ["init_process_group", "nccl", None]],
        "CPU": [["init_process_group", "gloo", None]],
    }


def test_what_is_compiled_is_compiled_in_the_mode_that_was_asked_for(asked):
    assert asked["compiled"] == ["default", "reduce-overhead"]


def test_a_gpu_evaluates_as_many_rows_at_once_as_a_replica_trains_with(asked):
    parts = asked["parts"]
    assert parts["dp"][0] == [4, 4, 4, 4]
    assert parts["micro-batches"][0] == [8, 8]
    assert parts["single"][0] == [16]
    assert all(difference < 1e-12 for _, difference, _ in parts.values())
    assert parts["CPU"] == [[16], 0.0, True]  # the same digits as in one part


def test_the_bare_loops_have_the_arithmetic_of_the_profile_they_are_compared_with(asked):
    assert asked["switches"] == {"strict": [[True, False, False]] * 2, "native": [[True, True, True]] * 2}


FAKE = """
from torch._subclasses.fake_tensor import FakeTensorMode
from dpcompare.backends.torch.stages import StagedModel
from dpcompare.models.architectures import MODELS


def moved(module, move, recurse=True):
    # As Module._apply, which swaps what is in a parameter: not possible with a fake tensor.
    for child in module.children():
        moved(child, move)
    for name, parameter in module.named_parameters(recurse=False):
        module.register_parameter(name, torch.nn.Parameter(move(parameter.detach())))
    for name, buffer in module.named_buffers(recurse=False):
        module.register_buffer(name, move(buffer))
    return module


torch.nn.Module._apply = moved


def evaluated(layout, plant=None):
    # Where the sums of an evaluation come out, and whether its features were NHWC.
    one = backend(SingleDevice, config(profile="native", precision="float32", tune={"memory_layout": layout}))
    one.initial_state = lambda: None  # fake tensors hold no values
    one.setup()
    if plant:
        plant(one.model)
    layouts = []
    next(layer for layer in one.model.modules() if isinstance(layer, torch.nn.Conv2d)).register_forward_hook(
        lambda module, inputs, output: layouts.append(output.is_contiguous(memory_format=torch.channels_last))
    )
    images = one.blank_images(16).contiguous(memory_format=one._memory_format)
    labels = torch.zeros(16, dtype=torch.long, device="cuda")
    weights = torch.ones(16, device="cuda")
    sums = one.evaluate_step(DeviceBatch(images=images, labels=labels, weights=weights, global_count=16))
    return str(sums.device), layouts[0]


def staged(cuts):
    # Where the logits of a model come out whose stages are on two GPUs, and where its parameters are.
    one = backend(SingleDevice, config())
    layers = MODELS["toy-bn"].layers
    model = StagedModel(one.build_model(), layers, cuts, [torch.device("cuda", 0), torch.device("cuda", 1)]).eval()
    devices = {str(parameter.device) for parameter in model.parameters()}
    with torch.no_grad():
        return str(model(torch.zeros(2, 3, 32, 32, device="cuda:0")).device), sorted(devices)


def on_the_cpu(model):
    model.bn2.running_mean = torch.zeros(model.bn2.num_features)


found = {}
with FakeTensorMode(allow_non_fake_inputs=True):
    for layout in ("NCHW", "NHWC"):
        found[layout] = evaluated(layout)
    found["stages"] = [staged([cut]) for cut in range(1, len(MODELS["toy-bn"].layers))]
    try:
        evaluated("NHWC", on_the_cpu)
        found["planted"] = "not noticed"
    except Exception as error:
        found["planted"] = str(error)
print(json.dumps(found))
"""


def test_an_evaluation_stays_on_the_gpu_in_each_layout_and_across_stages_and_what_is_on_the_cpu_is_noticed():
    found = printed(FAKE)
    assert found["NCHW"] == ["cuda:0", False]
    assert found["NHWC"] == ["cuda:0", True]
    assert found["stages"]
    assert all(stage == ["cuda:0", ["cuda:0", "cuda:1"]] for stage in found["stages"])
    assert "cpu" in found["planted"]
    assert "cuda:0" in found["planted"]
