"""Models cut into stages: balanced, in the same places in the core's table and in the frameworks."""

import random
import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest

from dpcompare.models.architectures import MODELS
from dpcompare.models.costs import balanced_cuts, seconds_of, seconds_of_stages
from tests.support.command import invoke


@pytest.mark.parametrize("seed", range(20))
def test_no_other_cuts_have_a_faster_slowest_stage(seed):
    generator = random.Random(seed)
    seconds = [generator.choice([0.1, 1, 5]) * generator.random() for _ in range(generator.randint(1, 9))]
    num_stages = generator.randint(1, len(seconds))
    found = balanced_cuts(seconds, num_stages)
    assert len(found) == num_stages - 1
    assert sum(seconds_of_stages(seconds, found)) == pytest.approx(sum(seconds))
    fastest = min(
        max(seconds_of_stages(seconds, cuts)) for cuts in combinations(range(1, len(seconds)), num_stages - 1)
    )
    assert max(seconds_of_stages(seconds, found)) == pytest.approx(fastest)


def test_the_slow_layer_is_alone():
    assert balanced_cuts([1, 1, 10, 1], 3) == (2, 3)
    with pytest.raises(ValueError, match="received 3 stages for 2 layers"):
        balanced_cuts([1, 1], 3)


def test_calls_are_timed_in_rounds():
    order = []
    seconds = seconds_of([lambda: order.append(0), lambda: sum(range(200_000))], lambda: order.append("waits"))
    assert seconds[0] < seconds[1]
    assert order.count(0) == 7
    assert order.count("waits") == 28


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_belongs_to_one_layer(name):
    model = MODELS[name]
    prefixes = [prefix for layer in model.layers for prefix in layer]
    for tensor in model.shapes(64, 10):
        assert sum(f"{tensor}.".startswith(f"{prefix}.") for prefix in prefixes) == 1, tensor


LAYERS = """
import sys, torch
from dpcompare import Workload
from dpcompare.backends.torch.model import build_model, layers_of
from dpcompare.models.architectures import MODELS

torch.manual_seed(0)
for name in sys.argv[1:]:
    model = build_model(Workload(model=name, image_size=32), num_classes=10).eval()
    layers = layers_of(model)
    images = features = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        for layer, prefixes in zip(layers, MODELS[name].layers, strict=True):
            features = layer(features)
            for prefix in prefixes:
                assert prefix in dict(model.named_parameters()) or model.get_submodule(prefix)
        assert torch.equal(features, model(images)), name
assert "timm" in sys.modules and "wandb" not in sys.modules
"""


@pytest.mark.torch
@pytest.mark.slow
def test_the_layers_one_after_the_other_are_the_model():
    names = ["toy-cnn", "toy-bn", "mlp", "efficientnet-b2", "resnet18", "resnet50-narrow", "vgg16-narrow", "vit-ti16"]
    done = subprocess.run([sys.executable, "-c", LAYERS, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


SMALL = ["--model", "toy-bn", "--image-size", "32", "--dataset", "synthetic-mini", "--global-batch-size", "16"]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--mode", "pipeline", "--stages", "5", "--devices-per-node", "5"],
         "stages: received 5, but toy-bn has 4 layers"),
        (["--mode", "ddp", "--stages", "2", "--devices-per-node", "3"], "stages: received 2 on nodes of 3 devices"),
        (["--mode", "ddp", "--stages", "2", "--devices-per-node", "1"], "stages: received 2 on nodes of 1 device;"),
        (["--mode", "pipeline", "--pipeline-schedule", "1f1b"], "received 1f1b with 1 micro-batch and 2 stages"),
        (["--mode", "dp", "--stages", "2"],
         "stages: received 2 with torch dp; expected 1, or one of the modes torch ddp, torch pipeline"),
        (["--mode", "pipeline", "--stages", "1"], "stages: received 1 with mode pipeline; expected at least 2"),
        (["--mode", "pipeline", "--microbatches", "3"],
         "does not divide evenly among 1 replicas in 3 micro-batches each"),
        (["--mode", "ddp", "--pipeline-schedule", "1f1b"], "pipeline_schedule: received 1f1b with torch ddp"),
        (["--mode", "fsdp", "--profile", "native", "--optimizer", "sgd", "--tune", "optimizer_kernels=fused"],
         "received optimizer_kernels=fused with mode fsdp and sgd"),
        (["--mode", "dp", "--launcher", "spawn"],
         "launcher: received spawn with mode dp of torch; expected one of the modes torch ddp"),
        (["--mode", "ddp", "--launcher", "spawn", "--engine", "hosts", "--hosts", "127.0.0.1,localhost"],
         "cannot start processes on others"),
    ],
    ids=["layers", "devices", "one device", "1f1b", "mode", "one", "micro-batches", "schedule", "kernels", "launcher",
         "hosts"],
)  # fmt: skip
def test_what_cannot_be_split_is_refused(tmp_path, asked, says):
    refused = invoke("run", "--framework", "torch", *asked, *SMALL, "--device", "cpu", "--run-dir", tmp_path / "run")
    assert refused.code == 2, refused.stderr
    assert says in refused.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm", "first_group")
def test_processes_that_a_program_spawns_compute_the_same():
    done = invoke("verify", "--frameworks", "torch", "--modes", "ddp,ddp-spawn", "--model", "toy-bn", "--replicas", "2",
                  "--precision", "float64", "--profile", "strict", "--quick", "--json")  # fmt: skip
    assert done.code == 0, [check for check in done.json["checks"] if not check["passed"]]
    assert any("torch ddp on 1 node x 2 devices by spawn" in check["modes"] for check in done.json["checks"])
    losses = [check["measured"] for check in done.json["checks"] if check["name"].startswith("losses")]
    assert np.max(losses) < 1e-10


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_pipeline_of_efficientnet_b2_reports_its_stages(tmp_path):
    b2 = [
        "--image-size",
        "32",
        "--dataset",
        "synthetic-mini",
        "--global-batch-size",
        "8",
        "--steps",
        "3",
        "--warmup-steps",
        "1",
    ]
    done = invoke("run", "--framework", "torch", "--mode", "pipeline", "--stages", "2", "--microbatches", "2",
                     "--pipeline-schedule", "1f1b", *b2, "--device", "cpu", "--json",
                     "--run-dir", tmp_path / "run")  # fmt: skip
    assert done.code == 0, done.stderr
    assert done.json["num_replicas"] == 1
    assert done.json["num_processes"] == 2
    stages = done.json["settings"]["stages"]
    assert stages["begin_with"][0] == "conv_stem"
    assert max(stages["milliseconds"]) < 4 * min(stages["milliseconds"])
