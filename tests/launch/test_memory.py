"""What a run needs of memory, before it starts: the estimate, the refusal and the remark."""

import json
import subprocess
import sys

import pytest

from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError
from dpcompare.launch.memory import Need, free_for_each, memory_remark, need_in_words, need_of, require_memory
from dpcompare.models.costs import values_kept
from tests.support.command import invoke

KEPT = """
import json, sys
import torch
from dpcompare.config.workload import Workload
from dpcompare.backends.torch.model import build_model

found = {}
for name, size in json.loads(sys.argv[1]).items():
    model = build_model(Workload(model=name, image_size=size), 10)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages = {}
    def keep(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // 4, tensor
        return tensor
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(torch.zeros(2, 3, size, size))
    found[name] = sum(values for pointer, (values, _) in storages.items() if pointer not in own) / 2
print(json.dumps(found))
"""


def config(model="resnet18", mode="ddp", devices=2, **changes):
    run_fields = {name: changes.pop(name) for name in ("stages",) if name in changes}
    workload = Workload(model=model, **{"image_size": 64, **changes})
    cluster = Cluster.partition(1, devices, device="cpu")
    return RunConfig(framework="torch", mode=mode, workload=workload, cluster=cluster, **run_fields)


@pytest.mark.torch
@pytest.mark.slow
def test_torch_keeps_what_is_estimated_at_least():
    """It also keeps what an activation needs, which is the input of the next layer in some models only."""
    sizes = {"efficientnet-b0": 64, "resnet18": 64, "resnet50": 64, "vgg16-narrow": 64, "vit-ti16": 64}
    done = subprocess.run([sys.executable, "-c", KEPT, json.dumps(sizes)], capture_output=True, text=True)
    for name, kept in json.loads(done.stdout).items():
        print(name, kept / values_kept(name, sizes[name], 10))
        estimated = values_kept(name, sizes[name], 10)
        assert estimated <= kept, name
        assert estimated >= 0.45 * kept, name


def test_the_state_is_weights_gradients_and_slots():
    parameters = 11_181_642
    assert need_of(config(optimizer="adam")).state == parameters * 4 * 4
    assert need_of(config(optimizer="sgd")).state == parameters * 3 * 4
    assert need_of(config(optimizer="sgd", precision="float64")).state == parameters * 3 * 8
    assert need_of(config(optimizer="sgd", precision="bfloat16")).state == parameters * 3 * 4
    assert need_of(config(mode="fsdp", optimizer="sgd")).state == parameters * 3 * 4 // 2
    assert need_of(config(mode="dp", optimizer="adam")).state == parameters * 2 * 4  # the first device has the rest


def test_features_are_those_of_the_images_of_a_replica_at_once():
    of_16 = need_of(config(global_batch_size=32)).features
    assert need_of(config(global_batch_size=64)).features == 2 * of_16
    assert need_of(config(global_batch_size=32, precision="bfloat16")).features == of_16 // 2
    assert need_of(config("vit-ti16", global_batch_size=32, accumulate=2)).features * 2 == (
        need_of(config("vit-ti16", global_batch_size=32)).features
    )
    one = need_of(config("vit-ti16", "single", 1, global_batch_size=32)).features
    piped = config("vit-ti16", "pipeline", 2, global_batch_size=32, accumulate=4, stages=2)
    assert need_of(piped).features == one // 2
    by_turns = piped.model_copy(update={"pipeline_schedule": "1f1b"})  # two of four micro-batches at once
    assert need_of(by_turns).features == one // 4


def test_of_a_custom_model_nothing_is_estimated():
    own = config("my.models:NET")
    assert need_of(own) is None
    assert memory_remark(own) is None
    require_memory(own)


def test_of_modes_with_servers_nothing_is_estimated():
    workload = Workload(model="resnet18")
    cluster = Cluster.partition(4, 1, device="cpu")
    served = RunConfig(framework="tensorflow", mode="parameter-server", workload=workload, cluster=cluster)
    assert need_of(served) is None


def test_what_cannot_fit_is_refused_and_what_hardly_fits_said(monkeypatch):
    asked = config(optimizer="adam", global_batch_size=256)
    need = need_of(asked)
    monkeypatch.setattr("dpcompare.launch.memory.available_memory", lambda: 2 * (need.state - 1))
    with pytest.raises(RequestError, match="resnet18 needs at least 179 MB on each device for weights, grad"):
        require_memory(asked)
    monkeypatch.setattr("dpcompare.launch.memory.available_memory", lambda: 2 * (need.state + 1))
    require_memory(asked)
    assert memory_remark(asked).startswith("memory: each device needs at least ")
    assert memory_remark(asked).endswith("use a smaller --global-batch-size, or --accumulate")
    piped = config("vit-ti16", "pipeline", 2, global_batch_size=4096, accumulate=4, stages=2)
    assert memory_remark(piped).endswith(", or --pipeline-schedule 1f1b")
    assert memory_remark(piped.model_copy(update={"pipeline_schedule": "1f1b"})).endswith(", or --accumulate")
    monkeypatch.setattr("dpcompare.launch.memory.available_memory", lambda: 2 * need.total)
    assert memory_remark(asked) is None


def test_devices_of_one_gpu_share_its_memory(monkeypatch):
    monkeypatch.setattr("dpcompare.launch.memory.free_gpu_memory", lambda names: 80 if names else None)
    alone = config().changed(cluster=Cluster.partition(1, 2, device="cpu").model_copy(update={"device_type": "gpu"}))
    assert free_for_each(alone) == 80
    shared = alone.cluster.model_copy(update={"shared": True})
    assert free_for_each(alone.model_copy(update={"cluster": shared})) == 40


def test_in_words():
    words = "2.6 GB (180 MB of state, 2.4 GB of features)"
    assert need_in_words(Need(state=180_000_000, features=2_420_000_000)) == words


@pytest.mark.torch
def test_a_dry_run_says_what_each_device_needs():
    arms = (
        "torch:single",
        "torch:ddp",
        "--device",
        "cpu",
        "--model",
        "mlp,vgg16",
        "--image-size",
        "64",
        "--steps",
        "9",
    )
    asked = ("compare", *arms, "--dataset", "synthetic-mini", "--dry-run")
    lines = [line for line in invoke(*asked).stdout.splitlines() if line.startswith("memory: ")]
    assert len(lines) == 4
    assert lines[2].startswith("memory: vgg16 on 1 node x 1 CPU device: at least ")
    assert {run["bytes_per_device"] > 0 for run in invoke(*asked, "--json").json["runs"]} == {True}
