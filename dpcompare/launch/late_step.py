"""The late step of a run that has ended: another framework is started to make it again, and the two are compared."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

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
from dpcompare.launch.setup import interpreter_made_for
from dpcompare.models.costs import training_flops
from dpcompare.results.late_step import LATE_STEPS, LateStep, compared, why_not
from dpcompare.results.result import RunResult
from dpcompare.results.run_dir import (
    ATTEMPT_CONFIG_FILE,
    LATE_STEP_AFTER,
    LATE_STEP_AGAIN,
    LATE_STEP_BEFORE,
    LOGS_DIR,
    late_step_dir,
)
from dpcompare.system.devices import available_cores

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
        callbacks: `report` gets a line, `stopped_by` ends it.

    Raises:
        KeyboardInterrupt: it was interrupted; the result says nothing of a late step.
    """
    folder = late_step_dir(run_dir)
    started_at = time.monotonic()
    try:
        late_step = _made(result, config, folder, callbacks)
    except RequestError as error:
        late_step = LateStep(left_out=str(error))
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # three times the model and its optimizer
    if late_step.left_out is None:
        late_step = late_step.model_copy(update={"seconds": time.monotonic() - started_at})
    result = result.model_copy(update={"late_step": late_step})
    result.save(run_dir)
    return result


def _made(result: RunResult, config: PreparedRun, folder: Path, callbacks: Callbacks) -> LateStep:
    if reason := why_not(config) or _why_too_slow(config):
        return LateStep(left_out=reason)
    if not (folder / LATE_STEP_BEFORE).is_file():
        return LateStep(left_out=f"the run was resumed after the first of its last {LATE_STEPS} steps")
    again = _config_again(config)
    callbacks.report(f"repeating the last {LATE_STEPS} steps: {again.framework} in float64")
    again.save(folder / ATTEMPT_CONFIG_FILE)
    (folder / LOGS_DIR).mkdir(exist_ok=True)
    outcome = launch(
        plan(again, folder.resolve(), Endpoints(())),
        folder,
        Deadlines(start=MOST_SECONDS, progress=MOST_SECONDS),
        lambda event: None,  # the progress that is shown is that of the run
        isolate=is_isolated(again),
        stopped_by=_until(time.monotonic() + MOST_SECONDS, callbacks.stopped_by),
    )
    if outcome.failed or outcome.vanished:
        why = why_it_failed(again, folder, outcome)
        return LateStep(left_out=f"{again.framework} could not make it: {why.splitlines()[0]}")
    before, after, other = (load_file(folder / name) for name in (LATE_STEP_BEFORE, LATE_STEP_AFTER, LATE_STEP_AGAIN))
    last = len(result.train_loss)
    losses = result.train_loss[-LATE_STEPS:]
    part, largest = compared(
        before,
        after,
        other,
        [float("nan") if loss is None else loss for loss in losses],
        arithmetic="TF32" if result.settings.get("tf32") else result.precision,
        first_step=last - LATE_STEPS + 1,
    )
    return LateStep(
        framework=again.framework, first=last - LATE_STEPS + 1, last=last, part_of_tolerance=part, largest=largest
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


def _config_again(config: PreparedRun) -> PreparedRun:
    """The same training by one device of another framework, in float64.

    Raises:
        RequestError: no other framework can be used here.
    """
    workload = config.workload
    is_one_batch = workload.batchnorm == "sync"
    fields = {
        "precision": "float64",
        "profile": "strict",
        "batchnorm": "local",
        "accumulate": workload.accumulate * (1 if is_one_batch else config.topology.num_replicas),
    }
    problems = []
    for framework in FRAMEWORKS:  # in their order: the first starts and compiles fastest
        python = os.environ.get(f"DPCOMPARE_{framework.upper()}_PYTHON") or interpreter_made_for(framework)
        if framework == config.framework:
            continue
        python = python or sys.executable
        try:
            require_mode(framework, "single", python)
            return PreparedRun(
                framework=framework,
                mode="single",
                workload=workload.changed(**fields),
                cluster=_one_device(config),
                task="late step",
                python=python,
                inputs=config.inputs,
            )
        except RequestError as error:
            problems.append(str(error).splitlines()[0])
    raise RequestError(f"no other framework can make it here: {'; '.join(problems)}")


def _one_device(config: PreparedRun) -> Cluster:
    if config.cluster.device_type == "gpu":
        return Cluster.partition(1, 1, gpus=config.cluster.devices[:1])
    return Cluster.partition(1, 1, device="cpu")
