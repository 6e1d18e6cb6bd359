"""What a planned run is predicted to reach, from a study that measured its mode on a smaller cluster."""

from __future__ import annotations

from dataclasses import replace

from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.experiments.collection import Collection
from dpcompare.projection.calibration import cores_per_replica, processes_per_core, times_as_long
from dpcompare.projection.document import Range
from dpcompare.projection.link import Interconnect, Link, link_between_nodes
from dpcompare.projection.measured import NO_LIMIT, MeasuredArm, differing_settings, measured_arms
from dpcompare.projection.step import band, predict_step
from dpcompare.system.devices import available_cores

ASSUMED_LINK = "100gbit"
"""The link between machines if none was named."""


def predicted_speed(collection: Collection, config: RunConfig) -> tuple[Range, str]:
    """Predicted images per second of a planned run, and a sentence that says so.

    Args:
        collection: of a study with runs without gradient sync.
        config: of the run.

    Raises:
        RequestError: the study has no such arm, or has measured it on more devices.
    """
    # Machines whose link was not named have the same one in the study as in the plan.
    arms, _ = measured_arms(collection, measured_link=ASSUMED_LINK)
    differing = {each.name: differing_settings(config, each.config) for each in arms}
    arm = min(arms, key=lambda each: len(differing[each.name]))
    if differing[arm.name]:
        raise RequestError(
            f"--study: no arm matches the planned run of {config.framework} {config.mode} (arms: "
            f"{', '.join(differing)}). Only nodes, link, batch and what does not change a step may differ; it also "
            f"differs from {arm.name} in: {', '.join(differing[arm.name])}"
        )
    measured = arm.config.cluster
    if config.cluster.num_devices < measured.num_devices:
        raise RequestError(
            f"--study: {arm.name} was measured on {measured.in_words}, expected no more than the "
            f"{config.cluster.in_words} of this run; make the run, or name a study of a smaller cluster"
        )
    link = _link_of(config)
    cores = available_cores() if config.cluster.simulated else config.cluster.nodes[0].num_cores
    interconnect = _interconnect(arm, config, link, cores)
    per_replica = cores_per_replica(config, cores)
    batch = config.workload.global_batch_size / config.topology.num_replicas
    work = arm.work_on(per_replica).with_batch(batch)
    steps = {end: predict_step(*of) for end, of in band(work, interconnect).items()}
    speed, step = Range(**{end: each.images_per_second for end, each in steps.items()}), steps["typical"]
    is_assumed = config.placement.link is None and not config.cluster.simulated
    over = "" if link is NO_LIMIT else f" over {link.name} between nodes{' (assumed)' if is_assumed else ''}"
    return speed, (
        f"predicted, not measured: {speed.typical:,.1f} images/s ({speed.low:,.1f} to {speed.high:,.1f}), "
        f"{step.efficiency:.0%} efficient, {1000 * step.seconds:.1f} ms per step of which "
        f"{1000 * step.exchange:.1f} exchange{over}; from {arm.name}, measured on {measured.in_words}"
        f"{_of_cores(arm, per_replica)}{f'; {arm.misfit}' if arm.misfit else ''}"
    )


def _of_cores(arm: MeasuredArm, per_replica: float) -> str:
    if (slower := times_as_long(arm.cores_per_replica, per_replica)) == 1:
        return ""
    cores = f"{per_replica:.2g} instead of {arm.cores_per_replica:.2g} cores per replica"
    return f"; with {cores}, computing is taken to be {slower:.2g} times as long"


def _link_of(config: RunConfig) -> Link:
    if config.placement.link:
        return link_between_nodes(config.placement.link)
    return link_between_nodes(ASSUMED_LINK) if config.cluster.spans_machines else NO_LIMIT


def _interconnect(arm: MeasuredArm, config: RunConfig, link: Link, cores: int) -> Interconnect:
    found = arm.on(config.cluster.num_nodes, config.cluster.devices_per_node, link, NO_LIMIT)
    if not config.cluster.simulated or config.cluster.device_type != "cpu":
        return found
    return replace(arm.fitted.applied_to(found), contention=processes_per_core(config, cores))
