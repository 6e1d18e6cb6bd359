"""A workload: what is trained, independent of what trains it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, model_validator

from dpcompare.config import gpu_defaults
from dpcompare.config.optimizers import OPTIMIZERS
from dpcompare.config.other_names import name_here
from dpcompare.config.setting import (
    DATA,
    MEASUREMENT,
    TRAINING,
    Changes,
    Config,
    Option,
    one_of,
    raise_problems,
    setting,
    settings_of,
)
from dpcompare.data.names import AUGMENTATIONS, is_custom_dataset, steps_per_epoch
from dpcompare.models.architectures import MODELS, may_have_batchnorm, misfits, model_of
from dpcompare.models.spec import DRAWN, ZERO_INIT
from dpcompare.system.python_environment import is_custom
from dpcompare.system.terminal_text import pluralize

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


def _number_or_auto(received: Any) -> Any:
    if received != "auto" and (not isinstance(received, int) or isinstance(received, bool) or received < 0):
        raise ValueError(f"warmup_steps: received {received!r}, expected a number of steps from 0 on, or auto")
    return received


def _named_here(setting: str) -> BeforeValidator:
    def check(received: Any) -> Any:
        try:
            return name_here(setting, received)
        except ValueError as error:
            raise ValueError(f"{setting}: {error}") from None

    return BeforeValidator(check)


class Workload(Config):
    """What is trained; says nothing of frameworks, modes or devices.

    The defaults are small enough for a CPU, and the same on every device. The command line takes larger ones on GPUs,
    see `dpcompare.config.gpu_defaults`.
    """

    model_config = ConfigDict(strict=True)

    model: Annotated[str, AfterValidator(one_of("model", MODELS, or_custom=True)), _named_here("model")] = setting(
        "efficientnet-b2",
        changes=Changes.BATCHES | Changes.FIRST_LOSS | Changes.STEP_TIME,
        option=Option(
            TRAINING,
            help=f"One of {', '.join(MODELS)}; package.module:NAME; or timm:NAME, torchvision:NAME, keras:NAME.",
        ),
    )
    """A name of `dpcompare.models.architectures.MODELS`, or `package.module:NAME` of a custom model; see
    `dpcompare.models.custom`."""
    weights: str = setting(
        DRAWN,
        changes=Changes.FIRST_LOSS,
        same_training=True,
        option=Option(
            TRAINING,
            metavar=f"{DRAWN}|{ZERO_INIT}|imagenet|FILE",
            help="FILE: safetensors or .pth, named as by timm or torchvision, or a Keras file; a classifier for other "
            f"classes is drawn afresh. {ZERO_INIT}: {DRAWN}, but residual branches of ResNet add nothing at first.",
        ),
    )
    """Initial weights: `random`, `zero-init` (random, but the last BatchNorm of each residual branch has scale 0, as in
    Goyal et al. 2017), `imagenet` (timm's published ones), or the path of a file of torchvision, timm or Keras."""
    global_batch_size: int = setting(
        32,
        ge=1,
        changes=Changes.BATCHES | Changes.FIRST_LOSS | Changes.STEP_TIME,
        option=Option(
            TRAINING,
            flags=("--global-batch-size", "--batch-size"),
            on_gpus=f"{gpu_defaults.IMAGES_PER_REPLICA} per replica, twice as many from "
            f"{gpu_defaults.LARGE_MEMORY // 10**9} GB on",
            help="Images per step over all replicas.",
        ),
    )
    epochs: int | None = setting(
        None,
        ge=1,
        changes=Changes.BATCHES | Changes.LATER_LOSSES,
        same_training=True,
        option=Option(
            TRAINING,
            default=str(DEFAULT_EPOCHS),
            on_gpus=pluralize(gpu_defaults.WARMUP_STEPS + gpu_defaults.MEASURED_STEPS, "step"),
            resumable=True,
            help="Passes over the training split.",
        ),
    )
    steps: int | None = setting(
        None,
        ge=1,
        changes=Changes.BATCHES | Changes.LATER_LOSSES,
        same_training=True,
        option=Option(TRAINING, on_gpus="", resumable=True, help="Optimizer steps, instead of --epochs."),
    )
    precision: Annotated[Precision, _named_here("precision")] = setting(
        "float32",
        changes=Changes.BATCHES | Changes.FIRST_LOSS | Changes.STEP_TIME,
        option=Option(TRAINING, help="bfloat16 keeps the weights in float32 and computes in bfloat16."),
    )
    optimizer: Annotated[str, AfterValidator(one_of("optimizer", OPTIMIZERS)), _named_here("optimizer")] = setting(
        "adam",
        changes=Changes.FIRST_GRADIENT | Changes.STEP_TIME,
        option=Option(TRAINING, choices=tuple(OPTIMIZERS), help="Rule by which gradients update the weights."),
    )
    learning_rate: float = setting(
        1e-3,
        gt=0,
        strict=False,
        changes=Changes.SECOND_LOSS,
        option=Option(TRAINING, flags=("--learning-rate", "--lr"), help="Learning rate after its warm-up."),
    )
    schedule: Schedule = setting(
        "constant", changes=Changes.SECOND_LOSS, option=Option(TRAINING, help="Schedule of the learning rate.")
    )
    """How the learning rate changes after its warm-up; see `dpcompare.training.schedule`."""
    lr_warmup_steps: int = setting(
        0,
        ge=0,
        changes=Changes.SECOND_LOSS,
        option=Option(TRAINING, help="First steps in which the learning rate rises linearly."),
    )
    scale_lr: ScaleLr = setting(
        "none",
        changes=Changes.SECOND_LOSS,
        option=Option(
            TRAINING, help="linear: --learning-rate is that of a global batch of 256 and grows with the batch."
        ),
    )
    weight_decay: float = setting(
        0.0,
        ge=0,
        strict=False,
        changes=Changes.SECOND_LOSS | Changes.STEP_TIME,
        option=Option(
            TRAINING,
            metavar="RATE",
            in_verify=True,
            help="Decoupled: each step multiplies kernels by 1 - learning rate x RATE; with adam this is AdamW.",
        ),
    )
    clip_norm: float | None = setting(
        None,
        gt=0,
        strict=False,
        changes=Changes.FIRST_GRADIENT | Changes.STEP_TIME,
        option=Option(
            TRAINING,
            metavar="NORM",
            in_verify=True,
            help="A gradient of a larger norm, over all parameters, is scaled down to it.",
        ),
    )
    weight_average: float | None = setting(
        None,
        gt=0,
        lt=1,
        strict=False,
        changes=Changes.LAST_EVALUATION | Changes.STEP_TIME,
        option=Option(
            TRAINING, metavar="DECAY", in_verify=True, help="Evaluate an exponential moving average of the weights."
        ),
    )
    accumulate: int = setting(
        1,
        ge=1,
        changes=Changes.FIRST_LOSS | Changes.NORMALISATION | Changes.STEP_TIME,
        option=Option(
            TRAINING,
            flags=("--accumulate", "--microbatches"),
            in_verify=True,
            help="Micro-batches per step and replica, gradients added up.",
        ),
    )
    batchnorm: BatchNorm = setting(
        "local",
        changes=Changes.FIRST_LOSS | Changes.NORMALISATION | Changes.STEP_TIME,
        option=Option(
            TRAINING,
            in_verify=True,
            help="local: statistics of each replica's part of a batch. sync: of the whole batch.",
        ),
    )
    batchnorm_momentum: float = setting(
        DEFAULT_BATCHNORM_MOMENTUM,
        ge=0,
        lt=1,
        strict=False,
        changes=Changes.EVALUATIONS,
        option=Option(TRAINING, in_verify=True, help="Fraction of the running statistics that a step keeps."),
    )
    """Fraction of BatchNorm's running statistics that a step keeps, as in Keras; torch's momentum is 1 minus this.

    The 0.99 of EfficientNet's reference code needs some 500 steps to forget the initial statistics: until then an
    evaluation is at chance, however well the model is trained. 0.9 needs 50.
    """
    batchnorm_recompute: int = setting(
        0,
        ge=0,
        changes=Changes.LAST_EVALUATION,
        option=Option(
            TRAINING,
            metavar="BATCHES",
            in_verify=True,
            help="Recompute the running statistics over so many training batches before each evaluation.",
        ),
    )
    label_smoothing: float = setting(
        0.0,
        ge=0,
        lt=1,
        strict=False,
        changes=Changes.FIRST_LOSS | Changes.STEP_TIME,
        option=Option(
            TRAINING,
            metavar="FRACTION",
            in_verify=True,
            help="Fraction of each label's weight spread evenly over all classes.",
        ),
    )
    """Share of each training label that is spread evenly over all classes (Szegedy et al. 2016, section 7).

    An evaluation's loss is that of the labels as they are.
    """
    regularization: Regularizing = setting(
        "off",
        changes=Changes.BATCHES | Changes.FIRST_LOSS | Changes.STEP_TIME,
        option=Option(
            TRAINING,
            in_verify=True,
            help="shared: dropout and stochastic depth, drawn once on the host for all frameworks.",
        ),
    )
    seed: int = setting(
        0,
        ge=0,
        le=LARGEST_SEED,
        changes=Changes.BATCHES | Changes.FIRST_LOSS,
        option=Option(
            TRAINING, in_verify=True, help="Seed of initial weights, sample order, augmentation and regularization."
        ),
    )
    dataset: str = setting(
        "digits",
        changes=Changes.BATCHES | Changes.FIRST_LOSS | Changes.STEP_TIME,
        same_training=True,
        option=Option(
            DATA,
            on_gpus=gpu_defaults.DATASET,
            in_verify=True,
            help="digits, synthetic, a prepared store, a folder of images, hf:NAME of Hugging Face, or "
            "package.module:NAME.",
        ),
    )
    """`digits`, `synthetic`, the path of a prepared store or of a folder of images, `package.module:NAME` of a custom
    dataset, or `hf:NAME` of one that the library `datasets` loads; see `dpcompare.data.hugging_face`."""
    image_size: int = setting(
        64,
        ge=1,
        le=4096,
        changes=Changes.BATCHES | Changes.FIRST_LOSS | Changes.STEP_TIME,
        option=Option(DATA, on_gpus="the model's own", in_verify=True, help="Side of the square input in pixels."),
    )
    augment: tuple[Annotated[str, AfterValidator(one_of("augmentation", AUGMENTATIONS))], ...] = setting(
        (),
        strict=False,
        changes=Changes.BATCHES | Changes.FIRST_LOSS | Changes.STEP_TIME,
        option=Option(
            DATA,
            metavar="LIST",
            default="none",
            in_verify=True,
            help=f"Some of {','.join(AUGMENTATIONS)}, separated by commas.",
        ),
    )
    skip_corrupt: bool = setting(
        False,
        changes=Changes.BATCHES,
        same_training=True,
        option=Option(DATA, scope="study", help="Leave out images that cannot be decoded, and count them."),
    )
    follow_links: bool = setting(
        False,
        changes=Changes.BATCHES,
        same_training=True,
        option=Option(DATA, scope="study", help="Read images to which links lead that leave the dataset's folder."),
    )
    profile: Profile = setting(
        "strict",
        changes=Changes.SPEED | Changes.STEP_TIME,
        option=Option(
            MEASUREMENT,
            in_verify=True,
            help="strict: the same in all frameworks. native: each framework's faster settings.",
        ),
    )
    warmup_steps: Annotated[int | Literal["auto"], BeforeValidator(_number_or_auto)] = setting(
        DEFAULT_WARMUP_STEPS,
        changes=Changes.SPEED,
        same_training=True,
        option=Option(
            MEASUREMENT,
            on_gpus=f"without --epochs {gpu_defaults.WARMUP_STEPS}, at most a quarter of --steps",
            resumable=True,
            help="Steps at the start that are left out of the measured speed; of fewer steps, all but one. auto: 5, "
            "and as many more as it took the steps to settle, a third at most.",
        ),
    )
    """First steps that are trained like the others but left out of the measured speed.

    `auto`: the default number, and of the others as many as `dpcompare.results.steadiness.steps_to_settle` finds in the
    recorded steps when the run has ended; nothing of what is trained or recorded depends on it.
    """

    @model_validator(mode="wrap")
    @classmethod
    def _leave_a_step_to_measure(cls, values: Any, validate: Callable[[Any], Self]) -> Self:
        steps = values.get("steps") if isinstance(values, dict) else None
        if type(steps) is not int or not 0 < steps <= DEFAULT_WARMUP_STEPS or "warmup_steps" in values:
            return validate(values)
        fitting = validate(values | {"warmup_steps": steps - 1})
        fitting.model_fields_set.discard("warmup_steps")  # it was derived, so more steps may derive another
        return fitting

    @model_validator(mode="after")
    def _check(self) -> Workload:
        problems = []
        if is_custom(self.model) and self.batchnorm_momentum != DEFAULT_BATCHNORM_MOMENTUM:
            problems.append("batchnorm_momentum: received with a custom model, which sets it itself; expected none")
        if is_custom(self.model) and self.batchnorm_recompute:
            problems.append("batchnorm_recompute: received with a custom model, whose momentum is unknown; expected 0")
        if is_custom_dataset(self.dataset) and self.skip_corrupt:
            problems.append("skip_corrupt: received with a custom dataset; leave such items out there")
        asked = {name: getattr(self, name) for name in ("image_size", "regularization", "weights")}
        problems += misfits(self.model, **asked)
        if self.epochs is not None and self.steps is not None:
            problems.append(f"received both epochs={self.epochs} and steps={self.steps}; give only one of them")
        if self.steps is not None and self.least_warmup_steps >= self.steps:
            problems.append(
                f"warmup_steps: received {self.warmup_in_words} of {pluralize(self.steps, 'step')}, which leaves none "
                "to measure; expected fewer warm-up steps than steps"
            )
        raise_problems(problems)
        return self

    @property
    def without_effect(self) -> str | None:
        """A line about an option that the model does not act upon; None if there is none."""
        if self.batchnorm == "sync" and not may_have_batchnorm(self.model):
            return f"--batchnorm sync has no effect: {self.model} has no BatchNorm"
        return None

    def batchnorm_values(self, rows: int) -> int | None:
        """Values per channel in the smallest batch-normalised feature map of `rows` images."""
        stride = model_of(self.model).batchnorm_stride
        return None if stride is None else rows * (-(-self.image_size // stride)) ** 2

    @property
    def in_words(self) -> str:
        """Such as `mlp on digits, 64 px, global batch 32, 1 epoch, speed measured after 5 steps`."""
        length = pluralize(self.steps, "step") if self.steps else pluralize(self.num_epochs, "epoch")
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
        return self.steps or self.num_epochs * steps_per_epoch(num_train, self.global_batch_size)


WORKLOAD_SETTINGS = settings_of(Workload)
