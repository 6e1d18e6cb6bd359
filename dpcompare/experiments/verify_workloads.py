"""What `dpcompare verify` trains: the workload of a model and an optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpcompare.config.optimizers import OPTIMIZERS
from dpcompare.config.workload import Workload
from dpcompare.data.names import AUGMENTATIONS
from dpcompare.models.architectures import model_of
from dpcompare.system.python_environment import is_custom
from dpcompare.system.type_names import FieldValue

BATCH = 16
"""Images per step of everything that is verified, but for the groups that cross options."""

STEPS_IN_FLOAT64 = 20
"""At least, of small models, for which they cost little; in float32 so many would show how rounding grows."""

WIDENED = {
    **{"image_size": 75, "seed": 3, "batchnorm_momentum": 0.97, "batchnorm_recompute": 2, "label_smoothing": 0.1},
    **{"weight_decay": 0.05, "weight_average": 0.8},
}
"""Values for small models: an odd size, which pads otherwise than an even one, and values that are no default."""


def verified_workload(
    model: str, optimizer: str, precision: str, *, quick: bool, asked: Mapping[str, FieldValue] = {}
) -> Workload:
    """What a model is trained with; quick: few steps of a big one. Fields that are asked for take precedence.

    Raises:
        RequestError: they make no workload.
    """
    # The 5th step is the last of the first epoch and half empty, so that padding rows must not count.
    how = OPTIMIZERS[optimizer].verification
    is_big, num_steps = model_of(model).is_big, how.num_steps
    if is_big and quick:
        num_steps = min(num_steps, 6)
    elif not (is_big or is_custom(model)) and precision == "float64":
        num_steps = max(num_steps, STEPS_IN_FLOAT64)
    fields: dict[str, Any] = {
        "model": model,
        "dataset": "synthetic-mini",
        "image_size": 64,
        "global_batch_size": BATCH,
        "steps": num_steps,
        "warmup_steps": 0,
        "optimizer": optimizer,
        "schedule": how.schedule,
        "learning_rate": how.learning_rate,
        "precision": precision,
        "augment": AUGMENTATIONS,
    }
    if is_custom(model):  # which may need its own size, and has its own BatchNorm
        fields["seed"] = WIDENED["seed"]
    elif not is_big:
        spec = model_of(model)
        fields |= WIDENED | {"clip_norm": spec.clip_norm_of_verify}
        fields["image_size"] -= fields["image_size"] % spec.multiple_of
    return Workload(**{**fields, **asked})
