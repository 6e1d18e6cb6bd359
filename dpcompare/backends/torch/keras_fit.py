"""torch keras-fit: Keras's own `fit` on one device, to measure what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import torch
from torch import nn

from dpcompare.backends.base import Counters
from dpcompare.backends.description import Description
from dpcompare.backends.keras.build import build
from dpcompare.backends.keras.fit import LOSS_SUM, CurrentBatch, Fit, FittedModel
from dpcompare.backends.torch.backend import TorchBackend
from dpcompare.backends.torch.keras_module import KerasModule
from dpcompare.backends.torch.optimizer import load_slots
from dpcompare.data.batches import DeviceBatch
from dpcompare.models.architectures import model_of
from dpcompare.models.state import TrainingState
from dpcompare.system.type_names import Array


class KerasFit(TorchBackend):
    """Keras trains variables of its own; the module that the loop evaluates gets their values when it is asked for."""

    _is_behind = False
    """Whether Keras has made steps since the module got their values."""
    _is_ahead = True
    """Whether the module was changed since Keras got its values."""

    def build_model(self) -> nn.Module:
        names = self.inputs.layers.get("torch", {})
        self._keras = build(self.workload, self.inputs.num_classes, "torch", names, self._scope)
        return KerasModule(self._keras, self.workload.model)

    def _scope(self) -> AbstractContextManager[Any]:
        """Keras keeps its device for each thread."""
        scope: AbstractContextManager[Any] = keras.device(str(self.device))
        return scope

    def setup(self) -> None:
        super().setup()
        with self._scope():
            self._fitted = FittedModel(self._keras, self.row_losses, jit_compile=False)
        self._rate: float | None = None
        self._fit = Fit(self._keras, CurrentBatch(), self._scope)

    def train_step(self, batches: Sequence[DeviceBatch], learning_rate: float) -> torch.Tensor:
        if self._is_ahead:
            self._give_to_keras()
        self._step += 1
        (batch,) = batches
        if learning_rate != self._rate:  # to write it waits for a GPU
            self._rate = learning_rate
            with self._scope():
                self._fitted.adam.learning_rate.assign(np.float64(learning_rate))
        images = batch.images.permute(0, 2, 3, 1)
        logs = self._fit.step((images, batch.labels, batch.weights / batch.global_count))
        self._mark_end_of_step()
        self._is_behind = True
        loss_sum: torch.Tensor = logs[LOSS_SUM].detach()
        return loss_sum

    def _take_from_keras(self) -> None:
        self._is_behind = False
        found = self._fitted.state()
        self._load_model(found.model)
        load_slots(
            self.optimizer, dict(self.model.named_parameters()), found.optimizer, found.step, self.parallel.copy_into
        )

    def _give_to_keras(self) -> None:
        with self._scope():
            self._fitted.load(
                TrainingState(
                    model=self._on_host(self._tensors()), optimizer=self._on_host(self._slots()), step=self._step
                ),
                self.workload.model,
            )
        self._is_ahead = False

    def _set_training_mode(self, *, training: bool) -> None:
        if self._is_behind:
            self._take_from_keras()
        super()._set_training_mode(training=training)

    def logits(self, batch: DeviceBatch, *, training: bool) -> Array:
        found = super().logits(batch, training=training)
        self._is_ahead |= training  # which updates running statistics
        return found

    def load_state(self, state: TrainingState) -> None:
        self._is_behind = False
        super().load_state(state)
        self._is_ahead = True

    def tensors_of_replicas(self) -> Iterator[tuple[str, Sequence[Array]]]:
        if self._is_ahead:  # as before the first step
            self._give_to_keras()
        for name, mapped, variable in self._fitted.trained():
            yield name, [mapped.on_host(variable)]

    def first_grad_norm_sq(self) -> float | None:
        if self._is_behind:
            self._take_from_keras()
        return super().first_grad_norm_sq()

    def counters(self) -> Counters:
        return Counters(optimizer_steps=self._fitted.steps.count, images=self._fitted.images_computed)

    def describe(self) -> Description:
        description = self._fitted.described(super().describe()).with_settings(memory_layout="NHWC")
        if model_of(self.workload.model).attention(self.workload.image_size):
            return description.with_settings(attention="scaled_dot_product_attention")
        return description

    @contextmanager
    def profile(self, path: Path) -> Iterator[None]:
        # Keras trains in another thread than the one that asks for the trace.
        every_thread = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        with torch.profiler.profile(experimental_config=every_thread) as profiler:
            yield
        profiler.export_chrome_trace(str(path))

    def teardown(self) -> None:
        self._fit.end()
        super().teardown()
