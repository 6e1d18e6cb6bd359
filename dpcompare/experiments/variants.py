"""The arms that explain a run, each with a part of its step left out, and the parts of its step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from dpcompare._version import __version__, major_minor
from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.experiments.accuracy_statistics import paired_difference
from dpcompare.experiments.statistics import ROUNDS_FOR_CLAIM, Plan
from dpcompare.experiments.study import Arm, Study, ablated
from dpcompare.results.result import RunResult
from dpcompare.results.steadiness import median_of_parts

MEASURED_STEPS = 60
"""Measured steps of each run if the length of a step is not known and no number of steps was asked for."""
MEASURED_SECONDS = 8.0
"""Seconds of the measured steps of each run if the length of one is known; at least FEWEST and at most MOST steps."""
FEWEST, MOST = 40, 400
TIMES_THE_BATCH = 4
"""How many times as large the larger batch is. What is wrong with the smaller one's step is multiplied by 4/3 in what
does not grow with the batch; with a batch twice as large it would be by 2."""

Variant = Literal["as it is", "no exchange", "no input", "computing alone", "larger batch", "one device"]
Unmeasured = dict[Variant, str]
"""Variant that a run cannot have -> why."""


@dataclass(frozen=True, kw_only=True)
class Variants:
    """The arms that explain a run, by what was left out of each."""

    arms: dict[Variant, Arm]
    alone: Variant
    """The one that only computes, as far as the mode has such a step; the larger batch is that of this one."""
    unmeasured: Unmeasured

    def study(self, repeats: int = ROUNDS_FOR_CLAIM, order_seed: int = 0) -> Study:
        """The study that trains them in interleaved rounds."""
        return study_of([self], repeats, order_seed)

    def prepared(self, study: Study) -> Variants:
        """The same variants as a study has them, whose arms have their inputs."""
        by_name = {arm.name: arm for arm in study.arms}
        return Variants(
            arms={variant: by_name[arm.name] for variant, arm in self.arms.items()},
            alone=self.alone,
            unmeasured=self.unmeasured,
        )


def study_of(variants: Sequence[Variants], repeats: int = ROUNDS_FOR_CLAIM, order_seed: int = 0) -> Study:
    """The study that trains the variants of several runs in the same rounds."""
    arms = tuple(arm for each in variants for arm in each.arms.values())
    return Study(arms=arms, repeats=repeats, order_seed=order_seed)


def variants_of(config: RunConfig, name: str) -> Variants:
    """The variants of a run, by one factor at a time: all but the first leave something out, or change the batch.

    Args:
        config: of the run, by `to_explain` or `run_to_explain`.
        name: of the run, as its arm is called.
    """
    config = _measured(config)
    unmeasured: Unmeasured = {}
    whole = Arm(name=name, config=config)
    no_input = Arm(name=f"{name} one batch", config=config.changed(reuse_batch=True))
    arms: dict[Variant, Arm] = {"as it is": whole, "no input": no_input}
    no_exchange, computing = ablated(whole), ablated(no_input)
    if no_exchange and computing:
        arms |= {"no exchange": no_exchange, "computing alone": computing}
    else:
        unmeasured["no exchange"] = unmeasured["computing alone"] = (
            "one replica has no other to exchange gradients with"
            if config.topology.num_replicas == 1
            else f"{config.framework} {config.mode} has no step without its exchange"
        )
    several = config.topology.devices_per_replica > 1
    if config.topology.num_replicas == 1 or several:
        unmeasured["one device"] = "a replica needs several devices" if several else "the run has only one device"
    else:
        reference = computing or no_input
        arms["one device"] = Arm(name=f"{reference.name} on one device", config=_on_one_device(reference.config))
    order: tuple[Variant, ...] = ("computing alone", "one device", "no input")
    alone = next(variant for variant in order if variant in arms)
    if alone == "no input" and config.topology.num_replicas > 1:
        unmeasured["larger batch"] = "neither the exchange nor the other devices can be left out"
    else:
        smaller = arms[alone]
        images = TIMES_THE_BATCH * smaller.config.workload.global_batch_size
        larger = smaller.config.changed(workload=smaller.config.workload.changed(global_batch_size=images))
        arms["larger batch"] = Arm(name=f"{smaller.name} {TIMES_THE_BATCH}x as large", config=larger)
    return Variants(arms=arms, alone=alone, unmeasured=unmeasured)


def to_explain(config: RunConfig, *, named: str) -> RunConfig:
    """The same config, of a run that can be explained.

    Args:
        config: of a run.
        named: what names it, for the error.

    Raises:
        RequestError: nothing that is measured of it would hold.
    """
    reason = None
    if config.emulated:
        reason = (
            f"{config.framework} {config.mode} is emulated on {config.cluster.device_type} devices, so its exchange is "
            "not the framework's; expected another mode, or GPUs"
        )
    elif not config.mode_row.steps_together:
        reason = (
            f"the workers of {config.framework} {config.mode} do not wait for each other, so no step has parts that "
            "add up; expected a mode that trains synchronously"
        )
    elif not config.sync_gradients or config.reuse_batch:
        reason = "a part of its step is left out already; expected a run with all of its parts"
    elif config.task != "train":
        reason = f"it is a {config.task}; expected a training"
    if reason:
        raise RequestError(f"{named}: {reason}")
    return config


def run_to_explain(run_dir: Path) -> RunConfig:
    """The config of a completed run, with as many steps as are needed to measure it.

    Raises:
        RequestError: there is no such run, it did not complete, or nothing that is measured of it would hold.
    """
    result = RunResult.load(run_dir)
    if major_minor(result.dpcompare_version) != major_minor(__version__):
        raise RequestError(
            f"{str(run_dir)!r} is a run of dpcompare {result.dpcompare_version}, whose figures are not those of "
            f"{__version__}; expected a run of {major_minor(__version__)}: run it again, or explain it with its version"
        )
    if result.status != "completed" or result.step_seconds is None:
        why = "measured no step" if result.status == "completed" else f"has the status {result.status}"
        raise RequestError(f"the run {str(run_dir)!r} {why}; expected one that completed")
    config = to_explain(RunConfig.model_validate(result.config), named=f"the run {str(run_dir)!r}")
    measured = min(MOST, max(FEWEST, round(MEASURED_SECONDS / result.step_seconds.typical)))
    return _with_steps(config, measured)


def _with_steps(config: RunConfig, measured: int) -> RunConfig:
    """The config with this number of steps after those of the warm-up."""
    workload = config.workload
    return config.changed(workload=workload.changed(epochs=None, steps=workload.least_warmup_steps + measured))


def _measured(config: RunConfig) -> RunConfig:
    """The run with its step as it is, and without what happens between steps."""
    workload = config.workload
    if workload.steps is None:
        config = _with_steps(config, MEASURED_STEPS)
    steps = config.workload.steps
    assert steps is not None
    return config.without_inputs().changed(
        workload=config.workload.changed(
            lr_warmup_steps=min(workload.lr_warmup_steps, steps),
            # Refused without gradient sync, where replicas drift apart.
            weight_average=None,
            batchnorm_recompute=0,
        ),
        evaluate_every=steps,
        **{"profile_steps": None, "checkpoint_every": None, "max_restarts": 0, "resume": None},
        **{
            "target_accuracy": None,
            "stop_at_target": False,
            "keep_predictions": False,
            "on_nan": "continue",
            "late_step": False,
        },
    )


def _on_one_device(config: RunConfig) -> RunConfig:
    """The first device alone, with its part of the batch and of the cores."""
    workload, cluster, (node, *_) = config.workload, config.cluster, config.cluster.nodes
    cores = max(1, node.num_cores // len(node.devices))
    alone = node.changed(devices=node.devices[:1], num_cores=cores)
    return config.changed(
        workload=workload.changed(global_batch_size=workload.global_batch_size // config.topology.num_replicas),
        cluster=Cluster(device_type=cluster.device_type, nodes=(alone,), simulated=cluster.simulated),
        placement=config.placement.on_first_node(),
    )


Part = Literal["input", "exchange", "waiting", "devices", "launching", "computing", "sharing", "together"]
"""`devices`: exchange, waiting and contention, where a mode has no step without its exchange. `sharing`: contention
between devices, a part of launching and computing. `together`: what is saved only by leaving out both input and
exchange."""
JUDGED: tuple[Part, ...] = ("input", "exchange", "waiting", "devices", "launching")
"""Parts that a run need not have, of which one may stand out."""

ADDED: tuple[Part, ...] = ("input", "exchange", "together", "waiting", "devices", "launching", "computing")
"""Parts that add up to the step of a run, as far as its mode has them."""

Seconds = Sequence[Sequence[float]]
"""Seconds of the measured steps of each process of a run."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """A part of the step, relative to the whole."""

    value: float
    interval: tuple[float, float] | None
    """Student's, over the rounds; None with too few of them."""
    rounds: int


@dataclass(frozen=True, kw_only=True)
class Round:
    """The runs of one round: of each variant that completed, the seconds of its steps."""

    seconds: Mapping[Variant, Seconds]
    slowest: int
    """Rank of the process that is the slowest over all rounds; 0 of one process."""
    alone: Variant
    """The one that only computes, as far as the mode has such a step."""

    def step(self, variant: Variant) -> float | None:
        """Seconds of a step of the slowest process, for which all others wait."""
        processes = self.seconds.get(variant)
        return _steady(max(processes, key=sum)) if processes else None

    def until_last(self, variant: Variant) -> float | None:
        """Seconds of a step that would end with the last process to make it: those of a variant without exchange."""
        processes = self.seconds.get(variant)
        return _steady(np.max(processes, axis=0)) if processes else None

    def typical(self, variant: Variant) -> float | None:
        """Seconds of a step of the other processes, the slowest apart; of the only one where there is no other."""
        processes = self.seconds.get(variant)
        if not processes:
            return None
        others = [each for rank, each in enumerate(processes) if rank != self.slowest] or processes
        return float(np.median([_steady(each) for each in others]))

    @property
    def computing(self) -> float | None:
        """Seconds of a step that only computes, of a typical process."""
        return self.typical(self.alone)

    @property
    def per_batch(self) -> float | None:
        """What a step takes longer when its batch is larger by itself: what it takes for the images alone."""
        longer = _difference(self.typical("larger batch"), self.computing)
        return None if longer is None else longer / (TIMES_THE_BATCH - 1)

    @property
    def unhidden_input(self) -> float | None:
        """Seconds that input adds to a step: one without exchange, where there is one, behind which nothing hides."""
        found = _difference(self.until_last("no exchange"), self.until_last("computing alone"))
        return _LEFT["input"](self) if found is None else found


def _steady(seconds: Sequence[float]) -> float:
    """Seconds of a step without single stalls: as `steady_images_per_second` has it."""
    return 1 / median_of_parts([1.0] * len(seconds), seconds)


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """The parts of the step of a run."""

    rounds: Sequence[Round]
    num_processes: int
    waits_within: bool
    """Whether processes wait for each other within computing too, as with synchronized BatchNorm."""

    @classmethod
    def of(cls, seconds: Sequence[Mapping[Variant, Seconds]], *, alone: Variant, waits_within: bool) -> StepParts:
        """From the seconds of the steps of each variant, round by round."""
        apart = [
            np.array([_steady(each) for each in of["computing alone"]]) for of in seconds if "computing alone" in of
        ]
        slowest = int(np.mean([each / each.mean() for each in apart], axis=0).argmax()) if apart else 0
        return cls(
            rounds=[Round(seconds=of, slowest=slowest, alone=alone) for of in seconds],
            num_processes=len(apart[0]) if apart else 1,
            waits_within=waits_within,
        )

    @cached_property
    def seconds(self) -> float | None:
        """Seconds of the whole step: the median over the rounds."""
        return self.median(lambda each: each.step("as it is"))

    @cached_property
    def shares(self) -> dict[Part, Share]:
        """The shares of all parts that were measured."""
        found = {part: self._share(part) for part in _LEFT}
        return {part: share for part, share in found.items() if share is not None}

    def seconds_of(self, part: Part) -> list[float | None]:
        """Seconds of a step that a part takes, round by round; None in a round that does not show it."""
        return [_LEFT[part](each) if self._is_separable(part) else None for each in self.rounds]

    @property
    def level(self) -> float:
        """Probability with which an interval misses the truth: all parts that are judged share that of a study."""
        return Plan().level / len(JUDGED)

    def median(self, seconds: Callable[[Round], float | None]) -> float | None:
        """Over the rounds that have it."""
        known = [value for each in self.rounds if (value := seconds(each)) is not None]
        return float(np.median(known)) if known else None

    @property
    def slowest(self) -> int:
        """Rank of the process that is the slowest over all rounds."""
        return self.rounds[0].slowest

    @property
    def is_always_slowest(self) -> bool:
        """Whether that process was slower than the others in every round, and in enough of them to be no chance."""
        both = [(_process(each, self.slowest), each.typical("computing alone")) for each in self.rounds]
        known = [(own, others) for own, others in both if own is not None and others is not None]
        is_slower = all(own > others for own, others in known)
        return self.num_processes > 1 and len(known) >= ROUNDS_FOR_CLAIM and is_slower

    @property
    def slowest_ratio(self) -> float | None:
        """How many times as long as the others it takes: the median over the rounds."""

        def ratio(each: Round) -> float | None:
            own, others = _process(each, self.slowest), each.typical("computing alone")
            return own / others if own is not None and others is not None else None

        return self.median(ratio)

    def _is_separable(self, part: Part) -> bool:
        if part == "waiting":
            return self.num_processes > 1 and not self.waits_within
        return True

    def _share(self, part: Part) -> Share | None:
        """What leaving a part out saves, relative to the step as it is, within each round."""
        values: list[float | None] = []
        for each, saved in zip(self.rounds, self.seconds_of(part), strict=True):
            whole = each.step("as it is")
            values.append(None if whole is None or saved is None else saved / whole)
        found = paired_difference(values, [None if value is None else 0.0 for value in values])
        if found is None:
            return None
        return Share(value=found.mean, interval=found.interval(self.level), rounds=found.rounds)


def _process(each: Round, rank: int) -> float | None:
    processes = each.seconds.get("computing alone")
    return _steady(processes[rank]) if processes else None


def _difference(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first - second


def _together(each: Round) -> float | None:
    both = _difference(each.step("as it is"), each.until_last("computing alone"))
    apart = [_LEFT["input"](each), _LEFT["exchange"](each)]
    if both is None or None in apart:
        return None
    return both - sum(value for value in apart if value is not None)


def _devices(each: Round) -> float | None:
    if each.alone != "one device":
        return None
    return _difference(each.step("no input"), each.step("one device"))


def _sharing(each: Round) -> float | None:
    return _difference(each.typical("computing alone"), each.step("one device"))


_LEFT: dict[Part, Callable[[Round], float | None]] = {
    "input": lambda each: _difference(each.step("as it is"), each.step("no input")),
    "exchange": lambda each: _difference(each.step("as it is"), each.until_last("no exchange")),
    "waiting": lambda each: _difference(each.until_last("computing alone"), each.typical("computing alone")),
    "devices": _devices,
    "launching": lambda each: _difference(each.computing, each.per_batch),
    "computing": lambda each: each.per_batch,
    "sharing": _sharing,
    "together": _together,
}
"""Part -> the seconds of a step that it takes, from one round."""
