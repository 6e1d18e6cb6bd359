"""The names of the files of a run, and how long its logs may become."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from dpcompare.system.files import no_link

CONFIG_FILE = "config.json"
ATTEMPT_CONFIG_FILE = "attempt-config.json"
ATTEMPT_ID_FILE = "attempt-id"
RESULT_FILE = "result.json"
HISTORY_FILE = "history.json"
LOGS_DIR = "logs"
TRACES_DIR = "traces"
PREDICTIONS_DIR = "predictions"
EVENTS_DIR = "events"
CHECKPOINTS_DIR = "checkpoints"
ATTEMPTS_DIR = "attempts"
LATE_STEP_DIR = "late-step"
LATE_STEP_BEFORE, LATE_STEP_AFTER, LATE_STEP_AGAIN = (f"{name}.safetensors" for name in ("before", "after", "again"))
"""In LATE_STEP_DIR: the state of the run before its last steps, after them, and what they are repeated to."""

LOG_LINES_SHOWN = 20


def attempt_config_path(run_dir: Path) -> Path:
    """The config that the present attempt was started with; config.json may have been edited since."""
    own = run_dir / ATTEMPT_CONFIG_FILE
    return own if own.exists() else run_dir / CONFIG_FILE  # as a generated script leaves it, and 0.1.0


def read_attempt_id(run_dir: Path) -> str | None:
    """The id of the present attempt; None where no launcher of ours has given it one."""
    file = run_dir / ATTEMPT_ID_FILE
    return file.read_text().strip() or None if file.is_file() else None


def event_path(run_dir: Path, process_rank: int) -> Path:
    return run_dir / EVENTS_DIR / f"process-{process_rank}.jsonl"


def watch_path(run_dir: Path, process_rank: int) -> Path:
    return run_dir / EVENTS_DIR / f"watch-{process_rank}.json"


def process_record_path(run_dir: Path, process_rank: int) -> Path:
    return run_dir / f"process-{process_rank}.json"


def process_record_paths(run_dir: Path) -> list[Path]:
    """The records that are there, of all processes."""
    return sorted(run_dir.glob("process-*.json"))


def probe_path(run_dir: Path, process_rank: int) -> Path:
    return run_dir / f"probe-{process_rank}.safetensors"


def trace_path(run_dir: Path, process_rank: int) -> Path:
    return run_dir / TRACES_DIR / f"process-{process_rank}.json"


def log_path(run_dir: Path, node_rank: int, local_rank: int) -> Path:
    """Output of one training process."""
    return run_dir / LOGS_DIR / f"node{node_rank}-process{local_rank}.log"


def node_log_path(run_dir: Path, node_rank: int) -> Path:
    """Output of a node process outside its training processes: torchrun's, or a start that failed."""
    return run_dir / LOGS_DIR / f"node{node_rank}.log"


def host_log_path(run_dir: Path, host: int) -> Path:
    """Output of the command that an engine runs on one of its hosts."""
    return run_dir / LOGS_DIR / f"host{host}.log"


def slurm_log_path(run_dir: Path) -> Path:
    """Output of the Slurm job."""
    return run_dir / LOGS_DIR / "slurm.log"


def late_step_dir(run_dir: Path) -> Path:
    """Where a run keeps its state before and after its last steps until they were repeated."""
    return run_dir / LATE_STEP_DIR


def checkpoint_path(run_dir: Path, step: int) -> Path:
    return run_dir / CHECKPOINTS_DIR / f"step-{step:010d}.safetensors"


def checkpoint_paths(run_dir: Path) -> list[Path]:
    """The checkpoints of a run, the newest first."""
    return sorted((run_dir / CHECKPOINTS_DIR).glob("step-*.safetensors"), reverse=True)


def attempt_path(run_dir: Path, number: int) -> Path:
    """The files of an earlier attempt, counted from 1."""
    return run_dir / ATTEMPTS_DIR / f"{number:02d}"


def lines_of(log: Path) -> list[str]:
    """The lines of a log; none where there is no such file."""
    return log.read_text(errors="replace").splitlines() if log.is_file() and not log.is_symlink() else []


def end_of(log: Path) -> str:
    """The last lines of a log, under its name."""
    return "\n".join([f"end of {log}:", *lines_of(log)[-LOG_LINES_SHOWN:]])


MOST_BYTES = 50_000_000
"""The most bytes of a log; beyond that, its middle is left out."""
KEPT_BYTES = 10_000_000
"""The bytes that are kept of its beginning, and of its end."""


LEFT_OUT = b"\n[dpcompare has left out the middle of this log, which was too long]\n"


def cut_logs(folder: Path, nodes: Collection[int]) -> None:
    """Leave out the middle of logs that are too long, which their processes continue to write at the end (O_APPEND).

    What they write between the last read and the cut is lost: very little of what is left out.

    Args:
        folder: of the logs.
        nodes: whose logs they are.
    """
    own = tuple(f"node{node}{end}" for node in nodes for end in ("-", "."))
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(own) and entry.stat(follow_symlinks=False).st_size > MOST_BYTES:
                _cut(entry.path)


def _cut(path: str) -> None:
    with open(path, "r+b", opener=no_link) as log:
        log.seek(-KEPT_BYTES, os.SEEK_END)
        end = log.read(KEPT_BYTES)
        end += log.read()  # what has been written meanwhile, such as the error that ended the process
        log.truncate(KEPT_BYTES)
    with open(path, "ab", opener=no_link) as log:
        log.write(LEFT_OUT + end)
