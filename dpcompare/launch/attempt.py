"""One attempt of a run: its processes are launched once, and result.json is written whatever happens."""

from __future__ import annotations

import secrets
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from dpcompare.config.run import PreparedRun, RunConfig
from dpcompare.data.store import StoreWatch
from dpcompare.errors import RunFailedError
from dpcompare.launch.failures import why_it_failed
from dpcompare.launch.local import launch
from dpcompare.launch.outcome import Callbacks, Deadlines, LaunchOutcome
from dpcompare.launch.plan import Endpoints, is_isolated, num_ports, plan
from dpcompare.launch.supervise import followed
from dpcompare.results.aggregate import LaunchEnd, aggregate
from dpcompare.results.attempts import Status
from dpcompare.results.result import RunResult
from dpcompare.results.run_dir import ATTEMPT_CONFIG_FILE, ATTEMPT_ID_FILE, LOGS_DIR, RESULT_FILE
from dpcompare.system.files import FolderWatch
from dpcompare.system.ports import free_ports
from dpcompare.system.signals import signals_held

INTERRUPTED = "interrupted"
"""Said of an attempt that was ended by a signal to this process."""


def make_attempt(config: PreparedRun, run_dir: Path, callbacks: Callbacks) -> RunResult:
    """Launch the processes of a prepared run once, and write result.json whatever happens.

    Raises:
        RunFailedError: result.json cannot be written.
        KeyboardInterrupt, or whatever went wrong in this process.
    """
    started_at = time.time()
    status: Status = "failed"
    error: str | None = None
    ended_at: float | None = None
    there = FolderWatch(run_dir)
    store = StoreWatch(config.inputs.store, config.inputs.store_sha256)
    watched = replace(callbacks, stopped_by=lambda: there.loss() or callbacks.stopped_by())
    # From the first process to the last word: between two contexts that hold them a signal would cost the result.
    with signals_held(), ExitStack() as engine:
        try:
            (run_dir / ATTEMPT_ID_FILE).write_text(secrets.token_hex(8))
            config.save(run_dir / ATTEMPT_CONFIG_FILE)
            outcome = _launched(config, run_dir, watched, engine)
            started_at = outcome.started_at or started_at  # not the time in a queue
            ended_at = outcome.ended_at
            error = (
                (there.loss() or why_it_failed(config, run_dir, outcome))
                if outcome.failed or outcome.vanished
                else store.change()
            )
            status = "failed" if error else "completed"
        except BaseException as raised:
            # Where this process had no memory, disk or file left, a study makes the run again.
            status = "interrupted" if isinstance(raised, (KeyboardInterrupt, OSError)) else "failed"
            error = INTERRUPTED if isinstance(raised, KeyboardInterrupt) else f"{type(raised).__name__}: {raised}"
            if isinstance(raised, OSError) and (gone := there.loss()):  # whatever could not be read there
                status, error = "failed", gone
            raise
        finally:  # whatever happened, what was measured is kept
            end = LaunchEnd(status=status, error=error, started_at=started_at, ended_at=ended_at or time.time())
            try:
                result = write_result(config, run_dir, end, unwritable=there.loss())
            except RunFailedError:
                if error != INTERRUPTED:  # whoever interrupts a run knows why it ended
                    raise
    return result


def _launched(config: RunConfig, run_dir: Path, callbacks: Callbacks, engine: ExitStack) -> LaunchOutcome:
    """How the processes ended, here or where an engine started them; it cleans up at the end of its stack."""
    deadlines = Deadlines(start=config.seconds_to_start, progress=config.progress_timeout)
    if config.placement.engine != "local":
        return engine.enter_context(followed(config, run_dir.resolve(), deadlines, callbacks))
    return launch(
        plan(config, run_dir.resolve(), Endpoints(free_ports(num_ports(config)))),
        run_dir,
        deadlines,
        callbacks.observe,
        isolate=is_isolated(config),
        stopped_by=callbacks.stopped_by,
    )


def write_result(config: RunConfig, run_dir: Path, end: LaunchEnd, *, unwritable: str | None = None) -> RunResult:
    """Aggregate what the processes left, and write result.json.

    Args:
        unwritable: why nothing may be written into the run directory, where that is so.

    Raises:
        RunFailedError: it cannot be written; the message says that and what ended the run.
    """
    result = aggregate(config, run_dir, end)
    try:
        if unwritable:  # what is there in its place is not ours
            raise FileNotFoundError(unwritable)
        result.save(run_dir)
    except OSError as unwritten:  # a full disk, often the cause of all
        raise RunFailedError(
            f"{config.framework} {config.mode} failed.\n{result.error or 'It trained to its end.'}\n"
            f"{RESULT_FILE} cannot be written: {unwritten}\nlogs: {run_dir / LOGS_DIR}. With a checkpoint the run can "
            f"be resumed when that is fixed: dpcompare run --resume {run_dir}",
            str(run_dir),
        ) from unwritten
    return result
