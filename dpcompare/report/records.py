"""The table of a comparison, a record per run, as CSV and as Parquet: the same fields in both."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpcompare.experiments.comparison import ArmRow, Comparison, Round
from dpcompare.system.extras import import_extra

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
    """Of a part of an arm that it may not have."""
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
    "device_type": _of_arm(str, "`cpu`, `gpu` or `tpu`", "device_type"),
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
    "remarks": Field(
        kind=str,
        of=lambda row, shown: "; ".join(shown.remarks),
        explanation="what was not as it should be, such as `STALLED; DISTURBED`",
    ),
    "run_dir": _of_run(str, "directory of the run", "run_dir"),
    # How fast it was.
    "images_per_second": _of_run(
        float, "of all replicas, by the slowest process, over the measured steps", "images_per_second"
    ),
    "steady_images_per_second": _of_run(
        float, "the same of the median tenth of these steps, by which arms are compared", "steady_images_per_second"
    ),
    "measured_steps": _of_run(int, "steps after the warm-up", "measured_steps"),
    "step_ms": _of_run(float, "median step", "step_ms"),
    "step_mean_ms": _of_run(float, "mean step", "step_mean_ms"),
    "step_mad_ms": _of_run(float, "median absolute deviation of the steps, not scaled", "step_mad_ms"),
    "step_p95_ms": _of_run(float, "95th percentile of the steps", "step_p95_ms"),
    "between_steps_ms": _of_run(float, "mean time between two steps", "between_steps_ms"),
    "between_steps_fraction": _of_run(
        float, "part of the time that passes there, which images per second leave out", "between_steps_fraction"
    ),
    "data_wait_fraction": _of_run(float, "part of a step spent waiting for data", "data_wait_fraction"),
    "communication_ms": _of_run(
        float, "what gradient sync adds to a mean step, where that was measured", "communication_ms"
    ),
    "time_to_first_step_seconds": _of_run(
        float, "from the start of the launch to the end of the first step", "time_to_first_step_seconds"
    ),
    "first_step_seconds": _of_run(float, "the first step itself", "first_step_seconds"),
    "wall_seconds": _of_run(float, "from the start of the launch to its end", "wall_seconds"),
    # What it took.
    "memory_bytes": _of_run(int, "sum of the processes' peaks of resident memory", "memory_bytes"),
    "largest_process_memory_bytes": _of_run(int, "the largest of these peaks", "largest_process_memory_bytes"),
    "gpu_memory_bytes": _of_run(
        int, "peak of all GPUs, from the first measured step on; in JAX from the start", "gpu_memory_bytes"
    ),
    "joules_per_image": _of_run(float, "energy over the measured steps", "joules_per_image"),
    "achieved_flops": _of_run(float, "operations of the model's products per second and device", "achieved_flops"),
    "model_flops_utilization": _of_run(
        float, "the same over the peak of the device; empty where that is not known", "model_flops_utilization"
    ),
    "achieved_bandwidth": _of_run(
        float, "bytes of features per second and device that the layers read and write at least", "achieved_bandwidth"
    ),
    # What it learnt.
    "steps_trained": _of_run(int, "warm-up and earlier attempts included", "steps_trained"),
    "last_loss": _of_run(float, "training loss of the last step", "last_loss"),
    "evaluation_loss": _of_run(float, "of the last evaluation", "evaluation_loss"),
    "accuracy": _of_run(float, "of the last evaluation, from 0 to 1", "accuracy"),
    "steps_to_target": _of_run(int, "steps until an evaluation first reached the target accuracy", "steps_to_target"),
    "seconds_to_target": _of_run(
        float, "training seconds until then, without evaluations and checkpoints", "seconds_to_target"
    ),
    "images_to_target": _of_run(
        int, "images until then; one that came again in a later epoch counts again", "images_to_target"
    ),
    "joules_to_target": _of_run(float, "energy until then", "joules_to_target"),
    # Of its arm: the same in all of its rounds.
    "arm_jitter_images_per_second": _of_arm(
        float, "1.4826 x median absolute deviation of images per second over the rounds", "jitter"
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
