"""The figures of a result, computed again from the events and records of its directory."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.results.aggregate import LaunchEnd, aggregate
from dpcompare.results.attempts import History
from dpcompare.results.result import RunResult
from dpcompare.results.run_dir import CONFIG_FILE, EVENTS_DIR, HISTORY_FILE, attempt_config_path, attempt_path
from dpcompare.system.terminal_text import printable

_NOT_RECOMPUTED = frozenset({
    "format", "dpcompare_version",  # of who wrote it
    "status", "error", "config",  # compared apart
    "late_step",  # whose tensors are not kept
    "time_to_first_step_seconds", "started_at", "wall_seconds",  # by the clock of the launcher, which leaves no events
})  # fmt: skip
RECOMPUTED = tuple(name for name in RunResult.model_fields if name not in _NOT_RECOMPUTED)
"""Keys of a result that its config, the records of its processes, their events and history.json give."""

MOST_LOST_STEPS = 1_000_000
"""Between two attempts, of which a loss of power took the events: far more than there can be, and few to hold."""

ROUNDING = 1e-6
"""How far a figure may be from itself, relative to it, with another release of NumPy."""


def contradictions(result: RunResult, config: RunConfig, run_dir: Path) -> list[str] | None:
    """What the files of a completed run give that its result has otherwise; None where events are missing.

    Events hold checksums against damage, not against forgery: who writes both can write what he likes. A figure that
    the result lacks is one that it has otherwise: no release whose results are read wrote one without it.

    Args:
        result: as result.json has it.
        config: as the result has it.
        run_dir: holds the events, and the config that the run was started with.
    """
    if not (run_dir / EVENTS_DIR).is_dir():
        return None
    own = attempt_config_path(run_dir)
    end = LaunchEnd(status=result.status, error=result.error, started_at=0.0, ended_at=0.0)
    try:
        asked = RunConfig.load(own).model_dump(mode="json")
        if changed := _differences("config", config.model_dump(mode="json"), asked, source=own.name):
            return changed
        again = read_back(config, run_dir, end)
        history = History.load(run_dir)
        earlier = _history_again(run_dir, history)
    except RequestError as error:
        return [str(error)]
    if again.status != result.status:
        return [f"result.json says that it {result.status}, but {again.error}"]
    compared = [(name, getattr(result, name), getattr(again, name)) for name in RECOMPUTED]
    if earlier:
        compared.append((HISTORY_FILE, _settled(history, history), _settled(earlier, history)))
    found = [
        difference
        for name, written, computed in compared
        for difference in _differences(name, _plain(written), _plain(computed), source="the events")
    ]
    return found if found or earlier else None


def _history_again(run_dir: Path, written: History) -> History | None:
    """history.json, computed again from the events of the attempts; None where those of one are gone.

    Raises:
        RequestError: they are not what the processes of these attempts write.
    """
    again = History()
    for number, attempt in enumerate(written.attempts, start=1):
        folder = attempt_path(run_dir, number)
        if not (folder / EVENTS_DIR).is_dir():
            return None
        if attempt.first_step > len(again.losses) + MOST_LOST_STEPS:
            raise RequestError(f"attempt {number} begins at step {attempt.first_step}, which no attempt has reached")
        end = LaunchEnd(status=attempt.status, error=attempt.error, started_at=0.0, ended_at=0.0)
        config = RunConfig.load(folder / CONFIG_FILE)
        again = read_back(config, folder, end, again.up_to(attempt.first_step)).history
    return again.up_to(len(written.losses))


_AS_WRITTEN = {"status", "error", "last_step", "images_per_second"}


def _settled(history: History, written: History) -> dict[str, Any]:
    """What the events of closed attempts give for good.

    Nodes of a launcher that was killed, or that waits for none, may log steps after their attempt was closed: its end
    and speed are as written, and so is a loss that was not there yet.
    """
    attempts = [attempt.model_dump(mode="json", exclude=_AS_WRITTEN) for attempt in history.attempts]
    known = [loss for loss, there in zip(history.losses, written.losses, strict=True) if there is not None]
    return {"losses": known, "evaluations": _plain(history.evaluations), "attempts": attempts}


def read_back(config: RunConfig, run_dir: Path, end: LaunchEnd, history: History | None = None) -> RunResult:
    """`aggregate`, of files that anybody may have written meanwhile.

    Raises:
        RequestError: they are not what the processes of this config write.
    """
    try:
        return aggregate(config, run_dir, end, history)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(
            f"the events of {str(run_dir)!r} are not those of its config ({type(error).__name__}: {error})"
        ) from None


def _plain(value: Any) -> Any:
    """The value as JSON has it."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def _same(written: Any, again: Any) -> bool:
    if isinstance(written, float) and isinstance(again, (float, int)):
        return math.isclose(written, again, rel_tol=ROUNDING)
    if isinstance(written, list) and isinstance(again, list):
        return len(written) == len(again) and all(map(_same, written, again))
    if isinstance(written, dict) and isinstance(again, dict):
        return written.keys() == again.keys() and all(_same(written[name], again[name]) for name in written)
    return bool(written == again)


def _differences(name: str, written: Any, again: Any, *, source: str) -> list[str]:
    """What differs, each by its name, with both values where they are short."""
    if _same(written, again):
        return []
    if isinstance(written, dict) and isinstance(again, dict):
        return [
            difference
            for key in dict.fromkeys((*written, *again))
            for difference in _differences(f"{name}.{key}", written.get(key), again.get(key), source=source)
        ] or [printable(name)]
    if isinstance(written, (dict, list)) or isinstance(again, (dict, list)):
        return [printable(name)]
    return [printable(f"{name} ({_shown(written)}, by {source} {_shown(again)})")]


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "nothing" if value is None else str(value)
