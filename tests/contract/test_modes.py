"""The contract of every mode, run for real with a tiny model: same batches, same weights, same losses."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from dpcompare import Cluster, RunConfig, Workload, run
from dpcompare.config.modes import MODES
from dpcompare.experiments.analysis import analyse
from dpcompare.experiments.collection import collect
from dpcompare.report.page import as_html
from dpcompare.results.aggregate import LaunchEnd, aggregate
from dpcompare.results.events import EventLog, StepsTrained, read_events
from dpcompare.results.run_dir import event_path
from dpcompare.results.timeline import timeline_of, traced_processes
from stress.injection import write_sitecustomize
from tests.support.command import invoke
from tests.support.marks import with_mark
from tests.support.modes import ALL_MODES, DEFAULT_MODES, OTHER_MODES, marked

WORKLOAD = Workload(model="toy-cnn", image_size=32, global_batch_size=32, steps=8, warmup_steps=2)


ONE_PER_LAUNCH = {
    (framework, MODES[framework, mode].launch): arm for arm in reversed(ALL_MODES) for framework, mode, *_ in arm.values
}
"""What decides how processes are started: framework and launch -> the first mode that has them."""
FOUR_REPLICAS = [
    with_mark(arm, pytest.mark.slow)
    for arm in (
        marked("torch", "ddp", 2, 2),
        marked("tensorflow", "multiworker", 2, 2),
        marked("jax", "multiprocess", 2, 2),
        marked("jax", "jit", 2, 2),
    )
]
FOUR_IN_ONE_PROCESS = [
    with_mark(arm, pytest.mark.slow, pytest.mark.long)
    for arm in (marked("torch", "dp", 1, 4), marked("tensorflow", "mirrored", 1, 4), marked("jax", "spmd", 1, 4))
]


def config_of(framework, mode, nodes, devices, workload=WORKLOAD, **changes):
    cluster = Cluster.partition(nodes, devices, device="cpu")
    stages = 2 if MODES[framework, mode].is_pipeline else 1
    return RunConfig(framework=framework, mode=mode, workload=workload, cluster=cluster, stages=stages, **changes)


AS_A_USER_DOES = {
    *(arm.values[0] for arm in ONE_PER_LAUNCH.values()),
    ("torch", "ddp", 2, 2),  # two devices per node
    ("tensorflow", "parameter-server", 3, 1),  # processes that train nothing
    ("jax", "jit", 2, 1),  # compiled with all of XLA's optimizations
}
"""Arms that are launched as a user launches them. The others run in warm processes: only what they train matters."""


@pytest.fixture
def launched(run_once, train_once):
    """Trains a mode on a topology; returns (result, run directory)."""
    return lambda *arm: (run_once if arm in AS_A_USER_DOES else train_once)(config_of(*arm))


@pytest.fixture
def trained(train_once):
    """Trains a variant of a mode, without the start of its framework; returns the result."""
    return lambda *arm, **changes: train_once(config_of(*arm, **changes))[0]


@pytest.mark.parametrize("arm", ALL_MODES)
def test_a_mode_records_what_it_exchanges(launched, arm):
    """For projections: all bytes of the gradients, the messages that they are in, and in torch when they are ready."""
    result, _ = launched(*arm)
    row, gradients = MODES[arm[:2]], result.gradients
    if row.exchange not in (None, "first device"):
        assert sum(gradients.messages) == gradients.num_bytes > 100_000
    if row.exchange == "buckets":
        assert gradients.ready[-1][0] == gradients.num_bytes
        shares = [share for _, share in gradients.ready]
        assert 0 < shares[0] < shares[-1] <= gradients.backward_ends < 1
        assert list(shares) == sorted(shares)


SHARES_PARAMETERS = ("dp", "fsdp", "parameter-server")
"""Modes whose replicas have no parameters of their own between two steps."""


@pytest.mark.parametrize("arm", ALL_MODES)
def test_replicas_are_compared_where_each_has_a_copy(launched, arm):
    result, _ = launched(*arm)
    assert result.computed.replica_difference is None
    has_copies = result.num_replicas > 1 and arm[1] not in SHARES_PARAMETERS
    assert result.computed.replicas_compared_after == ([0, 1, 8] if has_copies else [])


@pytest.mark.parametrize("arm", ALL_MODES + FOUR_REPLICAS + FOUR_IN_ONE_PROCESS)
def test_a_mode_runs_and_records_what_it_was(launched, arm):
    framework, mode, nodes, devices = arm
    result, run_dir = launched(*arm)
    assert result.status == "completed"
    assert (result.framework, result.mode) == (framework, mode)
    row = MODES[framework, mode]
    replicas = nodes if row.is_pipeline else nodes * devices - len(row.roles)
    assert (result.num_nodes, result.num_replicas) == (nodes, replicas)
    per_node = devices if row.process_per == "device" else 1
    assert result.num_processes == nodes * per_node
    assert result.emulated == (mode == "dp")
    expected = MODES[framework, mode].collective.get("cpu", "none")
    assert result.collective == expected
    assert len(result.train_loss) == 8
    assert result.measured_steps == 6
    assert result.images_per_second > 0
    assert result.time_to_first_step_seconds < result.wall_seconds
    assert result.clock_problem is None
    assert result.recompilation is None
    if row.by_default:  # on the CPU torch compiles nothing in the strict profile
        assert result.compiled_steps == ([] if framework == "torch" else [1])
    assert (result.nodes[0].load is None) == bool(row.roles)
    assert framework in result.versions
    assert {"torch": "onednn", "tensorflow": "compiler"}.get(framework, framework) in result.versions
    assert len(result.device_names) == nodes * devices
    assert json.loads((run_dir / "result.json").read_text())["status"] == "completed"
    for node in range(nodes):
        for local_rank in range(per_node):
            assert (run_dir / "logs" / f"node{node}-process{local_rank}.log").is_file()
            assert (run_dir / f"process-{node * per_node + local_rank}.json").is_file()


@pytest.mark.torch
def test_a_stall_of_a_real_run_is_told_by_report(launched, tmp_path):
    """Process 1 took 20 s for step 6, as far as its events tell."""
    arm = ("torch", "ddp", 2, 1)
    shutil.copytree(launched(*arm)[1], tmp_path / "run")
    told = read_events(tmp_path / "run", 2)
    for rank in range(2):
        event_path(tmp_path / "run", rank).unlink()
        log, last_step = EventLog(tmp_path / "run", rank), 0
        for event in (event for event in told if event.process_rank == rank):
            written = event
            if isinstance(event, StepsTrained):
                steps = range(last_step + 1, event.step + 1)
                taken = zip(steps, event.step_seconds, strict=True)
                planted = [20.0 if (rank, step) == (1, 6) else seconds for step, seconds in taken]
                written, last_step = replace(event, step_seconds=planted), event.step
            log.append(written)
        log.close()
    config = RunConfig.load(tmp_path / "run" / "config.json")
    end = LaunchEnd(status="completed", error=None, started_at=told[0].time, ended_at=told[-1].time)
    aggregate(config, tmp_path / "run", end).save(tmp_path / "run")
    done = invoke("report", tmp_path / "run", "--fail-if", "unstable")
    assert done.code == 3
    others = r"(\d+ steps were slow: )?"  # a busy machine may really hold one up
    told_of = rf"round 1: {others}step 6 took 20\.0 s, median \S+ s; without (it|them) \S+ images/s"
    assert re.search(told_of, done.stderr)
    assert re.search(rf"STALLED torch ddp 2x1: round 1: {others}step 6 took 20\.0 s", done.stdout)
    assert "step 6 took 20.0 s" not in invoke("report", launched(*arm)[1]).stdout


@pytest.mark.slow
@pytest.mark.parametrize("arm", ONE_PER_LAUNCH.values())
def test_forked_processes_train_what_launched_ones_do(launched, trained, arm):
    """What the tests below of variants of a mode rest on."""
    started, forked = launched(*arm)[0], trained(*arm)
    # Of JAX, XLA optimizes less there; see tests/support/warm.py.
    alike = pytest.approx(started.train_loss, rel=1e-5) if arm[0] == "jax" else started.train_loss
    assert forked.train_loss == alike
    assert (forked.collective, forked.versions) == (started.collective, started.versions)
    measured = "stages"  # where a pipeline is cut, by the seconds of its layers
    settings = [{name: value for name, value in one.settings.items() if name != measured} for one in (forked, started)]
    assert settings[0] == settings[1]


def assert_computed_like(result, one):
    """What the processes counted is what was asked, and they received and computed the same."""
    found, expected = result.computed, one.computed
    assert found.optimizer_steps == found.optimizer_steps_asked == 8
    assert found.images == found.images_asked == found.images_claimed == 8 * 32
    assert list(found.batch_digests) == [1, 8]
    assert found.batch_digests == expected.batch_digests
    assert found.first_gradient_norm == pytest.approx(expected.first_gradient_norm, rel=1e-4)
    assert found.first_evaluation_loss == pytest.approx(expected.first_evaluation_loss, rel=1e-4)


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "more",
    [
        [],
        pytest.param(FOUR_REPLICAS, marks=[pytest.mark.slow, pytest.mark.jax]),
        pytest.param(FOUR_IN_ONE_PROCESS, marks=[pytest.mark.slow, pytest.mark.long, pytest.mark.jax]),
    ],
    ids=["two", "four", "four in one process"],
)
def test_all_modes_train_the_same(launched, more):
    """toy-cnn has no BatchNorm, so its losses do not depend on the number of replicas either."""
    results = [launched(*arm.values[0])[0] for arm in DEFAULT_MODES + more]
    assert len({result.sample_order_sha256 for result in results}) == 1
    assert len({result.weights_sha256 for result in results}) == 1
    assert len({result.store_sha256 for result in results}) == 1
    for result in results:
        assert_computed_like(result, results[0])
    losses = np.array([result.train_loss for result in results])
    assert np.ptp(losses[:, 0]) < 5e-5
    assert np.ptp(losses, axis=0).max() < 1e-4
    evaluations = [result.evaluations[-1] for result in results]
    assert {evaluation.count for evaluation in evaluations} == {359}
    assert np.ptp([evaluation.loss for evaluation in evaluations]) < 1e-4
    assert np.ptp([evaluation.accuracy for evaluation in evaluations]) <= 1 / 359


@pytest.mark.parametrize("arm", OTHER_MODES)
def test_another_mode_trains_what_one_device_trains(launched, arm):
    one, other = launched(arm[0], "single", 1, 1)[0], launched(*arm)[0]
    for name in ("sample_order_sha256", "weights_sha256", "store_sha256"):
        assert getattr(other, name) == getattr(one, name)
    assert_computed_like(other, one)
    # In float32, Keras rounds Adam's constants, and with them 1 - beta2 by a hundred-thousandth.
    tolerance = 1e-3 if MODES[arm[:2]].unverifiable else 1e-4
    assert np.abs(np.array(other.train_loss) - one.train_loss).max() < tolerance
    assert other.evaluations[-1].count == 359
    assert other.evaluations[-1].loss == pytest.approx(one.evaluations[-1].loss, abs=tolerance)


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.parametrize("optimizer", [pytest.param("sgd", marks=pytest.mark.slow), "adam"])
def test_the_optimizers_follow_one_formula_in_float64(trained, optimizer):
    workload = WORKLOAD.model_copy(
        update={"model": "mlp", "precision": "float64", "optimizer": optimizer, "learning_rate": 1e-3}
    )
    torch, tensorflow = (trained(framework, "single", 1, 1, workload=workload) for framework in ("torch", "tensorflow"))
    assert np.abs(np.array(torch.train_loss) - tensorflow.train_loss).max() < 1e-12
    assert torch.train_loss[-1] < torch.train_loss[0]


SINGLE = [arm for arm in DEFAULT_MODES if arm.values[0][1] == "single"]
WITH_STEPS_OF_THEIR_OWN = [arm for arm in ALL_MODES if arm.values[0][1] in ("jit", "keras-fit")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arm", "change"),
    [
        pytest.param(*arm.values, {name: value}, id=f"{arm.id}-{value}", marks=arm.marks)
        for name, value, arms in (
            ("precision", "bfloat16", SINGLE + WITH_STEPS_OF_THEIR_OWN),
            ("profile", "native", SINGLE),
        )
        for arm in arms
    ],
)
def test_other_precisions_and_profiles_stay_close_to_float32(trained, arm, change):
    reference = trained(*arm)
    changed = trained(*arm, WORKLOAD.model_copy(update=change))
    assert changed.train_loss == pytest.approx(reference.train_loss, rel=0.05)
    if "precision" in change:
        assert max(np.abs(np.array(changed.train_loss) / reference.train_loss - 1)) > 1e-5


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.slow
def test_micro_batches_and_replicas_are_one_batch_in_float64(trained):
    """Dropout included: what is dropped of a sample does not depend on where and with whom it is trained."""
    workload = WORKLOAD.model_copy(
        update={"model": "mlp", "precision": "float64", "schedule": "cosine", "regularization": "shared"}
    )
    accumulating = workload.model_copy(update={"accumulate": 2, "optimizer": "sgd"})
    whole = trained("torch", "single", 1, 1, workload.model_copy(update={"optimizer": "sgd"}))
    arms = [arm.values[0] for arm in ALL_MODES if not MODES[arm.values[0][:2]].supported_values]
    losses = np.array([whole.train_loss, *(trained(*arm, accumulating).train_loss for arm in arms)])
    assert np.ptp(losses, axis=0).max() < 1e-12


TOY_BN = Workload(model="toy-bn", image_size=32, global_batch_size=16, steps=4, warmup_steps=0, regularization="shared")


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "arms", "tolerance"),
    [
        ({"precision": "bfloat16"}, [("torch", "single", 1, 1), ("tensorflow", "single", 1, 1)], 0.02),
        ({"profile": "native"}, [("torch", "ddp", 2, 1), ("tensorflow", "mirrored", 1, 2)], 1e-5),
        (
            {"batchnorm": "sync", "precision": "float64"},
            [
                ("torch", "single", 1, 1),
                ("torch", "dp", 1, 2),
                ("torch", "ddp", 2, 1),
                ("tensorflow", "mirrored", 1, 2),
            ],
            1e-10,
        ),
    ],
    ids=["bfloat16", "native", "sync"],
)
def test_regularization_goes_with_every_other_choice(trained, change, arms, tolerance):
    results = [trained(*arm, TOY_BN.model_copy(update=change)) for arm in arms]
    assert np.ptp([result.train_loss for result in results], axis=0).max() < tolerance
    assert np.ptp([result.evaluations[-1].loss for result in results]) < tolerance


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fabric", "accelerate"])
def test_a_wrapper_trains_in_the_precision_of_the_run(launched, mode):
    """The session has ACCELERATE_MIXED_PRECISION=bf16, with which a training would be off by a thousandth."""
    of_ddp, of_wrapper = (launched("torch", name, 2, 1)[0] for name in ("ddp", mode))
    assert of_wrapper.train_loss == pytest.approx(of_ddp.train_loss, rel=1e-6)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fabric", "accelerate"])
def test_a_wrapper_can_leave_out_the_exchange_of_gradients(trained, mode):
    """Replicas then drift apart, each as those of ddp do."""
    workload = WORKLOAD.model_copy(update={"precision": "float64", "steps": 4})
    of_ddp, of_wrapper = (trained("torch", name, 2, 1, workload, sync_gradients=False) for name in ("ddp", mode))
    assert of_wrapper.train_loss == pytest.approx(of_ddp.train_loss, abs=1e-12)
    assert abs(of_wrapper.train_loss[-1] - trained("torch", "ddp", 2, 1, workload).train_loss[-1]) > 1e-6


WITH_STEPS_LIKE_ANOTHERS = ("dp", "fsdp", "fabric", "accelerate", "spmd", "multiprocess")


@pytest.mark.parametrize(
    "arm",
    [
        with_mark(arm, pytest.mark.long) if arm.values[0][1] in WITH_STEPS_LIKE_ANOTHERS else arm
        for arm in OTHER_MODES
        if not MODES[arm.values[0][:2]].roles
    ]
    + DEFAULT_MODES,
)
def test_a_mode_trains_one_batch_again_and_again(trained, arm):
    """A run of one step, its first and its last, says all that a longer one says, of as many images as asked for."""
    result = trained(*arm, WORKLOAD.model_copy(update={"steps": 3, "warmup_steps": 1}), reuse_batch=True)
    digests = result.computed.batch_digests
    assert digests[1] == digests[3]
    if result.computed.images is not None:
        assert result.computed.images == result.computed.images_asked == 3 * 32
    assert result.train_loss[2] < result.train_loss[0]


COUNT_BYTES = """
def inject(module):
    add = module.StepLog.add
    def counting(self, measured):
        add(self, measured)
        if measured[-1].step == 2:
            backend = self._backend
            slots = [slot for state in backend.optimizer.state.values() for slot in state.values() if slot.dim()]
            held = [*backend.model.parameters(), *slots]
            parts = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in held]
            print("BYTES", sum(part.numel() * part.element_size() for part in parts))
    module.StepLog.add = counting
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_processes_of_fsdp_share_out_what_those_of_ddp_hold_each(tmp_path, monkeypatch):
    write_sitecustomize(tmp_path / "fault", "dpcompare.training.loop", COUNT_BYTES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fault"))
    held = {}
    for mode in ("ddp", "fsdp"):
        config = RunConfig(
            framework="torch", mode=mode, workload=WORKLOAD, cluster=Cluster.partition(2, 1, device="cpu")
        )
        run(config, tmp_path / mode)
        logs = [(tmp_path / mode / "logs" / f"node{node}-process0.log").read_text() for node in range(2)]
        held[mode] = [int(re.search(r"BYTES (\d+)", log)[1]) for log in logs]
    assert held["ddp"][0] == held["ddp"][1] == sum(held["fsdp"])
    assert max(held["fsdp"]) < 0.55 * held["ddp"][0]


EFFICIENTNET = Workload(
    dataset="synthetic-mini",
    image_size=32,
    global_batch_size=8,
    steps=2,
    warmup_steps=0,
    precision="float64",
    learning_rate=1e-4,
)


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.slow
# The last block with a skip connection is the 15th of 16 in B0, the 23rd of 23 in B2; the rate of the first one is 0.
@pytest.mark.parametrize(
    ("scale", "drop_rate"), [("b0", 0.2 * 14 / 16), pytest.param("b2", 0.2 * 22 / 23, marks=pytest.mark.long)]
)
def test_efficientnet_is_the_same_with_its_regularization(trained, scale, drop_rate):
    """Also on two replicas; that the other modes compute what these do, `verify`'s checks of toy-bn show."""
    plain = EFFICIENTNET.model_copy(update={"model": f"efficientnet-{scale}"})
    regularized = plain.model_copy(update={"regularization": "shared"})
    one, other = (trained(framework, "single", 1, 1, regularized) for framework in ("torch", "tensorflow"))
    two = trained("torch", "ddp", 2, 1, regularized.model_copy(update={"batchnorm": "sync"}))
    assert other.train_loss[0] == pytest.approx(one.train_loss[0], abs=1e-12)
    assert other.train_loss[1] == pytest.approx(one.train_loss[1], abs=1e-8)
    # Running statistics enter the evaluation, so both keep them by the same rule.
    assert other.evaluations[0].loss == pytest.approx(one.evaluations[0].loss, abs=1e-8)
    assert one.settings["stochastic_depth"] == other.settings["stochastic_depth"] == pytest.approx(drop_rate)
    assert two.train_loss == pytest.approx(one.train_loss, abs=1e-8)
    assert abs(one.train_loss[0] - trained("torch", "single", 1, 1, plain).train_loss[0]) > 1e-3


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.long
def test_four_replicas_evaluate_each_photograph_once(trained, clothing):
    workload = WORKLOAD.model_copy(update={"dataset": str(clothing)})
    for arm in (
        ("torch", "ddp", 2, 2),
        ("tensorflow", "multiworker", 2, 2),
        ("tensorflow", "mirrored", 1, 4),
    ):
        assert [e.count for e in trained(*arm, workload).evaluations] == [341]


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    "arm",
    [marked("torch", "ddp", 2, 1), marked("tensorflow", "multiworker", 2, 1), marked("jax", "multiprocess", 2, 1)],
)
def test_a_trace_of_some_steps_is_kept(arm, tmp_path):
    framework, mode, nodes, devices = arm
    cluster = Cluster.partition(nodes, devices, device="cpu")
    config = RunConfig(framework=framework, mode=mode, workload=WORKLOAD, cluster=cluster, profile_steps=(4, 6))
    run(config, tmp_path / "run")
    traces = sorted(path.name for path in (tmp_path / "run" / "traces").iterdir())
    assert traces == [f"process-{rank}.json" for rank in range(PROCESSES_WITH_A_TRACE[framework])]
    for trace in traces:
        events = json.loads((tmp_path / "run" / "traces" / trace).read_text())["traceEvents"]
        steps = [event for event in events if event.get("ph") == "X" and STEP_IN_TRACE[framework](event["name"])]
        assert len(steps) == 3
        assert all(event["dur"] > 0 for event in steps)
    for timeline in (timeline_of(tmp_path / "run", rank, framework) for rank in traced_processes(tmp_path / "run")):
        assert all(timeline.total(phase) > 0 for phase in ("forward", "backward", "update", "exchange")), timeline
        assert timeline.overlapped + timeline.idle < timeline.milliseconds
    page = as_html(analyse(collect([tmp_path / "run"])))
    assert "Timeline of the traced steps" in page
    assert page.count(", process 0: exchange from ") >= 3  # one for each step at least


# TensorFlow's profiler can abort the workers that ask another one for the parameters of a collective.
PROCESSES_WITH_A_TRACE = {"torch": 2, "tensorflow": 1, "jax": 2}

# What a step has once in a trace: the optimizer's, and the call of the compiled function.
STEP_IN_TRACE = {
    "torch": lambda name: name.startswith("Optimizer.step#"),
    "tensorflow": lambda name: name == "_train_global_batch",
    "jax": lambda name: name.startswith("$backend.py") and name.endswith(" train_step"),
}
