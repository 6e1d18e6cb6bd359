"""What a study measured, as the model needs it; arms that differ in nothing that changes a step are one group."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any

from dpcompare._version import __version__, major_minor
from dpcompare.config.run import RunConfig
from dpcompare.config.setting import Changes, names_that_change
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError
from dpcompare.experiments.collection import ArmRuns, Collection
from dpcompare.models.spec import IMAGE_CHANNELS
from dpcompare.projection.calibration import (
    LARGEST_ERROR,
    Fitted,
    MeasuredCell,
    NotProjectableError,
    cores_per_replica,
    exchange_of,
    fit,
    interconnect_of_run,
    times_as_long,
)
from dpcompare.projection.link import Interconnect, Link, tcp_link
from dpcompare.projection.step import StepWork, slowest_of_each_step, spread_of
from dpcompare.results.result import RunResult
from dpcompare.results.timing import measured_seconds

PROJECTED = frozenset({"cluster", "placement", "global_batch_size"})
"""Fields that change how long a step takes, and that a projection changes."""
_KEPT_ELSEWHERE = frozenset({"workload", "sync_gradients"})
"""The workload's fields count one by one; runs without exchange belong to their arm."""


def settings_of_a_step(config: RunConfig) -> dict[str, Any]:
    """Name -> value of all that changes how long a step takes, but for what a projection changes."""
    left_out = PROJECTED | _KEPT_ELSEWHERE
    run_fields = names_that_change(type(config), Changes.STEP_TIME) - left_out
    workload_fields = names_that_change(Workload, Changes.STEP_TIME) - left_out
    found = config.model_dump(mode="json", include=set(run_fields))
    found |= config.workload.model_dump(mode="json", include=set(workload_fields))
    return found | {"device_type": config.cluster.device_type}


def differing_settings(one: RunConfig, other: RunConfig) -> list[str]:
    """In which of them two runs differ; empty: they are of one group."""
    mine, theirs = settings_of_a_step(one), settings_of_a_step(other)
    return [name for name in mine if mine[name] != theirs[name]]


NO_LIMIT = Link(name="no limit")
WITHOUT_ABLATION = "no completed run without gradient sync"


@dataclass(frozen=True, kw_only=True)
class MeasuredArm:
    """One arm as it was measured, ready to be put on another cluster."""

    name: str
    config: RunConfig
    collective: str
    work: StepWork
    cells: tuple[MeasuredCell, ...]
    """Clusters on which its step was measured with and without exchange: this arm's, and those of others like it."""
    fitted: Fitted
    cores_per_replica: float
    """On which its computing was measured; below 1 where replicas shared a core."""
    seconds: float | None
    """Seconds of its measured step with exchange; None for a run without."""
    assumed: tuple[str, ...]
    """Sentences on what was not measured."""

    @property
    def misfit(self) -> str | None:
        """A sentence that the model is far off the step that was measured; None if it is near it or none was."""
        if not self.cells or abs(self.cells[0].error(self.fitted)) <= LARGEST_ERROR:
            return None
        measured, given = 1000 * self.cells[0].seconds, 1000 * self.cells[0].predicted(self.fitted)
        return f"do not rely on this: the model gives {given:.1f} ms for a step that was measured at {measured:.1f} ms"

    @property
    def nodes_without_replica(self) -> int:
        """Nodes that hold no replica."""
        return self.config.mode_row.nodes_without_replica

    def work_on(self, cores_per_replica: float = math.inf) -> StepWork:
        """Its work where each replica has that many cores; by default as many as it can use."""
        slower, work = times_as_long(self.cores_per_replica, cores_per_replica), self.work
        computing, fixed = work.computing_seconds * slower, work.fixed_seconds * slower
        return replace(work, computing_seconds=computing, fixed_seconds=fixed)

    def on(self, nodes: int, devices_per_node: int, between: Link, within: Link) -> Interconnect:
        """This arm's collective on a cluster of machines of its own kind, where each process has a core of its own."""
        found = interconnect_of_run(self.config, collective=self.collective, between=between, within=within, cores=None)
        return replace(
            found,
            nodes=nodes - self.nodes_without_replica,
            ranks_per_node=devices_per_node,
            copying=self.fitted.copying,
        )


def measured_arms(
    collection: Collection, *, names: Sequence[str] = (), measured_link: str | None = None, within: Link = NO_LIMIT
) -> tuple[list[MeasuredArm], dict[str, str]]:
    """Every arm of which something can be predicted, and of the others why not.

    Arms whose steps differ in their cluster, link or batch alone are one (see `settings_of_a_step`): that of most
    devices is projected, of those whose replicas had cores of their own, and all of them fit its constants.

    Args:
        collection: of a study, or of one run without gradient sync.
        names: of the arms; empty: all of them.
        measured_link: the rate of the link between machines, where the runs were made on several.
        within: the link between the devices of a node, so that its time is not fitted as copying too.

    Raises:
        RequestError: another version made the runs, a name is not one of an arm, or none of them can be projected.
    """
    _refuse_other_versions(collection)
    known = [arm.name for arm in collection.arms]
    if unknown := sorted(set(names) - set(known)):
        raise RequestError(f"--arm: received {', '.join(unknown)}, expected some of {', '.join(known)}")
    found: dict[str, list[MeasuredArm]] = {}
    left_out: dict[str, str] = {}
    for arm in (arm for arm in collection.arms if not names or arm.name in names):
        try:
            one = _measured_arm(arm, collection.arms, measured_link, within)
        except NotProjectableError as reason:
            left_out[arm.name] = str(reason)
        else:
            settings = json.dumps(settings_of_a_step(one.config), sort_keys=True)
            found.setdefault(settings, []).append(one)
    unmeasured = [arm for arm in collection.arms if left_out.get(arm.name) == WITHOUT_ABLATION]
    refuse_unless_any(found, left_out, f". {_how_to_measure(unmeasured)}" if unmeasured else "")
    projected = [_together(group) for group in found.values()]
    for largest, group in zip(projected, found.values(), strict=True):
        only_fits = (
            f"apart from cluster, link and batch, its step is that of {largest.name}, whose constants it helps fit"
        )
        left_out |= {each.name: only_fits for each in group if each.name != largest.name}
    return projected, left_out


def refuse_unless_any(found: Sized, left_out: Mapping[str, str], remedy: str = "") -> None:
    """Nothing is projected of a study of which nothing is left.

    Raises:
        RequestError: nothing was found; says why arms are left out, each reason once, and what helps.
    """
    if not found:
        names: dict[str, list[str]] = {}
        for name, reason in left_out.items():
            names.setdefault(reason, []).append(name)
        why = "; ".join(f"{', '.join(those)}: {reason}" for reason, those in names.items())
        raise RequestError(f"none of the arms can be projected. {why}{remedy}")


def _how_to_measure(arms: Sequence[ArmRuns]) -> str:
    """The command for arms of which runs without gradient sync are missing."""
    words = []
    for config in (arm.config for arm in arms):
        cluster = config.cluster
        devices = f",devices_per_node={cluster.devices_per_node}" if cluster.devices_per_node > 1 else ""
        words.append(f"{config.framework}:{config.mode},nodes={cluster.num_nodes}{devices}")
    command = f"dpcompare compare {' '.join(dict.fromkeys(words))} --ablate --out STUDY"
    return f"Measure with `{command}` and the other options of this study"


def _refuse_other_versions(collection: Collection) -> None:
    runs = [run for arm in collection.arms for run in (*arm.completed, *arm.without_sync) if run]
    versions = {run.dpcompare_version for run in runs}
    if others := sorted(version for version in versions if major_minor(version) != major_minor(__version__)):
        raise RequestError(
            f"received results of dpcompare {', '.join(others)}, expected those of {major_minor(__version__)}: what "
            "figures mean may differ; project them with the version that made them, or measure again"
        )


def _measured_arm(arm: ArmRuns, all_arms: Sequence[ArmRuns], measured_link: str | None, within: Link) -> MeasuredArm:
    config = arm.config
    _refuse_unsuitable(arm)
    without, directories, basis = _runs_without_sync(arm, all_arms)
    if not without:
        raise NotProjectableError(WITHOUT_ABLATION)
    found = [measured_seconds(basis, Path(path)) for path in directories if path and Path(path).is_dir()]
    recorded = [processes for processes in found if any(processes)]
    # Replicas that do not step together wait for no other; without events the steps of a process are not known.
    if not config.mode_row.steps_together or len(recorded) < len(without):
        computing = median(run.step_seconds.typical for run in without if run.step_seconds)
    else:
        computing = median(map(slowest_of_each_step, recorded))
    cores = without[0].settings.get("cores")
    per_replica = cores_per_replica(basis, cores)
    with_sync = [run for run in arm.completed if config.sync_gradients and run.step_seconds]
    exchange = exchange_of(
        config, [run.gradients for run in (*with_sync, *without) if run.gradients], without[0].gradients
    )
    work = StepWork(
        computing_seconds=computing,
        batch_per_device=config.workload.global_batch_size / config.topology.num_replicas,
        exchange=exchange,
        measured_ranks=basis.topology.num_replicas,
        spread=median(map(spread_of, recorded)) if recorded else 0.0,
        image_bytes=config.workload.image_size**2 * IMAGE_CHANNELS,
    )
    collective = arm.completed[0].collective or "gloo"
    seconds = median(run.step_seconds.typical for run in with_sync if run.step_seconds) if with_sync else None
    cells: tuple[MeasuredCell, ...] = ()
    assumed = list(exchange.assumed)
    if seconds is None:
        assumed.append("the cost of copying is not known and left out, since there is no run with gradient sync")
    else:
        interconnect = interconnect_of_run(
            config,
            collective=collective,
            between=_link_measured_on(config, measured_link),
            within=within,
            cores=cores,
        )
        here = computing * times_as_long(per_replica, cores_per_replica(config, cores))
        cells = (MeasuredCell(exchange=exchange, computing_seconds=here, seconds=seconds, interconnect=interconnect),)
    if seconds is not None and seconds < computing:
        assumed.append(
            "its step was measured to be faster with exchange than without, so its exchange is taken to cost nothing"
        )
    if per_replica < 1:
        faster = f"with a full core each, computing is assumed to be {1 / per_replica:.2g} times as fast"
        assumed.append(f"its replicas had {per_replica:.2g} cores each; {faster}")
    if basis is not config and basis.mode != config.mode:
        assumed.append(f"it computes as {basis.framework} {basis.mode}, since it has no step without exchange")
    if any(run.disturbed_by for run in without):
        assumed.append(
            "other processes used cores during the runs without exchange, so computing and its spread are too large"
        )
    if not recorded:
        assumed.append("the spread of its steps is not known, so all processes are taken to be equally fast")
    return MeasuredArm(
        name=arm.name,
        config=config,
        collective=collective,
        work=work,
        cells=cells,
        fitted=Fitted(),  # by `_together`, with those of other arms
        cores_per_replica=per_replica,
        seconds=seconds,
        assumed=tuple(assumed),
    )


def _refuse_unsuitable(arm: ArmRuns) -> None:
    config = arm.config
    if arm.failures or not arm.completed:
        raise NotProjectableError(f"it has failed or has not run ({'; '.join(arm.failures) or 'no completed run'})")
    if config.emulated:
        raise NotProjectableError(
            f"{config.mode} is emulated on the {config.cluster.device_type}, so its exchange is not the real one; "
            "measure it on GPUs"
        )
    if config.stages > 1:
        raise NotProjectableError("there is no model of what the stages of a replica send each other")
    if not config.topology.communicates:
        raise NotProjectableError("one device exchanges nothing; measure a mode with several devices")
    if config.mode_row.exchange is None:
        raise NotProjectableError(f"there is no model of what {config.framework} {config.mode} exchanges")


def _runs_without_sync(arm: ArmRuns, all_arms: Sequence[ArmRuns]) -> tuple[list[RunResult], list[str], RunConfig]:
    """The runs without exchange, their directories and their config: the arm's own, or of one that computes the same.

    A mode whose exchange cannot be left out computes what another mode of its framework does on the same cluster.
    """
    if not arm.config.sync_gradients:
        timed = [(run, path) for run, path in zip(arm.completed, arm.run_dirs, strict=True) if run.step_seconds]
        return [run for run, _ in timed], [path for _, path in timed], arm.config
    others: Sequence[ArmRuns] = [arm]
    if not arm.config.mode_row.gradient_sync_separable:
        # Those on the same cluster first: elsewhere more processes may share a core.
        others = sorted(all_arms, key=lambda other: other.config.cluster != arm.config.cluster)
    for other in others:
        if other is arm or _computes_alike(other.config, arm.config):
            paths = zip_longest(other.without_sync, other.without_sync_dirs)
            timed = [(run, path or "") for run, path in paths if run and run.step_seconds]
            if timed:
                return [run for run, _ in timed], [path for _, path in timed], other.config
    if not arm.config.mode_row.gradient_sync_separable:
        raise NotProjectableError(
            f"{arm.config.mode} has no step without exchange, and no other arm of {arm.config.framework} with one "
            f"computes the same per device; add one, such as torch:ddp for fsdp, with --ablate"
        )
    return [], [], arm.config


def _computes_alike(other: RunConfig, config: RunConfig) -> bool:
    """Whether a replica of both computes the same, on the CPU on as many cores."""

    def computed(of: RunConfig) -> tuple[object, ...]:
        workload = of.workload.model_copy(update={"global_batch_size": 1})  # no run: of each pair of arms
        batch = of.workload.global_batch_size / of.topology.num_replicas
        threads = of.topology.threads_per_process if of.cluster.device_type == "cpu" else None
        return (of.framework, of.environment, workload, batch, of.cluster.device_type, threads)

    return computed(other) == computed(config) and other.cluster.simulated == config.cluster.simulated


def _link_measured_on(config: RunConfig, measured_link: str | None) -> Link:
    """Between the nodes that a run was measured on."""
    if not config.cluster.spans_machines:
        return tcp_link(config.placement.link) if config.placement.link else NO_LIMIT
    if measured_link is None:
        raise NotProjectableError("it was measured on several machines; say how they are linked: --measured-link")
    return tcp_link(measured_link, option="--measured-link")


def _together(group: Sequence[MeasuredArm]) -> MeasuredArm:
    """The arm of most devices, with the constants that fit all, and with the seconds that no batch makes less."""

    def size(arm: MeasuredArm) -> tuple[float, int, float]:
        return min(1.0, arm.cores_per_replica), arm.config.cluster.num_devices, arm.work.batch_per_device

    largest = max(group, key=size)
    cells = tuple(cell for arm in [largest, *(arm for arm in group if arm is not largest)] for cell in arm.cells)
    work = replace(largest.work, fixed_seconds=_fixed_seconds(largest, group))
    assumed = largest.assumed
    if work.fixed_seconds == work.computing_seconds:
        assumed += (
            "its larger batch took no longer than its smaller one, so computing time is assumed not to grow with the "
            "batch",
        )
    return replace(largest, cells=cells, fitted=fit(cells), work=work, assumed=assumed)


def _fixed_seconds(largest: MeasuredArm, group: Sequence[MeasuredArm]) -> float:
    """What is left of computing where the batch goes to 0, by a line through two batches on the same cluster."""
    same = [arm.work for arm in group if arm.config.cluster == largest.config.cluster]
    smallest = min(same, key=lambda work: work.batch_per_device)
    if smallest.batch_per_device == largest.work.batch_per_device:
        return 0.0
    seconds, batch = largest.work.computing_seconds, largest.work.batch_per_device
    slope = (seconds - smallest.computing_seconds) / (batch - smallest.batch_per_device)
    # Where the larger batch took no longer, all of it is fixed, and no more than all of it.
    return min(max(0.0, seconds - slope * batch), seconds, smallest.computing_seconds)
