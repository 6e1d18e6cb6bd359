"""The floors of the parts of a step: the least that a link or a bus lets them take, hidden or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dpcompare.config.run import RunConfig
from dpcompare.experiments.step_parts import Part
from dpcompare.models.spec import IMAGE_CHANNELS
from dpcompare.projection.cluster import interconnect_of_run
from dpcompare.projection.collectives import Interconnect
from dpcompare.projection.link import WITHIN_NODES, Link, link_between_nodes
from dpcompare.results.result import RunResult

LANES = 16
"""Of the links of PCIe in WITHIN_NODES."""
TABLE_BYTES = IMAGE_CHANNELS * 256 * 4
"""Of the table with which a GPU looks up the bytes of an image."""


@dataclass(frozen=True, kw_only=True)
class Floor:
    """The least that a part of a step can take."""

    seconds: float | None
    """None where it is not known."""
    words: str
    """Of what, or why it is not known."""


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
