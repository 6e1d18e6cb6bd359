"""verify --like: which sides prove a run, and which runs cannot be proved any more."""

import json
import shutil

import pytest

from dpcompare._version import __version__, major_minor
from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError
from dpcompare.experiments import verify_like
from dpcompare.experiments.verify_groups import plan_groups
from dpcompare.experiments.verify_like import STEPS, group_like
from dpcompare.experiments.verify_workloads import verified_workload
from dpcompare.results.run_dir import CONFIG_FILE, RESULT_FILE
from tests.support.command import invoke


def config(framework="torch", mode="ddp", nodes=1, devices=2, *, stages=1, **workload):
    return RunConfig(
        framework=framework,
        mode=mode,
        cluster=Cluster.partition(nodes, devices, device="cpu"),
        stages=stages,
        workload=Workload(**{"model": "toy-bn", "epochs": 3, "lr_warmup_steps": 40, **workload}),
    )


@pytest.mark.parametrize(
    ("run", "counterpart", "one_device"),
    [
        (config(mode="single", devices=1), "tensorflow single", None),
        (config(), "tensorflow mirrored on 1 node x 2 devices", "torch single in 2 micro-batches"),
        (config(nodes=2), "tensorflow multiworker on 2 nodes x 2 devices", "torch single in 4 micro-batches"),
        (config(accumulate=2), "tensorflow mirrored on 1 node x 2 devices in 2 micro-batches", "torch single in 4 mic"),
        (config(batchnorm="sync"), "tensorflow mirrored on 1 node x 2 devices", "torch single"),
        (config(batchnorm="sync", accumulate=2), "tensorflow mirrored on 1 node x 2 devices in 2 micro-batches", None),
        (config("jax", "spmd"), "torch ddp on 1 node x 2 devices", "jax single in 2 micro-batches"),
        (config("tensorflow", "mirrored"), "torch ddp on 1 node x 2 devices", "tensorflow single in 2 micro-batches"),
        (config(mode="pipeline", stages=2, accumulate=2), "tensorflow single in 2 micro-batches", None),
        (config("tensorflow", "parameter-server", nodes=3, devices=1), "torch single", None),
    ],
)
def test_the_other_framework_and_one_device_prove_a_run(run, counterpart, one_device):
    group = group_like(run, None, {}, {})
    own, other = group.contenders
    assert (own.framework, own.mode, own.stages) == (run.framework, run.mode, run.stages)
    assert str(other) == counterpart
    assert str(group.baseline).startswith(str(one_device))


def test_the_workload_is_the_runs_for_a_few_steps():
    run = config(seed=7, image_size=48, augment=("flip",), batchnorm_momentum=0.99, profile="native", optimizer="sgd")
    group = group_like(run, "float64", {"image_size": 50}, {})
    changed = {"image_size": 50, "precision": "float64", "epochs": None, "steps": STEPS, "warmup_steps": 0}
    changed["lr_warmup_steps"] = STEPS
    assert group.workload == run.workload.model_copy(update=changed)


@pytest.mark.parametrize(
    ("workload", "asked", "expected"),
    [
        ({"optimizer": "sgd"}, None, "float32"),
        ({"optimizer": "adam"}, None, "float64"),
        ({"optimizer": "adam"}, "float32", "float32"),
        ({"optimizer": "adam", "model": "efficientnet-b0"}, None, "float32"),
        ({"optimizer": "adam", "precision": "bfloat16"}, None, "bfloat16"),
    ],
)
def test_adam_proves_small_models_where_rounding_is_no_step(workload, asked, expected):
    assert group_like(config(**workload), asked, {}, {}).workload.precision == expected


def test_what_is_asked_for_holds_in_every_group():
    asked = {"image_size": 50, "seed": 9, "batchnorm": "local", "profile": "strict", "accumulate": 2, "augment": ()}
    groups = plan_groups(
        ("torch", "tensorflow"),
        ("single", "ddp", "mirrored"),
        model="toy-bn",
        replicas=[1, 2],
        precisions=["float64"],
        quick=True,
        asked=asked,
    )
    for group in groups:
        found = {name: getattr(group.workload, name) for name in asked.keys() - {"accumulate"}}
        assert found == {name: value for name, value in asked.items() if name != "accumulate"}
        if group.kind == "modes":
            assert {contender.accumulate for contender in group.contenders} == {2}


@pytest.fixture
def run_dir(tmp_path, train_once):
    """A copy of a completed run."""
    workload = verified_workload("toy-bn", "sgd", "float64", quick=False)
    cluster = Cluster.partition(1, 1, device="cpu")
    _, made = train_once(RunConfig(framework="torch", mode="single", cluster=cluster, workload=workload, task="probe"))
    return shutil.copytree(made, tmp_path / "run")


def changed(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def of_another_version(run_dir):
    changed(run_dir / RESULT_FILE, dpcompare_version="0.0.9")


def failed(run_dir):
    changed(run_dir / RESULT_FILE, status="failed", error="out of memory")


def without_result(run_dir):
    (run_dir / RESULT_FILE).unlink()


def of_other_data(run_dir):
    changed(run_dir / RESULT_FILE, store_sha256="0" * 64)


def of_data_that_is_gone(run_dir):
    workload = json.loads((run_dir / CONFIG_FILE).read_text())["workload"]
    changed(run_dir / CONFIG_FILE, workload=workload | {"dataset": "/nowhere/photos"})


def of_other_weights(run_dir):
    changed(run_dir / RESULT_FILE, weights_sha256="0" * 64)


def of_a_custom_model(run_dir):
    (run_dir.parent / "own.py").write_text("import dpcompare\nmodel = dpcompare.CustomModel(torch=print)\n")
    workload = json.loads((run_dir / CONFIG_FILE).read_text())["workload"]
    unknown = {"batchnorm_momentum": 0.9, "batchnorm_recompute": 0}
    changed(run_dir / CONFIG_FILE, workload=workload | {"model": "own:model"} | unknown)
    changed(run_dir / RESULT_FILE, settings={"model_source": "f" * 64})


def without_gradient_sync(run_dir):
    workload = json.loads((run_dir / CONFIG_FILE).read_text())["workload"]
    one_model = {"weight_average": None, "batchnorm_recompute": 0}
    changed(run_dir / CONFIG_FILE, workload=workload | one_model, sync_gradients=False)


def of_one_batch(run_dir):
    changed(run_dir / CONFIG_FILE, reuse_batch=True)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (of_another_version, f"is a run of dpcompare 0.0.9, .* expected a run of {major_minor(__version__)}"),
        (failed, "has failed; expected one that completed"),
        (without_result, "holds no readable result.json .* expected the directory of a run that has ended"),
        (of_other_data, "the dataset synthetic-mini changed since the run .sha256 000000000000, now "),
        (of_data_that_is_gone, "/nowhere/photos"),
        (of_other_weights, "the initial weights .random. changed since the run"),
        (of_a_custom_model, "the file of the model own:model has changed since the run .sha256 ffffffffffff, now "),
        (without_gradient_sync, "made without gradient sync"),
        (of_one_batch, "it trained one batch over and over"),
    ],
)
def test_a_run_that_cannot_be_proved_is_refused_in_a_line(run_dir, spoil, message, monkeypatch):
    spoil(run_dir)
    monkeypatch.syspath_prepend(run_dir.parent)
    refused = invoke("verify", "--like", str(run_dir))
    assert refused.code == 2
    assert refused.stderr.count("\n") == 1
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(refused.stderr)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "mlp"], "--like: received with --model, which the run decides"),
        (["--precision", "float16"], "expected float32"),
    ],
)
@pytest.mark.torch
def test_options_that_contradict_a_run_are_refused(run_dir, arguments, message):
    refused = invoke("verify", "--like", str(run_dir), *arguments)
    assert refused.code == 2
    assert message in refused.stderr


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_the_other_framework_and_one_device_prove_replicas(train_once):
    run = config(
        dataset="synthetic-mini",
        global_batch_size=16,
        lr_warmup_steps=3,
        image_size=75,
        seed=5,
        precision="float64",
        optimizer="sgd",
    )
    _, made = train_once(run)
    done = invoke("verify", "--like", str(made), "--json")
    assert done.code == 0, done.stderr
    modes = {check["name"]: check["modes"].count(",") + 1 for check in done.json["checks"]}
    assert modes["training logits"] == 2
    assert modes["losses over sgd steps"] == 3


@pytest.mark.parametrize(
    ("framework", "missing", "counterpart"),
    [
        ("torch", [], "tensorflow mirrored"),
        ("torch", ["tensorflow"], "jax spmd"),
        ("jax", [], "torch ddp"),
        ("jax", ["torch"], "tensorflow mirrored"),
        ("torch", ["tensorflow", "jax"], "tensorflow mirrored"),  # whose refusal says how to install it
    ],
)
def test_the_other_framework_is_one_that_is_installed(monkeypatch, framework, missing, counterpart):
    def require_framework(other, python):
        if other in missing:
            raise RequestError("not installed")

    monkeypatch.setattr(verify_like, "require_framework", require_framework)
    cluster = Cluster.partition(1, 2, device="cpu")
    run = RunConfig(framework=framework, mode={"torch": "dp", "jax": "spmd"}[framework], cluster=cluster)
    _, other = group_like(run, None, {}, {}).contenders
    assert f"{other.framework} {other.mode}" == counterpart
