"""A run in several attempts: what the earlier ones measured is kept and becomes part of the result."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from dpcompare.config.run import RunConfig
from dpcompare.errors import OtherFormatError, RequestError
from dpcompare.results.aggregate import LaunchEnd
from dpcompare.results.attempts import History
from dpcompare.results.events import read_events
from dpcompare.results.recompute import read_back
from dpcompare.results.result import RunResult
from dpcompare.results.run_dir import (
    ATTEMPT_CONFIG_FILE,
    CONFIG_FILE,
    EVENTS_DIR,
    LOGS_DIR,
    PREDICTIONS_DIR,
    RESULT_FILE,
    TRACES_DIR,
    attempt_config_path,
    attempt_path,
    process_record_paths,
)


def result_so_far(run_dir: Path) -> RunResult:
    """The result of the present attempt: as it was written, or from what it left if no launcher could write it."""
    try:
        return RunResult.load(run_dir)
    except OtherFormatError:
        raise
    except RequestError:
        config = RunConfig.load(attempt_config_path(run_dir))
        times = [event.time for event in read_events(run_dir, config.topology.num_processes)] or [time.time()]
        end = LaunchEnd(
            status="interrupted", error="the launcher was killed", started_at=min(times), ended_at=max(times)
        )
        return read_back(config, run_dir, end)


def close_attempt(run_dir: Path, config: RunConfig, *, step: int) -> None:
    """Make room for the next attempt, which starts after `step` steps with another config.

    Its losses and evaluations up to there go into history.json, its files into attempts/. Each part of it can be
    repeated, so nothing is lost where it is cut short: config.json is there all the time, and replaced at the end.
    """
    history = History.load(run_dir)
    if (run_dir / EVENTS_DIR).is_dir() or (run_dir / RESULT_FILE).is_file():
        if not history.attempts or (attempt_path(run_dir, len(history.attempts)) / EVENTS_DIR).is_dir():
            history = result_so_far(run_dir).history
            history.save(run_dir)
        folder = attempt_path(run_dir, len(history.attempts))
        folder.mkdir(parents=True, exist_ok=True)
        if (own := attempt_config_path(run_dir)).name == ATTEMPT_CONFIG_FILE:
            own.rename(folder / CONFIG_FILE)
        elif not (folder / CONFIG_FILE).exists():
            shutil.copy(own, folder / CONFIG_FILE)
        (run_dir / EVENTS_DIR).mkdir(exist_ok=True)  # an attempt may have ended before anything happened
        records = [path.name for path in process_record_paths(run_dir)]
        for name in (
            LOGS_DIR,
            TRACES_DIR,
            PREDICTIONS_DIR,
            RESULT_FILE,
            *records,
            EVENTS_DIR,
        ):  # the events last: they show what is left
            if (run_dir / name).exists():
                (run_dir / name).rename(folder / name)
    history.up_to(step).save(run_dir)
    (run_dir / LOGS_DIR).mkdir(exist_ok=True)
    config.save(run_dir / CONFIG_FILE)
