"""The figures of a result, computed again from the events and records that lie beside it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.results.aggregate import LaunchEnd, aggregate
from dpcompare.results.result import RunResult
from dpcompare.results.run_dir import EVENTS_DIR

RECOMPUTED = (
    "framework", "mode", "num_nodes", "num_processes", "num_replicas", "device_type", "emulated", "model", "dataset",
    "image_size", "global_batch_size", "precision", "profile", "store_sha256", "weights_sha256", "skipped_images",
    "threads_per_process",
    "device_names", "collective", "sample_order_sha256", "computed", "gradients", "settings", "versions", "nodes",
    "peak_memory_bytes", "peak_device_memory_bytes",
    "first_step", "images_per_second", "steady_images_per_second", "measured_steps", "step_seconds", "slow_steps",
    "data_wait_fraction", "host_overhead_seconds", "joules_per_image", "first_step_seconds", "train_loss",
    "evaluations", "evaluation_costs", "steps_left_out", "slow_start", "compiled_steps", "between_steps_fraction",
    "clock",
)  # fmt: skip
"""Keys of a result that its config, the records of its processes and their events give."""

ROUNDING = 1e-6
"""How far a figure may be from itself, relative to it, with another release of NumPy."""


def contradictions(result: RunResult, config: RunConfig, run_dir: Path) -> list[str] | None:
    """What the events of a run give that its result has otherwise; None where there are no events to compute from.

    Events hold checksums against damage, not against forgery: who writes both can write what he likes.

    Args:
        result: as result.json has it.
        config: as the result has it.
        run_dir: holds the events.
    """
    if not (run_dir / EVENTS_DIR).is_dir():
        return None
    try:
        again = read_back(config, run_dir, LaunchEnd(status="interrupted", error=None, started_at=0.0, ended_at=0.0))
    except RequestError as error:
        return [str(error)]
    written = [name for name in RECOMPUTED if name in result.model_fields_set]  # others are of later releases
    return [
        f"{name}{_figures(getattr(result, name), getattr(again, name))}"
        for name in written
        if not _same(_plain(getattr(result, name)), _plain(getattr(again, name)))
    ]


def read_back(config: RunConfig, run_dir: Path, end: LaunchEnd) -> RunResult:
    """`aggregate`, of files that anybody may have written meanwhile.

    Raises:
        RequestError: they are not what the processes of this config write.
    """
    try:
        return aggregate(config, run_dir, end)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(
            f"the events of {str(run_dir)!r} are not those of its config ({type(error).__name__}: {error})"
        ) from None


def _plain(value: Any) -> Any:
    """As JSON has it."""
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


def _figures(written: Any, again: Any) -> str:
    if isinstance(written, (int, float)) and isinstance(again, (int, float)):
        return f" ({written:.6g}, by the events {again:.6g})"
    return ""
