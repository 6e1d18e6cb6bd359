"""The least that a link or a bus lets a part of a step take, and what would help a run, by how much."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import BaseModel, ConfigDict

from dpcompare.config.run import RunConfig
from dpcompare.experiments.variants import TIMES_THE_BATCH, Part, StepParts
from dpcompare.models.spec import IMAGE_CHANNELS
from dpcompare.projection.calibration import LARGEST_ERROR, Fitted, MeasuredCell, exchange_of, fit, interconnect_of_run
from dpcompare.projection.exchange import Exchange, default_buckets, in_buckets, ready_shares
from dpcompare.projection.link import WITHIN_NODES, Interconnect, Link, link_between_nodes, rate_in_words
from dpcompare.projection.step import StepWork, predict_step
from dpcompare.results.result import RunResult

LANES = 16
"""The lanes of the links of PCIe in WITHIN_NODES."""
TABLE_BYTES = IMAGE_CHANNELS * 256 * 4
"""The bytes of the table with which a GPU looks up the bytes of an image."""


@dataclass(frozen=True, kw_only=True)
class Floor:
    """The least that a part of a step can take."""

    seconds: float | None
    """None where it is not known."""
    words: str
    """What the floor is of, or why it is not known."""


def floors_of(config: RunConfig, result: RunResult, measured_link: str | None = None) -> dict[Part, Floor]:
    """The floors of a run.

    Args:
        config: of the run.
        result: of it, which knows its gradients and its GPUs.
        measured_link: the rate of the link between its machines, where it is known.
    """
    return dict(_floors(config, result, measured_link))


def interconnect_of(config: RunConfig, result: RunResult, measured_link: str | None = None) -> Interconnect | None:
    """What connects the replicas of a run; None where its speed is not known, as that of NVLink within one node.

    Between nodes it is a limited or named link, with PCIe at both ends or NVLink, which is taken not to be a limit.
    """
    cluster = config.cluster
    bus = None if _has_nvlink(result) else _bus(result)  # NVLink is faster; how fast, NVML does not say
    within = bus or Link(name="memory")
    rate = measured_link or config.placement.link
    between = link_between_nodes(rate) if rate else None
    if cluster.num_nodes > 1 and between is None:
        return None
    if cluster.num_nodes == 1 and bus is None:
        return None
    return interconnect_of_run(
        config,
        collective=result.collective or "gloo",
        between=between or within,
        within=within,
        cores=result.settings.get("cores"),
    )


def _floors(config: RunConfig, result: RunResult, measured_link: str | None) -> Iterator[tuple[Part, Floor]]:
    workload = config.workload
    rows = workload.global_batch_size / config.topology.num_replicas
    num_bytes = rows * (workload.image_size**2 * IMAGE_CHANNELS + TABLE_BYTES)
    bus = _bus(result)
    if config.cluster.device_type == "cpu":
        yield "input", Floor(seconds=0.0, words="0 ms, since on the CPU there is no copy to a device")
    elif bus is None:
        yield "input", Floor(seconds=None, words="not known, since the bus of the devices is not")
    else:
        words = f"{num_bytes / 1e6:.3g} MB per device and step over {bus.name}, which may overlap with computing"
        yield "input", Floor(seconds=bus.seconds(num_bytes), words=words)
    if config.topology.num_replicas == 1:
        return
    yield "devices", Floor(seconds=None, words="not known, since this mode has no step without its exchange")
    if result.gradients is None:
        yield "exchange", Floor(seconds=None, words="not known, since the size of the gradients was not recorded")
        return
    gradient_bytes = result.gradients.num_bytes
    size = f"{gradient_bytes / 1e6:.3g} MB of gradients"
    if (interconnect := interconnect_of(config, result, measured_link)) is None:
        where = "between the nodes" if config.cluster.num_nodes > 1 else "between the devices"
        has_machines = config.cluster.spans_machines
        fix = "; name it with --measured-link" if has_machines else ""
        words = f"not known ({size} over a link of unknown speed {where}{fix})"
        yield "exchange", Floor(seconds=None, words=words)
    else:
        seconds = interconnect.wire_seconds("all-reduce", gradient_bytes)
        link = interconnect.between if config.cluster.num_nodes > 1 else interconnect.within
        words = f"{size} over the link ({link.name}), part of which the backward pass can hide"
        yield "exchange", Floor(seconds=seconds, words=words)


def _bus(result: RunResult) -> Link | None:
    """PCIe as the slowest GPU has it: an idle one lowers it, so by the reading after the last measured step."""
    readings = [gpu.after for gpu in result.gpus]
    known = [each for each in readings if each and each.pcie_generation and each.pcie_width]
    if not known or len(known) < len(readings):
        return None
    links = [
        replace(link, bytes_per_second=link.bytes_per_second * (each.pcie_width or LANES) / LANES)
        for each in known
        if (link := WITHIN_NODES.get(f"pcie{each.pcie_generation}"))
    ]
    return min(links, key=lambda link: link.bytes_per_second, default=None)


def _has_nvlink(result: RunResult) -> bool:
    return any("NVLink" in (link or "") for gpu in result.gpus for link in gpu.links.values())


Change = Literal["a link twice as fast", "gradients in buckets"]


def speedup_by_change(work: StepWork, interconnect: Interconnect) -> dict[Change, float]:
    """How many times as many images per second each change brings; buckets only where gradients are in one pack.

    Args:
        work: of each device, as measured.
        interconnect: on which it runs.
    """
    between, within = (link.times_as_fast(2.0) for link in (interconnect.between, interconnect.within))
    faster = replace(interconnect, between=between, within=within)
    changed: dict[Change, tuple[StepWork, Interconnect]] = {"a link twice as fast": (work, faster)}
    if work.exchange.copying == "after transfer" and not work.exchange.servers:
        changed["gradients in buckets"] = (replace(work, exchange=_in_buckets(work.exchange)), interconnect)
    now = predict_step(work, interconnect).images_per_second
    return {change: predict_step(*situation).images_per_second / now for change, situation in changed.items()}


def _in_buckets(exchange: Exchange) -> Exchange:
    """The gradients as DistributedDataParallel would exchange them."""
    ends = max((message.needed_by for message in exchange.messages), default=1.0)
    gradients = sum(message.num_bytes for message in exchange.messages if message.kind != "all-gather")
    buckets = default_buckets(gradients)
    return in_buckets(buckets, ready_shares(buckets, backward_ends=ends), backward_ends=ends)


PLAUSIBLE_COPYING = 1e-8
"""Seconds per byte: three times what TensorFlow's ring takes on the CPU, which takes longer than gloo."""


class Remedy(BaseModel):
    """What would help, and by how much."""

    model_config = ConfigDict(frozen=True)

    part: Part | Literal["other processes"]
    words: str
    speedup: float | None
    """How many times as many images per second; None if only a trial can show it."""
    at_most: bool
    """Whether that is what is won where the part takes no time at all."""
    changes: dict[str, str] = {}
    """Option of the run -> its value."""
    command: str | None = None
    """To try it."""


QUIET = Remedy(
    part="other processes",
    words="Free the cores of other processes, and explain the run again with another --out",
    speedup=None,
    at_most=False,
)
"""What comes first where others took cores in most runs."""


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
    """The speedup by TIMES_THE_BATCH: computing and input that is not hidden grow with it, and nothing else does."""
    step, images = parts.seconds, parts.median(lambda each: each.per_batch)
    reading = parts.median(lambda each: each.unhidden_input)
    if step is None or images is None or reading is None:
        return None
    return TIMES_THE_BATCH * step / (step + (TIMES_THE_BATCH - 1) * (max(images, 0.0) + max(reading, 0.0)))


def _of_model(parts: StepParts, config: RunConfig, result: RunResult, interconnect: Interconnect) -> Iterator[Remedy]:
    """A faster link and another exchange, by the model, where it predicts the step that was measured."""
    whole, computing = parts.seconds, parts.median(lambda each: each.until_last("no exchange"))
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
    for change, speedup in speedup_by_change(work, fitted.applied_to(interconnect)).items():
        words, changes = tried[change]
        yield Remedy(part="exchange", words=words, speedup=speedup, at_most=False, changes=changes)


def _fitted(cell: MeasuredCell) -> Fitted | None:
    """The constants with which the model has the step that was measured; None where none that are plausible do.

    One cell does not separate a slow link from slow copying, so copying is fitted only if the link does not explain it.
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
