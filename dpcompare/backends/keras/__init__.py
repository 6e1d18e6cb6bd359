"""Keras models, in each framework that Keras computes with."""

from __future__ import annotations

import os


def compute_with(framework: str) -> None:
    """Have Keras compute with a framework once it is imported, whatever a user's KERAS_BACKEND or keras.json says."""
    os.environ["KERAS_BACKEND"] = framework
