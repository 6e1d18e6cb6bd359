"""The arms of a study, on every topology that their modes can have, and how long its runs will take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpcompare.backends.availability import require_compiler, require_framework
from dpcompare.backends.cuda_wheels import require_cuda
from dpcompare.config.cluster import DeviceChoice, topology_in_words
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.modes import DEFAULT_REPLICAS, MODES
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.experiments.study import Arm, Study, is_by_model
from dpcompare.launch.inputs import num_training_images
from dpcompare.launch.memory import require_memory
from dpcompare.launch.run import require_environment
from dpcompare.models.architectures import model_of
from dpcompare.models.costs import training_flops
from dpcompare.results.result import RunResult
from dpcompare.system.devices import installed_gpus, visible_gpus
from dpcompare.system.terminal_text import pluralize


@dataclass(frozen=True, kw_only=True)
class ArmRequest:
    """An arm as it was asked for, before its topologies are known."""

    text: str
    """The text that a user wrote, such as `torch:ddp,precision=bfloat16`."""
    framework: str
    mode: str
    changes: str
    """The end of its name: the options that differ from those of all arms, such as ` precision=bfloat16`."""
    device: DeviceChoice
    devices_per_replica: int | None
    """None: as the mode usually has."""
    nodes: int | None = None
    """Its own number of nodes, in the place of those for all arms."""
    devices_per_node: int | None = None
    """Likewise."""
    environment: str | None = None
    """The name of its own environment."""
    build: Callable[[int, int, Sequence[RunConfig]], RunConfig]
    """From (nodes, devices per node, configs of all arms once they are known) to the config; raises RequestError."""

    def name_on(self, num_nodes: int, devices_per_node: int) -> str:
        """The name of its arm on a topology."""
        return f"{self.framework} {self.mode} {num_nodes}x{devices_per_node}{self.changes}"

    @property
    def has_own_topology(self) -> bool:
        return self.nodes is not None or self.devices_per_node is not None


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """An arm that is left out."""

    arm: str
    """The arm that was asked for, with the topology if that is why."""
    reason: str
    """One line."""
    is_wrong: bool
    """False: this machine or a topology lacks what the mode needs. True: its options make no run."""


def expand_arms(
    requests: Sequence[ArmRequest],
    nodes: Sequence[int] | None,
    devices_per_node: Sequence[int] | None,
    pythons: Mapping[str, str],
    devices: int | None = None,
    *,
    emulated: bool = True,
    subject: Sequence[str] = (),
) -> tuple[tuple[Arm, ...], list[Refusal]]:
    """The arms that can run here, each on all of its topologies, and the refusals of the others.

    Where all are on GPUs they share the defaults of `dpcompare.config.gpu_defaults`.

    Args:
        requests: arms as they were asked for.
        nodes: numbers of nodes to try; None with None of the next: a few replicas on one topology.
        devices_per_node: numbers of devices per node to try with each.
        pythons: framework -> interpreter, where it is not this one.
        devices: of each arm in all, in the place of devices per node.
        emulated: whether modes are taken that can only be emulated here; their speed is never ranked.
        subject: what the study is about.

    Raises:
        RequestError: two arms have the same name, or the devices do not divide among the nodes.
    """
    asked = _pairs(nodes, devices_per_node, devices)
    missing = _missing_frameworks(requests, pythons)
    found: dict[str, tuple[ArmRequest, tuple[int, int], Arm]] = {}
    refusals = []
    for request in requests:
        if request.framework in missing and request.environment is None:
            refusals.append(Refusal(arm=request.text, reason=missing[request.framework], is_wrong=False))
            continue
        topologies = _topologies(request, asked)
        if not topologies:
            received = ", ".join(map(str, nodes or ()))
            reason = f"received --nodes {received}, expected 1: this mode runs on one node; use --devices-per-node"
            refusals.append(Refusal(arm=request.text, reason=reason, is_wrong=False))
        for topology in topologies:
            try:
                arm = _arm(request, *topology)
            except RequestError as error:
                refusals.append(_refusal(request, topology, error))
                continue
            if arm.config.cluster.device_type in arm.config.mode_row.emulated_on and not emulated:
                reason = "it is emulated here, so its speed says nothing about the mode; to include it, name every arm"
                refusals.append(Refusal(arm=request.text, reason=reason, is_wrong=False))
                break  # on its other topologies too
            if arm.name in found:
                raise RequestError(
                    f"received the arm {arm.name} twice; expected each once, or arms that differ in an option"
                )
            found[arm.name] = request, topology, arm
    arms, more_refusals = _sharing_defaults(list(found.values()), subject)
    _require_other_environments(arms)
    if any(arm.config.environment for arm in arms):
        arms = tuple(arm.changed(config=arm.config.changed(keep_packages=True)) for arm in arms)
    return arms, refusals + more_refusals


def _require_other_environments(arms: Sequence[Arm]) -> None:
    """Refuse environments of two names that are one: their arms would differ in nothing."""
    names: dict[tuple[str, tuple[Path, Path], tuple[tuple[str, str], ...]], str | None] = {}
    for arm in arms:
        own = arm.config.environment
        name, variables = (own.name, tuple(sorted(own.variables.items()))) if own else (None, ())
        # By its folder too: interpreters of several environments are links to one, and an environment has several names
        # for its own (python, python3).
        python = Path(arm.config.python).absolute()
        key = (arm.config.framework, (python.parent.resolve(), python.resolve()), variables)
        other = names.setdefault(key, name)
        if other != name:
            both = " and ".join(f"env={each}" if each else "an arm without env=" for each in (other, name))
            raise RequestError(
                f"env: {both} are the same environment ({arm.config.python}, same variables); expected one name "
                "for it, or another interpreter or variable"
            )


def _refusal(request: ArmRequest, topology: tuple[int, int], error: RequestError) -> Refusal:
    return Refusal(arm=f"{request.text} on {topology_in_words(*topology)}", reason=str(error), is_wrong=True)


def reasons_of(refusals: Sequence[Refusal]) -> list[str]:
    """A line per reason, with all arms that it holds for; those whose options are wrong come last."""
    arms: dict[str, list[str]] = {}
    for refusal in sorted(refusals, key=lambda refusal: refusal.is_wrong):
        arms.setdefault(refusal.reason, []).append(refusal.arm)
    return [f"{', '.join(refused_arms)}: {reason}" for reason, refused_arms in arms.items()]


def _sharing_defaults(
    found: Sequence[tuple[ArmRequest, tuple[int, int], Arm]], subject: Sequence[str]
) -> tuple[tuple[Arm, ...], list[Refusal]]:
    """The same arms, those on GPUs with the defaults that follow from all of them."""
    configs = [arm.config for _, _, arm in found]
    by_model = is_by_model(configs, subject)  # so that each model has its own image size
    arms, refusals = [], []
    for request, topology, arm in found:
        if arm.config.cluster.device_type != "gpu":
            arms.append(arm)
            continue
        try:
            model = arm.config.workload.model
            alike = [config for config in configs if not by_model or config.workload.model == model]
            arms.append(arm.changed(config=request.build(*topology, alike)))
        except RequestError as error:  # an arm on the CPU takes part, whose defaults do not suit every number of GPUs
            refusals.append(_refusal(request, topology, error))
    return tuple(arms), refusals


def _missing_frameworks(requests: Sequence[ArmRequest], pythons: Mapping[str, str]) -> dict[str, str]:
    """framework -> why it cannot be used here."""
    missing = {}
    usual = {request.framework for request in requests if request.environment is None}
    for framework in usual & FRAMEWORKS.keys():
        try:
            require_framework(framework, **({"python": pythons[framework]} if framework in pythons else {}))
        except RequestError as error:
            missing[framework] = str(error)
    return missing


def _arm(request: ArmRequest, num_nodes: int, devices_per_node: int) -> Arm:
    config = request.build(num_nodes, devices_per_node, ())
    require_compiler(config.tuning)
    require_environment(config)
    require_memory(config)
    if config.cluster.simulated and config.cluster.device_type == "gpu":  # of other machines nothing is known here
        require_cuda(request.framework, config.python)
    return Arm(name=request.name_on(num_nodes, devices_per_node), config=config)


def _pairs(
    nodes: Sequence[int] | None, devices_per_node: Sequence[int] | None, devices: int | None
) -> list[tuple[int, int]] | None:
    """(nodes, devices per node) that were asked for of all arms; None where nothing was."""
    if devices is None:
        none_asked = nodes is None and devices_per_node is None
        return None if none_asked else [(n, d) for n in nodes or (1,) for d in devices_per_node or (1,)]
    if devices_per_node is not None:
        raise RequestError("--devices: received with --devices-per-node; expected one of them")
    if uneven := [count for count in nodes or (1,) if devices % count]:
        raise RequestError(
            f"--devices: received {devices}, which do not divide among {pluralize(uneven[0], 'node')}; expected a "
            f"multiple of {uneven[0]}"
        )
    return [(count, devices // count) for count in nodes or (1,)]


def _topologies(request: ArmRequest, asked: Sequence[tuple[int, int]] | None) -> list[tuple[int, int]]:
    """(nodes, devices per node) of an arm: its own, or what was asked for of all as far as the mode can have it."""
    if request.has_own_topology:  # refused with a reason where its mode cannot have it
        return list(dict.fromkeys((request.nodes or n, request.devices_per_node or d) for n, d in asked or [(1, 1)]))
    mode = MODES.get((request.framework, request.mode))
    if mode is None or not mode.multi_device:
        return [(1, 1)]  # an unknown mode is refused with its name when its config is built
    if asked is None:
        return [_default_topology(request)]
    return [(n, d) for n, d in asked if n == 1 or mode.multi_node]


def _default_topology(request: ArmRequest) -> tuple[int, int]:
    replicas = DEFAULT_REPLICAS
    if request.device != "cpu" and (gpus := visible_gpus(installed_gpus())):
        replicas = min(replicas, len(gpus))
    return MODES[request.framework, request.mode].default_topology(replicas, request.devices_per_replica)


def estimate_seconds(study: Study, ended: Sequence[tuple[Arm, int, RunResult | None]]) -> tuple[float, str]:
    """How long the missing runs will take, and what the estimate is based on.

    Args:
        study: what is to be run.
        ended: (arm, round, result) of what has ended, as from `results`; a failed arm is not run again.
    """
    known: dict[str, list[float]] = {}
    made: set[tuple[str, int]] = set()
    failed: set[str] = set()
    for arm, number, result in ended:
        if result is None:
            continue
        made.add((arm.name, number))
        if result.status != "completed":
            failed.add(arm.name)
        elif result.wall_seconds is not None:
            known.setdefault(arm.name, []).append(result.wall_seconds)
    total = 0.0
    for arm in study.arms:
        left = sum((arm.name, number) not in made for number in range(1, study.repeats + 1))
        if left and arm.name not in failed:
            seconds = known.get(arm.name)
            total += left * (float(np.median(seconds)) if seconds else _guess_seconds(arm.config))
    everything_known = all(arm.name in known or arm.name in failed for arm in study.arms)
    return total, "from earlier rounds" if everything_known else "a rough guess until every arm has run once"


# Images per second and core of EfficientNet-B2 at 64 px in float32, from 2 CPU cores, and what one takes in training.
_IMAGES_PER_CORE_SECOND = 50.0
_FLOPS_PER_IMAGE = 0.33e9
# Of a GPU only guessed: some 300 images/s at 260 px, and kernels that are chosen or compiled first.
_GPU_START_SECONDS = 60.0
_IMAGES_PER_GPU_SECOND = 300.0 * (260 / 64) ** 2


def _guess_seconds(config: RunConfig) -> float:
    workload = config.workload
    num_steps = workload.steps or workload.total_steps(num_training_images(config))
    if config.cluster.device_type == "gpu":
        start, per_second = _GPU_START_SECONDS, _IMAGES_PER_GPU_SECOND * config.topology.num_replicas
    else:
        start = FRAMEWORKS[config.framework].cpu_start_seconds
        per_second = _IMAGES_PER_CORE_SECOND * sum(node.num_cores for node in config.cluster.nodes)
    # A custom model is taken for a small one.
    work = training_flops(workload.model, workload.image_size, 10) if model_of(workload.model).is_big else None
    size = work / _FLOPS_PER_IMAGE if work else 0.05
    slower = 8.0 if workload.precision == "float64" else 1.0
    images = num_steps * workload.global_batch_size
    return start + images * size * slower / per_second
