"""The names of augmentations and datasets, and how many steps an epoch has: all that is known without NumPy."""

from __future__ import annotations

from dpcompare.system.python_environment import is_custom

CROP = "crop"
AUGMENTATIONS = ("flip", "brightness", "contrast", CROP)

HUGGING_FACE = "hf:"
"""How the name of a dataset of Hugging Face begins."""


def is_hugging_face(name: str) -> bool:
    """Whether a dataset is one that the library `datasets` loads."""
    return name.startswith(HUGGING_FACE)


def is_custom_dataset(name: str) -> bool:
    """Whether a dataset is named `package.module:NAME`."""
    return is_custom(name) and not is_hugging_face(name)


def steps_per_epoch(num_samples: int, global_batch_size: int) -> int:
    return -(-num_samples // global_batch_size)


def parts_trained(num_samples: int, global_batch_size: int, *, num_parts: int, num_steps: int) -> int:
    """How many parts of the first global batches hold a sample, each batch being cut into `num_parts` in order."""
    epochs, steps = divmod(num_steps, steps_per_epoch(num_samples, global_batch_size))
    return epochs * -(-num_samples // (global_batch_size // num_parts)) + steps * num_parts


def samples_trained(num_samples: int, global_batch_size: int, *, num_steps: int) -> int:
    """How many samples count in the first steps; one that comes again in the next epoch counts again."""
    epochs, steps = divmod(num_steps, steps_per_epoch(num_samples, global_batch_size))
    return epochs * num_samples + steps * global_batch_size
