"""What the torch modes share: model, data, one training step, one evaluation step."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from dpcompare.backends.base import Backend, State
from dpcompare.backends.torch.batchnorm import RunningVariance, synchronize_batch_norms
from dpcompare.backends.torch.model import SharedDrop, build_model, set_factors
from dpcompare.backends.torch.optimizer import SLOTS, build_optimizer, load_slots
from dpcompare.data.batches import DeviceBatch, HostBatch, prefetch
from dpcompare.models.architectures import IMAGE_CHANNELS
from dpcompare.system.cache import cache_dir


class Computation(nn.Module):
    """A model as each replica computes it: in bfloat16 where asked, its features multiplied by the factors of its rows.

    Autocast is a setting of a thread, and nn.DataParallel passes on to its threads that it is on but not its dtype:
    entered outside, replicas on GPUs would compute in float16. Factors enter here because replicas are copies of modules.
    """

    def __init__(self, module: nn.Module, device_type: str, *, enabled: bool) -> None:
        super().__init__()
        self.module = module
        self._device_type, self._enabled = device_type, enabled
        self._regularized = any(isinstance(layer, SharedDrop) for layer in module.modules())

    def forward(self, images: torch.Tensor, drop_masks: torch.Tensor | None = None) -> torch.Tensor:
        if self._regularized:
            set_factors(self.module, drop_masks)
        if not self._enabled:
            return self.module(images)
        with torch.autocast(self._device_type, torch.bfloat16):
            return self.module(images)


class TorchBackend(Backend):
    """One process that trains on `self.device`; the modes say how replicas are made and connected."""

    packages: ClassVar[tuple[str, ...]] = ("torch", "timm")

    device: torch.device
    model: nn.Module
    """The model itself, whose tensors are those of replica 0 in this process."""
    replicated: nn.Module
    """The model as the mode trains it."""

    gradient_average_over = 1
    """Processes over which the mode averages gradients, where a sum is wanted."""

    def connect(self) -> None:
        """Join the other processes and choose `self.device`."""
        self.device = torch.device("cuda" if self.config.cluster.device_type == "gpu" else "cpu")

    @property
    def parameter_layout(self) -> torch.memory_format:
        return self._memory_format

    def split(self, model: nn.Module) -> nn.Module:
        """The model as it computes where a replica has several devices."""
        return model

    def replicate(self, model: nn.Module) -> nn.Module:
        """The model on all devices of this mode."""
        return model

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over all replicas, differentiable; called by every replica in its forward pass."""
        return tensor

    def broadcast_buffers(self) -> None:
        """Give every replica the BatchNorm statistics of replica 0."""

    def build_optimizer(self) -> torch.optim.Optimizer:
        """Of the model as it is replicated."""
        return build_optimizer(self.workload.optimizer, self.model.parameters(), self.optimizer_kernels)

    @property
    def optimizer_kernels(self) -> str:
        return self.config.tuning["optimizer_kernels"]

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self) -> None:
        self.optimizer.step()

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the model or the optimizer, put together where replicas share it out; all must call it."""
        return tensor.detach()

    def fill(self, tensor: torch.Tensor, values: npt.NDArray[Any]) -> None:
        """Replace what a tensor, whole or shared out, holds."""
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(values))

    def gradient_sync(self, gradients: bool) -> AbstractContextManager[None]:
        """Whether a backward pass exchanges gradients: only the last micro-batch of a step does."""
        return nullcontext()

    def build_model(self) -> nn.Module:
        """The model to train, on the host; override it together with `initial_state` to train one of your own."""
        return build_model(self.workload, self.inputs.num_classes)

    def setup(self) -> None:
        self._training: bool | None = None
        workload = self.workload
        tuning = self.config.tuning
        torch.set_num_threads(self.config.topology.threads_per_process)
        # TF32 keeps 10 bits of the mantissa; TensorFlow's switch is set the same way.
        torch.backends.cuda.matmul.allow_tf32 = workload.profile == "native"
        torch.backends.cudnn.allow_tf32 = workload.profile == "native"
        # TensorFlow measures convolution algorithms before it chooses one, torch only if told to.
        torch.backends.cudnn.benchmark = True
        self.connect()
        model = self.build_model()
        self._dtype = torch.float64 if workload.precision == "float64" else torch.float32
        model = model.to(self._dtype)
        channels_last = tuning["memory_layout"] == "NHWC"
        self._memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.model = model.to(self.device, memory_format=self.parameter_layout)
        if workload.batchnorm == "sync":
            synchronize_batch_norms(self.model, self.all_reduce_sum, self.num_replicas)
        size = (1, IMAGE_CHANNELS, workload.image_size, workload.image_size)
        image = torch.zeros(size, dtype=self._dtype, device=self.device)
        computed = self.split(self.model)
        self._running_variance = RunningVariance(computed, image)
        if (initial := self.initial_state()) is not None:
            self.load_state(initial)
        self._computing = Computation(computed, self.device.type, enabled=workload.precision == "bfloat16")
        training = self._computing
        if tuning.get("compilation") == "torch.compile":
            # Its own default is below /tmp; EfficientNet-B2 takes two minutes to compile on two cores.
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "compiled"))
            training = torch.compile(self._computing)
        self.replicated = self.replicate(training)
        self.optimizer = self.build_optimizer()

    def feed(self, batches: Iterable[HostBatch]) -> Iterator[DeviceBatch]:
        return prefetch(batches, self._to_device)

    def _to_device(self, batch: HostBatch) -> DeviceBatch:
        images = torch.from_numpy(batch.images).permute(0, 3, 1, 2)
        images = images.to(self._dtype).contiguous(memory_format=self._memory_format)
        return DeviceBatch(
            images=self._move(images),
            labels=self._move(torch.from_numpy(batch.labels).long()),
            weights=self._move(torch.from_numpy(batch.weights).to(self._dtype)),
            global_count=batch.global_count,
            drop_masks=None
            if batch.drop_masks is None
            else self._move(torch.from_numpy(batch.drop_masks).to(self._dtype)),
        )

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor

    def train_step(self, batches: Sequence[DeviceBatch], learning_rate: float) -> Any:
        self._enter(training=True)
        self.optimizer.zero_grad(set_to_none=True)
        loss_sums = []
        for number, batch in enumerate(batches, start=1):
            with self.gradient_sync(number == len(batches)):
                loss_sum = self._losses(self.replicated, batch)[1].sum()
                self.backward(loss_sum * (self.gradient_average_over / batch.global_count))
            self._running_variance.count_update(self._rows_of_replica(batch))
            loss_sums.append(loss_sum.detach())
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.step()
        return sum(loss_sums)

    def evaluate_step(self, batch: DeviceBatch) -> Any:
        self._enter(training=False)
        # Not the replicated model: every process evaluates its own rows, without an exchange.
        with torch.no_grad():
            logits, losses = self._losses(self._computing, batch)
            correct = (logits.argmax(1) == batch.labels) * batch.weights
        return torch.stack([losses.sum(), correct.sum(), batch.weights.sum()])

    def logits(self, batch: DeviceBatch, *, training: bool) -> npt.NDArray[Any]:
        self._enter(training=training)
        with torch.no_grad():
            logits = (self.replicated if training else self._computing)(batch.images, batch.drop_masks)
        if training:
            self._running_variance.count_update(self._rows_of_replica(batch))
        return logits.to(batch.weights.dtype).cpu().numpy()

    def _rows_of_replica(self, batch: DeviceBatch) -> int:
        return len(batch.labels) // self.config.topology.replicas_per_process

    def activations(self, batch: DeviceBatch) -> dict[str, npt.NDArray[Any]]:
        self._enter(training=False)
        found: dict[str, torch.Tensor] = {}
        own = {
            name: module
            for name, module in self.model.named_modules()
            if any(True for _ in module.parameters(recurse=False))
        }
        hooks = [
            module.register_forward_hook(lambda module, inputs, output, name=name: found.setdefault(name, output))
            for name, module in own.items()
        ]
        with torch.no_grad():
            self._computing(batch.images)
        for hook in hooks:
            hook.remove()
        return {
            name: (features.permute(0, 2, 3, 1) if features.dim() == 4 else features).cpu().numpy()
            for name, features in found.items()
        }

    def to_host(self, batch: DeviceBatch) -> dict[str, npt.NDArray[Any]]:
        images = batch.images.permute(0, 2, 3, 1).contiguous()
        arrays = {"images": images, "labels": batch.labels.int(), "weights": batch.weights}
        if batch.drop_masks is not None:
            arrays["drop_masks"] = batch.drop_masks
        return {name: array.cpu().numpy() for name, array in arrays.items()}

    def _enter(self, *, training: bool) -> None:
        """Switch between training and evaluation, where the statistics of replica 0 hold for all."""
        if training == self._training:
            return
        self._training = training
        self.replicated.train(training)
        if training:
            self._running_variance.use_for_training()
        else:
            self._running_variance.use_for_evaluation()
            self.broadcast_buffers()

    def _losses(self, model: nn.Module, batch: DeviceBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits, and the loss of each row: 0 for rows that only fill up."""
        logits = model(batch.images, batch.drop_masks).to(batch.weights.dtype)
        return logits, functional.cross_entropy(logits, batch.labels, reduction="none") * batch.weights

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            for index in range(torch.cuda.device_count()):
                torch.cuda.synchronize(index)

    def read(self, handles: Sequence[torch.Tensor]) -> npt.NDArray[np.float64]:
        return torch.stack(list(handles)).double().cpu().numpy()

    def state(self) -> State:
        self._enter(training=False)
        return {name: self.whole(tensor).cpu().numpy().copy() for name, tensor in self._tensors().items()}

    def optimizer_state(self) -> State:
        slots = {}
        for name, parameter in self.model.named_parameters():
            for slot, value in self.optimizer.state[parameter].items():
                if slot in SLOTS:
                    slots[f"{SLOTS[slot]}.{name}"] = self.whole(value).cpu().numpy().copy()
        return slots

    def load_state(self, state: State) -> None:
        tensors = self._tensors()
        if state.keys() != tensors.keys():
            raise ValueError(
                f"state does not fit {self.workload.model}: missing {sorted(tensors.keys() - state.keys())}, "
                f"unknown {sorted(state.keys() - tensors.keys())}"
            )
        for name, tensor in tensors.items():
            self.fill(tensor, state[name])
        self._running_variance.restart()
        self._training = None

    def load_optimizer_state(self, slots: State, steps_taken: int) -> None:
        parameters = dict(self.model.named_parameters())
        load_slots(self.optimizer, parameters, slots, steps_taken, self.fill)

    def _tensors(self) -> dict[str, torch.Tensor]:
        # num_batches_tracked counts steps and has no twin in TensorFlow.
        return {
            name: tensor for name, tensor in self.model.state_dict().items() if not name.endswith("num_batches_tracked")
        }

    def barrier(self) -> None:
        """One process waits for nobody."""

    def teardown(self) -> None:
        """Nothing to leave in one process."""

    @contextmanager
    def profile(self, path: Path) -> Iterator[None]:
        with torch.profiler.profile() as profiler:
            yield
        profiler.export_chrome_trace(str(path))

    def devices(self) -> list[str]:
        if self.device.type == "cpu":
            return list(self.config.cluster.devices[: self.config.topology.replicas_per_process])
        return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]

    def peak_device_memory_bytes(self) -> int | None:
        if self.device.type == "cpu":
            return None
        return sum(torch.cuda.max_memory_allocated(index) for index in range(torch.cuda.device_count()))
