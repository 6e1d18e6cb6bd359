"""The fairness sheet: every knob that can make a comparison unfair, its value on each side, and a verdict.

A knob is anything that a run's speed or result may depend on: an option, a setting, a device or a version. The first
losses are among them, since what was asked for is not always what is computed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dpcompare._version import major_minor
from dpcompare.results.result import RunResult

Verdict = Literal["COMPARABLE", "NOT COMPARABLE"]


class Judgement(NamedTuple):
    """What some results have of a knob."""

    equal: bool
    is_reason: bool
    """Whether it makes them not comparable."""


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One row of KNOBS."""

    value: Callable[[RunResult], Any]
    remedy: str = ""
    """What makes it equal; empty where it is a property of the framework or mode that is being compared."""
    judge: Callable[[Sequence[RunResult]], Judgement] | None = None
    """Where results may differ as far as they were asked to, or by rounding."""

    @property
    def must_be_equal(self) -> bool:
        return bool(self.remedy)


def _workload(name: str) -> Callable[[RunResult], Any]:
    return lambda result: result.config["workload"].get(name)


def _setting(name: str) -> Callable[[RunResult], Any]:
    return lambda result: result.settings.get(name)


def _environment(result: RunResult) -> str:
    variables = result.settings.get("environment") or {}
    return ", ".join(f"{name}={value}" for name, value in sorted(variables.items())) or "none"


def _measured_steps(result: RunResult) -> int | str:
    """Where one rule for all finds how many steps are left out, it may find another number in each run."""
    return "all that had settled" if _workload("warmup_steps")(result) == "auto" else result.measured_steps


def _gpu_settings(result: RunResult) -> str | None:
    """What decides how fast the GPUs may run; unknown where one of them could not be asked."""
    if result.device_type != "gpu":
        return "none"
    if not result.gpus or any(gpu.unread for gpu in result.gpus):
        return None
    return "; ".join(sorted({gpu.settings for gpu in result.gpus}))


def _loss(step: int) -> Callable[[RunResult], Any]:
    """The loss of a step, from 1; unknown where it is not finite."""
    return lambda result: result.train_loss[step - 1] if len(result.train_loss) >= step else "no such step"


def _losses(step: int, depends_on: Sequence[str]) -> Callable[[Sequence[RunResult]], Judgement]:
    """Of the losses of a step, those must be equal, but for rounding, where all is equal that they depend on."""

    def judge(results: Sequence[RunResult]) -> Judgement:
        alike: dict[str, list[RunResult]] = {}
        for result in results:
            alike.setdefault(str([KNOBS[name].value(result) for name in depends_on]), []).append(result)
        agree = all(_agree(group, step) for group in alike.values())
        # Of the losses after an update on GPUs nothing has been measured yet: they are shown.
        is_measured = step == 1 or all(result.device_type == "cpu" for result in results)
        return Judgement(equal=agree and len(alike) == 1, is_reason=is_measured and not agree)

    return judge


def _no_clock_problem(results: Sequence[RunResult]) -> Judgement:
    """One run whose clock is wrong is enough; a run that nobody watched is none."""
    problem = any(result.clock_problem for result in results)
    return Judgement(equal=not problem, is_reason=problem)


def _agree(results: Sequence[RunResult], step: int) -> bool:
    losses = [_loss(step)(result) for result in results]
    known = [loss for loss in losses if isinstance(loss, float)]
    if len(known) < len(losses) or len(losses) == 1:
        return all(loss == losses[0] for loss in losses)
    tolerance = max(LOSS_TOLERANCES[step][_arithmetic(result)] for result in results)
    return max(known) - min(known) <= tolerance * max(1.0, *map(abs, known))


def _arithmetic(result: RunResult) -> str:
    return "TF32" if result.precision == "float32" and _setting("tf32")(result) else result.precision


FIRST_LOSS_DEPENDS_ON = (
    "data", "sample order", "augmentation", "model", "source of the model", "image size", "initial weights",
    "global batch size", "replicas", "micro-batches per step", "updates", "BatchNorm scope", "BatchNorm epsilon",
    "regularization", "dropout", "stochastic depth", "precision",
)  # fmt: skip
"""Knobs that are equal where two runs compute the same first loss."""
SECOND_LOSS_DEPENDS_ON = (
    *FIRST_LOSS_DEPENDS_ON, "optimizer", "learning rate", "schedule", "learning-rate warm-up", "learning-rate scaling",
    "gradient sync",
)  # fmt: skip

LOSS_TOLERANCES: dict[int, dict[str, float]] = {
    1: {"float64": 1e-9, "float32": 1e-4, "TF32": 5e-3, "bfloat16": 2e-2},
    2: {"float64": 1e-6, "float32": 5e-3, "TF32": 2e-2, "bfloat16": 5e-2},
}
"""Step -> arithmetic -> the largest difference of two losses that rounding makes, relative to a loss above 1.

At least 20 times what `verify` and the runs of the tests showed on the CPU: EfficientNet-B2 in float32 1.2e-6 in the
first and 1.1e-4 in the second, a small model in bfloat16 4.6e-5 and 1.2e-4. TF32 is reasoned: 10 bits of mantissa."""


def _gpu_links(result: RunResult) -> str:
    links = {link or "unknown" for gpu in result.gpus for link in gpu.links.values()}
    return "; ".join(sorted(links)) or "none"


KNOBS: dict[str, Knob] = {
    "status": Knob(value=lambda r: r.status, remedy="runs that completed"),
    # What is trained.
    "data": Knob(value=lambda r: r.store_sha256, remedy="train on the same prepared store"),
    "skipped images": Knob(value=lambda r: r.skipped_images, remedy="train on the same prepared store"),
    "evaluated samples": Knob(
        value=lambda r: r.evaluations[-1].count if r.evaluations else None,
        remedy="evaluate every validation sample exactly once",
    ),
    "sample order": Knob(value=lambda r: r.sample_order_sha256, remedy="same --seed, --global-batch-size and steps"),
    "augmentation": Knob(value=_workload("augment"), remedy="same --augment"),
    "model": Knob(value=lambda r: r.model, remedy="same --model"),
    "source of the model": Knob(
        value=lambda r: r.settings.get("model_source", "of dpcompare") if r.settings else None,
        remedy="the same file of the model in all runs",
    ),
    "image size": Knob(value=lambda r: r.image_size, remedy="same --image-size"),
    "initial weights": Knob(value=lambda r: r.weights_sha256, remedy="same --model, --weights and --seed"),
    "steps trained": Knob(value=lambda r: len(r.train_loss), remedy="same --epochs or --steps"),
    # How it is trained.
    "global batch size": Knob(value=lambda r: r.global_batch_size, remedy="same --global-batch-size"),
    "batch per replica": Knob(value=lambda r: r.global_batch_size / r.num_replicas, remedy="same number of replicas"),
    "replicas": Knob(value=lambda r: r.num_replicas, remedy="same --nodes times --devices-per-node, and --stages"),
    "micro-batches per step": Knob(value=_workload("accumulate"), remedy="same --accumulate"),
    "updates": Knob(
        value=lambda r: r.settings.get("updates", "synchronous") if r.settings else None,
        remedy="modes that train synchronously; throughput alone may be compared with --subject updates",
    ),
    "BatchNorm scope": Knob(value=_workload("batchnorm"), remedy="same --batchnorm"),
    "BatchNorm momentum": Knob(value=_workload("batchnorm_momentum"), remedy="same --batchnorm-momentum"),
    "BatchNorm epsilon": Knob(value=_setting("batchnorm_epsilon"), remedy="same release of dpcompare"),
    "optimizer": Knob(value=_setting("optimizer"), remedy="same --optimizer"),
    "learning rate": Knob(value=_workload("learning_rate"), remedy="same --learning-rate"),
    "schedule": Knob(value=_workload("schedule"), remedy="same --schedule"),
    "learning-rate warm-up": Knob(value=_workload("lr_warmup_steps"), remedy="same --lr-warmup-steps"),
    "learning-rate scaling": Knob(value=_workload("scale_lr"), remedy="same --scale-lr"),
    "regularization": Knob(value=_workload("regularization"), remedy="same --regularization"),
    "dropout": Knob(value=_setting("dropout"), remedy="the same rate of dropout in both frameworks"),
    "stochastic depth": Knob(value=_setting("stochastic_depth"), remedy="the same rate in both frameworks"),
    # What that made of it: a setting that was asked for and not obeyed shows here.
    "first loss": Knob(
        value=_loss(1),
        remedy="the same arithmetic on the same first batch; `dpcompare verify` says where it parts",
        judge=_losses(1, FIRST_LOSS_DEPENDS_ON),
    ),
    "second loss": Knob(
        value=_loss(2),
        remedy="the same first update; `dpcompare verify` says where it parts",
        judge=_losses(2, SECOND_LOSS_DEPENDS_ON),
    ),
    # With which arithmetic.
    "precision": Knob(value=lambda r: r.precision, remedy="same --precision"),
    "TF32": Knob(value=_setting("tf32"), remedy="same --profile, and --tune tf32 for all or none"),
    "convolution algorithms": Knob(
        value=_setting("convolution_algorithms"), remedy="leave TF_CUDNN_USE_AUTOTUNE alone"
    ),
    "profile": Knob(value=lambda r: r.profile, remedy="same --profile"),
    "tuning": Knob(
        value=lambda r: "found by trying" if r.config.get("autotuned") else r.config.get("tune") or "of the profile",
        remedy="same --tune, or --autotune for all",
    ),
    "emulation": Knob(value=lambda r: r.emulated, remedy="devices on which the mode runs by itself"),
    # On what, and how it is measured.
    "device type": Knob(value=lambda r: r.device_type, remedy="same --device"),
    "devices": Knob(
        value=lambda r: len(r.device_names), remedy="same number of devices: --nodes times --devices-per-node"
    ),
    "device names": Knob(value=lambda r: _kinds(r.device_names), remedy="the same devices"),
    "GPU settings": Knob(
        value=_gpu_settings,
        remedy="the same power limit, clocks, ECC and MIG on all GPUs (nvidia-smi -q), and nvidia-ml-py in every "
        "environment, which reads them",
    ),
    "links between GPUs": Knob(value=_gpu_links, remedy="GPUs that are connected in the same way: --gpus"),
    "cores": Knob(value=_setting("cores"), remedy="the same number of cores"),
    "allocator": Knob(value=_setting("allocator"), remedy="same release of dpcompare"),
    "environment variables": Knob(value=_environment, remedy="the same values, or none"),
    "input threads per replica": Knob(value=_setting("input_threads"), remedy="same --input-threads"),
    "steps per window of the clock": Knob(value=_setting("steps_per_window"), remedy="same --steps-per-window"),
    "checkpoints": Knob(
        value=lambda r: f"every {n} steps" if (n := r.config.get("checkpoint_every")) else "none",
        remedy="same --checkpoint-every",
    ),
    "profiled steps": Knob(
        value=lambda r: r.config.get("profile_steps") or "none", remedy="same --profile-steps, or none"
    ),
    "clock": Knob(
        value=lambda r: r.clock_problem or "its seconds add up",
        remedy="runs whose seconds add up on two clocks; make this one again",
        judge=_no_clock_problem,
    ),
    "warm-up steps": Knob(value=_workload("warmup_steps"), remedy="same --warmup-steps"),
    "measured steps": Knob(value=_measured_steps, remedy="same --steps or --epochs"),
    "versions that differ between nodes": Knob(
        value=lambda r: r.differing_versions or "none", remedy="the same versions on every node"
    ),
    "dpcompare": Knob(value=lambda r: major_minor(r.dpcompare_version), remedy="the same MAJOR.MINOR of dpcompare"),
    "engine": Knob(value=lambda r: r.config.get("placement", {}).get("engine", "local"), remedy="same --engine"),
    "link": Knob(value=lambda r: r.config.get("placement", {}).get("link") or "as it is", remedy="same --link"),
    # What the comparison is about: shown, and never a reason.
    "stages": Knob(value=lambda r: r.config.get("stages", 1)),
    "pipeline schedule": Knob(value=lambda r: r.config.get("pipeline_schedule") or "none"),
    "launcher": Knob(value=lambda r: r.config.get("launcher") or "of the mode"),
    "framework": Knob(value=lambda r: r.framework),
    "mode": Knob(value=lambda r: r.mode),
    "nodes": Knob(value=lambda r: r.num_nodes),
    "processes": Knob(value=lambda r: r.num_processes),
    "gradient sync": Knob(value=lambda r: r.config.get("sync_gradients", True), remedy="runs that sync gradients"),
    "collective": Knob(value=lambda r: r.collective),
    "memory layout": Knob(value=_setting("memory_layout")),
    "compilation": Knob(value=_setting("compilation")),
    "optimizer kernels": Knob(value=_setting("optimizer_kernels")),
    "BatchNorm kernels": Knob(value=_setting("batchnorm_kernels")),
    "gradient buckets": Knob(value=_setting("gradient_buckets")),
    # A process per device has a thread at least, which can be more threads than cores: a price of the mode.
    "threads in all": Knob(value=lambda r: r.threads_per_process * r.num_processes),
    # A process with GPUs of several NUMA nodes cannot be bound to one: a price of the mode.
    "bound to cores near the GPUs": Knob(
        value=lambda r: sum(len(node.bound_to_cores) for node in r.nodes) or "no process"
    ),
    "versions": Knob(value=lambda r: r.versions),
}


def _kinds(names: Sequence[str]) -> list[str]:
    """Device names without the numbers of simulated ones."""
    return sorted({name.split(":")[0] for name in names})


@dataclass(frozen=True, kw_only=True)
class Row:
    """One knob of the sheet, with its value in each result."""

    knob: str
    values: list[Any]
    """One per result, in their order."""
    equal: bool
    reason: bool
    """Whether it makes the results not comparable."""
    remedy: str
    """As for a Knob."""


def shown(value: Any) -> str:
    """A value as people read it: of a checksum only the beginning."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {shown(each)}" for name, each in value.items())
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f"{text[:12]}..." if re.fullmatch(r"[0-9a-f]{64}", text) else text


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """All knobs of some results, and what follows from them."""

    rows: list[Row]

    @property
    def verdict(self) -> Verdict:
        return "NOT COMPARABLE" if self.reasons else "COMPARABLE"

    @property
    def reasons(self) -> list[str]:
        """One sentence per knob that differs and must not."""
        return [
            f"{row.knob} differs or is unknown ({', '.join(dict.fromkeys(map(shown, row.values)))}): {row.remedy}"
            for row in self.rows
            if row.reason
        ]

    @property
    def summary(self) -> str:
        judged = [row for row in self.rows if row.remedy]
        equal = sum(row.equal for row in judged)
        return f"{self.verdict} ({equal} of {len(judged)} knobs equal)"


def compare(results: Sequence[RunResult], *, subject: Sequence[str] = ()) -> Sheet:
    """The sheet of two or more results.

    Args:
        results: what is to be compared.
        subject: knobs that the comparison is about, which may therefore differ.

    Raises:
        ValueError: `subject` names no knob.
    """
    if unknown := set(subject) - set(KNOBS):
        raise ValueError(f"unknown knob {sorted(unknown)}; expected some of {', '.join(KNOBS)}")
    rows = []
    for name, knob in KNOBS.items():
        values = [knob.value(result) for result in results]
        equal = all(value == values[0] for value in values)
        judged = knob.judge(results) if knob.judge else Judgement(equal=equal, is_reason=not equal)
        # A value that was not recorded, or a run that did not complete, cannot be called equal.
        unknown_value = None in values or (name == "status" and set(values) != {"completed"})
        reason = knob.must_be_equal and (judged.is_reason or unknown_value) and name not in subject
        rows.append(Row(knob=name, values=values, equal=judged.equal and not reason, reason=reason, remedy=knob.remedy))
    return Sheet(rows=rows)
