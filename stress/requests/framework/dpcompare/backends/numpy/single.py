"""The mode `single` of NumPy: the model mlp, by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from dpcompare.backends.base import Backend
from dpcompare.config.optimizers import SGD_MOMENTUM
from dpcompare.data.batches import BatchLoader, DeviceBatch, HostBatch, prefetch
from dpcompare.models.sealed import read_weights
from dpcompare.models.state import TrainingState

Array = npt.NDArray[Any]


class Single(Backend):
    """One hidden layer with ReLU, trained by SGD with momentum in float64."""

    packages = ("numpy",)

    def setup(self) -> None:
        self._tensors = {name: value.astype(np.float64) for name, value in read_weights(self.inputs.weights).items()}
        self._momentum = {name: np.zeros_like(value) for name, value in self._tensors.items()}
        self._step = 0

    def prefetch_to_device(self, batch_loaders: Iterable[BatchLoader]) -> Iterator[DeviceBatch]:
        return prefetch(batch_loaders, lambda read: _flat(read()))

    def train_step(self, batches: Sequence[DeviceBatch], learning_rate: float) -> float:
        (batch,) = batches
        self._step += 1
        hidden, logits = self._forward(batch)
        probabilities, losses = _softmax(logits, batch)
        probabilities[np.arange(len(logits)), batch.labels] -= 1
        of_logits = probabilities * batch.weights[:, None] / batch.global_count
        of_hidden = (of_logits @ self._tensors["fc2.weight"]) * (hidden > 0)
        gradients = {
            "fc1.weight": of_hidden.T @ batch.images,
            "fc1.bias": of_hidden.sum(0),
            "fc2.weight": of_logits.T @ hidden,
            "fc2.bias": of_logits.sum(0),
        }
        for name, gradient in gradients.items():
            self._momentum[name] = SGD_MOMENTUM * self._momentum[name] + gradient
            self._tensors[name] = self._tensors[name] - learning_rate * self._momentum[name]
        return float(losses.sum())

    def evaluate_step(self, batch: DeviceBatch) -> tuple[float, float, float]:
        _, logits = self._forward(batch)
        _, losses = _softmax(logits, batch)
        correct = (logits.argmax(1) == batch.labels) * batch.weights
        return float(losses.sum()), float(correct.sum()), float(batch.weights.sum())

    def logits(self, batch: DeviceBatch, *, training: bool) -> Array:
        return self._forward(batch)[1]

    def read(self, handles: Sequence[Any]) -> npt.NDArray[np.float64]:
        return np.array(handles, np.float64)

    def synchronize(self, *, drain: bool = False) -> None:
        """A call returns when it is done."""

    def state(self) -> TrainingState:
        memory = {f"momentum.{name}": value for name, value in self._momentum.items()}
        return TrainingState(model=dict(self._tensors), optimizer=memory, step=self._step)

    def load_state(self, state: TrainingState) -> None:
        self._tensors, self._step = dict(state.model), state.step
        self._momentum = {name: state.optimizer[f"momentum.{name}"] for name in self._tensors}

    def barrier(self) -> None:
        """There is one process."""

    def teardown(self) -> None:
        """There is one process."""

    def _forward(self, batch: DeviceBatch) -> tuple[Array, Array]:
        hidden = np.maximum(batch.images @ self._tensors["fc1.weight"].T + self._tensors["fc1.bias"], 0)
        return hidden, hidden @ self._tensors["fc2.weight"].T + self._tensors["fc2.bias"]


def _flat(batch: HostBatch) -> DeviceBatch:
    return DeviceBatch(
        images=batch.images.reshape(len(batch.images), -1).astype(np.float64),
        labels=batch.labels,
        weights=batch.weights,
        global_count=batch.global_count,
    )


def _softmax(logits: Array, batch: DeviceBatch) -> tuple[Array, Array]:
    """Probabilities, and the loss of every row that counts."""
    shifted = logits - logits.max(1, keepdims=True)
    probabilities = np.exp(shifted)
    probabilities /= probabilities.sum(1, keepdims=True)
    losses = -np.log(probabilities[np.arange(len(logits)), batch.labels]) * batch.weights
    return probabilities, losses
