"""A whole run: check, prepare, plan, launch, collect. Also the steps of a plan's shell script, one by one."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from dpcompare.backends import require_framework
from dpcompare.cluster import visible_gpus
from dpcompare.config import RunConfig
from dpcompare.data.prepare import Progress
from dpcompare.errors import RequestError, RunFailedError
from dpcompare.events import Event, read_events
from dpcompare.inputs import prepare_inputs
from dpcompare.launcher import free_ports, launch
from dpcompare.planning import num_ports, plan
from dpcompare.result import CONFIG_FILE, LOGS_DIR, RunResult, Status, collect, log_path, node_log_path

LOG_LINES_SHOWN = 20


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
) -> RunResult:
    """Train one config in processes of its own on this machine and return what was measured.

    Args:
        config: what to run.
        run_dir: where config, logs and result go; default: a new directory below `runs/`.
        observe: called with every event of the training processes; see `dpcompare.events`.
        data_progress: called with (images done, images in all) while a dataset is prepared.

    Raises:
        RequestError: the request cannot be carried out; nothing was started.
        RunFailedError: a process failed; result.json holds what was measured until then.
        KeyboardInterrupt: the run was interrupted; all processes have ended and result.json says so.
    """
    directory = Path(run_dir) if run_dir is not None else default_run_dir(config)
    config = prepare_run(config, directory, data_progress)
    node_processes = plan(config, directory.resolve(), free_ports(num_ports(config)))
    started_at = time.time()
    status: Status = "interrupted"
    error: str | None = "interrupted"
    try:
        ended = launch(node_processes, directory, observe)
        failed = {rank: code for rank, code in ended.items() if code != 0}
        status = "failed" if failed else "completed"
        error = _diagnosis(config, directory, failed) if failed else None
    finally:  # whatever happened, what was measured is kept
        result = _finish(config, directory, status=status, error=error, started_at=started_at)
    if result.status == "failed":
        raise RunFailedError(
            f"{config.framework} {config.mode} failed.\n{result.error}\nlogs: {directory / LOGS_DIR}",
            str(directory),
        )
    return result


def prepare_run(config: RunConfig, run_dir: Path, data_progress: Progress | None = None) -> RunConfig:
    """Refuse what cannot run here, prepare the inputs, and write config.json into a new run directory."""
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        raise RequestError(
            f"run directory {str(run_dir)!r} already holds a run or other files; choose another --run-dir, or remove it"
        )
    require_framework(config.framework, config.python)
    _require_devices(config)
    prepared = prepare_inputs(config, data_progress)
    (run_dir / LOGS_DIR).mkdir(parents=True, exist_ok=True)
    prepared.save(run_dir / CONFIG_FILE)
    return prepared


def _require_devices(config: RunConfig) -> None:
    if config.cluster.device_type != "gpu":
        return
    visible = visible_gpus()
    if missing := [gpu for gpu in config.cluster.devices if gpu not in visible]:
        raise RequestError(
            f"GPUs {', '.join(missing)} are not visible here (visible: {', '.join(visible) or 'none'}); name visible "
            "ones, or use --device cpu to simulate devices on the CPU"
        )


def _finish(config: RunConfig, run_dir: Path, *, status: Status, error: str | None, started_at: float) -> RunResult:
    result = collect(
        config,
        run_dir,
        read_events(run_dir, config.num_processes),
        status=status,
        error=error,
        started_at=started_at,
        ended_at=time.time(),
    )
    result.save(run_dir)
    return result


def _diagnosis(config: RunConfig, run_dir: Path, failed: dict[int, int]) -> str:
    """The first failure: the traceback of its process, or the end of a log where a process died without one."""
    errors = [event for event in read_events(run_dir, config.num_processes) if event["kind"] == "error"]
    if errors:
        first = min(errors, key=lambda event: event["time"])
        node, local = divmod(first["process_rank"], config.processes_per_node)
        return (
            f"process {first['process_rank']} (node {node}, {log_path(run_dir, node, local)}):\n"
            f"{first['traceback'].rstrip()}"
        )
    parts = []
    for node, code in sorted(failed.items()):
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        logs = [node_log_path(run_dir, node)]
        logs += [log_path(run_dir, node, local) for local in range(config.processes_per_node)]
        written = [log for log in logs if log.is_file() and log.stat().st_size]
        parts.append(f"node {node} ended with {how}")
        for log in written:
            lines = log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
            parts.append(f"end of {log}:\n" + "\n".join(lines))
    return "\n".join(parts)


def main() -> None:
    """`python -m dpcompare.runner prepare RUN_DIR < config.json` and `... collect RUN_DIR STARTED_AT`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    prepare_command = commands.add_parser("prepare", help="write the run directory of a config read from stdin")
    prepare_command.add_argument("run_dir", type=Path)
    collect_command = commands.add_parser("collect", help="write result.json of a run that has ended")
    collect_command.add_argument("run_dir", type=Path)
    collect_command.add_argument("started_at", type=float, help="when it started, seconds since the epoch")
    arguments = parser.parse_args()
    run_dir: Path = arguments.run_dir
    try:
        if arguments.command == "prepare":
            prepare_run(RunConfig.model_validate_json(sys.stdin.read()), run_dir)
            return
    except RequestError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    config = RunConfig.load(run_dir / CONFIG_FILE)
    records = len(list(run_dir.glob("process-*.json")))
    complete = records == config.num_processes
    result = _finish(
        config,
        run_dir,
        status="completed" if complete else "failed",
        error=None if complete else _diagnosis(config, run_dir, {}),
        started_at=arguments.started_at,
    )
    print(f"{result.status}: {run_dir / 'result.json'}", file=sys.stderr)
    sys.exit(0 if result.status == "completed" else 1)


if __name__ == "__main__":
    main()
