"""torch pipeline: torch.distributed.pipelining, each replica's layers in processes that pass on micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from dpcompare.backends.torch.backend import TorchBackend
from dpcompare.backends.torch.ddp import DistributedDataParallel
from dpcompare.backends.torch.model import layers_of
from dpcompare.backends.torch.precision import Computation
from dpcompare.data.batches import DeviceBatch
from dpcompare.models.architectures import MODELS
from dpcompare.models.layers.in_torch import Layer
from dpcompare.models.state import TrainingState
from dpcompare.system.type_names import Array

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class StagedReplicas(DistributedDataParallel):
    """Processes (replica, stage) in this order of ranks; the same stages of all replicas sum their gradients."""

    replica: int
    """The replica that this process holds a part of, from 0."""
    stage: int
    """The part of it that this process holds, from 0."""
    stages_group: distributed.ProcessGroup
    """The processes of this replica."""

    def connect(self) -> None:
        super().connect()
        self.num_replicas = self.replication_factor = self.num_processes // self.config.stages
        self.gradient_average_over = 1
        self.replica, self.stage = divmod(self.process_rank, self.config.stages)
        mesh = init_device_mesh(
            self.device.type, (self.num_replicas, self.config.stages), mesh_dim_names=("replicas", "stages")
        )
        self.replicas_group, self.stages_group = mesh.get_group("replicas"), mesh.get_group("stages")
        self.is_first, self.is_last = self.stage == 0, self.stage == self.config.stages - 1

    def place_stages(self, model: nn.Module, micro_batch: Callable[[], torch.Tensor]) -> nn.Module:
        return model  # undivided until its tensors are loaded; see PipelineBackend.replicate

    def sum_gradients(self, model: nn.Module) -> None:
        """Give the same stages of all replicas the sum of their gradients."""
        if self.num_replicas == 1:
            return
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        distributed.all_reduce(flat, group=self.replicas_group)
        for gradient, total in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(total.view_as(gradient))

    def all_reduce_shards(self, tensor: torch.Tensor) -> torch.Tensor:
        distributed.all_reduce(tensor, group=self.stages_group)
        return tensor

    def broadcast_buffers(self, model: nn.Module) -> None:
        for buffer in model.buffers():
            distributed.broadcast(buffer, src=self.stage, group=self.replicas_group)


class PipelineBackend(TorchBackend):
    """A backend whose steps are schedules, in which stages pass on micro-batches.

    Micro-batches are those of `Workload.accumulate`: the pipeline trains what accumulation over as many would.
    """

    parallelism = StagedReplicas
    parallel: StagedReplicas

    @property
    def data_parallel_rank(self) -> int:
        return self.parallel.replica

    @property
    def data_parallel_size(self) -> int:
        return self.num_replicas

    def replicate(self) -> nn.Module:
        layers = MODELS[self.workload.model].layers
        cuts = self.parallel.cuts_of(self.model, self.blank_micro_batch())
        borders = (0, *cuts, len(layers))
        begin, end = borders[self.parallel.stage], borders[self.parallel.stage + 1]
        self._entering, self._leaving = self._features_at(begin), self._features_at(end)
        _keep(self.model, {name for layer in layers[begin:end] for name in layer}, set(chain.from_iterable(layers)))
        self._running_variance.keep(self.model)
        self._schedules: dict[int, Any] = {}
        self._stage = _Stage(self._computation(begin, end), self.features_layout)
        return self._stage

    def _computation(self, begin: int, end: int) -> Computation:
        """What some consecutive layers of the model compute."""
        consecutive = _ConsecutiveLayers(self.model, layers_of(self.model)[begin:end])
        return self.precision.computation(consecutive, self.device.type)

    def _features_at(self, layer: int) -> torch.Tensor:
        """What the layers before this one make of one image, passed from one stage to the next; it holds no values."""
        images = self.blank_images(1)
        before = self._computation(0, layer)
        training = self.model.training
        with torch.no_grad():
            features = before.eval()(images)
        before.train(training)
        return features.to("meta")

    def train_step(self, batches: Sequence[DeviceBatch], learning_rate: float) -> torch.Tensor:
        self._set_training_mode(training=True)
        self._step += 1
        self.optimizer.zero_grad(set_to_none=True)
        rows = len(batches[0].labels)
        schedule = self._schedule(len(batches), rows)
        self._stage.drop_masks = iter([batch.drop_masks for batch in batches])
        self._loss_sums: list[torch.Tensor] = []
        self._global_count = batches[0].global_count
        inputs = [torch.cat([batch.images for batch in batches])] if self.parallel.is_first else []
        schedule.step(*inputs, **({"target": self._target(batches)} if self.parallel.is_last else {}))
        for _ in batches:
            self._running_variance.count_update(rows)
        self.parallel.sum_gradients(self.model)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        return (
            torch.stack(self._loss_sums).sum() if self.parallel.is_last else torch.zeros((), dtype=self.precision.dtype)
        )

    def _target(self, batches: Sequence[DeviceBatch]) -> torch.Tensor:
        """Labels and weights side by side, (rows, 2): one tensor, since that is what is cut into micro-batches."""
        labels = torch.cat([batch.labels for batch in batches]).to(self.precision.dtype)
        return torch.stack([labels, torch.cat([batch.weights for batch in batches])], 1)

    def _schedule(self, num_micro_batches: int, rows: int) -> Any:
        if num_micro_batches not in self._schedules:
            # Given what enters and leaves, since it would try by a forward pass that moves running statistics.
            stage = PipelineStage(
                self._stage,
                self.parallel.stage,
                self.config.stages,
                self.device,
                input_args=(_rows_of(self._entering, rows).requires_grad_(not self.parallel.is_first),),
                output_args=(_rows_of(self._leaving, rows).requires_grad_(),),
                group=self.parallel.stages_group,
            )
            kind = SCHEDULES[self.config.pipeline_schedule or "gpipe"]
            self._schedules[num_micro_batches] = kind(stage, num_micro_batches, loss_fn=self._loss, scale_grads=False)
        return self._schedules[num_micro_batches]

    def _loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """This micro-batch's part of the mean loss over the global batch."""
        labels, weights = target[:, 0].long(), target[:, 1]
        self._images_computed.add_(weights.sum())
        loss_sum = (self.row_losses(logits.to(weights.dtype), labels, training=True) * weights).sum()
        self._loss_sums.append(loss_sum.detach())
        return loss_sum / self._global_count

    def evaluate_step(self, batch: DeviceBatch) -> torch.Tensor:
        self._set_training_mode(training=False)
        logits = self._pass_along(batch)
        if not self.parallel.is_last:
            return torch.zeros(3, dtype=self.precision.dtype, device=self.device)
        logits = logits.to(self.precision.dtype)
        losses = self.row_losses(logits, batch.labels, training=False) * batch.weights
        correct = (logits.argmax(1) == batch.labels) * batch.weights
        return torch.stack([losses.sum(), correct.sum(), batch.weights.sum()])

    def logits(self, batch: DeviceBatch, *, training: bool) -> Array:
        self._set_training_mode(training=training)
        logits = self._pass_along(batch).to(self.precision.dtype)
        if training:
            self._running_variance.count_update(len(batch.labels))
        return logits.cpu().numpy() if self.parallel.is_last else np.empty((0, self.inputs.num_classes))

    @torch.no_grad()
    def _pass_along(self, batch: DeviceBatch) -> torch.Tensor:
        """What this stage makes of all rows of its replica, forward only; the last stage's are the logits."""
        rows = len(batch.labels)
        features = batch.images
        if not self.parallel.is_first:
            features = torch.empty_like(_rows_of(self._entering, rows), device=self.device)
            distributed.recv(features, src=self.process_rank - 1)
        self._stage.drop_masks = iter([batch.drop_masks])
        features = self._stage(features)
        if not self.parallel.is_last:
            distributed.send(features, dst=self.process_rank + 1)
        return features

    def to_host(self, batch: DeviceBatch) -> dict[str, Array]:
        """Only the last stage reports its replica's rows; the others have none."""
        arrays = super().to_host(batch)
        return arrays if self.parallel.is_last else {name: array[:0] for name, array in arrays.items()}

    def state(self) -> TrainingState:
        local = super().state()
        stages: list[Any] = [None] * self.config.stages
        distributed.all_gather_object(stages, local, group=self.parallel.stages_group)
        return replace(
            local,
            model={name: array for stage in stages for name, array in stage.model.items()},
            optimizer={name: array for stage in stages for name, array in stage.optimizer.items()},
        )

    def load_state(self, state: TrainingState) -> None:
        """Take this stage's tensors out of those of the model."""
        parameters = {name for name, _ in self.model.named_parameters()}
        super().load_state(
            replace(
                state,
                model={name: state.model[name] for name in self._tensors()},
                optimizer={
                    name: array for name, array in state.optimizer.items() if name.partition(".")[2] in parameters
                },
            )
        )


class _ConsecutiveLayers(nn.Module):
    """Some consecutive layers of a model."""

    def __init__(self, model: nn.Module, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.model = model
        self._layers = layers

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        x = features
        for layer in self._layers:
            x = layer(x)
        return x


class _Stage(nn.Module):
    """A stage of the pipeline, which multiplies each micro-batch, in their order, by the drop masks of its rows."""

    drop_masks: Iterator[torch.Tensor | None]

    def __init__(self, computation: Computation, layout: torch.memory_format) -> None:
        super().__init__()
        self.computation = computation
        self._layout = layout

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        entering = _StageInput.apply(features, self._layout if features.dim() == 4 else torch.contiguous_format)
        return self.computation(entering, next(self.drop_masks)).contiguous()


class _StageInput(torch.autograd.Function):
    """Into the layout that a stage computes in, and gradients back into the only one that gloo sends."""

    @staticmethod
    def forward(context: Any, features: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
        return features.contiguous(memory_format=layout)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient.contiguous(), None


def _rows_of(features: torch.Tensor, rows: int) -> torch.Tensor:
    return features.expand(rows, *features.shape[1:]).contiguous()


def _keep(model: nn.Module, kept: set[str], names: set[str]) -> None:
    """Take the layers of other stages out of a model, whose names stay."""
    for name in names - kept:
        parent, _, child = name.rpartition(".")
        holder = model.get_submodule(parent)
        # A parameter's place takes no module.
        setattr(holder, child, None if child in dict(holder.named_parameters(recurse=False)) else nn.Identity())
