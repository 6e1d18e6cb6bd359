"""Runs that go on: bit for bit as if they had never stopped, on other replicas, in another framework."""

import json
import os
import signal
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dpcompare import Cluster, RunConfig, RunFailedError, Workload, run
from dpcompare.config.modes import MODES
from dpcompare.config.run import RunConfig as Config
from dpcompare.errors import RequestError
from dpcompare.launch.local import launch
from dpcompare.launch.run import resume
from dpcompare.results.checkpoint import decode
from dpcompare.results.events import Started
from dpcompare.results.history import close_attempt
from dpcompare.results.run_dir import CONFIG_FILE, checkpoint_path, checkpoint_paths
from stress.injection import write_sitecustomize
from tests.support.command import dpcompare, invoke, start
from tests.support.marks import with_mark
from tests.support.modes import ALL_MODES

LIKE_ANOTHER = {("torch", "dp"), ("torch", "fabric"), ("torch", "accelerate"), ("tensorflow", "mirrored"),
                ("jax", "single"), ("jax", "multiprocess")}  # fmt: skip
"""Modes that load their state, and start their processes, as another mode does."""


def marked(arm):
    """A killed run takes about half a minute, but for that of one process of torch."""
    if arm.values[0][:2] == ("torch", "single"):
        return arm
    return with_mark(arm, pytest.mark.slow, *([pytest.mark.long] if arm.values[0][:2] in LIKE_ANOTHER else []))


STEPS = 12
WORKLOAD = Workload(
    model="toy-bn", image_size=16, global_batch_size=16, dataset="synthetic-mini", steps=STEPS, warmup_steps=0
)

EVALUATED = {"weight_average": 0.9, "batchnorm_recompute": 1}
"""Another model than the one that is trained is evaluated, also by whoever goes on."""


def config(framework="torch", mode="single", nodes=1, devices=1, every=1, workload=WORKLOAD, **changes):
    cluster = Cluster.partition(nodes, devices, device="cpu")
    stages = 2 if MODES[framework, mode].is_pipeline else 1
    return RunConfig(
        framework=framework,
        mode=mode,
        workload=workload,
        cluster=cluster,
        stages=stages,
        checkpoint_every=every,
        **changes,
    )


DIE = """
def inject(module):
    import os, signal
    rate = module.learning_rate
    def dying(workload, step, num_steps):  # called when `step` steps are made
        if step == {step}:
            os.kill(os.getpid(), signal.SIGKILL)
        return rate(workload, step, num_steps)
    module.learning_rate = dying
"""


@pytest.fixture
def dying_after(tmp_path):
    """A context in which every training process kills itself when it has made a number of steps."""

    @contextmanager
    def dying(step):
        write_sitecustomize(tmp_path / f"fault-{step}", "dpcompare.training.loop", DIE.format(step=step))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(tmp_path / f"fault-{step}"))
            yield

    return dying


@pytest.fixture
def undisturbed(train_once):
    return lambda *arm, **changes: train_once(config(*arm, **changes))[0]


def weights(run_dir):
    """The bytes of the last checkpoint's tensors."""
    checkpoint = decode(checkpoint_paths(run_dir)[0].read_bytes())
    return {
        name: tensor.tobytes() for part in (checkpoint.model, checkpoint.optimizer) for name, tensor in part.items()
    }


def same(result, expected):
    assert result.status == "completed"
    assert result.train_loss == expected.train_loss
    assert result.sample_order_sha256 == expected.sample_order_sha256
    for found in (result.computed, expected.computed):  # of the steps of the last attempt, checkpoints or not
        assert (found.optimizer_steps, found.images) == (found.optimizer_steps_asked, found.images_asked)
    assert [e.model_dump() for e in result.evaluations] == [e.model_dump() for e in expected.evaluations]


LAUNCHED = ("single", "ddp", "multiworker")
"""Modes of which the run that is killed is launched as ever; the others, and what goes on, need not be."""


@pytest.mark.parametrize("arm", map(marked, ALL_MODES))
def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path, arm, undisturbed, dying_after, request):
    if arm[1] not in LAUNCHED or arm[0] == "jax":  # which optimizes less there; see tests/support/warm.py
        request.getfixturevalue("warm")
    mode = MODES[arm[:2]]
    changes = {name: EVALUATED[name] for name in EVALUATED if name not in mode.supported_values}
    changes |= {"batchnorm": "sync"} if mode.sees_whole_batch else {}
    workload = WORKLOAD.model_copy(update=changes)
    with pytest.raises(RunFailedError), dying_after(5):
        run(config(*arm, workload=workload), tmp_path / "run")
    request.getfixturevalue("warm")
    result = resume(tmp_path / "run", Config.load(tmp_path / "run" / CONFIG_FILE))
    same(result, undisturbed(*arm, workload=workload))
    # One process may die before the first one has written what all have trained.
    assert result.first_step in (4, 5)
    (attempt,) = result.attempts
    assert attempt.status == "failed"
    assert (tmp_path / "run" / "attempts" / "01" / "result.json").is_file()
    own = Config.load(tmp_path / "run" / "attempt-config.json")
    assert (own.mode, own.resume) == (arm[1], checkpoint_path(tmp_path / "run", result.first_step).resolve())


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_chain_of_kills_equals_none(tmp_path, undisturbed, dying_after):
    with pytest.raises(RunFailedError), dying_after(1):
        run(config(), tmp_path / "run")
    for step in range(3, STEPS, 3):
        with pytest.raises(RunFailedError), dying_after(step):
            resume(tmp_path / "run", Config.load(tmp_path / "run" / CONFIG_FILE))
    result = resume(tmp_path / "run", Config.load(tmp_path / "run" / CONFIG_FILE))
    same(result, undisturbed())
    assert len(result.attempts) == 1 + len(range(3, STEPS, 3))


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_weights_and_memory_of_the_optimizer_are_the_same_bytes(tmp_path):
    for name, steps in (("whole", STEPS), ("parts", 5)):
        run(config(workload=WORKLOAD.model_copy(update={"steps": steps})), tmp_path / name)
    resume(tmp_path / "parts", config())
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_restarts_make_up_for_failures_and_end(tmp_path, undisturbed, dying_after):
    """The second attempt begins after step 4 and dies there too."""
    with pytest.raises(RunFailedError), dying_after(4):
        run(config(max_restarts=1, every=2), tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert [attempt["first_step"] for attempt in result["attempts"]] == [0]
    assert result["first_step"] == 4
    same(resume(tmp_path / "run", config(every=2)), undisturbed(every=2))


@pytest.mark.torch
@pytest.mark.slow
def test_a_process_that_dies_once_is_made_up_for(tmp_path, undisturbed):
    """Without a checkpoint a restart begins at the beginning."""

    def kill_first(event):
        if isinstance(event, Started) and not (tmp_path / "run" / "attempts").exists():
            os.kill(event.pid, signal.SIGKILL)

    result = run(config(max_restarts=1, every=None), tmp_path / "run", observe=kill_first)
    assert result.first_step == 0
    assert [attempt.status for attempt in result.attempts] == ["failed"]
    same(result, undisturbed(every=None))


@pytest.mark.torch
@pytest.mark.slow
def test_a_restart_that_is_refused_keeps_what_was_measured(tmp_path, monkeypatch, dying_after):
    """A partition may have changed, or a permission be gone, since the first attempt was allowed."""
    launches = iter([launch])

    def launch_once(*arguments, **options):
        if (first := next(launches, None)) is None:
            raise RequestError("not allowed any more")
        return first(*arguments, **options)

    monkeypatch.setattr("dpcompare.launch.attempt.launch", launch_once)
    with pytest.raises(RunFailedError, match="no restart: not allowed any more"), dying_after(4):
        run(config(max_restarts=1, every=2), tmp_path / "run")
    assert checkpoint_paths(tmp_path / "run")[0].name.endswith("4.safetensors")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], len(result["train_loss"])) == ("failed", 4)


@pytest.mark.parametrize(
    "arm",
    [
        pytest.param(("torch", "single"), marks=pytest.mark.torch),
        pytest.param(("tensorflow", "keras-fit"), marks=[pytest.mark.tensorflow, pytest.mark.slow]),
    ],
)
@pytest.mark.usefixtures("warm")
def test_a_run_that_is_cut_to_its_checkpoint_is_evaluated_there(tmp_path, arm, undisturbed, dying_after):
    """No step is left to be made, and the longer run had evaluated at its own end only."""
    workload = WORKLOAD.model_copy(update={"steps": 4})
    with pytest.raises(RunFailedError), dying_after(5):
        run(config(*arm, every=4), tmp_path / "run")
    result = resume(tmp_path / "run", config(*arm, every=4, workload=workload))
    same(result, undisturbed(*arm, every=4, workload=workload))


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_another_number_of_replicas_trains_the_same_batches(tmp_path):
    workload = WORKLOAD.model_copy(update={"precision": "float64", "model": "mlp"})
    whole = run(config(workload=workload), tmp_path / "whole")
    run(config(workload=workload.model_copy(update={"steps": 5})), tmp_path / "run")
    result = resume(tmp_path / "run", config("torch", "ddp", 2, workload=workload))
    assert (result.num_replicas, result.first_step) == (2, 5)
    assert result.sample_order_sha256 == whole.sample_order_sha256
    assert np.allclose(result.train_loss, whole.train_loss, rtol=0, atol=1e-12)


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(("torch", "tensorflow"), id="to tensorflow"),
        pytest.param(("tensorflow", "torch"), id="to torch"),
    ],
)
@pytest.mark.usefixtures("warm")
def test_the_other_framework_goes_on(tmp_path, pair, optimizer):
    others = {"clip_norm": 0.5, "weight_decay": 0.05, "label_smoothing": 0.1}
    workload = WORKLOAD.model_copy(
        update={"precision": "float64", "optimizer": optimizer, "steps": 20, **EVALUATED, **others}
    )
    begun_with, gone_on_with = pair
    whole = run(config(begun_with, workload=workload), tmp_path / "whole")
    run(config(begun_with, workload=workload.model_copy(update={"steps": 7})), tmp_path / "run")
    result = resume(tmp_path / "run", config(gone_on_with, workload=workload))
    assert result.framework == gone_on_with
    assert result.attempts[0].framework == begun_with
    assert np.abs(np.subtract(result.train_loss, whole.train_loss)).max() < 1e-8
    assert abs(result.evaluations[-1].loss - whole.evaluations[-1].loss) < 1e-8


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_three_frameworks_go_on_one_after_the_other(tmp_path, undisturbed):
    workload = WORKLOAD.model_copy(update={"precision": "float64", "optimizer": "adam", "steps": 20, **EVALUATED})
    whole = undisturbed(every=5, workload=workload)
    chain = ["torch", "jax", "tensorflow", "torch"]
    run(config(chain[0], every=5, workload=workload.model_copy(update={"steps": 5})), tmp_path / "run")
    for number, framework in enumerate(chain[1:], start=2):
        steps = workload.model_copy(update={"steps": 5 * number})
        result = resume(tmp_path / "run", config(framework, every=5, workload=steps))
    assert [attempt.framework for attempt in result.attempts] == chain[:-1]
    assert np.abs(np.subtract(result.train_loss, whole.train_loss)).max() < 1e-8
    assert abs(result.evaluations[-1].loss - whole.evaluations[-1].loss) < 1e-8


@pytest.mark.torch
@pytest.mark.slow
def test_the_command_goes_on_with_a_killed_launcher(tmp_path, undisturbed):
    long = ["--model", "toy-bn", "--image-size", "16", "--global-batch-size", "16", "--dataset", "synthetic-mini"]
    run_dir = tmp_path / "run"
    options = ["--steps", "100000", "--warmup-steps", "0", "--device", "cpu", "--checkpoint-every", "1"]
    process = start("run", "--framework", "torch", "--mode", "single", *long, *options, "--run-dir", run_dir)
    while not checkpoint_paths(run_dir):
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    step = int(checkpoint_paths(run_dir)[0].stem.removeprefix("step-"))
    done = dpcompare("run", "--resume", run_dir, "--steps", str(step + 4), "--json")
    assert done.code == 0, done.stderr
    assert f"after step {done.json['first_step']} of {step + 4}" in done.stderr
    assert len(done.json["train_loss"]) == step + 4
    assert done.json["train_loss"][: min(12, step)] == undisturbed().train_loss[: min(12, step)]
    assert done.json["attempts"][0]["error"] == "the launcher was killed"
    refused = dpcompare("run", "--resume", run_dir, "--steps", "3")
    assert refused.code == 2
    assert "ask for more with --steps or --epochs" in refused.stderr


@pytest.mark.torch
@pytest.mark.usefixtures("warm")
def test_what_cannot_go_on_is_refused(tmp_path):
    nowhere = invoke("run", "--resume", tmp_path / "nowhere")
    assert nowhere.code == 2
    assert "holds no readable config.json" in nowhere.stderr
    run(config(every=None), tmp_path / "run")
    without = invoke("run", "--resume", tmp_path / "run", "--steps", "20")
    assert without.code == 2
    assert "the run was made without --checkpoint-every N" in without.stderr
    changed = invoke("run", "--resume", tmp_path / "run", "--learning-rate", "0.5")
    assert changed.code == 2
    assert "received --learning-rate, but a resumed run keeps its workload" in changed.stderr


@pytest.mark.torch
@pytest.mark.usefixtures("warm")
def test_a_run_at_its_target_goes_on_to_a_higher_one_alone(tmp_path):
    first = run(config(evaluate_every=2, target_accuracy=0.001, stop_at_target=True), tmp_path / "run")
    (evaluation,) = first.evaluations
    assert (evaluation.step, first.status) == (2, "completed")
    before = (tmp_path / "run" / "result.json").read_bytes()
    for longer in ([], ["--steps", "40"], ["--epochs", "9"]):
        refused = invoke("run", "--resume", tmp_path / "run", *longer)
        assert refused.code == 2
        assert (
            f"has reached its target at step 2: an accuracy of {evaluation.accuracy:.4f}, with 0.001 asked for; ask "
            "for more with --target-accuracy"
        ) in refused.stderr
    assert (tmp_path / "run" / "result.json").read_bytes() == before
    done = invoke("run", "--resume", tmp_path / "run", "--target-accuracy", "1", "--json")
    assert done.code == 0, done.stderr
    assert len(done.json["train_loss"]) == STEPS


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_an_attempt_that_was_closed_halfway_is_closed_again(tmp_path, monkeypatch, undisturbed):
    """The process dies between any two of the moves; nothing is lost or counted twice."""
    run(config(workload=WORKLOAD.model_copy(update={"steps": 5})), tmp_path / "run")
    rename, moves = Path.rename, []

    def die_at(number):
        def moved(path, target):
            moves.append(path)
            if len(moves) == number:
                raise KeyboardInterrupt
            return rename(path, target)

        return moved

    for number in (1, 2, 2, 2):
        moves.clear()
        monkeypatch.setattr(Path, "rename", die_at(number))
        with pytest.raises(KeyboardInterrupt):
            close_attempt(tmp_path / "run", config(), step=5)
    monkeypatch.undo()
    result = resume(tmp_path / "run", config())
    assert result.train_loss == undisturbed().train_loss
    assert [e.step for e in result.evaluations] == [5, 10, 12]
    assert len(result.attempts) == 1
    assert [path.name for path in (tmp_path / "run" / "attempts").iterdir()] == ["01"]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_loss_that_is_no_number_keeps_the_last_good_checkpoint(tmp_path):
    diverging = WORKLOAD.model_copy(update={"learning_rate": 1e30, "optimizer": "sgd"})
    with pytest.raises(
        RunFailedError, match=r"the loss of step \d+ is (nan|inf) in process 0|after step \d+ the values of"
    ):
        run(config(workload=diverging), tmp_path / "run")
    for path in checkpoint_paths(tmp_path / "run"):
        assert all(np.isfinite(tensor).all() for tensor in decode(path.read_bytes()).model.values())
    result = run(config(workload=diverging, on_nan="continue"), tmp_path / "other")
    assert result.status == "completed"
    assert None in result.train_loss
    json.dumps(result.model_dump(mode="json"), allow_nan=False)


DIE_AT_THE_END = """
def inject(module):
    import os, signal
    train = module.train
    def dying(*arguments, **options):
        train(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)
    module.train = dying
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_run_that_died_after_its_last_step_is_completed(tmp_path, undisturbed):
    write_sitecustomize(tmp_path / "fault", "dpcompare.training.loop", DIE_AT_THE_END)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path / "fault"))
        with pytest.raises(RunFailedError):
            run(config(), tmp_path / "run")
    result = resume(tmp_path / "run", config())
    same(result, undisturbed())
    assert result.first_step == STEPS


@pytest.mark.torch
@pytest.mark.usefixtures("warm")
def test_two_runs_in_one_directory_do_not_meet(tmp_path):
    run(config(workload=WORKLOAD.model_copy(update={"steps": 3})), tmp_path / "run")
    before = (tmp_path / "run" / "result.json").read_bytes()
    with pytest.raises(RequestError, match="is in use by another process"), _held(tmp_path / "run"):
        resume(tmp_path / "run", config())
    assert (tmp_path / "run" / "result.json").read_bytes() == before


@pytest.mark.torch
@pytest.mark.usefixtures("warm")
def test_a_file_of_options_is_not_ignored(tmp_path):
    run(config(workload=WORKLOAD.model_copy(update={"steps": 3})), tmp_path / "run")
    file = tmp_path / "options.toml"
    file.write_text("seed = 3")
    refused = invoke("run", "--resume", tmp_path / "run", "--config", file)
    assert refused.code == 2
    assert "--resume: received --seed" in refused.stderr
    file.write_text("steps = 5")
    longer = invoke("run", "--resume", tmp_path / "run", "--config", file, "--json")
    assert len(longer.json["train_loss"]) == 5


def _held(folder):
    from dpcompare.system.cache import exclusive_lock

    return exclusive_lock(folder, "")
