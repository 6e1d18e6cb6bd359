"""Keras models, in each framework that Keras computes with."""

from __future__ import annotations

import os


def compute_with(framework: str) -> None:
    """Have Keras compute with a framework once this process imports it, whatever a user's keras.json says."""
    os.environ["KERAS_BACKEND"] = framework
    os.environ["KERAS_NNX_ENABLED"] = "0"  # otherwise Keras's layers would be modules of Flax
