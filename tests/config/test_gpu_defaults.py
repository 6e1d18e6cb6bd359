"""The workload on GPUs: what is taken where nothing else was asked for, alone and in a study."""

import pytest

from dpcompare.config.gpu_defaults import gpu_defaults
from dpcompare.config.workload import Workload
from tests.support.command import invoke

DDP = ["--framework", "torch", "--mode", "ddp"]


def defaults(models=("efficientnet-b2",), replicas=(1,), memory=None, **given):
    return gpu_defaults(given, models=models, replicas=replicas, memory=memory)


def test_what_was_asked_for_is_left_alone():
    everything = {"dataset": "digits", "image_size": 96, "global_batch_size": 20, "steps": 50, "warmup_steps": 3}
    assert defaults(**everything) == {}
    assert defaults() == everything | {
        "dataset": "synthetic", "image_size": 260, "global_batch_size": 64, "steps": 200, "warmup_steps": 30
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (200, 30)),
        ({"steps": 1000}, (None, 30)),
        ({"steps": 30}, (None, 7)),
        ({"steps": 1}, (None, 0)),
        ({"warmup_steps": 400}, (570, None)),
        ({"warmup_steps": "auto"}, (200, None)),
        ({"epochs": 1}, (None, None)),
        ({"epochs": 1, "warmup_steps": 9}, (None, None)),
    ],
    ids=str,
)
def test_a_length_is_not_refused_for_the_default_of_the_other(given, expected):
    chosen = defaults(**given)
    assert (chosen.get("steps"), chosen.get("warmup_steps")) == expected
    Workload(**given, **chosen)


def test_compared_runs_share_an_image_size_and_a_batch_for_all():
    chosen = defaults(models=("efficientnet-b0", "efficientnet-b3", "mlp"), replicas=(4, 6))
    assert (chosen["image_size"], chosen["global_batch_size"]) == (300, 42 * 12)


@pytest.mark.parametrize(
    ("replicas", "batch"),
    [((1, 2), 128), ((1, 2, 4, 8), 128), ((2, 4), 256), ((8,), 512), ((1, 2, 3, 4), 120), ((5, 6, 7, 8), 840)],
)
def test_the_fewest_gpus_have_room_for_the_batch_of_all(replicas, batch):
    assert defaults(replicas=replicas)["global_batch_size"] == batch


@pytest.mark.parametrize(("memory", "batch"), [(None, 64), (24 << 30, 64), (80 << 30, 128), (39_999 << 20, 128)])
def test_gpus_of_much_memory_have_twice_the_batch(memory, batch):
    assert defaults(memory=memory)["global_batch_size"] == batch


@pytest.mark.parametrize(("memory", "images"), [(80 << 30, 256), (40 << 30, 238), (24 << 30, 128), (16 << 30, 95)])
def test_the_gpu_with_the_most_images_has_the_memory_for_them(memory, images):
    batch = defaults(memory=memory, replicas=(1, 8))["global_batch_size"]
    assert images - 8 < batch <= images
    assert batch % 8 == 0


def test_a_model_of_no_particular_size_keeps_the_usual_one():
    assert "image_size" not in defaults(models=("toy-cnn", "package.module:NAME"))


def planned(*arguments, **environment):
    shown = invoke("plan", *DDP, "--json", *arguments, **environment)
    assert shown.code == 0, shown.stderr
    return Workload.model_validate(shown.json["config"]["workload"], strict=False)


def test_a_plan_on_gpus_has_them(install_gpus):
    install_gpus()
    assert planned() == Workload(dataset="synthetic", image_size=260, global_batch_size=256, steps=200, warmup_steps=30)
    assert planned("--device", "cpu") == Workload()
    assert planned("--stages", "2", "--model", "efficientnet-b0").image_size == 224
    assert planned("--stages", "2").global_batch_size == 128
    text = invoke("plan", *DDP)
    assert "64 images each per step" in text.stdout
    assert "260 px, global batch 256, 200 steps, speed measured after 30 steps" in text.stdout


def test_a_command_line_an_environment_and_a_file_come_first(install_gpus, tmp_path):
    install_gpus()
    (tmp_path / "options.toml").write_text("image_size = 96\n")
    chosen = planned("--config", "options.toml", "--steps", "20", DPCOMPARE_GLOBAL_BATCH_SIZE="32")
    assert chosen == Workload(dataset="synthetic", image_size=96, global_batch_size=32, steps=20, warmup_steps=5)


def test_machines_with_gpus_have_them_too():
    place = ["--engine", "slurm", "--device", "gpu", "--nodes", "2", "--devices-per-node", "4", "--cores-per-node", "8"]
    assert planned(*place).global_batch_size == 512


def compared(*arguments):
    shown = invoke("compare", "--dry-run", "--json", *arguments)
    assert shown.code == 0, shown.stderr
    return {run["arm"]: Workload.model_validate(run["workload"], strict=False) for run in shown.json["runs"]}


@pytest.mark.torch
@pytest.mark.slow
def test_the_arms_of_a_study_share_them(install_gpus):
    install_gpus()
    arms = ["--arm", "torch:single", "--arm", "torch:ddp", "--arm", "torch:dp,steps=40"]
    workloads = compared(*arms, "--devices-per-node", "2,3")
    assert {workload.global_batch_size for workload in workloads.values()} == {126}
    expected = Workload(dataset="synthetic", image_size=260, global_batch_size=126, steps=200, warmup_steps=30)
    assert workloads["torch ddp 1x3"] == expected
    assert workloads["torch dp 1x2 steps=40"].warmup_steps == 10
    assert {w.global_batch_size for w in compared(*arms, "--global-batch-size", "48").values()} == {48}


@pytest.mark.torch
def test_an_arm_on_the_cpu_gives_the_study_its_workload(install_gpus):
    install_gpus()
    arms = ["--arm", "torch:single", "--arm", "torch:ddp,device=cpu"]
    assert set(compared(*arms).values()) == {Workload()}
    arms = ["--arm", "torch:single,device=cpu", "--arm", "torch:dp", "--devices-per-node", "3"]
    refused = invoke("compare", "--dry-run", *arms)
    assert refused.code == 2
    assert "torch:dp on 1 node x 3 devices: global_batch_size: received 32" in refused.stderr


@pytest.mark.torch
def test_the_time_of_a_study_is_guessed_from_gpus(install_gpus):
    install_gpus()
    asked = ("compare", "--dry-run", "--json", "--arm", "torch:single", "--arm", "torch:ddp")
    on_gpus = invoke(*asked).json["estimated_seconds"]
    workload = ("--image-size", "260", "--global-batch-size", "128", "--steps", "200", "--warmup-steps", "30")
    assert on_gpus < invoke(*asked, *workload, "--device", "cpu").json["estimated_seconds"] / 10


def test_a_shared_image_size_fits_the_patches_of_every_model():
    assert gpu_defaults({}, models=("vit-ti16", "efficientnet-b2"), replicas=(1,))["image_size"] == 256
    assert gpu_defaults({}, models=("vit-ti16", "resnet50"), replicas=(1,))["image_size"] == 224
