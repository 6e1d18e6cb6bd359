"""The table of a comparison, a record per run, as CSV and as Parquet: the same fields in both."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from dpcompare.config.cluster import DeviceType
from dpcompare.experiments.arm_rows import ArmRow, Round
from dpcompare.experiments.comparison import Comparison
from dpcompare.experiments.figures import FIGURES
from dpcompare.system.python_environment import import_extra
from dpcompare.system.terminal_text import joined

Value = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class Field:
    """One row of FIELDS."""

    kind: type[str] | type[int] | type[float] | type[bool]
    of: Callable[[ArmRow, Round], Value]
    """None where nothing was measured."""
    explanation: str


def _of_arm(kind: type[Any], explanation: str, name: str) -> Field:
    return Field(kind=kind, of=lambda row, shown: getattr(row, name), explanation=explanation)


def _of_run(kind: type[Any], explanation: str, name: str) -> Field:
    return Field(kind=kind, of=lambda row, shown: getattr(shown, name), explanation=explanation)


def _of_part(kind: type[Any], explanation: str, part: str, name: str) -> Field:
    """The value of a part that an arm may not have."""
    return Field(kind=kind, of=lambda row, shown: getattr(getattr(row, part), name, None), explanation=explanation)


FIELDS: dict[str, Field] = {
    # Which run it is.
    "arm": _of_arm(str, "name of the arm", "name"),
    "study": _of_arm(str, "directory of its study; empty for a run alone", "source"),
    "framework": _of_arm(str, "`torch`, `tensorflow` or `jax`", "framework"),
    "mode": _of_arm(str, "how it trains in parallel", "mode"),
    "nodes": _of_arm(int, "simulated nodes or machines", "num_nodes"),
    "devices_per_node": _of_arm(int, "devices of each node", "devices_per_node"),
    "replicas": _of_arm(int, "copies of the model", "num_replicas"),
    "device_type": _of_arm(str, joined([f"`{name}`" for name in get_args(DeviceType)], "or"), "device_type"),
    "emulated": _of_arm(bool, "imitated, on the CPU or on a shared GPU, and never ranked", "emulated"),
    "model": _of_arm(str, "what is trained", "model"),
    "dataset": _of_arm(str, "what it is trained on, as it was asked for", "dataset"),
    "image_size_pixels": _of_arm(int, "side of the square images", "image_size"),
    "global_batch_size": _of_arm(int, "images per step of all replicas", "global_batch_size"),
    "micro_batches": _of_arm(int, "parts of a replica's batch, one after the other", "micro_batches"),
    "precision": _of_arm(str, "in which is computed", "precision"),
    "profile": _of_arm(str, "`strict` or `native`", "profile"),
    "round": _of_run(int, "of the study, from 1", "number"),
    "seed": _of_run(int, "of weights, order, augmentation and regularization", "seed"),
    "position": _of_run(int, "when it ran among the arms of its round, from 1", "position"),
    "status": _of_run(str, "`completed`, or `failed`: then it has no figures", "status"),
    "failure": _of_run(str, "why it does not count", "failure"),
    "warnings": Field(
        kind=str,
        of=lambda row, shown: "; ".join(shown.warnings),
        explanation="what was not as it should be, such as `STALLED; DISTURBED`",
    ),
    "run_dir": _of_run(str, "directory of the run", "run_dir"),
    # Its figures.
    **{name: _of_run(figure.kind, figure.explanation, name) for name, figure in FIGURES.items() if figure.per_run},
    # Of its arm: the same in all of its rounds.
    "arm_jitter_images_per_second": _of_arm(
        float, "1.4826 x median absolute deviation of steady images per second over the rounds", "jitter"
    ),
    "arm_accuracy_mean": _of_part(
        float, "mean accuracy over the rounds, where each has a seed of its own", "accuracy_over_seeds", "mean"
    ),
    "arm_accuracy_deviation": _of_part(
        float, "its standard deviation over the rounds", "accuracy_over_seeds", "standard_deviation"
    ),
    "arm_evaluation_loss_mean": _of_part(float, "the same of the evaluation loss", "loss_over_seeds", "mean"),
    "arm_evaluation_loss_deviation": _of_part(
        float, "its standard deviation over the rounds", "loss_over_seeds", "standard_deviation"
    ),
    "arm_dollars_per_million_images": _of_arm(
        float, "price of its devices for a million images, with `--price`", "dollars_per_million_images"
    ),
    "arm_dollars_to_target": _of_part(float, "price of its way to the target accuracy", "to_target", "dollars"),
    "arm_scaling": _of_part(str, "`strong` or `weak`, against one device", "scaling", "kind"),
    "arm_speedup": _of_part(float, "steady speed over that of one device", "scaling", "speedup"),
    "arm_efficiency": _of_part(float, "the speed-up over the number of devices", "scaling", "efficiency"),
}
"""Name, with its unit -> the field, in the order of the columns."""


def records(comparison: Comparison) -> list[dict[str, Value]]:
    """One per run, arm by arm."""
    return [record(row, shown) for row in comparison.arms for shown in row.rounds_shown]


def record(row: ArmRow, shown: Round) -> dict[str, Value]:
    """All FIELDS of one run."""
    return {name: field.of(row, shown) for name, field in FIELDS.items()}


def as_csv(comparison: Comparison) -> str:
    """One line per run; a figure that is not there is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(FIELDS)
    writer.writerows([*map(_cell, each.values())] for each in records(comparison))
    return text.getvalue()


def _cell(value: Value) -> Value:
    """A spreadsheet takes text that starts like a formula for one."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}" if isinstance(value, str) and _begins_a_formula(value) else value


def _begins_a_formula(text: str) -> bool:
    """Whether a spreadsheet may take a text for a formula: blanks before it, and wide forms of the signs, included."""
    return unicodedata.normalize("NFKC", text).lstrip().startswith(("=", "+", "-", "@"))


def as_parquet(comparison: Comparison) -> bytes:
    """One row per run; columns have their explanation in their metadata, and null where a figure is not there.

    Raises:
        RequestError: pyarrow is not installed.
    """
    arrow = import_extra("pyarrow", extra="parquet", needed_by="--parquet")
    parquet = import_extra("pyarrow.parquet", extra="parquet", needed_by="--parquet")
    kinds = {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    schema = arrow.schema(
        arrow.field(name, kinds[field.kind], metadata={"description": field.explanation})
        for name, field in FIELDS.items()
    )
    written = io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist(records(comparison), schema=schema), written)
    return written.getvalue()
