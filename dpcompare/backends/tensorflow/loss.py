"""The loss of each row, by TensorFlow's kernels."""

from __future__ import annotations

import tensorflow as tf


def cross_entropies(labels: tf.Tensor, logits: tf.Tensor, smoothing: float = 0.0) -> tf.Tensor:
    """The cross-entropy of each row of logits with its label.

    With `smoothing`, with a target of 1 - smoothing + smoothing / classes for the label and smoothing / classes for
    every other class (Szegedy et al. 2016, section 7), as torch's `cross_entropy(label_smoothing=...)`.
    """
    if not smoothing:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    num_classes = logits.shape[-1]
    other_weight = smoothing / num_classes
    targets = tf.one_hot(labels, num_classes, 1 - smoothing + other_weight, other_weight, dtype=logits.dtype)
    return tf.nn.softmax_cross_entropy_with_logits(labels=targets, logits=logits)
