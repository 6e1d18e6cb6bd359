"""Checkpoints of a model of two tensors: made, compared, and forged."""

import json

import numpy as np

from dpcompare.results.checkpoint import Checkpoint

TRAINING = "a" * 64


def made(step=3, **changes):
    fields = {
        "model": {"weight": np.arange(6.0).reshape(2, 3), "bias": np.float32([1.5, -0.0])},
        "optimizer": {"momentum.weight": np.full((2, 3), 1 / 3)},
    }
    return Checkpoint(step=step, training=TRAINING, **fields | changes)


def equal(first, second):
    return (first.step, first.training) == (second.step, second.training) and all(
        a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)
        for a, b in ((first.model, second.model), (first.optimizer, second.optimizer))
    )


def sealed(header):
    """A file with this header whose checksum is right, as anybody can compute it."""
    import hashlib

    encoded = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    content = len(encoded).to_bytes(8, "little") + encoded + bytes(8)
    checksum = hashlib.sha256(content).hexdigest().encode()
    return content.replace(b'"checksum":"' + b"0" * 64, b'"checksum":"' + checksum, 1)
