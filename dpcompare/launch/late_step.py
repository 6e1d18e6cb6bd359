"""The late step of a run that has ended: another framework is started to make it again, and the two are compared."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file

from dpcompare.backends.availability import require_mode
from dpcompare.config.cluster import Cluster
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.run import PreparedRun
from dpcompare.errors import RequestError
from dpcompare.launch.failures import why_it_failed
from dpcompare.launch.local import launch
from dpcompare.launch.outcome import Callbacks, Deadlines
from dpcompare.launch.plan import Endpoints, is_isolated, plan
from dpcompare.models.costs import training_flops
from dpcompare.results.late_step import LATE_STEPS, LateStep, compared, statistics_are_alike, why_not
from dpcompare.results.result import RunResult
from dpcompare.results.run_dir import (
    ATTEMPT_CONFIG_FILE,
    EVENTS_DIR,
    LATE_STEP_AFTER,
    LATE_STEP_AGAIN,
    LATE_STEP_BEFORE,
    LOGS_DIR,
    RESULT_FILE,
    late_step_dir,
)
from dpcompare.system.devices import available_cores
from dpcompare.system.json_files import MOST

MOST_SECONDS = 300.0
"""How long it may take; what takes longer is given up, and the run says so."""
FLOPS_PER_CORE = 1e9
"""What a core computes in float64 at least, in operations per second: a slow one, depthwise layers included."""


def with_late_step(result: RunResult, config: PreparedRun, run_dir: Path, callbacks: Callbacks) -> RunResult:
    """The result of a run that has completed, with its late step, which is made now; the result is written again.

    Args:
        result: of the run.
        config: with `late_step`.
        run_dir: of the run, which has kept its state.
        callbacks: `report` gets a line, `stopped_by` ends it, `interpreter_of` has the other frameworks.

    Raises:
        KeyboardInterrupt: it was interrupted; the result says nothing of a late step.
    """
    folder = late_step_dir(run_dir)
    started_at = time.monotonic()
    try:
        late_step = _made(result, config, folder, callbacks)
    except (RequestError, OSError, SafetensorError) as error:  # the run itself has completed, whatever happens here
        late_step = LateStep(left_out=str(error).partition("\n")[0])
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # three times the model and its optimizer
    if late_step.left_out is None:
        late_step = late_step.model_copy(update={"seconds": time.monotonic() - started_at})
    with_it = result.model_copy(update={"late_step": late_step})
    try:
        with_it.save(run_dir)
    except OSError as error:
        callbacks.report(f"the late step cannot be written into {RESULT_FILE}: {error.strerror}")
        return result
    return with_it


def _made(result: RunResult, config: PreparedRun, folder: Path, callbacks: Callbacks) -> LateStep:
    if reason := why_not(config) or _why_too_slow(config):
        return LateStep(left_out=reason)
    if not all((folder / name).is_file() for name in (LATE_STEP_BEFORE, LATE_STEP_AFTER)):
        return LateStep(left_out="its state could not be kept, or the run was resumed within its last steps")
    problems: list[str] = []
    for again in _configs_again(config, problems, callbacks.interpreter_of):
        callbacks.report(f"checking the last {LATE_STEPS} steps: {again.framework} computes them in float64")
        if (why := _repeated(again, folder, callbacks.stopped_by)) is None:
            return _judged(result, config, again, folder)
        problems.append(f"{again.framework}: {why}")
    return LateStep(left_out=f"no other framework can make it here: {'; '.join(problems)}")


def _repeated(again: PreparedRun, folder: Path, stopped_by: Callable[[], str | None]) -> str | None:
    """Have a framework repeat the steps; returns why it could not, and None where it did."""
    again.save(folder / ATTEMPT_CONFIG_FILE)
    (folder / LOGS_DIR).mkdir(exist_ok=True)
    shutil.rmtree(folder / EVENTS_DIR, ignore_errors=True)  # of another framework that could not
    outcome = launch(
        plan(again, folder.resolve(), Endpoints(())),
        folder,
        Deadlines(start=MOST_SECONDS, progress=MOST_SECONDS),
        lambda event: None,  # the progress that is shown is that of the run
        isolate=is_isolated(again),
        stopped_by=_until(time.monotonic() + MOST_SECONDS, stopped_by),
    )
    return why_it_failed(again, folder, outcome).splitlines()[0] if outcome.failed or outcome.vanished else None


def _judged(result: RunResult, config: PreparedRun, again: PreparedRun, folder: Path) -> LateStep:
    """What the repeated steps say of those of the run."""
    before, after, other = (load_file(folder / name) for name in (LATE_STEP_BEFORE, LATE_STEP_AFTER, LATE_STEP_AGAIN))
    last = len(result.train_loss)
    losses = result.train_loss[-LATE_STEPS:]
    part, largest = compared(
        before,
        after,
        other,
        [float("nan") if loss is None else loss for loss in losses],
        arithmetic=result.arithmetic,
        first_step=last - LATE_STEPS + 1,
        with_statistics=statistics_are_alike(config),
    )
    return LateStep(
        framework=again.framework,
        first=last - LATE_STEPS + 1,
        last=last,
        part_of_tolerance=min(part, MOST),
        largest=largest,
    )


def _until(deadline: float, stopped_by: Callable[[], str | None]) -> Callable[[], str | None]:
    return lambda: stopped_by() or (f"it took more than {MOST_SECONDS:.0f} s" if time.monotonic() > deadline else None)


def _why_too_slow(config: PreparedRun) -> str | None:
    """Why these cores would need too long in float64; GPUs have units for it."""
    if config.cluster.device_type == "gpu":
        return None
    workload = config.workload
    flops = training_flops(workload.model, workload.image_size, config.inputs.num_classes)
    if flops is None:
        return None
    seconds = LATE_STEPS * workload.global_batch_size * flops / (FLOPS_PER_CORE * available_cores())
    return None if seconds <= MOST_SECONDS else f"these cores would need some {seconds / 60:.0f} minutes for it"


def _configs_again(
    config: PreparedRun, problems: list[str], interpreter_of: Callable[[str], str]
) -> Iterator[PreparedRun]:
    """The same training by one device of each other framework, in float64; the first starts and compiles fastest.

    Args:
        config: of the run.
        problems: gets why a framework cannot be used here.
        interpreter_of: a framework -> its interpreter.
    """
    workload = config.workload
    is_one_batch = workload.batchnorm == "sync"
    fields = {
        "precision": "float64",
        "profile": "strict",
        "batchnorm": "local",
        "accumulate": workload.accumulate * (1 if is_one_batch else config.topology.num_replicas),
    }
    for framework in FRAMEWORKS:
        if framework == config.framework:
            continue
        if config.inputs.drops and framework not in config.inputs.drop_layers:
            problems.append(f"its layers of dropout were not matched with those in {framework}")
            continue
        python = interpreter_of(framework)
        try:
            require_mode(framework, "single", python)
            again = PreparedRun(
                framework=framework,
                mode="single",
                workload=workload.changed(**fields),
                cluster=_one_device(config),
                task="late step",
                python=python,
                inputs=config.inputs,
            )
        except RequestError as error:
            problems.append(str(error).partition("\n")[0])
            continue
        yield again


def _one_device(config: PreparedRun) -> Cluster:
    if config.cluster.device_type == "gpu":
        return Cluster.partition(1, 1, gpus=config.cluster.devices[:1])
    return Cluster.partition(1, 1, device="cpu")
