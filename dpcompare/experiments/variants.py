"""The variants of a run, each with a part of its step left out: the arms of the study that explains it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dpcompare._version import __version__, major_minor
from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.experiments.statistics import ROUNDS_FOR_CLAIM
from dpcompare.experiments.study import Arm, Study, ablated
from dpcompare.results.result import RunResult

MEASURED_STEPS = 60
"""Of each run, where the length of a step is not known and no number of steps was asked for."""
MEASURED_SECONDS = 8.0
"""Of the steps of each run, where the length of one is known; at least FEWEST and at most MOST steps."""
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
        return Study(arms=tuple(self.arms.values()), repeats=repeats, order_seed=order_seed)

    def prepared(self, study: Study) -> Variants:
        """The same variants as a study has them, whose arms have their inputs."""
        of_study = {arm.name: arm for arm in study.arms}
        return Variants(
            arms={variant: of_study[arm.name] for variant, arm in self.arms.items()},
            alone=self.alone,
            unmeasured=self.unmeasured,
        )


def variants_of(config: RunConfig, name: str) -> Variants:
    """The variants of a run, by one factor at a time: all but the first leave something out, or change the batch.

    Args:
        config: of the run, by `to_explain` or `run_to_explain`.
        name: of the run, as its arm is called.
    """
    config = _measured(config)
    unmeasured: Unmeasured = {}
    whole = Arm(name=name, config=config)
    no_input = Arm(name=f"{name} one batch", config=_changed(config, reuse_batch=True))
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
    if config.topology.num_replicas == 1 or config.stages > 1:
        several = config.stages > 1
        unmeasured["one device"] = "a replica needs several devices" if several else "the run has only one device"
    else:
        beside = computing or no_input
        arms["one device"] = Arm(name=f"{beside.name} on one device", config=_on_one_device(beside.config))
    order: tuple[Variant, ...] = ("computing alone", "one device", "no input")
    alone = next(variant for variant in order if variant in arms)
    if alone == "no input" and config.topology.num_replicas > 1:
        unmeasured["larger batch"] = "neither the exchange nor the other devices can be left out"
    else:
        smaller = arms[alone]
        images = TIMES_THE_BATCH * smaller.config.workload.global_batch_size
        larger = _changed(smaller.config, workload={"global_batch_size": images})
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
    elif config.mode_row.roles:
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
    """With so many steps after those of the warm-up."""
    return _changed(config, workload={"epochs": None, "steps": config.workload.least_warmup_steps + measured})


def _measured(config: RunConfig) -> RunConfig:
    """The run with its step as it is, and without what happens between steps."""
    workload = config.workload
    if workload.steps is None:
        config = _with_steps(config, MEASURED_STEPS)
    steps = config.workload.steps
    assert steps is not None
    return _changed(
        config,
        workload={
            "lr_warmup_steps": min(workload.lr_warmup_steps, steps),
            # Refused without gradient sync, where replicas drift apart.
            "weight_average": None,
            "batchnorm_recompute": 0,
        },
        evaluate_every=steps,
        **{"profile_steps": None, "checkpoint_every": None, "max_restarts": 0, "resume": None, "inputs": None},
        **{"target_accuracy": None, "stop_at_target": False, "keep_predictions": False, "on_nan": "continue"},
    )


def _on_one_device(config: RunConfig) -> RunConfig:
    """The first device alone, with its part of the batch and of the cores."""
    cluster, (node, *_) = config.cluster, config.cluster.nodes
    cores = max(1, node.num_cores // len(node.devices))
    alone = node.model_copy(update={"devices": node.devices[:1], "num_cores": cores})
    return _changed(
        config,
        workload={"global_batch_size": config.workload.global_batch_size // config.topology.num_replicas},
        cluster=Cluster(device_type=cluster.device_type, nodes=(alone,), simulated=cluster.simulated),
        placement=config.placement.on_first_node(),
    )


def _changed(config: RunConfig, *, workload: dict[str, object] | None = None, **changes: object) -> RunConfig:
    """With other fields, checked again."""
    if workload:
        changes["workload"] = type(config.workload)(**config.workload.model_dump() | workload)
    return RunConfig(**dict(config) | changes)
