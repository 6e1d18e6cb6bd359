"""The variants of a run: which each mode has, and of which runs there are none."""

import json

import pytest

from dpcompare.config.cluster import Cluster
from dpcompare.config.modes import MODES
from dpcompare.config.placement import Placement
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError
from dpcompare.experiments.variants import FEWEST, MOST, run_to_explain, to_explain, variants_of
from dpcompare.results.result import StepSeconds
from dpcompare.results.run_dir import RESULT_FILE
from tests.support.results import result


def config(framework="torch", mode="ddp", nodes=2, devices=1, workload=None, **fields):
    cluster = Cluster.partition(nodes, devices, device="cpu", num_cores=8)
    chosen = Workload(**{"model": "toy-bn", "global_batch_size": 32} | (workload or {}))
    return RunConfig(framework=framework, mode=mode, workload=chosen, cluster=cluster, **fields)


def test_each_variant_leaves_out_one_thing():
    found = variants_of(config(devices=2), "mine")
    arms = {variant: arm.config for variant, arm in found.arms.items()}
    left_out = {variant: (each.sync_gradients, each.reuse_batch) for variant, each in arms.items()}
    assert left_out == {
        "as it is": (True, False),
        "no exchange": (False, False),
        "no input": (True, True),
        "computing alone": (False, True),
        "larger batch": (False, True),
        "one device": (False, True),
    }
    assert (found.alone, found.unmeasured) == ("computing alone", {})
    assert arms["larger batch"].workload.global_batch_size == 128
    one = arms["one device"]
    assert (one.cluster.num_devices, one.workload.global_batch_size) == (1, 8)
    assert one.topology.threads_per_process == arms["as it is"].topology.threads_per_process == 2
    names = [arm.name for arm in found.arms.values()]
    assert len(set(names)) == 6
    assert found.study().repeats == 6


@pytest.mark.parametrize(
    ("framework", "mode", "nodes", "devices", "variants", "alone"),
    [
        ("torch", "single", 1, 1, {"as it is", "no input", "larger batch"}, "no input"),
        ("torch", "fsdp", 2, 1, {"as it is", "no input", "larger batch", "one device"}, "one device"),
        ("torch", "pipeline", 1, 2, {"as it is", "no input", "larger batch"}, "no input"),
        ("torch", "pipeline", 2, 2, {"as it is", "no input"}, "no input"),
        ("tensorflow", "keras-fit", 1, 2, {"as it is", "no input", "larger batch", "one device"}, "one device"),
    ],
)
def test_what_a_mode_cannot_leave_out_has_a_reason(framework, mode, nodes, devices, variants, alone):
    stages = 2 if mode == "pipeline" else 1
    found = variants_of(config(framework, mode, nodes, devices, stages=stages), "mine")
    assert (set(found.arms), found.alone) == (variants, alone)
    all_of_them = {"as it is", "no exchange", "no input", "computing alone", "larger batch", "one device"}
    assert set(found.unmeasured) == all_of_them - variants
    assert all(found.unmeasured.values())


def test_every_mode_has_variants_that_are_runs():
    for (framework, name), mode in MODES.items():
        if mode.roles or "cpu" not in mode.device_types or "cpu" in mode.emulated_on:
            continue
        nodes, devices = mode.default_topology(2) if mode.multi_device else (1, 1)
        whole = {"batchnorm": "sync"} if mode.sees_whole_batch else {}
        base = config(framework, name, nodes, devices, stages=mode.default_stages, workload=whole)
        assert {"as it is", "no input"} <= set(variants_of(to_explain(base, named="it"), "mine").arms)


def test_what_happens_between_steps_is_left_out_of_all():
    workload = {"epochs": 3, "weight_average": 0.9, "batchnorm_recompute": 2, "lr_warmup_steps": 500}
    kept = {"checkpoint_every": 5, "keep_predictions": True, "target_accuracy": 0.9, "stop_at_target": True}
    whole = variants_of(config(workload=workload, **kept), "mine").arms["as it is"].config
    assert (whole.workload.epochs, whole.workload.steps, whole.evaluate_every) == (None, 65, 65)
    assert (whole.workload.weight_average, whole.workload.batchnorm_recompute) == (None, 0)
    assert whole.workload.lr_warmup_steps == 65
    assert (whole.checkpoint_every, whole.keep_predictions, whole.target_accuracy) == (None, False, None)
    hosts = Placement(engine="hosts", hosts=("a", "b"))
    machines = Cluster.of_machines(2, 4, device_type="gpu", num_cores=16)
    elsewhere = RunConfig(framework="torch", mode="ddp", cluster=machines, placement=hosts)
    one = variants_of(elsewhere, "mine").arms["one device"].config
    assert (one.placement.hosts, one.cluster.nodes[0].num_cores) == (("a",), 4)


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (config("torch", "dp", 1, 2), "^it: torch dp is emulated on cpu devices"),
        (config("tensorflow", "parameter-server", 4), "do not wait for each other"),
        (config(sync_gradients=False), "left out already"),
        (config(reuse_batch=True), "left out already"),
        (config(task="probe"), "it is a probe; expected a training"),
    ],
)
def test_of_some_runs_nothing_would_hold(refused, message):
    with pytest.raises(RequestError, match=message):
        to_explain(refused, named="it")


def test_a_run_gets_as_many_steps_as_it_takes_to_measure_it(tmp_path):
    for median, steps in ((10.0, FEWEST), (0.08, 100), (0.0001, MOST)):
        seconds = StepSeconds(median=median, p95=median, mean=median, mad=0.0)
        result(step_seconds=seconds).save(tmp_path)
        assert run_to_explain(tmp_path).workload.steps == 5 + steps


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dpcompare_version": "0.0.9"}, "is a run of dpcompare 0.0.9, .* expected a run of"),
        ({"status": "failed", "error": "out of memory"}, "has the status failed; expected one that completed"),
        ({"step_seconds": None}, "measured no step; expected one that completed"),
    ],
)
def test_a_run_that_cannot_be_explained_is_refused(tmp_path, fields, message):
    seconds = {"median": 0.1, "p95": 0.1, "mean": 0.1, "mad": 0.0}
    document = json.loads(result(step_seconds=StepSeconds(**seconds)).model_dump_json())
    (tmp_path / RESULT_FILE).write_text(json.dumps(document | fields))
    with pytest.raises(RequestError, match=message):
        run_to_explain(tmp_path)
