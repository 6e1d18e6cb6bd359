"""Keras models, in each framework that Keras computes with."""

from __future__ import annotations

import os


def compute_with(framework: str) -> None:
    """Have Keras compute with a framework once this process imports it, whatever a user's keras.json says."""
    os.environ["KERAS_BACKEND"] = framework
    # Where torch makes a model; its values on a GPU would be there in addition to those that are trained.
    os.environ["KERAS_TORCH_DEVICE"] = "cpu"
