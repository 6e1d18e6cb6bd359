"""The projection of a study: predicted figures of every arm on clusters that were not measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace

from dpcompare.errors import RequestError
from dpcompare.experiments import fairness
from dpcompare.experiments.check_row import Differs
from dpcompare.experiments.collection import Collection
from dpcompare.experiments.cost import dollars_per_million_images
from dpcompare.experiments.fairness_checks import names_that_differ
from dpcompare.projection.document import Conditions, Goal, PredictedArm, PredictedPoint, Projection, Range
from dpcompare.projection.goal import (
    MOST_ASKED_FOR,
    MOST_TIMES,
    ProjectionRequest,
    batch_for_efficiency,
    link_for_efficiency,
    nodes_for_throughput,
)
from dpcompare.projection.link import NETWORK_LATENCY, duration_in_words, rate_in_words
from dpcompare.projection.measured import NO_LIMIT, MeasuredArm, measured_arms, refuse_unless_any
from dpcompare.projection.step import Step, StepWork, band
from dpcompare.system.terminal_text import pluralize

MOST_NODES = 1024
"""Up to which nodes are doubled where no numbers were asked for."""
VALIDATED_MODES = frozenset({"torch ddp", "torch fsdp", "tensorflow multiworker"})
VALIDATED_NODES = 4
VALIDATED_RATE = 500e6 / 8
"""Bytes per second."""
VALIDATED_LATENCY = NETWORK_LATENCY.high
"""Seconds: that of TCP sockets, on links without a delay. Up to all of these, with one CPU device per node, predictions
were compared with measurements (docs/projection.md)."""
PAYS = 0.5
"""Efficiency below which more nodes are called not to pay."""
MAY_DIFFER = names_that_differ(Differs.DEVICES | Differs.EMULATION | Differs.GLOBAL_BATCH | Differs.CLUSTERS)
"""Checks in which arms on different clusters differ by nature; every device keeps its batch, on any cluster."""


def project(collection: Collection, request: ProjectionRequest) -> Projection:
    """Predict every arm of a study on other clusters.

    Raises:
        RequestError: nothing can be predicted of any arm, the arms are not comparable, or a cluster is smaller than
            the measured one.
    """
    asked = [arm.config.cluster for arm in collection.arms if not request.arms or arm.name in request.arms]
    if request.measured_link and not any(cluster.spans_machines for cluster in asked):
        raise RequestError(
            f"--measured-link: received {request.measured_link!r} with runs on one machine; expected runs on several "
            "machines: leave it out"
        )
    within = request.within or NO_LIMIT
    arms, left_out = measured_arms(collection, names=request.arms, measured_link=request.measured_link, within=within)
    arms = _on_several_nodes(arms, request, left_out)
    sheet = _sheet(arms, collection)
    predicted = [_predicted(arm, request) for arm in arms]
    return Projection(
        link=request.between.name,
        intra_link=within.name,
        devices_per_node=request.devices_per_node,
        overlap="measured" if request.overlap else "none",
        conditions=request.conditions,
        verdict=sheet.verdict,
        summary=sheet.summary,
        left_out=left_out,
        arms=predicted,
        sentences=list(_sentences(request)),
    )


def _on_several_nodes(
    arms: Sequence[MeasuredArm], request: ProjectionRequest, left_out: dict[str, str]
) -> list[MeasuredArm]:
    """The arms that can be on what was asked for; the others are named among those that are left out."""
    reasons = {arm.name: _why_not(arm, request) for arm in arms}
    left_out |= {name: reason for name, reason in reasons.items() if reason}
    kept = [arm for arm in arms if not reasons[arm.name]]
    refuse_unless_any(kept, left_out)
    return kept


def _why_not(arm: MeasuredArm, request: ProjectionRequest) -> str | None:
    """Why an arm cannot be on anything that was asked for."""
    if arm.misfit and not request.extrapolate:
        return f"{arm.misfit}; measure more rounds on a quiet machine, or pass --extrapolate to show it anyway"
    if arm.nodes_without_replica and request.devices_per_node not in (None, 1):
        return f"{arm.config.mode} has one device per node; leave out --devices-per-node"
    return None if _nodes_of(arm, request) else "; ".join(_not_predicted(arm, request))


def _sheet(arms: Sequence[MeasuredArm], collection: Collection) -> fairness.Sheet:
    """The fairness sheet of the arms that are projected; arms that are not comparable are not predicted together."""
    names = {arm.name for arm in arms}
    projected = [arm for arm in collection.arms if arm.name in names]
    subject = sorted({*collection.subject_of(projected), *MAY_DIFFER})
    sheet = fairness.compare([arm.completed[0] for arm in projected], subject=subject)
    if sheet.reasons and len(projected) > 1:
        raise RequestError(
            f"the arms {', '.join(sorted(names))} are NOT COMPARABLE, so their predictions are not either: "
            f"{'; '.join(sheet.reasons)}; name one with --arm, or what the study is about with --subject"
        )
    return sheet


def _sentences(request: ProjectionRequest) -> Iterator[str]:
    yield (
        "All figures are predicted, not measured. The low end of each range assumes high latency and the measured "
        "spread between processes; the high end assumes low latency and no more waiting for the slowest process than "
        "was measured. It is not a confidence interval."
    )
    yield (
        f"The model was compared with measurements of {', '.join(sorted(VALIDATED_MODES))} on up to {VALIDATED_NODES} "
        f"simulated nodes with one CPU device each, on links of up to {rate_in_words(VALIDATED_RATE)} without a "
        "delay. Anywhere else, on GPUs and between real machines, no accuracy is claimed."
    )
    yield "Each device keeps its measured batch, so the global batch grows with the number of devices."
    conditions = request.conditions
    low, typical, high = map(duration_in_words, astuple(conditions.latency))
    yield f"A message between nodes takes {typical} before its first byte arrives ({low} to {high})."
    if (storage := conditions.storage_bytes_per_second) is not None:
        yield f"All nodes together read at most {rate_in_words(storage)} of images."
    if conditions.checkpoint_every:
        yield (
            f"Images per second and efficiency, but not step times, include a checkpoint of "
            f"{conditions.checkpoint_seconds:,.12g} s every {pluralize(conditions.checkpoint_every, 'step')}"
            f"{_of_failures(conditions)}."
        )
    if not request.overlap:
        yield "As requested, nothing overlaps: all gradients wait for the end of the backward pass."


def _of_failures(conditions: Conditions) -> str:
    if conditions.node_mtbf_hours is None:
        return ""
    return (
        f", and failures: each node fails every {conditions.node_mtbf_hours:,.12g} hours on average, which costs "
        f"{conditions.restart_seconds:,.12g} s and half of the steps between two checkpoints"
    )


def _predicted(arm: MeasuredArm, request: ProjectionRequest) -> PredictedArm:
    cluster = arm.config.cluster
    devices_per_node = request.devices_per_node or cluster.devices_per_node
    work = arm.work_on()
    work = work if request.overlap else replace(work, exchange=work.exchange.without_overlap())
    points = [_point(arm, work, nodes, devices_per_node, request) for nodes in _nodes_of(arm, request)]
    refitted = arm.cells[0].predicted(arm.fitted) if arm.cells else None
    return PredictedArm(
        name=arm.name,
        framework=arm.config.framework,
        mode=arm.config.mode,
        measured_nodes=cluster.num_nodes,
        measured_devices_per_node=cluster.devices_per_node,
        batch_per_device=work.batch_per_device,
        computing_ms=1000 * arm.work.computing_seconds,
        measured_step_ms=None if arm.seconds is None else 1000 * arm.seconds,
        refitted_step_ms=None if refitted is None else 1000 * refitted,
        spread=work.spread,
        exchanged_bytes=work.exchange.num_bytes,
        copying_ns_per_byte=1e9 * arm.fitted.copying,
        misfit=arm.misfit,
        points=points,
        goals=list(_goals(arm, work, points[-1].nodes, devices_per_node, request)),
        assumed=[*arm.assumed, *_assumed_of_links(arm, devices_per_node, request)],
        left_out=list(_not_predicted(arm, request)),
        sentence=_sentence(arm.name, points),
    )


def _assumed_of_links(arm: MeasuredArm, devices_per_node: int, request: ProjectionRequest) -> Iterator[str]:
    if arm.config.cluster.device_type == "gpu" and devices_per_node > 1 and request.within is None:
        yield "the links within a node take the measured time and have no limit of their own; --intra-link sets one"


def _asked_for(arm: MeasuredArm, request: ProjectionRequest) -> list[int]:
    """Numbers of nodes; where none were named, the fewest with as many devices as were measured, doubled."""
    if request.nodes:
        return sorted(set(request.nodes))
    if not arm.config.mode_row.multi_node:
        return [1]
    least, most = _least_nodes(arm, request), min(MOST_NODES, _most_nodes(arm, request))
    return [count for power in range(11) if (count := least * 2**power) <= most] or [least]


def _least_nodes(arm: MeasuredArm, request: ProjectionRequest) -> int:
    """The smallest number of nodes that has as many devices as were measured."""
    cluster = arm.config.cluster
    return -(-cluster.num_devices // (request.devices_per_node or cluster.devices_per_node))


def _most_nodes(arm: MeasuredArm, request: ProjectionRequest) -> int:
    """The largest number of nodes that is predicted."""
    if not arm.config.mode_row.multi_node:
        return 1
    if request.extrapolate:
        return MOST_ASKED_FOR
    per_node = request.devices_per_node or arm.config.cluster.devices_per_node
    return max(_least_nodes(arm, request), MOST_TIMES * arm.config.cluster.num_devices // per_node)


def _nodes_of(arm: MeasuredArm, request: ProjectionRequest) -> list[int]:
    """On which numbers of nodes an arm is predicted; empty: it cannot be on any that was asked for."""
    most = _most_nodes(arm, request)
    return [count for count in _asked_for(arm, request) if _least_nodes(arm, request) <= count <= most]


def _not_predicted(arm: MeasuredArm, request: ProjectionRequest) -> Iterator[str]:
    """Which of the numbers of nodes that were asked for an arm is not predicted on, and why."""
    cluster, asked = arm.config.cluster, _asked_for(arm, request)
    several = [] if arm.config.mode_row.multi_node else [count for count in asked if count > 1]
    if several:
        yield f"received {_all_of(several)}, but {arm.config.mode} cannot span nodes: ask for --nodes 1"
    per_node = pluralize(request.devices_per_node or cluster.devices_per_node, "device")
    if smaller := [count for count in asked if count < _least_nodes(arm, request) and count not in several]:
        yield (
            f"received {_all_of(smaller)} x {per_node}, expected at least the {cluster.in_words} on which it was "
            "measured: smaller clusters can be measured instead"
        )

    most = _most_nodes(arm, request)
    if larger := [count for count in asked if count > most and count not in several]:
        yield (
            f"received {_all_of(larger)} x {per_node}, expected at most {most}, {MOST_TIMES} times what was measured: "
            "measure more nodes, or pass --extrapolate"
        )


def _all_of(counts: Sequence[int]) -> str:
    """`1 node`, or `1, 2 nodes`."""
    *others, last = counts
    return ", ".join([*(f"{count:,}" for count in others), pluralize(last, "node")])


def _point(
    arm: MeasuredArm, work: StepWork, nodes: int, devices_per_node: int, request: ProjectionRequest
) -> PredictedPoint:
    interconnect = arm.on(nodes, devices_per_node, request.between, request.within or NO_LIMIT)
    ends = band(work, interconnect)
    speed = Range(**{end: request.overheads.images_per_second(*of) for end, of in ends.items()})
    efficiency = Range(**{end: request.overheads.efficiency(*of) for end, of in ends.items()})
    step, fraction = request.overheads.training(work, interconnect)
    devices = nodes * devices_per_node
    price = request.dollars_per_device_hour
    return PredictedPoint(
        nodes=nodes,
        devices=devices,
        images_per_second=speed,
        efficiency=efficiency,
        fraction_training=fraction,
        step_ms=1000 * step.seconds,
        step_parts_ms=_parts(step),
        dollars_per_million_images=(
            dollars_per_million_images(price, devices, speed.typical) if price is not None and speed.typical else None
        ),
        extrapolated=not _was_validated(arm, nodes, devices_per_node, request),
    )


def _was_validated(arm: MeasuredArm, nodes: int, devices_per_node: int, request: ProjectionRequest) -> bool:
    """Whether predictions of such a cluster were compared with measurements."""
    return (
        f"{arm.config.framework} {arm.config.mode}" in VALIDATED_MODES
        and arm.config.cluster.device_type == "cpu"
        and (nodes <= VALIDATED_NODES and devices_per_node == 1)
        and request.between.bytes_per_second <= VALIDATED_RATE
        and request.between.latency.typical <= VALIDATED_LATENCY
    )


def _parts(step: Step) -> dict[str, float]:
    parts = {
        "computing": step.computing,
        "waiting for the slowest": step.waiting_for_slowest,
        "exchange": step.exchange,
        "input": step.input,
    }
    return {name: 1000 * seconds for name, seconds in parts.items()}


def _sentence(name: str, points: Sequence[PredictedPoint]) -> str:
    """Where it stops paying."""
    last = points[-1]
    below = next((point for point in points if point.efficiency.typical < PAYS), None)
    if below is not None:
        reached = f"{pluralize(below.nodes, 'node')} ({_share(below)})"
        if below is points[0]:
            return f"{name}: predicted to be already below {PAYS:.0%} efficiency on {reached}."
        return f"{name}: predicted to fall below {PAYS:.0%} efficiency at {reached}."
    return f"{name}: predicted to stay at {_share(last)} efficiency on {pluralize(last.nodes, 'node')}."


def _share(point: PredictedPoint) -> str:
    """`52%`, or `48% to 55%` where its ends differ."""
    low, high = (f"{share:.0%}" for share in (point.efficiency.low, point.efficiency.high))
    return low if low == high else f"{low} to {high}"


def _goals(
    arm: MeasuredArm, work: StepWork, nodes: int, devices_per_node: int, request: ProjectionRequest
) -> Iterator[Goal]:
    """What the goals need, on the largest cluster that was asked for."""
    interconnect = arm.on(nodes, devices_per_node, request.between, request.within or NO_LIMIT)
    if (target := request.target_efficiency) is not None:
        goal = f"{100 * target:.12g}% efficiency on {pluralize(nodes, 'node')}"
        if nodes > 1:
            rate = link_for_efficiency(work, interconnect, target, request.overheads)
            needs = f"a link of {rate_in_words(rate)}" if rate else "no link is fast enough"
            yield Goal(goal=f"{goal}: link", value=rate and rate * 8, sentence=f"predicted for {goal}: {needs}")
        batch = batch_for_efficiency(work, interconnect, target, request.overheads)
        needs = f"{pluralize(batch, 'image')} per device" if batch else "no batch is enough"
        fixed = "" if work.fixed_seconds else ", where computing grows with the batch in proportion"
        yield Goal(
            goal=f"{goal}: batch per device",
            value=batch,
            sentence=f"predicted for {goal} over {request.between.name}: {needs}{fixed}",
        )
    if (speed := request.target_throughput) is not None:
        others, most = arm.nodes_without_replica, _most_nodes(arm, request)
        least = _least_nodes(arm, request) - others
        needed = nodes_for_throughput(work, interconnect, speed, request.overheads, least=least, most=most)
        needed = needed and needed + others
        goal = f"{speed:,.12g} images per second"
        not_enough = "one node is not enough, and this mode cannot use several"
        if most > 1:
            not_enough = "no number of nodes is enough"
        if arm.config.mode_row.multi_node and not request.extrapolate:
            not_enough = f"not reached within {pluralize(most, 'node')}; --extrapolate looks further"
        needs = pluralize(needed, "node") if needed else not_enough
        yield Goal(goal=goal, value=needed, sentence=f"predicted for {goal} over {request.between.name}: {needs}")
