"""What would help a run that was explained, and by how much: by what was measured of it, and by the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import BaseModel, ConfigDict

from dpcompare.config.run import RunConfig
from dpcompare.experiments.step_parts import Part, StepParts
from dpcompare.experiments.variants import TIMES_THE_BATCH
from dpcompare.projection.calibration import LARGEST_ERROR, Fitted, MeasuredCell, fit
from dpcompare.projection.collectives import Interconnect
from dpcompare.projection.floors import interconnect_of
from dpcompare.projection.link import rate_in_words
from dpcompare.projection.recorded_exchange import exchange_of
from dpcompare.projection.step import StepWork
from dpcompare.projection.what_helps import Change, what_helps
from dpcompare.results.result import RunResult

PLAUSIBLE_COPYING = 1e-8
"""Seconds per byte: three times what TensorFlow's ring takes on the CPU, which takes longer than gloo."""


class Remedy(BaseModel):
    """What would help, and by how much."""

    model_config = ConfigDict(frozen=True)

    part: Part
    words: str
    speedup: float | None
    """How many times as many images per second; None where only a trial can tell."""
    at_most: bool
    """Whether that is what is won where the part takes no time at all."""
    changes: dict[str, str] = {}
    """Option of the run -> its value."""
    command: str | None = None
    """To try it."""


def remedies_of(
    found: Mapping[Part, float],
    parts: StepParts,
    config: RunConfig,
    result: RunResult,
    measured_link: str | None = None,
) -> list[Remedy]:
    """The one that helps most first.

    Args:
        found: the parts that stand out, and their shares.
        parts: of the step.
        config: of the run.
        result: of it, which knows its gradients and its GPUs.
        measured_link: the rate of the link between its machines, where it is known.
    """
    interconnect = interconnect_of(config, result, measured_link)
    remedies = [*_of_parts(found, parts, config)]
    if "exchange" in found and interconnect:
        remedies += _of_model(parts, config, result, interconnect)
    if found.keys() & {"exchange", "devices", "launching"}:
        remedies += _of_batch("launching" if "launching" in found else "exchange", parts, config)
    remedies = remedies or [_of_computing()]
    return sorted(remedies, key=lambda each: each.speedup or 0.0, reverse=True)


def _of_parts(found: Mapping[Part, float], parts: StepParts, config: RunConfig) -> Iterator[Remedy]:
    """What is won at most where a part takes no time any more."""
    if "input" in found:
        threads = 2 * config.input_threads
        yield Remedy(
            part="input",
            words=f"Hide input behind computing: try {threads} reader threads, a prepared store or faster storage",
            speedup=_without(found["input"]),
            at_most=True,
            changes={"input_threads": str(threads)},
        )
    if "waiting" in found:
        where = f"the machine of process {parts.slowest}" if parts.is_always_slowest else "each machine"
        yield Remedy(
            part="waiting",
            words=f"Make processes equally fast: check what else {where} runs, its clock rate and its storage",
            speedup=_without(found["waiting"]),
            at_most=True,
        )
    together = found.get("exchange") or found.get("devices")
    if together:
        yield Remedy(
            part="exchange" if "exchange" in found else "devices",
            words="Upper bound: a free exchange (no real link achieves this)",
            speedup=_without(together),
            at_most=True,
        )


def _without(share: float) -> float | None:
    return 1 / (1 - share) if share < 1 else None


def _of_batch(part: Part, parts: StepParts, config: RunConfig) -> Iterator[Remedy]:
    if (speedup := speedup_of_batch(parts)) is None:
        return
    yield Remedy(
        part=part,
        words=f"A batch {TIMES_THE_BATCH} times as large, if the training tolerates it and it fits into memory",
        speedup=speedup,
        at_most=False,
        changes={"global_batch_size": str(TIMES_THE_BATCH * config.workload.global_batch_size)},
    )


def speedup_of_batch(parts: StepParts) -> float | None:
    """Of TIMES_THE_BATCH: computing and input that is not hidden grow with it; exchange and launching do not."""
    step, images = parts.seconds, parts.median(lambda each: each.per_batch)
    reading = parts.median(lambda each: each.unhidden_input)
    if step is None or images is None or reading is None:
        return None
    return TIMES_THE_BATCH * step / (step + (TIMES_THE_BATCH - 1) * (max(images, 0.0) + max(reading, 0.0)))


def _of_model(parts: StepParts, config: RunConfig, result: RunResult, interconnect: Interconnect) -> Iterator[Remedy]:
    """A faster link and another exchange, by the model, where it predicts the step that was measured."""
    whole, computing = parts.seconds, parts.median(lambda each: each.of_all("no exchange"))
    if not (config.mode_row.exchange and result.gradients and whole and computing):
        return
    exchange = exchange_of(config, [result.gradients], result.gradients)
    cell = MeasuredCell(exchange=exchange, computing_seconds=computing, seconds=whole, interconnect=interconnect)
    if (fitted := _fitted(cell)) is None:
        return
    batch = config.workload.global_batch_size / config.topology.num_replicas
    work = StepWork(computing_seconds=computing, batch_per_device=batch, exchange=exchange)
    link = rate_in_words(2 * interconnect.between.bytes_per_second)
    tried: dict[Change, tuple[str, dict[str, str]]] = {
        "a link twice as fast": (f"A link twice as fast ({link})", {"link": link} if config.placement.link else {}),
        "gradients in buckets": (
            "Exchange gradients in buckets during the backward pass, as torch's ddp does",
            {"framework": "torch", "mode": "ddp"},
        ),
    }
    for change, speedup in what_helps(work, fitted.applied_to(interconnect)).items():
        words, changes = tried[change]
        yield Remedy(part="exchange", words=words, speedup=speedup, at_most=False, changes=changes)


def _fitted(cell: MeasuredCell) -> Fitted | None:
    """The constants with which the model has the step that was measured; None where none that are plausible do.

    One cell cannot tell a slow link from slow copying, so copying is fitted only where the link does not explain it.
    """
    for fitted in (Fitted(), fit([cell])):
        if abs(cell.error(fitted)) <= LARGEST_ERROR and fitted.copying <= PLAUSIBLE_COPYING:
            return fitted
    return None


def _of_computing() -> Remedy:
    return Remedy(
        part="computing",
        words="Speed up computing: try the settings of the native profile one by one",
        speedup=None,
        at_most=False,
    )
