"""The result of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, field_validator

from dpcompare._version import __version__
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.setting import one_of
from dpcompare.config.tuning import under_new_names
from dpcompare.models.architectures import MODELS, may_have_batchnorm
from dpcompare.models.state import Gradients
from dpcompare.results.attempts import Attempt, History, Status
from dpcompare.results.clock import (
    DISTURBANCES,
    ClockCheck,
    MachineLoad,
    RunWarning,
    RunWarningKind,
    long_backlog,
    much_between_steps,
)
from dpcompare.results.computed import Computed, Evaluation, TrainingCost, reached
from dpcompare.results.decisions import Decisions
from dpcompare.results.late_step import LateStep
from dpcompare.results.observed import Observed, OtherVariables
from dpcompare.results.run_dir import RESULT_FILE
from dpcompare.results.steadiness import SlowStart, SlowSteps
from dpcompare.system.gpu_state import GpuState
from dpcompare.system.json_files import Count, Finite, Measured, Number, Rate, read_document, write_document
from dpcompare.system.machine import Machine

FORMAT = 2
"""The format of result.json. Format 1 had no number, and other names for data_wait_fraction and
host_overhead_seconds."""


class StepSeconds(BaseModel):
    """Duration of one step over the measured steps of the slowest process."""

    model_config = ConfigDict(frozen=True)

    median: Measured | None
    """The median in a window of several steps without the first one, which has the window's launch and its wait in it.
    None, as the other two, if the device does not time the steps of a window: then there is a mean alone."""
    p95: Measured | None
    mean: Measured
    mad: Measured | None
    """Median absolute deviation, not scaled."""

    @classmethod
    def of(cls, seconds: Sequence[float], *, own: Sequence[bool] | None = None) -> StepSeconds:
        """The figures of some steps.

        Args:
            seconds: of each.
            own: which of them are a step's alone, neither shares of a window nor with what a window adds; None: all.
        """
        values = np.asarray(seconds) if own is None else np.asarray(seconds)[np.asarray(own, bool)]
        mean = float(np.mean(seconds))
        if not len(values):
            return cls(median=None, p95=None, mean=mean, mad=None)
        median = float(np.median(values))
        return cls(
            median=median,
            p95=float(np.percentile(values, 95)),
            mean=mean,
            mad=float(np.median(np.abs(values - median))),
        )

    @property
    def typical(self) -> float:
        """The median, or the mean where that is not known."""
        return self.mean if self.median is None else self.median


class PeakMemory(BaseModel):
    model_config = ConfigDict(frozen=True)

    max_process: Count
    total: Count


class NodeRecord(BaseModel):
    """What one node was, by its processes."""

    model_config = ConfigDict(frozen=True)

    node_rank: Count
    host: str
    device_names: list[str]
    versions: dict[str, str]
    gpus: list[GpuState] = []
    machine: Machine | None = None
    """None in results of older releases."""
    bound_to_cores: list[str] = []
    """The cores to which each of its processes was bound, as ranges; empty where they could run on all."""
    load: MachineLoad | None = None
    """The load of its machine, at the first of several nodes of one machine; None if it is not known."""


def _not_negative(seconds: float | None) -> float | None:
    """None in the place of a duration that two clocks made negative."""
    return seconds if seconds is not None and seconds >= 0 else None


class RunResult(BaseModel):
    """result.json. Keys keep their meaning from release to release; figures are None where nothing was measured."""

    model_config = ConfigDict(frozen=True)

    format: int = FORMAT
    """Changes where a key changes its name or its meaning."""
    dpcompare_version: str = __version__
    status: Status
    first_step: Count = 0
    """Steps made before the last attempt, whose timings these are; 0 where there was only one."""
    attempt_id: str | None = None
    """A random number of the last attempt, which its events and the records of its processes have too; None in results
    of older releases, and of a generated script."""
    attempts: list[Attempt] = []
    """Earlier attempts."""
    error: str | None = None
    """Why the run did not complete: the first failure, with its traceback."""
    framework: Annotated[str, AfterValidator(one_of("framework", FRAMEWORKS))]
    mode: str
    num_nodes: Number
    num_processes: Number
    num_replicas: Number
    device_type: str
    device_names: list[str] = []
    emulated: bool
    """True where the mode was imitated: torch dp on the CPU runs DataParallel's algorithm on threads, and on a shared
    GPU several processes take turns."""
    collective: str | None = None
    model: str
    dataset: str
    image_size: Number
    global_batch_size: Number
    precision: str
    profile: str
    images_per_second: Rate | None = None
    """Images of all replicas per second over the measured steps, by the slowest process."""
    steady_images_per_second: Rate | None = None
    """The same of the median of ten equal parts of these steps, in which no stall shows; arms are compared by it.

    None in results of 0.1.0.
    """
    measured_steps: Count = 0
    steps_left_out: Count | None = None
    """First steps of the last attempt that are not among them."""
    step_seconds: StepSeconds | None = None
    slow_start: SlowStart | None = None
    """The first measured steps, where they were slower than the others; None where they were not."""
    compiled_steps: list[Number] = []
    """Steps of the last attempt for which the framework traced or compiled something in any process, by its own
    counter, as in the first one; see `Backend.num_compilations`."""
    slow_steps: SlowSteps | None = None
    """None where steps cannot be timed one by one."""
    data_wait_fraction: Measured | None = None
    """Part of the measured time in which the slowest process waited for its next batch."""
    host_overhead_seconds: Measured | None = None
    """Mean time between two measured steps of the slowest process, in which losses are read and events are written."""
    between_steps_fraction: Measured | None = None
    """Part of the time that this takes next to the measured steps, which images per second leave out: in the median of
    ten parts of the run."""
    apart_fraction: Measured | None = None
    """Part of the time that was left out as an evaluation, a checkpoint or a trace where none of them was due; None
    where nothing was, and in results before 0.2.0."""
    clock: ClockCheck | None = None
    """None if the run was not watched, or for too short a time."""
    joules_per_image: Measured | None = None
    """Energy of the run's GPUs over the measured steps, or on the CPU of all packages of the machine.

    None where they have no counter.
    """
    flops_per_image: Count | None = None
    """Operations of products that an image takes in a training step, by the model's own shapes; see
    `dpcompare.models.costs`. None for a custom model."""
    achieved_flops: Rate | None = None
    """Such operations per second and device."""
    achieved_bandwidth: Rate | None = None
    """Bytes of features per second and device that the layers must have read and written at least."""
    model_flops_utilization: Measured | None = None
    """MFU: `achieved_flops` over what the device can do in this precision at most; None where no table has that."""
    bandwidth_utilization: Measured | None = None
    """The same of its memory."""
    peak_source: str | None = None
    """What the peak of operations is, and who says so."""
    time_to_first_step_seconds: Annotated[Finite | None, AfterValidator(_not_negative)] = None
    """From the start of the launch until the last process has finished its first step; None where clocks contradict
    each other."""
    first_step_seconds: Measured | None = None
    """The first step of the slowest process itself: what a framework traces, compiles or tries out then is in it."""
    started_at: AwareDatetime | None = None
    """When the last attempt was launched, in universal time; None in 0.1.0."""
    wall_seconds: Annotated[Finite | None, AfterValidator(_not_negative)]
    """From the launch of the last attempt to its end; None where the clock was set back meanwhile."""
    peak_memory_bytes: PeakMemory | None = None
    peak_device_memory_bytes: PeakMemory | None = None
    train_loss: list[Finite | None] = []
    """Global loss of every step, earlier attempts included; None where it is not finite, which JSON cannot express."""
    evaluations: list[Evaluation] = []
    evaluation_costs: list[TrainingCost] = []
    """What training had taken when each evaluation was made, in their order; empty in 0.1.0."""
    sample_order_sha256: str | None = None
    computed: Computed | None = None
    """What the processes counted and measured of their own work; None where one left no record, and in 0.1.0."""
    decisions: Decisions | None = None
    """What the host decided for each step; None where a process left no record, and in 0.1.0."""
    late_step: LateStep | None = None
    """Whether another framework confirms its last steps; None where that was not asked, and in 0.1.0."""
    store_sha256: str | None = None
    weights_sha256: str | None = None
    skipped_images: Count = 0
    gradients: Gradients | None = None
    """The gradients of the first process, for projections; None if the framework does not report them."""
    threads_per_process: Number
    observed: list[Observed] = []
    """What each process that trained was seen to have; empty in results of older releases."""
    variables: OtherVariables | None = None
    """Variables of the environment that no list knows, by name, with digests of their values; None where the processes
    did not look."""
    settings: Annotated[dict[str, Any], AfterValidator(under_new_names)] = {}
    versions: dict[str, str] = {}
    """The versions on node 0; see `nodes`."""
    packages: dict[str, str] = {}
    """All that the environment of the first process has, if that was to be kept: distribution -> version."""
    nodes: list[NodeRecord] = []
    """Each node's host, devices, versions and GPUs."""
    config: dict[str, Any]

    @field_validator("config")
    @classmethod
    def _has_its_parts(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Not a RunConfig: results of other releases are read too. What is looked up in it must be there."""
        match config:
            case {"workload": dict(), "cluster": {"nodes": [{"devices": [*_]}, *_]}}:
                if isinstance(config.get("placement", {}), dict):
                    return config
        raise ValueError("expected the config of a run, with its workload and cluster")

    @property
    def arithmetic(self) -> str:
        """In what it was computed: its precision, or TF32, to which only products in float32 are rounded."""
        return "TF32" if self.precision == "float32" and self.settings.get("tf32") else self.precision

    @property
    def target_accuracy(self) -> float | None:
        """The accuracy that the run was to reach."""
        return self.config.get("target_accuracy")

    @property
    def compared_speed(self) -> float | None:
        """Images per second by which arms are compared; results of 0.1.0 have the mean alone."""
        return self.steady_images_per_second or self.images_per_second

    @property
    def cost_of_target(self) -> TrainingCost | None:
        """What it took to reach the target; None where there was none, or no evaluation reached it."""
        found = None if self.target_accuracy is None else reached(self.evaluations, self.target_accuracy)
        return next((cost for cost in self.evaluation_costs if found and cost.step == found.step), None)

    @property
    def environment(self) -> str | None:
        """The name of the environment that the run has of its own; None of one in the usual environment."""
        return (self.config.get("environment") or {}).get("name")

    @property
    def own_variables(self) -> dict[str, str]:
        """The variables of that environment."""
        return (self.config.get("environment") or {}).get("variables") or {}

    @property
    def devices_per_node(self) -> int:
        return len(self.config["cluster"]["nodes"][0]["devices"])

    @property
    def differing_versions(self) -> dict[str, list[str]]:
        """Package -> its version on every node, of those that are not the same on all."""
        packages = dict.fromkeys(package for node in self.nodes for package in node.versions)
        versions = {package: [node.versions.get(package, "none") for node in self.nodes] for package in packages}
        return {package: each for package, each in versions.items() if len(set(each)) > 1}

    @property
    def gpus(self) -> list[GpuState]:
        """The GPUs of all nodes."""
        return [gpu for node in self.nodes for gpu in node.gpus]

    @property
    def slowdowns(self) -> list[str]:
        """A sentence per GPU, and per machine's cores, that heat or the supply of power has slowed down."""
        gpu_slowdowns = [
            f"GPU {gpu.device} ({gpu.name}) of node {node.node_rank} was slowed down: {gpu.slowdown}"
            for node in self.nodes
            for gpu in node.gpus
            if gpu.slowdown
        ]
        return gpu_slowdowns + self._of_machines(lambda load: load.slowdown)

    @property
    def disturbances(self) -> list[str]:
        """A sentence per machine on which others took cores that the run was to have."""
        return self._of_machines(lambda load: load.disturbance)

    def _of_machines(self, sentence_of: Callable[[MachineLoad], str | None]) -> list[str]:
        sentences = {node.node_rank: said for node in self.nodes if node.load and (said := sentence_of(node.load))}
        return [f"node {rank}: {said}" if self.num_nodes > 1 else said for rank, said in sentences.items()]

    @property
    def clock_problem(self) -> str | None:
        """A sentence about seconds that do not add up, so that images per second mean nothing; None where they do."""
        if self.clock is not None and (contradiction := self.clock.contradiction):
            return contradiction
        step_seconds = self.step_seconds.mean if self.step_seconds else None
        between = (
            None if self.between_steps_fraction is None else self.between_steps_fraction + (self.apart_fraction or 0)
        )
        problem = (
            None
            if between is None
            else much_between_steps(
                between, step_seconds, num_steps=self.measured_steps, on_gpu=self.device_type == "gpu"
            )
        )
        if problem:
            return problem
        backlog = self.computed.backlog_seconds if self.computed else None
        return None if backlog is None else long_backlog(backlog, (step_seconds or 0.0) * self.measured_steps)

    @property
    def warnings(self) -> list[RunWarning]:
        """What whoever reads the figures of this run should know of it."""
        said: dict[RunWarningKind, list[str | None]] = {
            "CLOCK": [self.clock_problem],
            "STALLED": [self.stall],
            "RECOMPILED": [self.recompilation],
            "NOT WARM": [self.trend],
            "DISTURBED": [*self.disturbances],
            "SLOWED DOWN": [*self.slowdowns],
            "LATE STEP": [self.late_step.problem if self.late_step else None],
        }
        return [
            RunWarning(kind=kind, sentence=sentence)
            for kind, sentences in said.items()
            for sentence in sentences
            if sentence is not None
        ]

    @property
    def disturbed_by(self) -> str | None:
        """Why a study makes this run again, once; None where nothing has disturbed it."""
        reasons = [f"{each.kind}: {each.sentence}" for each in self.warnings if each.kind in DISTURBANCES]
        return "; ".join(reasons) or None

    @property
    def recompilation(self) -> str | None:
        """A sentence about measured steps for which something was compiled, all of whose shapes the first step had."""
        if self.steps_left_out is None:
            return None
        first_measured = self.first_step + max(1, self.steps_left_out) + 1
        if not (again := [step for step in self.compiled_steps if step >= first_measured]):
            return None
        which = f"step {again[0]}" if len(again) == 1 else f"{len(again)} steps, the first of them {again[0]},"
        return f"{which} traced or compiled again what the first step had compiled, in the measured time"

    @property
    def trend(self) -> str | None:
        """A sentence about measured steps that were slower before they had settled; None where they had."""
        if self.slow_start is None or self.step_seconds is None or self.steps_left_out is None:
            return None
        measured_seconds = self.step_seconds.mean * self.measured_steps
        return self.slow_start.trend(measured_seconds, self.first_step, self.steps_left_out)

    @property
    def stall(self) -> str | None:
        """A sentence about steps that took so long that images per second do not show how fast the others were."""
        if self.slow_steps is None or self.step_seconds is None:
            return None
        return self.slow_steps.stall(self.step_seconds.typical, self.step_seconds.mean * self.measured_steps)

    @property
    def outlier(self) -> str | None:
        """A sentence about a few samples that make much of the last evaluation loss; None where there are none."""
        sentence = self.evaluations[-1].outlier if self.evaluations else None
        if sentence is None:
            return None
        if self.model not in MODELS:
            return f"{sentence}; if the model has BatchNorm, its running statistics may not have settled yet"
        if not may_have_batchnorm(self.model):
            return sentence
        return f"{sentence}; BatchNorm's running statistics may not have settled yet"

    @property
    def history(self) -> History:
        """What the next attempt has of this one and of those before it."""
        attempt = Attempt(
            first_step=self.first_step,
            last_step=len(self.train_loss),
            status=self.status,
            error=self.error,
            framework=self.framework,
            mode=self.mode,
            num_replicas=self.num_replicas,
            images_per_second=self.images_per_second,
        )
        return History(losses=self.train_loss, evaluations=self.evaluations, attempts=[*self.attempts, attempt])

    def save(self, run_dir: Path) -> None:
        write_document(self, run_dir / RESULT_FILE)

    @classmethod
    def load(cls, run_dir: Path) -> RunResult:
        """Read RUN_DIR/result.json.

        Raises:
            OtherFormatError: another version of dpcompare wrote it, with other keys.
            RequestError: it is not there, or is not a result.
        """
        return read_document(
            cls,
            run_dir / RESULT_FILE,
            kind="the result of a run",
            expected="the directory of a run that has ended",
            format_number=FORMAT,
        )
