"""The names of augmentations, and of datasets that are no paths; here, so that a config can be read without NumPy."""

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
