"""A whole run: check, prepare, plan, launch, collect and resume; also its steps as commands for a shell script."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from dpcompare.backends.availability import require_compiler, require_devices, require_mode, require_same_dpcompare
from dpcompare.backends.cuda_wheels import require_cuda
from dpcompare.backends.other_variables import make_key
from dpcompare.config.run import PreparedRun, RunConfig
from dpcompare.config.setting import require_one_line
from dpcompare.data.sources import Progress
from dpcompare.errors import RequestError, RunFailedError, require_type
from dpcompare.launch.attempt import INTERRUPTED, make_attempt, write_result
from dpcompare.launch.engines import load_engine
from dpcompare.launch.failures import why_it_failed
from dpcompare.launch.initial_weights import idle_dropout
from dpcompare.launch.inputs import prepare_again, prepare_inputs, remarks_on
from dpcompare.launch.late_step import with_late_step
from dpcompare.launch.memory import memory_remark, require_memory
from dpcompare.launch.outcome import Callbacks, LaunchOutcome
from dpcompare.launch.plan import exposure, require_free_variables
from dpcompare.launch.remembered import remember_first_step
from dpcompare.launch.setup import usual_interpreter
from dpcompare.results.aggregate import LaunchEnd
from dpcompare.results.attempts import Status
from dpcompare.results.checkpoint import newest_checkpoint, training_id
from dpcompare.results.computed import reached
from dpcompare.results.events import Event
from dpcompare.results.history import close_attempt, result_so_far
from dpcompare.results.result import RunResult
from dpcompare.results.run_dir import (
    ATTEMPTS_DIR,
    CONFIG_FILE,
    EVENTS_DIR,
    LOGS_DIR,
    RESULT_FILE,
)
from dpcompare.system.cache import exclusive_lock
from dpcompare.system.devices import (
    free_gpu_memory,
    gpus_without_slices,
    installed_gpus,
    invisible_gpus,
    used_gpus,
    visible_gpus,
)
from dpcompare.system.files import reject_links, require_writable
from dpcompare.system.signals import signals_held, terminated_as_interrupted
from dpcompare.system.terminal_text import keep_stderr_from_failing, pluralize

MOST_LOST_PORTS = 3


def default_run_dir(config: RunConfig) -> Path:
    """runs/<time>-<framework>-<mode>-<nodes>x<devices> below the current directory."""
    topology = f"{config.cluster.num_nodes}x{config.cluster.devices_per_node}"
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    return Path("runs") / f"{stamp}-{config.framework}-{config.mode}-{topology}"


def run(
    config: RunConfig,
    run_dir: str | Path | None = None,
    *,
    observe: Callable[[Event], None] = lambda event: None,
    data_progress: Progress | None = None,
    report: Callable[[str], None] = lambda line: None,
    remark: Callable[[str], None] | None = None,
    stopped_by: Callable[[], str | None] = lambda: None,
    interpreter_of: Callable[[str], str] = usual_interpreter,
) -> RunResult:
    """Train one config in separate processes, here or where its placement says, and return what was measured.

    Args:
        config: what to run.
        run_dir: where config, logs and result go; default: a new directory below `runs/`.
        observe: called with every event of the training processes, see `dpcompare.results.events`, until it raises an
            exception, which is logged.
        data_progress: called with (images done, images in all) while a dataset is prepared.
        report: called with a line for every restart, and with what an engine says.
        remark: called before the start with what is allowed but hardly meant; default: `report`.
        stopped_by: asked several times a second; a reason that it returns ends the run, which then has failed.
        interpreter_of: asked for the interpreter of another framework, which makes the late step.

    Raises:
        RequestError: the request cannot be carried out; nothing was started.
        RunFailedError: a process failed; result.json holds what was measured until then.
        KeyboardInterrupt: the run was interrupted; all processes have ended and result.json says so.
    """
    require_type(config, RunConfig, "config")
    directory = Path(run_dir) if run_dir is not None else default_run_dir(config)
    callbacks = Callbacks(
        observe=observe, report=report, stopped_by=stopped_by, interpreter_of=interpreter_of
    ).expendable()
    with terminated_as_interrupted():
        prepared = prepare_run(config, directory, data_progress)
        idle = idle_dropout(prepared) if config.inputs is None else None
        for line in filter(None, (exposure(prepared), *remarks_on(prepared), idle, memory_remark(prepared))):
            (remark or callbacks.report)(line)
        try:
            with _hold(directory):
                return _train(prepared, directory, callbacks)
        except RequestError:
            if not any((directory / name).exists() for name in (EVENTS_DIR, ATTEMPTS_DIR)):  # nothing was ever started
                shutil.rmtree(directory, ignore_errors=True)
            raise


def resume(
    run_dir: str | Path,
    config: RunConfig,
    *,
    observe: Callable[[Event], None] = lambda event: None,
    report: Callable[[str], None] = lambda line: None,
    stopped_by: Callable[[], str | None] = lambda: None,
    interpreter_of: Callable[[str], str] = usual_interpreter,
) -> RunResult:
    """Resume a run from its newest checkpoint that can be used, in the same directory.

    Args:
        run_dir: the run, which has ended or was killed.
        config: its config, see `RunConfig.load`; the length, the mode, the framework and the cluster may be others.
        observe: as for `run`.
        report: called with a line for every checkpoint that cannot be used, and for the one that is.
        stopped_by: as for `run`.
        interpreter_of: as for `run`.

    Raises:
        RequestError: there is nothing to resume from; nothing was started.
        RunFailedError, KeyboardInterrupt: as for `run`.
    """
    require_type(run_dir, (str, Path), "run_dir")
    require_type(config, RunConfig, "config")
    directory = Path(run_dir)
    require_one_line(directory.absolute(), "run directory")
    reject_links(directory, "the run directory")
    require_writable(directory, "the run directory")
    callbacks = Callbacks(
        observe=observe, report=report, stopped_by=stopped_by, interpreter_of=interpreter_of
    ).expendable()
    with terminated_as_interrupted():
        require_machine(config)
        prepared = prepare_again(config)
        with _hold(directory):
            path, step, problems = newest_checkpoint(directory, training=training_id(prepared))
            for problem in problems:
                callbacks.report(problem)
            num_steps = prepared.workload.total_steps(prepared.inputs.num_train)
            if path is None:
                raise RequestError(_nothing_to_resume(directory, prepared, problems))
            _require_target_ahead(directory, prepared)
            # A run that failed after its last checkpoint still lacks its evaluation or its result.
            if step > num_steps or (step == num_steps and result_so_far(directory).status == "completed"):
                raise RequestError(
                    f"the newest checkpoint of {str(run_dir)!r} is that of step {step}, and the run is to have "
                    f"{pluralize(num_steps, 'step')}; ask for more with --steps or --epochs"
                )
            if line := exposure(prepared):
                callbacks.report(line)
            callbacks.report(f"resuming from {path.name}, after step {step} of {num_steps}")
            prepared = prepared.changed(resume=path.resolve())
            close_attempt(directory, prepared, step=step)
            return _train(prepared, directory, callbacks)


def _require_target_ahead(run_dir: Path, config: RunConfig) -> None:
    """Refuse to continue a run that is to end at a target which it has reached."""
    if not config.stop_at_target or config.target_accuracy is None:
        return
    done = result_so_far(run_dir)
    found = reached(done.evaluations, config.target_accuracy)
    if done.status == "completed" and found:
        raise RequestError(
            f"{str(run_dir)!r} has reached its target at step {found.step}: an accuracy of {found.accuracy:.4f}, with "
            f"{config.target_accuracy:g} asked for; ask for more with --target-accuracy"
        )


def _nothing_to_resume(run_dir: Path, config: RunConfig, problems: list[str]) -> str:
    begin = f"run directory {str(run_dir)!r} holds no checkpoint"
    if problems:
        return f"{begin} that can be used: {'; '.join(problems)}"
    if config.checkpoint_every is None:
        return f"{begin}: the run was made without --checkpoint-every N; start a new run"
    first = f"the first one, which is written after {pluralize(config.checkpoint_every, 'step')}"
    return f"{begin}: it ended before {first}; start a new run"


def _hold(run_dir: Path) -> AbstractContextManager[None]:
    return exclusive_lock(
        run_dir,
        f"run directory {str(run_dir)!r} is in use by another process; wait for it, or choose another --run-dir",
    )


def _train(config: PreparedRun, run_dir: Path, callbacks: Callbacks) -> RunResult:
    """Attempt after attempt, until one completes or none is left."""
    restarts = ports_lost = 0
    while True:
        try:
            result = make_attempt(config, run_dir, callbacks)
        except RequestError as refused:
            if not restarts + ports_lost:
                raise
            raise RunFailedError(
                f"{config.framework} {config.mode} failed.\nno restart: {refused}", str(run_dir)
            ) from None
        if result.status == "completed":
            if config.compiles and result.first_step_seconds is not None:
                remember_first_step(config, result.first_step_seconds)
            return with_late_step(result, config, run_dir, callbacks) if config.late_step else result
        # A port that was free when it was chosen can be taken by any process before it is used; that is not a restart.
        if _lost_a_port(result) and ports_lost < MOST_LOST_PORTS:
            ports_lost += 1
        elif restarts < config.max_restarts:
            restarts += 1
        else:
            raise RunFailedError(
                f"{config.framework} {config.mode} failed.\n{result.error}\nlogs: {run_dir / LOGS_DIR}", str(run_dir)
            )
        with signals_held():
            path, step, problems = newest_checkpoint(run_dir, training=training_id(config))
            if problems and path is None:  # a new start would throw away what they may still hold
                raise RunFailedError(f"{result.error}\nno restart: {'; '.join(problems)}", str(run_dir))
            config = config.changed(resume=path.resolve() if path else None)
            close_attempt(run_dir, config, step=step)
        for line in [*problems, f"failed; restarting after step {step}"]:
            callbacks.report(line)


def _lost_a_port(result: RunResult) -> bool:
    words = ("eaddrinuse", "address already in use", "could not start grpc server", "failed to add port to server")
    return not result.train_loss[result.first_step :] and any(word in (result.error or "").lower() for word in words)


def prepare_run(config: RunConfig, run_dir: Path, data_progress: Progress | None = None) -> PreparedRun:
    """Refuse what cannot run here, prepare the inputs, and write config.json into a new run directory."""
    require_one_line(run_dir.absolute(), "run directory")
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        raise RequestError(
            f"run directory {str(run_dir)!r} already holds a run or other files; choose another --run-dir"
        )
    require_machine(config)
    prepared = prepare_inputs(config, data_progress)
    try:
        (run_dir / LOGS_DIR).mkdir(parents=True)  # fails where another run has just started here
        make_key(run_dir)
        prepared.save(run_dir / CONFIG_FILE)
    except OSError as error:
        raise RequestError(
            f"run directory {str(run_dir)!r} cannot be written ({error.strerror}); choose another --run-dir"
        ) from None
    return prepared


def require_environment(config: RunConfig) -> None:
    """Refuse a run whose interpreter lacks what its mode needs, or whose environment cannot be what it asks for.

    Raises:
        RequestError: it is such a run.
    """
    has_own_interpreter = config.environment and config.python != usual_interpreter(config.framework)
    environment = config.environment.name if config.environment and has_own_interpreter else None
    require_mode(config.framework, config.mode, config.python, environment)
    if config.environment is not None:
        require_same_dpcompare(config.framework, config.python)
        require_free_variables(config)


def require_machine(config: RunConfig) -> None:
    """Refuse a run that this machine, its GPUs or its environments cannot have.

    Raises:
        RequestError: it is such a run.
    """
    require_environment(config)
    require_compiler(config.tuning)
    own = config.environment.variables if config.environment else {}
    require_devices(config.framework, config.cluster.device_type, config.topology.devices_per_process, os.environ | own)
    if config.placement.engine != "local":
        load_engine(config.placement.engine).check(config)
    if (
        config.cluster.simulated
        and config.cluster.device_type == "gpu"
        and (missing := invisible_gpus(config.cluster.devices))
    ):
        visible = ", ".join(visible_gpus(installed_gpus())) or "none"
        raise RequestError(
            f"GPUs {', '.join(missing)} are not visible here (visible: {visible}); name visible ones, or use "
            "--device cpu to simulate devices on the CPU"
        )
    if config.cluster.simulated and config.cluster.device_type == "gpu":
        if uncut := gpus_without_slices(config.cluster.devices):
            raise RequestError(
                f"MIG is on for GPUs {', '.join(uncut)} and they have no slices, so that CUDA sees none of them; make "
                "some (nvidia-smi mig -cgi ... -C), or turn MIG off (nvidia-smi -mig 0)"
            )
        _require_room_on_shared_gpu(config)
        if used := used_gpus(config.cluster.devices):
            raise RequestError(
                f"other processes hold most of the memory of GPUs {', '.join(used)}; end them (`nvidia-smi` lists "
                "them), or choose others with --gpus"
            )
        require_cuda(config.framework, config.python)
    require_memory(config)


LEAST_OF_SHARED_GPU = 1 << 30
"""Bytes of a shared GPU that each replica takes before it has trained anything: a context of CUDA and its libraries
(estimated)."""


def _require_room_on_shared_gpu(config: RunConfig) -> None:
    if not config.cluster.shared:
        return
    replicas, free = config.topology.num_replicas, free_gpu_memory(config.cluster.devices)
    if free is not None and free < replicas * LEAST_OF_SHARED_GPU:
        raise RequestError(
            f"--share-gpu: {pluralize(replicas, 'replica')} on a GPU that has {free / 1e9:.1f} GB free, expected at "
            f"least {LEAST_OF_SHARED_GPU / 1e9:.1f} GB for each; ask for fewer with --nodes and --devices-per-node"
        )


def main() -> None:
    """`python -m dpcompare.launch.run prepare|run RUN_DIR < config.json`, `... collect RUN_DIR STARTED_AT STATUS`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    prepare_command = commands.add_parser("prepare", help="write the run directory of a config read from stdin")
    prepare_command.add_argument("run_dir", type=Path)
    run_command = commands.add_parser("run", help="do the whole sequence with a config read from stdin")
    run_command.add_argument("run_dir", type=Path)
    collect_command = commands.add_parser("collect", help="write result.json of a run that has ended")
    collect_command.add_argument("run_dir", type=Path)
    collect_command.add_argument("started_at", type=float, help="when it started, seconds since the epoch")
    collect_command.add_argument("status", choices=["completed", "failed", "interrupted"], help="how it ended")
    arguments = parser.parse_args()
    keep_stderr_from_failing()
    run_dir: Path = arguments.run_dir
    try:
        if arguments.command == "prepare":
            prepare_run(RunConfig.model_validate_json(sys.stdin.read()), run_dir)
            return
        if arguments.command == "run":
            run(
                RunConfig.model_validate_json(sys.stdin.read()),
                run_dir,
                report=lambda line: print(line, file=sys.stderr),
            )
            return
    except RunFailedError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except RequestError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    _collect(run_dir, arguments.started_at, arguments.status)


def _collect(run_dir: Path, started_at: float, status: Status) -> NoReturn:
    """Write result.json of a run whose processes a script has started, and end with the exit code that it is to have.

    Args:
        started_at: when they were started, seconds since the epoch.
        status: how they ended.
    """
    config = RunConfig.load(run_dir / CONFIG_FILE)
    causes = {
        "completed": None,
        "failed": why_it_failed(config, run_dir, LaunchOutcome()),
        "interrupted": INTERRUPTED,
    }
    end = LaunchEnd(status=status, error=causes[status], started_at=started_at, ended_at=time.time())
    try:
        result = write_result(config, run_dir, end)
    except RunFailedError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    if result.error:
        print(result.error, file=sys.stderr)
    print(f"{result.status}: {run_dir / RESULT_FILE}", file=sys.stderr)
    sys.exit(0 if result.status == "completed" else 1)


if __name__ == "__main__":
    main()
