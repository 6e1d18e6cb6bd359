"""The run directory: the name of every file that the parts of a run share.

RUN_DIR/
    config.json                     the prepared RunConfig; rewritten where the run is resumed
    attempt-config.json             the same, as the present attempt was started with it: what its processes read
    events/process-<rank>.jsonl     what happened in each training process, while it happens
    events/watch-<rank>.json        when the launcher saw some of them, by its own clock
    process-<rank>.json             the record of each training process, when its work is done
    checkpoints/step-<step>.safetensors
    logs/node<n>-process<k>.log     output of a training process
    logs/node<n>.log                output of a node process outside its training processes
    logs/host<n>.log, slurm.log     output of what an engine starts
    traces/process-<rank>.json      with --profile-steps
    predictions/                    with --keep-predictions; see dpcompare.results.predictions
    probe-<rank>.safetensors        the arrays that `verify` compares
    nodes/<attempt>/                how nodes find each other; see dpcompare.launch.rendezvous
    result.json                     the RunResult, when the run has ended
    history.json                    losses and evaluations of the earlier attempts
    attempts/<number>/              their config, events, records, logs, traces and result
"""

from __future__ import annotations

from pathlib import Path

CONFIG_FILE = "config.json"
ATTEMPT_CONFIG_FILE = "attempt-config.json"
RESULT_FILE = "result.json"
HISTORY_FILE = "history.json"
LOGS_DIR = "logs"
TRACES_DIR = "traces"
PREDICTIONS_DIR = "predictions"
EVENTS_DIR = "events"
CHECKPOINTS_DIR = "checkpoints"
ATTEMPTS_DIR = "attempts"

LOG_LINES_SHOWN = 20


def attempt_config_path(run_dir: Path) -> Path:
    """The config that the present attempt was started with; config.json may have been edited since."""
    own = run_dir / ATTEMPT_CONFIG_FILE
    return own if own.exists() else run_dir / CONFIG_FILE  # as a generated script leaves it, and 0.1.0


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
