"""A workload: what is trained, independent of what trains it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from dpcompare.config.optimizers import OPTIMIZERS
from dpcompare.config.validation import Config, one_of, raise_problems
from dpcompare.data.augmentation import AUGMENTATIONS
from dpcompare.data.names import is_custom_dataset
from dpcompare.data.order import steps_per_epoch
from dpcompare.models.architectures import MODELS, model_of
from dpcompare.system.import_path import is_custom
from dpcompare.system.words import counted

Precision = Literal["float32", "bfloat16", "float64"]


Profile = Literal["strict", "native"]


Schedule = Literal["constant", "cosine"]


ScaleLr = Literal["none", "linear"]


BatchNorm = Literal["local", "sync"]


Regularizing = Literal["off", "shared"]


DEFAULT_EPOCHS = 1
DEFAULT_WARMUP_STEPS = 5


DEFAULT_BATCHNORM_MOMENTUM = 0.9


LARGEST_SEED = 2**63 - 1


NO_FLOAT16 = (
    "float16 needs scaled losses, or gradients underflow, and torch and TensorFlow share no rule for that; use "
    "bfloat16, or float32 on GPUs older than Ampere, which have no hardware for bfloat16"
)


def _number_or_auto(received: Any) -> Any:
    if received != "auto" and (not isinstance(received, int) or isinstance(received, bool) or received < 0):
        raise ValueError(f"warmup_steps: received {received!r}, expected a number of steps from 0 on, or auto")
    return received


def _no_float16(received: Any) -> Any:
    if received == "float16":
        raise ValueError(f"precision: received float16; {NO_FLOAT16}")
    return received


class Workload(Config):
    """What is trained; says nothing of frameworks, modes or devices.

    The defaults are small enough for a CPU, and the same on every device. The command line takes larger ones on GPUs,
    see `dpcompare.config.gpu_defaults`.
    """

    model_config = ConfigDict(strict=True)

    model: Annotated[str, AfterValidator(one_of("model", MODELS, or_custom=True))] = "efficientnet-b2"
    """A name of `dpcompare.models.architectures.MODELS`, or `package.module:NAME` of a custom model; see
    `dpcompare.models.custom`."""
    weights: str = "random"
    """Initial weights: `random`, `imagenet` (timm's published ones), or the path of a timm or Keras weights file."""
    dataset: str = "digits"
    """`digits`, `synthetic`, the path of a prepared store or of a folder of images, `package.module:NAME` of a custom
    dataset, or `hf:NAME` of one that the library `datasets` loads; see `dpcompare.data.hugging_face`."""
    image_size: int = Field(default=64, ge=1, le=4096)
    """Side of the square input in pixels."""
    global_batch_size: int = Field(default=32, ge=1)
    """Images per optimizer step over all replicas; each replica takes an equal part."""
    epochs: int | None = Field(default=None, ge=1)
    """Passes over the training split; the default, where `steps` is not given either, is DEFAULT_EPOCHS."""
    steps: int | None = Field(default=None, ge=1)
    """Optimizer steps, instead of `epochs`."""
    warmup_steps: Annotated[int | Literal["auto"], BeforeValidator(_number_or_auto)] = DEFAULT_WARMUP_STEPS
    """First steps that are trained like the others but left out of the measured speed.

    `auto`: the default number, and of the others as many as `dpcompare.results.steadiness.steps_to_settle` finds in the
    recorded steps when the run has ended; nothing of what is trained or recorded depends on it.
    """
    optimizer: Annotated[str, AfterValidator(one_of("optimizer", OPTIMIZERS))] = "adam"
    learning_rate: float = Field(default=1e-3, gt=0, strict=False)
    schedule: Schedule = "constant"
    """How the learning rate changes after its warm-up; see `dpcompare.training.schedule`."""
    lr_warmup_steps: int = Field(default=0, ge=0)
    """First steps over which the learning rate rises linearly to its full value."""
    scale_lr: ScaleLr = "none"
    """`linear`: the learning rate is that of a global batch of 256 and grows with the batch."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1, strict=False)
    """Share of each training label that is spread evenly over all classes (Szegedy et al. 2016, section 7).

    An evaluation's loss is that of the labels as they are.
    """
    weight_decay: float = Field(default=0.0, ge=0, strict=False)
    """Decoupled from the gradient; with `adam` this is AdamW. See `dpcompare.backends.update_rules`."""
    clip_norm: float | None = Field(default=None, gt=0, strict=False)
    """Largest norm of the gradient over all parameters: a longer one is scaled down to it. None: no limit."""
    weight_average: float | None = Field(default=None, gt=0, lt=1, strict=False)
    """Evaluations are of an exponential moving average of the weights with this decay. None: of the weights."""
    batchnorm_recompute: int = Field(default=0, ge=0)
    """Training batches over which an evaluation recomputes BatchNorm's running statistics; see
    `dpcompare.training.evaluated`."""
    accumulate: int = Field(default=1, ge=1)
    """Micro-batches per optimizer step: each replica's part of the batch in this many parts, gradients summed."""
    batchnorm: BatchNorm = "local"
    """`local`: each replica normalises by its part of the batch. `sync`: by the batch of all replicas."""
    batchnorm_momentum: float = Field(default=DEFAULT_BATCHNORM_MOMENTUM, ge=0, lt=1, strict=False)
    """Fraction of BatchNorm's running statistics that a step keeps, as in Keras; torch's momentum is 1 minus this.

    The 0.99 of EfficientNet's reference code needs some 500 steps to forget the initial statistics: until then an
    evaluation is at chance, however well the model is trained. 0.9 needs 50.
    """
    regularization: Regularizing = "off"
    """`shared`: dropout and stochastic depth, drawn on the host for all frameworks; see
    `dpcompare.data.regularization`."""
    precision: Annotated[Precision, BeforeValidator(_no_float16)] = "float32"
    """`bfloat16` keeps the weights in float32 and computes in bfloat16."""
    profile: Profile = "strict"
    """`strict`: the same in all frameworks. `native`: each framework's faster settings; see
    `dpcompare.config.tuning`."""
    seed: int = Field(default=0, ge=0, le=LARGEST_SEED)
    """Seed of the initial weights, the sample order, the augmentation and the regularization."""
    augment: tuple[Annotated[str, AfterValidator(one_of("augmentation", AUGMENTATIONS))], ...] = Field(
        default=(), strict=False
    )
    skip_corrupt: bool = False
    """Leave out images that cannot be decoded, and count them, instead of refusing the dataset."""
    follow_links: bool = False
    """Whether links in a folder of images may lead out of it."""

    @model_validator(mode="before")
    @classmethod
    def _leave_a_step_to_measure(cls, values: Any) -> Any:
        steps = values.get("steps") if isinstance(values, dict) else None
        if type(steps) is int and 0 < steps <= DEFAULT_WARMUP_STEPS and "warmup_steps" not in values:
            return values | {"warmup_steps": steps - 1}
        return values

    @model_validator(mode="after")
    def _check(self) -> Workload:
        problems = []
        if is_custom(self.model) and self.batchnorm_momentum != DEFAULT_BATCHNORM_MOMENTUM:
            problems.append("batchnorm_momentum: received with a custom model, which sets it itself; expected none")
        if is_custom(self.model) and self.batchnorm_recompute:
            problems.append(
                "batchnorm_recompute: received with a custom model, whose momentum dpcompare does not know; expected 0"
            )
        if is_custom_dataset(self.dataset) and self.skip_corrupt:
            problems.append("skip_corrupt: received with a custom dataset; leave such items out there")
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
        if self.steps is not None and self.least_warmup_steps >= self.steps:
            problems.append(
                f"warmup_steps: received {self.warmup_in_words} of {counted(self.steps, 'step')}, which leaves none to "
                "measure; expected fewer warm-up steps than steps"
            )
        raise_problems(problems)
        return self

    def batchnorm_values(self, rows: int) -> int | None:
        """Values per channel in the smallest batch-normalised feature map of `rows` images."""
        stride = model_of(self.model).batchnorm_stride
        return None if stride is None else rows * (-(-self.image_size // stride)) ** 2

    @property
    def in_words(self) -> str:
        """Such as `mlp on digits, 64 px, global batch 32, 1 epoch, speed measured after 5 steps`."""
        length = counted(self.steps, "step") if self.steps else counted(self.num_epochs, "epoch")
        return (
            f"{self.model} on {self.dataset}, {self.image_size} px, global batch {self.global_batch_size}, {length}, "
            f"speed measured after {self.warmup_in_words} step{'' if self.warmup_steps == 1 else 's'}"
        )

    @property
    def least_warmup_steps(self) -> int:
        """First steps that are never measured."""
        return DEFAULT_WARMUP_STEPS if self.warmup_steps == "auto" else self.warmup_steps

    @property
    def warmup_in_words(self) -> str:
        """Such as `5`, or `5 or more`."""
        return f"{self.least_warmup_steps} or more" if self.warmup_steps == "auto" else str(self.warmup_steps)

    @property
    def num_epochs(self) -> int:
        """Epochs to train where the number of steps is not given instead."""
        return self.epochs or DEFAULT_EPOCHS

    def total_steps(self, num_train: int) -> int:
        """Optimizer steps of a complete run over a training split of `num_train` samples."""
        if self.steps is not None:
            return self.steps
        return self.num_epochs * steps_per_epoch(num_train, self.global_batch_size)
