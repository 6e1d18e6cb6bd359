"""The loss of each row."""

from __future__ import annotations

import jax
from jax import numpy as jnp


def cross_entropies(labels: jax.Array, logits: jax.Array, smoothing: float = 0.0) -> jax.Array:
    """The cross-entropy of each row of logits with its label.

    With `smoothing`, with a target of 1 - smoothing + smoothing / classes for the label and smoothing / classes for
    every other class (Szegedy et al. 2016, section 7), as torch's `cross_entropy(label_smoothing=...)`.
    """
    log_probabilities = jax.nn.log_softmax(logits)
    label_losses = -jnp.take_along_axis(log_probabilities, labels[:, None], axis=1)[:, 0]
    if not smoothing:
        return label_losses
    return (1 - smoothing) * label_losses - smoothing * log_probabilities.mean(axis=1)
