"""The fields of the config of a run, and what follows from them; `dpcompare.config.run` has the config itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator

from dpcompare.config.cluster import Cluster, Topology
from dpcompare.config.environment import Environment
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.modes import MODES, Mode
from dpcompare.config.placement import Placement
from dpcompare.config.setting import (
    CLUSTERS,
    DATA,
    EVALUATION,
    MEASUREMENT,
    MODE,
    RECOVERY,
    Changes,
    Config,
    Option,
    one_of,
    setting,
    settings_of,
)
from dpcompare.config.tuning import tuning_of, under_new_names
from dpcompare.config.workload import Workload
from dpcompare.data.names import samples_trained
from dpcompare.models.spec import Drop
from dpcompare.system.python_environment import is_custom

GPU_STEPS_PER_WINDOW = 10
"""Few enough for a window to end several times a second, many enough for the wait at its end to be lost in it."""

START_SECONDS = 600.0
"""In which the first step must be made on other devices than GPUs; for those see FRAMEWORKS."""
COMPILING_SECONDS = 900.0
"""At least, on GPUs, of a step that is compiled first."""


class Inputs(Config):
    """The files that every process of a run reads; see `dpcompare.launch.inputs.prepare_inputs`."""

    store: Path
    store_sha256: str
    weights: Path
    weights_sha256: str
    classifier: str = "drawn"
    """`drawn`, or `from file` where a file of initial weights has one for the same number of classes."""
    num_classes: int
    num_train: int
    num_validation: int
    num_skipped: int
    """Images of the source that could not be decoded and were left out."""
    layers: dict[str, dict[str, str]] = setting(default_factory=dict, changes=Changes.NOTHING)
    """Framework -> layer of a custom model -> the name that its tensors have here, in the order of that framework's
    layers, where it calls them otherwise; see `dpcompare.launch.initial_weights.with_matched_layers`."""
    drops: tuple[Drop, ...] = setting((), changes=Changes.NOTHING)
    """Where `regularization="shared"` drops features of a custom model."""
    drop_layers: dict[str, dict[str, str]] = setting(default_factory=dict, changes=Changes.NOTHING)
    """Framework -> its layer that drops features, in the order of its layers -> the name of the drop."""


def _fraction(received: float | None) -> float | None:
    if received is not None and not 0 < received <= 1:
        raise ValueError(
            f"target_accuracy: received {received:g}, expected a fraction of the validation samples, above 0 and at "
            "most 1, such as 0.9 (on the command line also 90%)"
        )
    return received


def _own_backend(received: str | None) -> str | None:
    if received is not None and not is_custom(received):
        raise ValueError(
            f"backend: received {received!r}, expected a class of your own as package.module:CLASS; the modes of "
            "dpcompare are chosen by mode"
        )
    return received


class RunFields(Config):
    """What the config of a run holds, whether or not it obeys `dpcompare.config.run`."""

    framework: Annotated[str, AfterValidator(one_of("framework", FRAMEWORKS))] = setting(changes=Changes.STEP_TIME)
    mode: str = setting(changes=Changes.STEP_TIME)
    workload: Workload = setting(Workload(), changes=Changes.STEP_TIME)
    cluster: Cluster = setting(changes=Changes.STEP_TIME)
    placement: Placement = setting(Placement(), changes=Changes.STEP_TIME)
    stages: int = setting(
        1,
        ge=1,
        changes=Changes.STEP_TIME,
        option=Option(
            MODE,
            default="1; 2 with pipeline",
            resumable=True,
            help="Devices over which each replica's model is split, layer after layer.",
        ),
    )
    pipeline_schedule: Literal["gpipe", "1f1b"] | None = setting(
        None,
        changes=Changes.STEP_TIME,
        option=Option(MODE, default="gpipe", resumable=True, help="Schedule of mode pipeline."),
    )
    """pipeline: `gpipe` goes forward with all micro-batches and then backward, `1f1b` backward as soon as it can.
    None: gpipe."""
    backend: Annotated[str | None, AfterValidator(_own_backend)] = setting(
        None,
        changes=Changes.STEP_TIME,
        option=Option(
            MODE,
            metavar="MODULE:CLASS",
            default="that of the mode",
            help="Your own backend, package.module:CLASS, started like the mode.",
        ),
    )
    """`package.module:CLASS` of a user's subclass of `dpcompare.backends.base.Backend`. None: that of the mode."""
    launcher: Literal["torchrun", "spawn"] | None = setting(
        None,
        changes=Changes.NOTHING,
        option=Option(
            MODE,
            default="torchrun",
            resumable=True,
            help="How ddp, fsdp and pipeline start processes; spawn: from inside a program.",
        ),
    )
    """How the processes of a torch mode with several are started; None: in the usual way of the mode."""
    tune: Annotated[dict[str, str], AfterValidator(under_new_names)] = setting(
        default_factory=dict,
        changes=Changes.STEP_TIME,
        option=Option(
            MEASUREMENT,
            metavar="NAME=VALUE",
            resumable=True,
            help="A setting of the native profile, such as compilation=torch.compile; `modes --json` lists them.",
        ),
    )
    """Settings that override those of the profile; see `dpcompare.config.tuning`."""
    autotuned: bool = setting(False, changes=Changes.NOTHING)
    """Whether `tune` was found by trials on this machine; see `dpcompare.experiments.autotune`."""
    steps_per_window: int | None = setting(
        None,
        ge=1,
        changes=Changes.STEP_TIME,
        option=Option(
            MEASUREMENT,
            metavar="STEPS",
            default=f"1 on the CPU, {GPU_STEPS_PER_WINDOW} on GPUs",
            resumable=True,
            help="Steps that are timed together, with one wait for the devices.",
        ),
    )
    """Steps that the clock measures together: the host waits for the device at the end of a window only.
    None: 1 on the CPU, where a step has ended when its call returns, and GPU_STEPS_PER_WINDOW on GPUs."""
    input_threads: int = setting(
        1,
        ge=1,
        le=1_024,
        changes=Changes.STEP_TIME,
        option=Option(DATA, resumable=True, help="Threads per replica that read batches ahead of training."),
    )
    sync_gradients: bool = setting(True, changes=Changes.STEP_TIME)
    """False: replicas keep their gradients to themselves and drift apart, to measure what gradient sync costs."""
    reuse_batch: bool = setting(False, changes=Changes.STEP_TIME)
    """Every step trains the first batch again, which stays on its devices, to measure what input costs."""
    profile_steps: tuple[int, int] | None = setting(
        None,
        changes=Changes.STEP_TIME,
        option=Option(
            MEASUREMENT,
            metavar="A:B",
            help="Keep a trace of steps A to B of each process (multiworker: process 0), for Chrome's viewer or "
            "Perfetto; the page of a report draws its timeline.",
        ),
    )
    """First and last step (from 1) of which every process keeps a trace in RUN_DIR/traces; tracing takes time.

    Of TensorFlow's multiworker only process 0 keeps one.
    """
    checkpoint_every: int | None = setting(
        None,
        ge=1,
        changes=Changes.NOTHING,
        option=Option(
            RECOVERY, metavar="STEPS", resumable=True, help="Write a checkpoint every so many steps, and at the end."
        ),
    )
    """Steps from one checkpoint to the next; the last step always gets one. None: no checkpoints."""
    keep_checkpoints: int = setting(
        2,
        ge=1,
        changes=Changes.NOTHING,
        option=Option(RECOVERY, resumable=True, help="How many of the newest checkpoints are kept."),
    )
    evaluate_every: int | None = setting(
        None,
        ge=1,
        changes=Changes.NOTHING,
        option=Option(
            EVALUATION,
            metavar="STEPS",
            default="after every epoch",
            resumable=True,
            help="Evaluate every so many steps, and at the end.",
        ),
    )
    """Steps from one evaluation to the next; the last step is always followed by one. None: after every epoch."""
    target_accuracy: Annotated[float | None, AfterValidator(_fraction)] = setting(
        None,
        changes=Changes.NOTHING,
        option=Option(
            EVALUATION,
            metavar="PERCENT",
            resumable=True,
            scope="study",
            help="Target validation accuracy, such as 90%; reports the training time, steps and energy until an "
            "evaluation first reaches it.",
        ),
    )
    """The accuracy on the validation samples that the run is to reach: what that took is reported."""
    stop_at_target: bool = setting(
        False,
        changes=Changes.NOTHING,
        option=Option(
            EVALUATION, resumable=True, scope="study", help="End training as soon as the target accuracy is reached."
        ),
    )
    """Whether the training ends at the first evaluation that reaches it."""
    keep_predictions: bool = setting(
        False,
        changes=Changes.NOTHING,
        option=Option(
            EVALUATION,
            resumable=True,
            scope="study",
            help="Keep the trained model's prediction for each validation sample.",
        ),
    )
    """Whether what the trained model predicts of each validation sample is kept in RUN_DIR/predictions."""
    resume: Path | None = setting(None, changes=Changes.NOTHING)
    """Checkpoint to start from instead of the initial weights; chosen by `dpcompare.launch.run`."""
    max_restarts: int = setting(
        0,
        ge=0,
        changes=Changes.NOTHING,
        option=Option(
            RECOVERY, resumable=True, help="How often a run that fails is restarted from its newest checkpoint."
        ),
    )
    on_nan: Literal["stop", "continue"] = setting(
        "stop",
        changes=Changes.NOTHING,
        option=Option(RECOVERY, resumable=True, help="What to do when a loss is not finite."),
    )
    start_timeout: float | None = setting(
        None,
        gt=0,
        changes=Changes.NOTHING,
        option=Option(
            RECOVERY,
            metavar="SECONDS",
            default=f"{START_SECONDS:.0f}; on GPUs {max(row.gpu_start_seconds for row in FRAMEWORKS.values()):.0f}",
            resumable=True,
            help="Longest time until the first step.",
        ),
    )
    """Seconds in which every process must have trained its first step."""
    progress_timeout: float = setting(
        600.0,
        gt=0,
        changes=Changes.NOTHING,
        option=Option(
            RECOVERY, metavar="SECONDS", default="600", resumable=True, help="Longest time without progress after that."
        ),
    )
    """Seconds after which a process that shows no progress counts as hanging."""
    isolate: bool | None = setting(
        None,
        changes=Changes.NOTHING,
        option=Option(
            CLUSTERS,
            flags=("--isolate/--no-isolate",),
            default="where TensorFlow's servers would serve your files, and this machine permits it",
            resumable=True,
            help="Run in a network of its own, so that nothing outside reaches the ports of the run.",
        ),
    )
    """Whether the processes get a private network, which nothing outside can reach; None: where they would serve
    files, and this machine permits one."""
    late_step: bool | None = setting(
        None,
        changes=Changes.NOTHING,
        option=Option(
            MEASUREMENT,
            flags=("--late-step/--no-late-step",),
            default="in the first round of a study",
            resumable=True,
            scope="study",
            help="When the run has ended, have another framework make its last steps again in float64.",
        ),
    )
    """Whether the last steps are repeated when the run has ended, see `dpcompare.launch.late_step`. None: a run does
    not, a study does so in its first round."""
    task: Literal["train", "probe", "late step"] = setting("train", changes=Changes.STEP_TIME)
    """`probe` trains too, and leaves arrays to compare with those of other modes; see `dpcompare.training.probe`.
    `late step` makes the last steps of another run again; see `dpcompare.training.late_step`."""
    python: str = setting(sys.executable, changes=Changes.NOTHING)
    """The interpreter whose environment holds the framework."""
    environment: Environment | None = setting(None, changes=Changes.STEP_TIME)
    """What the run has of its own, where it does not use the usual environment of its framework."""
    keep_packages: bool = setting(False, changes=Changes.NOTHING)
    """Whether the result lists all packages of its environment: for runs that are compared with those of another."""
    inputs: Inputs | None = setting(None, changes=Changes.NOTHING)
    """Filled in by `prepare_inputs`."""

    @property
    def mode_row(self) -> Mode:
        return MODES[self.framework, self.mode]

    @property
    def serves_files(self) -> bool:
        """Whether who reaches the ports of its processes can read and write files as their user."""
        return self.mode_row.serves_files

    @property
    def seconds_to_start(self) -> float:
        """How long the first step may take."""
        if self.start_timeout is not None or self.cluster.device_type != "gpu":
            return self.start_timeout or START_SECONDS
        return max(FRAMEWORKS[self.framework].gpu_start_seconds, COMPILING_SECONDS if self.compiles else 0)

    @property
    def window(self) -> int:
        """Steps from one wait for the device to the next."""
        return self.steps_per_window or (GPU_STEPS_PER_WINDOW if self.cluster.device_type == "gpu" else 1)

    @property
    def launch(self) -> str:
        """How the processes are started; see `dpcompare.launch.plan`."""
        return "spawn" if self.launcher == "spawn" else self.mode_row.launch

    @property
    def topology(self) -> Topology:
        """How many processes and replicas the mode makes of the cluster."""
        return Topology(mode=self.mode_row, cluster=self.cluster, devices_per_replica=self.stages)

    @property
    def tuning(self) -> dict[str, str]:
        """The value of every setting that this mode has here; see `dpcompare.config.tuning`."""
        return tuning_of(self.framework, self.mode, self.cluster.device_type, self.workload, self.tune)

    @property
    def compiles(self) -> bool:
        """Whether the first step takes as long as a compiler does."""
        return self.tuning.get("compilation", "none") != "none"

    @property
    def allows_tf32(self) -> bool:
        """Whether a GPU may round what it multiplies in float32 to TF32."""
        return self.tuning.get("tf32", "on" if self.workload.profile == "native" else "off") == "on"

    @property
    def emulated(self) -> bool:
        """Whether this mode is imitated on this kind of device rather than run by the framework's code."""
        on_others = self.cluster.device_type in self.mode_row.emulated_on and self.topology.num_replicas > 1
        return on_others or self.cluster.shared

    @property
    def collective(self) -> str:
        """What carries the collectives of the mode; gloo between processes on one GPU, which NCCL refuses."""
        if self.cluster.shared:
            return "gloo"
        row, device_type = self.mode_row, self.cluster.device_type
        alone = row.collective_in_process.get(device_type) if self.topology.num_processes == 1 else None
        return alone or row.collective[device_type]

    def samples_trained(self, num_train: int, num_steps: int) -> int:
        """How many samples count in the first steps on a split of `num_train`; those that come again do so."""
        if self.reuse_batch:
            return num_steps * min(num_train, self.workload.global_batch_size)
        return samples_trained(num_train, self.workload.global_batch_size, num_steps=num_steps)


settings_of(RunFields)  # every field says what it changes
