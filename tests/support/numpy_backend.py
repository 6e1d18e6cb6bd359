"""A backend without a framework: softmax regression in NumPy, for the tests of the core."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np

from dpcompare.backends.base import Backend, Counters
from dpcompare.data.batches import DeviceBatch, prefetch
from dpcompare.models.state import TrainingState


class NumpyBackend(Backend):
    """One replica on the host; keeps a record of what the loop asked of it."""

    packages = ("numpy",)

    def setup(self):
        features = self.workload.image_size**2 * 3
        self.weights = np.zeros((features, self.inputs.num_classes))
        self.step = 0
        self.calls = []
        self.images_computed = 0

    def prefetch_to_device(self, batch_loaders):
        return prefetch(batch_loaders, lambda load: self._to_device(load()))

    def _to_device(self, batch):
        return DeviceBatch(
            images=batch.images.reshape(len(batch.images), -1).astype(np.float64),
            labels=batch.labels,
            weights=batch.weights,
            global_count=batch.global_count,
        )

    def _forward(self, batch):
        logits = batch.images @ self.weights
        probabilities = np.exp(logits - logits.max(1, keepdims=True))
        probabilities /= probabilities.sum(1, keepdims=True)
        losses = -np.log(probabilities[np.arange(len(logits)), batch.labels]) * batch.weights
        return probabilities, losses

    def train_step(self, batches, learning_rate):
        self.calls.append("train")
        self.step += 1
        (batch,) = batches
        probabilities, losses = self._forward(batch)
        probabilities[np.arange(len(probabilities)), batch.labels] -= 1
        gradient = batch.images.T @ (probabilities * batch.weights[:, None]) / batch.global_count
        self.weights -= learning_rate * gradient
        self.images_computed += int(batch.weights.sum())
        if self.step == 1:
            self.first_gradient = gradient
        return losses.sum()

    def evaluate_step(self, batch):
        self.calls.append("evaluate")
        probabilities, losses = self._forward(batch)
        correct = (probabilities.argmax(1) == batch.labels) * batch.weights
        return np.array([losses.sum(), correct.sum(), batch.weights.sum()])

    def logits(self, batch, *, training):
        return self._forward(batch)[0]

    def to_host(self, batch):
        self.calls.append("to_host")
        return {"images": batch.images, "labels": batch.labels, "weights": batch.weights}

    def first_grad_norm_sq(self):
        return float(np.square(self.first_gradient).sum())

    def counters(self):
        return Counters(optimizer_steps=self.step, images=self.images_computed)

    def read(self, handles):
        self.calls.append("read")
        return np.array(handles, np.float64)

    def synchronize(self, *, drain=False):
        self.calls.append("synchronize")

    def reset_peak_memory(self):
        self.calls.append("reset_peak_memory")

    def state(self):
        return TrainingState(model={"weights": self.weights}, optimizer={}, step=self.step)

    def load_state(self, state):
        assert state.optimizer == {}
        self.weights, self.step = state.model["weights"], state.step

    def barrier(self):
        self.calls.append("barrier")

    def teardown(self):
        self.calls.append("teardown")

    def profile(self, path):
        return nullcontext()
