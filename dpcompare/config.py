"""A run as requested: what to train (Workload), with which mode, on which cluster (RunConfig)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from dpcompare.backends import FRAMEWORKS, MODES, Mode
from dpcompare.cluster import Cluster
from dpcompare.data.augmentation import AUGMENTATIONS
from dpcompare.documents import read_document, write_document
from dpcompare.engines import ENGINES
from dpcompare.errors import RequestError, did_you_mean
from dpcompare.feasibility import problems_of_run
from dpcompare.models import MODELS, model_of
from dpcompare.own import is_own
from dpcompare.tuning import tuning_of

Optimizer = Literal["sgd", "adam"]
Precision = Literal["float32", "bfloat16", "float64"]
Profile = Literal["strict", "native"]
Schedule = Literal["constant", "cosine"]
ScaleLr = Literal["none", "linear"]
BatchNorm = Literal["local", "sync"]
Regularizing = Literal["off", "shared"]

DEFAULT_EPOCHS = 1
DEFAULT_BATCHNORM_MOMENTUM = 0.9


def _one_of(what: str, known: Iterable[str], *, or_own: bool = False) -> Callable[[str], str]:
    names = tuple(known)

    def check(received: str) -> str:
        if received not in names and not (or_own and is_own(received)):
            hint = did_you_mean(received, names)
            own = ", or package.module:NAME of your own" if or_own else ""
            raise ValueError(f"unknown {what} {received!r}; expected one of {', '.join(names)}{own}.{hint}")
        return received

    return check


class Workload(BaseModel):
    """What is trained; says nothing of frameworks, modes or devices."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: Annotated[str, AfterValidator(_one_of("model", MODELS, or_own=True))] = "efficientnet-b2"
    """A name of `dpcompare.models.MODELS`, or `package.module:NAME` of one of your own; see `dpcompare.own`."""
    weights: str = "random"
    """Initial weights: `random`, `imagenet` (timm's published ones), or the path of a timm or Keras weights file."""
    dataset: str = "digits"
    """`digits`, `synthetic`, the path of a prepared store or of a folder of images, or `package.module:NAME` of your own."""
    image_size: int = Field(default=64, ge=1, le=4096)
    """Side of the square input in pixels."""
    global_batch_size: int = Field(default=32, ge=1)
    """Images per optimizer step over all replicas; each replica takes an equal share."""
    epochs: int | None = Field(default=None, ge=1)
    """Passes over the training split; the default, where `steps` is not given either, is DEFAULT_EPOCHS."""
    steps: int | None = Field(default=None, ge=1)
    """Optimizer steps, instead of `epochs`."""
    warmup_steps: int = Field(default=5, ge=0)
    """First steps that are trained like the others but left out of the measured speed."""
    optimizer: Optimizer = "adam"
    learning_rate: float = Field(default=1e-3, gt=0, allow_inf_nan=False, strict=False)
    schedule: Schedule = "constant"
    """How the learning rate goes after its warm-up; see `dpcompare.schedule`."""
    lr_warmup_steps: int = Field(default=0, ge=0)
    """First steps over which the learning rate rises linearly to its full value."""
    scale_lr: ScaleLr = "none"
    """`linear`: the learning rate is that of a global batch of 256 and grows with the batch."""
    accumulate: int = Field(default=1, ge=1)
    """Micro-batches per optimizer step: each replica's share is trained in this many parts, gradients added up."""
    batchnorm: BatchNorm = "local"
    """`local`: each replica normalises by its own share of the batch. `sync`: by the batch of all replicas."""
    batchnorm_momentum: float = Field(default=DEFAULT_BATCHNORM_MOMENTUM, ge=0, lt=1, strict=False)
    """Share of BatchNorm's running statistics that a step keeps (Keras's sense; torch counts what it takes).

    The 0.99 of EfficientNet's reference code needs some 500 steps to forget the initial statistics: until then an
    evaluation is at chance, however well the model is trained. 0.9 needs 50.
    """
    regularization: Regularizing = "off"
    """`shared`: dropout and stochastic depth, drawn on the host for both frameworks; see `dpcompare.data.regularization`."""
    precision: Precision = "float32"
    """`bfloat16` keeps the weights in float32 and computes in bfloat16."""
    profile: Profile = "strict"
    """`strict`: the same in both frameworks. `native`: each framework's faster settings; see `dpcompare.tuning`."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of the initial weights, the sample order, the augmentation and the regularization."""
    augment: tuple[Annotated[str, AfterValidator(_one_of("augmentation", AUGMENTATIONS))], ...] = Field(
        default=(), strict=False
    )
    skip_corrupt: bool = False
    """Leave out images that cannot be decoded, and count them, instead of refusing the dataset."""

    @model_validator(mode="after")
    def _check(self) -> Workload:
        problems = []
        if is_own(self.model) and self.batchnorm_momentum != DEFAULT_BATCHNORM_MOMENTUM:
            problems.append("batchnorm_momentum: received with a model of your own, which has its own; expected none")
        if is_own(self.dataset) and self.skip_corrupt:
            problems.append("skip_corrupt: received with a dataset of your own; leave such items out there")
        smallest = model_of(self.model).min_image_size
        if self.image_size < smallest:
            problems.append(
                f"image_size: received {self.image_size}, but {self.model} needs at least {smallest} pixels"
            )
        if self.regularization == "shared" and not model_of(self.model).drops:
            regularized = [name for name, model in MODELS.items() if model.drops]
            problems.append(
                f"regularization: received shared, but {self.model} has no dropout and no stochastic depth; expected "
                f"off, or one of the models {', '.join(regularized)}"
            )
        if self.weights == "imagenet" and model_of(self.model).published is None:
            published = [name for name, model in MODELS.items() if model.published]
            problems.append(
                f"weights: received imagenet, but none are published for {self.model}; expected random or a file, or "
                f"one of the models {', '.join(published)}"
            )
        if self.epochs is not None and self.steps is not None:
            problems.append(f"received both epochs={self.epochs} and steps={self.steps}; give only one of them")
        if self.steps is not None and self.warmup_steps >= self.steps:
            problems.append(
                f"warmup_steps: received {self.warmup_steps} of {self.steps} steps, which leaves no step to "
                "measure; expected fewer warm-up steps than steps"
            )
        _raise(problems)
        return self

    def batchnorm_values(self, rows: int) -> int | None:
        """Values per channel in the smallest batch-normalised feature map of `rows` images."""
        stride = model_of(self.model).batchnorm_stride
        return None if stride is None else rows * (-(-self.image_size // stride)) ** 2

    @property
    def num_epochs(self) -> int:
        """Epochs to train where the number of steps is not given instead."""
        return self.epochs or DEFAULT_EPOCHS


class Inputs(BaseModel):
    """The files that every process of a run reads; see `dpcompare.inputs.prepare_inputs`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    store: Path
    store_sha256: str
    weights: Path
    weights_sha256: str
    classifier: str = "drawn"
    """`drawn`, or `from file` where a file of initial weights brought one for as many classes."""
    num_classes: int
    num_train: int
    num_validation: int
    num_skipped: int
    """Images of the source that could not be decoded and were left out."""


class Placement(BaseModel):
    """Who starts the node processes, and where; see `dpcompare.engines`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: Annotated[str, AfterValidator(_one_of("engine", ENGINES))] = "local"
    hosts: tuple[str, ...] = ()
    """hosts: one per node, in the order of the ranks."""
    ssh: bool = False
    """hosts: whether to start their part by ssh instead of printing its command."""
    partition: str | None = None
    time: str | None = None
    account: str | None = None
    sbatch: tuple[str, ...] = ()
    """slurm: more options of sbatch, each with its value, such as --qos=high."""
    image: str | None = None
    """kubernetes: the container image of all pods."""
    volume_claim: str | None = None
    """kubernetes: the claim of a volume that all pods can write."""
    link: str | None = Field(default=None, pattern=r"^\d+(\.\d+)?[kmg]bit$")
    """namespaces: what the wire of each node lets through per second, such as 1gbit; None: all."""

    @model_validator(mode="after")
    def _check(self) -> Placement:
        problems = []
        of_slurm = {"partition": self.partition, "time": self.time, "account": self.account, "sbatch": self.sbatch}
        given = [name for name, value in of_slurm.items() if value]
        if given and self.engine != "slurm":
            problems.append(f"{', '.join(given)}: received with engine {self.engine}; expected engine slurm")
        if (self.hosts or self.ssh) and self.engine != "hosts":
            problems.append(f"hosts: received with engine {self.engine}; expected engine hosts")
        if self.link and self.engine != "namespaces":
            problems.append(f"link: received with engine {self.engine}; expected engine namespaces")
        of_kubernetes = {"image": self.image, "volume_claim": self.volume_claim}
        if self.engine == "kubernetes":
            problems += [
                f"{name}: received none; expected one with engine kubernetes"
                for name, value in of_kubernetes.items()
                if not value
            ]
        elif given := [name for name, value in of_kubernetes.items() if value]:
            problems.append(f"{', '.join(given)}: received with engine {self.engine}; expected engine kubernetes")
        if self.engine == "hosts" and not self.hosts:
            problems.append("hosts: received none; expected one per node, such as --hosts a,b")
        if len(set(self.hosts)) != len(self.hosts):
            problems.append(f"hosts: received {', '.join(self.hosts)}; expected each once")
        _raise(problems)
        return self


class RunConfig(BaseModel):
    """One run: a workload, trained by one mode of one framework, on a cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    framework: Annotated[str, AfterValidator(_one_of("framework", FRAMEWORKS))]
    mode: str
    workload: Workload = Field(default_factory=Workload)
    cluster: Cluster
    placement: Placement = Field(default_factory=Placement)
    launcher: Literal["torchrun", "spawn"] | None = None
    """How the processes of a torch mode of several are started; None: as the mode usually does."""
    stages: int = Field(default=1, ge=1)
    """Devices over which each replica's model is split, layer after layer."""
    pipeline_schedule: Literal["gpipe", "1f1b"] | None = None
    """pipeline: `gpipe` goes forward with all micro-batches and then backward, `1f1b` backward as soon as it can; None: gpipe."""
    tune: dict[str, str] = Field(default_factory=dict)
    """Settings of the native profile that are to be others; see `dpcompare.tuning`."""
    autotuned: bool = False
    """Whether `tune` was found by trying on this machine; see `dpcompare.autotune`."""
    exchange_gradients: bool = True
    """False: replicas keep their gradients to themselves and drift apart, to measure what the exchange costs."""
    profile_steps: tuple[int, int] | None = None
    """First and last step (from 1) of which every process keeps a trace in RUN_DIR/traces; tracing takes time."""
    checkpoint_every: int | None = Field(default=None, ge=1)
    """Steps from one checkpoint to the next, of which there is one after the last step too; None: no checkpoints."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """The newest ones, which are kept."""
    resume: Path | None = None
    """Checkpoint to begin from instead of the initial weights; chosen by `dpcompare.runner`."""
    on_nan: Literal["stop", "continue"] = "stop"
    """What a loss that is not finite does."""
    start_timeout: float = Field(default=600.0, gt=0)
    """Seconds in which every process must have trained its first step."""
    progress_timeout: float = Field(default=600.0, gt=0)
    """Seconds after which a process that shows no progress counts as hanging."""
    isolate: bool = False
    """Whether the processes get a network of their own, which nothing outside reaches."""
    max_restarts: int = Field(default=0, ge=0)
    """How often a run that failed begins again from its newest checkpoint."""
    task: Literal["train", "probe"] = "train"
    """`probe` trains too, and leaves arrays to compare with those of other modes; see `dpcompare.probe`."""
    python: str = sys.executable
    """The interpreter whose environment holds the framework."""
    inputs: Inputs | None = None
    """Filled in by `prepare_inputs`."""

    @property
    def mode_row(self) -> Mode:
        return MODES[self.framework, self.mode]

    @property
    def launch(self) -> str:
        """How the processes are started; see `dpcompare.planning`."""
        return "spawn" if self.launcher == "spawn" else self.mode_row.launch

    @property
    def processes_per_node(self) -> int:
        if self.mode_row.process_per == "node":
            return 1
        return self.cluster.devices_per_node // (self.stages if self.mode_row.split == "in process" else 1)

    @property
    def num_processes(self) -> int:
        return self.cluster.num_nodes * self.processes_per_node

    @property
    def num_trainers(self) -> int:
        """Processes that run the loop, the first ones; others serve them."""
        return 1 if self.mode_row.roles else self.num_processes

    @property
    def first_of_machines(self) -> list[int]:
        """Ranks of the first process of each machine; simulated nodes are one machine."""
        return list(range(0, 1 if self.cluster.simulated else self.num_trainers, self.processes_per_node))

    @property
    def num_replicas(self) -> int:
        without = len(self.mode_row.roles) * self.cluster.devices_per_node
        return (self.cluster.num_devices - without) // self.stages

    @property
    def devices_per_process(self) -> int:
        return self.cluster.num_devices // self.num_processes

    @property
    def replicas_per_process(self) -> int:
        """1 also where several processes make one replica."""
        return max(1, self.num_replicas // self.num_processes)

    @property
    def threads_per_process(self) -> int:
        """CPU threads each process may use: the cores of its node shared among the node's processes.

        Left alone, every process takes all cores: two processes with two threads each on two cores train up to
        ten times slower.
        """
        return max(1, self.cluster.nodes[0].num_cores // self.processes_per_node)

    @property
    def tuning(self) -> dict[str, str]:
        """The value of every setting of this mode that changes its speed alone."""
        workload = self.workload
        return tuning_of(
            self.framework, self.mode, workload.profile, self.cluster.device_type, workload.precision, self.tune
        )

    @property
    def emulated(self) -> bool:
        """Whether this mode is imitated on this kind of device rather than run by the framework's own code."""
        return self.cluster.device_type in self.mode_row.emulated_on and self.num_replicas > 1

    @model_validator(mode="after")
    def _check(self) -> RunConfig:
        _raise(problems_of_run(self))
        return self

    def save(self, path: Path) -> None:
        write_document(self, path)

    @classmethod
    def load(cls, path: Path) -> RunConfig:
        return read_document(cls, path, kind="the config of a run", expected="the directory of a run")


def _raise(problems: list[str]) -> None:
    if problems:
        raise ValueError("; ".join(problems))


def request(kind: type[BaseModel], /, **values: Any) -> Any:
    """Build a config from a user's values.

    Raises:
        RequestError: with every problem on a line of its own, named by its field.
    """
    try:
        return kind(**values)
    except ValidationError as error:
        raise RequestError("\n".join(map(_describe, error.errors()))) from None


def _describe(error: Any) -> str:
    field = ".".join(map(str, error["loc"]))
    message: str = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return message
    return f"{field}: {message[0].lower()}{message[1:]}, received {error['input']!r}"
