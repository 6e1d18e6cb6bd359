"""The run directory: the names of the files that all parts of a run share."""

from __future__ import annotations

from pathlib import Path

CONFIG_FILE = "config.json"


RESULT_FILE = "result.json"


LOGS_DIR = "logs"


TRACES_DIR = "traces"


def log_path(run_dir: Path, node_rank: int, local_rank: int) -> Path:
    """Output of one training process."""
    return run_dir / LOGS_DIR / f"node{node_rank}-process{local_rank}.log"


def node_log_path(run_dir: Path, node_rank: int) -> Path:
    """Output of a node process outside its training processes: torchrun's own, or a start that failed."""
    return run_dir / LOGS_DIR / f"node{node_rank}.log"


EVENTS_DIR = "events"


def event_path(run_dir: Path, process_rank: int) -> Path:
    return run_dir / EVENTS_DIR / f"process-{process_rank}.jsonl"


CHECKPOINTS_DIR = "checkpoints"


def checkpoint_path(run_dir: Path, step: int) -> Path:
    return run_dir / CHECKPOINTS_DIR / f"step-{step:010d}.safetensors"


def checkpoint_paths(run_dir: Path) -> list[Path]:
    """The checkpoints of a run, the newest first."""
    return sorted((run_dir / CHECKPOINTS_DIR).glob("step-*.safetensors"), reverse=True)


ATTEMPTS_DIR = "attempts"


HISTORY_FILE = "history.json"


LOG_LINES_SHOWN = 20


def end_of(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    return "\n".join([f"end of {log}:", *lines[-LOG_LINES_SHOWN:]])
