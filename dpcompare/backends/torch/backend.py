"""The part of a backend that all torch modes share: model, data, one training step, one evaluation step."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from dpcompare.backends.base import Counted, Inspectable
from dpcompare.backends.cuda_wheels import driver_version
from dpcompare.backends.description import Description
from dpcompare.backends.torch.batchnorm import RunningVariance, synchronize_batch_norms
from dpcompare.backends.torch.gradient_times import GradientTimes
from dpcompare.backends.torch.model import SharedDrop, build_model, set_drop_masks
from dpcompare.backends.torch.optimizer import SLOTS, Kernel, RuledUpdates, build_optimizer, load_slots
from dpcompare.backends.torch.pixels import look_up
from dpcompare.backends.torch.side_stream import SideStream
from dpcompare.backends.update_rules import UpdateRules
from dpcompare.config.optimizers import FIRST_MOMENTS
from dpcompare.config.tuning import COMPILE_MODES
from dpcompare.data.batches import DeviceBatch, HostBatch, HostRead, prefetch
from dpcompare.models.layers.in_torch import import_timm
from dpcompare.models.sealed import read_weights
from dpcompare.models.spec import IMAGE_CHANNELS
from dpcompare.models.state import Gradients, State, TrainingState

MOST_ENDS_KEPT = 10_000
"""Steps of a window, beyond which it has no times of its steps."""


class Computation(nn.Module):
    """A model as each replica computes it: in bfloat16 where asked, features multiplied by the drop masks of its rows.

    Autocast is a setting of a thread, and nn.DataParallel passes on to its threads that it is on but not its dtype:
    entered outside, replicas on GPUs would compute in float16. Drop masks enter here because replicas are copies of
    modules.
    """

    def __init__(self, module: nn.Module, device_type: str, *, enabled: bool) -> None:
        super().__init__()
        self.module = module
        self._device_type, self._enabled = device_type, enabled
        self._regularized = any(isinstance(layer, SharedDrop) for layer in module.modules())

    def forward(self, images: torch.Tensor, drop_masks: torch.Tensor | None = None) -> torch.Tensor:
        if self._regularized:
            set_drop_masks(self.module, drop_masks)
        if not self._enabled:
            return self.module(images)
        with torch.autocast(self._device_type, torch.bfloat16):
            return self.module(images)


class TorchBackend(Inspectable):
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
        # With an index, also where there is one GPU only: torch.cuda.set_device takes no device without.
        self.device = torch.device("cuda", 0) if self.config.cluster.device_type == "gpu" else torch.device("cpu")

    def local_devices(self) -> list[torch.device]:
        """This process's devices, one per replica and stage."""
        if self.device.type == "cpu":
            return [self.device] * self.config.topology.devices_per_process
        return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]

    @property
    def parameter_layout(self) -> torch.memory_format:
        """The memory format of the parameters, which is that of the features unless the mode takes no other."""
        return self._memory_format

    def place_stages(self, model: nn.Module) -> nn.Module:
        """The model as it computes, its layers on the devices of this process's replica."""
        return model

    def replicate(self, model: nn.Module) -> nn.Module:
        """The model on all devices of this mode."""
        return model

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over all replicas, differentiable; called by every replica in its forward pass."""
        return tensor

    def broadcast_buffers(self) -> None:
        """Give every replica the BatchNorm statistics of replica 0."""

    def build_model(self) -> nn.Module:
        """The model to train, on the host; override it together with `initial_state` to train another."""
        return build_model(self.workload, self.inputs.num_classes)

    def initial_state(self) -> State | None:
        """The model's tensors to start from: the file that all backends share. None keeps those of `build_model`."""
        return read_weights(self.inputs.weights)

    def row_losses(self, logits: torch.Tensor, labels: torch.Tensor, *, training: bool) -> torch.Tensor:
        """The loss of each row, from logits (rows, classes) and labels (rows,); override it to train with another.

        Their sum over the global batch is divided by its number of samples. What is returned for padding is ignored,
        if it is finite.
        """
        smoothing = self.workload.label_smoothing if training else 0.0
        return functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)

    def build_optimizer(self) -> Kernel:
        """The optimizer of the model as it is replicated; override it to train with another."""
        return build_optimizer(self.workload.optimizer, self.model.parameters(), self.optimizer_kernels)

    @property
    def optimizer_kernels(self) -> str:
        """Which of torch's implementations updates the parameters; see `dpcompare.config.tuning`."""
        return self.config.tuning["optimizer_kernels"]

    def backward(self, loss: torch.Tensor) -> None:
        """The backward pass of a micro-batch."""
        loss.backward()

    def step(self) -> None:
        """The optimizer's update of the parameters."""
        self.optimizer.step()

    def gradient_sync(self, *, enabled: bool) -> AbstractContextManager[None]:
        """Within it, a backward pass sums gradients over the replicas; not `enabled`, it keeps them local."""
        return nullcontext()

    def full_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of model or optimizer, gathered where processes hold shards of it; all of them must call it."""
        return tensor.detach()

    def copy_into(self, tensor: torch.Tensor, values: npt.NDArray[Any]) -> None:
        """Replace what a tensor, or this process's shard of it, holds by these values of the full tensor."""
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(values))

    def setup(self) -> None:
        self._training: bool | None = None
        self._step = 0
        workload = self.workload
        self._configure_devices()
        self._configure_precision()
        self.connect()
        model = self.build_model().to(self._dtype)
        channels_last = self.config.tuning["memory_layout"] == "NHWC"
        self._memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.model = model.to(self.device, memory_format=self.parameter_layout)
        if self._has_sync_kernels:
            self.model = import_timm().layers.convert_sync_batchnorm(self.model)
        elif workload.batchnorm == "sync":
            synchronize_batch_norms(self.model, self.all_reduce_sum, self.num_replicas)
        placed = self.place_stages(self.model)
        self._running_variance = RunningVariance(placed, self.blank_images(1))
        if (initial := self.initial_state()) is not None:
            self._load_model(initial)
        self._local = Computation(placed, self.device.type, enabled=workload.precision == "bfloat16")
        self.replicated = self.replicate(self._compiled(self._local))
        self.optimizer = self.build_optimizer()
        self._images_computed = torch.zeros((), dtype=torch.float64, device=self.device)
        self._gradient_times = GradientTimes(list(self.model.parameters()), self.device)
        self._optimizer_steps = 0
        # Of those who never ask for their times the newest are kept.
        self._ends_of_steps: deque[torch.cuda.Event] = deque(maxlen=MOST_ENDS_KEPT)
        self.optimizer.register_step_post_hook(self._count_optimizer_step)
        RuledUpdates(
            UpdateRules.of(workload),
            steps_taken=lambda: self._step,
            held_part=self.held_part,
            sum_over_parts=self.sum_over_parts,
        ).register(self.optimizer)

    def _count_optimizer_step(self, *_: Any) -> None:
        self._optimizer_steps += 1

    def _configure_devices(self) -> None:
        torch.set_num_threads(self.config.topology.threads_per_process)
        # TensorFlow measures convolution algorithms before it chooses one, torch only where this is set.
        torch.backends.cudnn.benchmark = True
        if self.config.cluster.device_type == "gpu" and self.config.task == "probe":
            # What is compared must not depend on which algorithm was fastest, or on the order in which threads add up.
            torch.backends.cudnn.benchmark = False
            torch.use_deterministic_algorithms(True, warn_only=True)

    def _configure_precision(self) -> None:
        for backend in (torch.backends, torch.backends.cudnn):
            # torch 2.9 has both these switches and newer ones, which a custom model's module may have set: where they
            # say "tf32", a convolution would take it in spite of the switches below.
            if hasattr(backend, "fp32_precision"):
                backend.fp32_precision = "none"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.config.allows_tf32
        self._dtype = torch.float64 if self.workload.precision == "float64" else torch.float32

    def blank_images(self, count: int) -> torch.Tensor:
        """Zeros as the model takes images, (count, channels, height, width), on this process's device."""
        size = (count, IMAGE_CHANNELS, self.workload.image_size, self.workload.image_size)
        return torch.zeros(size, dtype=self._dtype, device=self.device)

    def _compiled(self, computation: nn.Module) -> nn.Module:
        return torch.compile(computation, mode=self._compile_mode) if self._compile_mode else computation

    @property
    def _compile_mode(self) -> str | None:
        """None where nothing is compiled."""
        return COMPILE_MODES.get(self.config.tuning.get("compilation", "none"))

    @property
    def num_compilations(self) -> int:
        if self._compile_mode is None:  # nor is torch's compiler loaded, which takes a second
            return 0
        graphs: int = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        return graphs

    def feed(self, reads: Iterable[HostRead]) -> Iterator[DeviceBatch]:
        if self.device.type == "cpu":
            return prefetch(reads, lambda read: self._to_device(read()), self.input_threads)
        stream = self._side_stream
        placed = prefetch(reads, lambda read: stream.place(partial(self._to_device, read())), self.input_threads)
        return map(stream.receive, placed)

    @cached_property
    def _side_stream(self) -> SideStream:
        """One for all feeds: torch keeps the memory that was taken for a stream to that stream."""
        return SideStream(self.device)

    def _to_device(self, batch: HostBatch) -> DeviceBatch:
        images = self._images(batch).to(self._dtype).permute(0, 3, 1, 2)
        return DeviceBatch(
            images=images.contiguous(memory_format=self._memory_format),
            labels=self._move(batch.labels).long(),
            weights=self._move(batch.weights).to(self._dtype),
            global_count=batch.global_count,
            drop_masks=None if batch.drop_masks is None else self._move(batch.drop_masks).to(self._dtype),
        )

    def _images(self, batch: HostBatch) -> torch.Tensor:
        """(rows, height, width, channels): bytes that the GPU looks up, or what the host has looked up."""
        if self.device.type == "cpu":
            return torch.from_numpy(batch.images)
        flips = None if batch.flips is None else self._move(batch.flips)
        return look_up(self._move(batch.pixels), self._move(batch.tables), flips)

    def _move(self, array: npt.NDArray[Any]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type == "cpu":
            return tensor
        # torch keeps pinned memory and gives it out again when the copies from it have ended.
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def train_step(self, batches: Sequence[DeviceBatch], learning_rate: float) -> Any:
        self._enter(training=True)
        self._step += 1
        if self._observes_gradients:
            with self._gradient_times.observed() as backward_ended:
                loss_sum = self._make_step(batches, learning_rate, backward_ended)
        else:
            loss_sum = self._make_step(batches, learning_rate)
        self._mark_end_of_step()
        return loss_sum

    def _mark_end_of_step(self) -> None:
        """Have the GPU take the time when it gets here; of a model in stages no single GPU knows it."""
        if self.device.type == "cuda" and self.config.stages == 1:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._ends_of_steps.append(event)

    def seconds_between_steps(self) -> Sequence[float] | None:
        ends = list(self._ends_of_steps)
        self._ends_of_steps.clear()
        return [one.elapsed_time(next_one) / 1000 for one, next_one in pairwise(ends)] if ends else None

    @property
    def _observes_gradients(self) -> bool:
        """In the last step that warms up, but the first; not where gradients of a compiled model come all at once."""
        is_last_of_warmup = self._optimizer_steps + 1 == self.workload.least_warmup_steps > 1
        return is_last_of_warmup and self._compile_mode is None and self.config.stages == 1

    def _make_step(
        self, batches: Sequence[DeviceBatch], learning_rate: float, backward_ended: Callable[[], None] = lambda: None
    ) -> Any:
        self.optimizer.zero_grad(set_to_none=True)
        loss_sums = []
        for number, batch in enumerate(batches, start=1):
            with self.gradient_sync(enabled=number == len(batches)):
                loss_sum = self._losses(self.replicated, batch)[1].sum()
                self.backward(loss_sum * (self.gradient_average_over / batch.global_count))
                backward_ended()
            self._running_variance.count_update(self._rows_of_statistics(batch))
            loss_sums.append(loss_sum.detach())
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.step()
        return sum(loss_sums)

    def evaluate_step(self, batch: DeviceBatch) -> Any:
        self._enter(training=False)
        return torch.stack([self._evaluate(part) for part in self._evaluated_at_once(batch)]).sum(0)

    def _evaluated_at_once(self, batch: DeviceBatch) -> Iterator[DeviceBatch]:
        """A batch in parts; of `dp`, whose GPUs train with a part each, the first one evaluates all."""
        rows = self.rows_evaluated_at_once(len(batch.labels))
        for images, labels, weights in zip(
            batch.images.split(rows), batch.labels.split(rows), batch.weights.split(rows), strict=True
        ):
            yield replace(batch, images=images, labels=labels, weights=weights)

    def _evaluate(self, batch: DeviceBatch) -> torch.Tensor:
        # Not the replicated model: every process evaluates its local rows, without communication.
        with torch.no_grad():
            logits, losses = self._losses(self._local, batch)
            correct = (logits.argmax(1) == batch.labels) * batch.weights
        return torch.stack([losses.sum(), correct.sum(), batch.weights.sum()])

    def logits(self, batch: DeviceBatch, *, training: bool) -> npt.NDArray[Any]:
        self._enter(training=training)
        with torch.no_grad():
            if training:
                logits = self.replicated(batch.images, batch.drop_masks)
            else:
                logits = torch.cat([self._local(part.images) for part in self._evaluated_at_once(batch)])
        if training:
            self._running_variance.count_update(self._rows_of_statistics(batch))
        return logits.to(batch.weights.dtype).cpu().numpy()

    @property
    def _has_sync_kernels(self) -> bool:
        """Whether torch's own layers normalise by the batch of all replicas."""
        return self.config.tuning.get("batchnorm_kernels") == "SyncBatchNorm"

    def _rows_of_statistics(self, batch: DeviceBatch) -> int:
        """How many rows torch's own layers take the variance of: those of a replica, or of all."""
        rows = len(batch.labels) // self.config.topology.replicas_per_process
        return rows * self.num_replicas if self._has_sync_kernels else rows

    def activations(self, batch: DeviceBatch) -> dict[str, npt.NDArray[Any]]:
        self._enter(training=False)
        outputs: dict[str, torch.Tensor] = {}
        hooks = [
            module.register_forward_hook(lambda module, inputs, output, name=name: outputs.setdefault(name, output))
            for name, module in self.model.named_modules()
            if any(True for _ in module.parameters(recurse=False))
        ]
        with torch.no_grad():
            self._local(batch.images)
        for hook in hooks:
            hook.remove()
        return {
            name: (features.permute(0, 2, 3, 1) if features.dim() == 4 else features).cpu().numpy()
            for name, features in outputs.items()
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
        """Logits, and the loss of each row: 0 for padding rows."""
        logits = model(batch.images, batch.drop_masks).to(batch.weights.dtype)
        if self._training:
            self._images_computed.add_(batch.weights.sum())
        return logits, self.row_losses(logits, batch.labels, training=bool(self._training)) * batch.weights

    def synchronize(self, *, drain: bool = False) -> None:
        if self.device.type == "cuda":
            for device in self.local_devices():
                # Not the whole device, which copies the next batches meanwhile.
                torch.cuda.current_stream(device).synchronize()

    def reset_peak_memory(self) -> None:
        if self.device.type == "cuda":
            for device in self.local_devices():
                torch.cuda.reset_peak_memory_stats(device)

    def read(self, handles: Sequence[torch.Tensor]) -> npt.NDArray[np.float64]:
        return torch.stack(list(handles)).double().cpu().numpy()

    def state(self) -> TrainingState:
        self._enter(training=False)
        return TrainingState(
            model=self._on_host(self._tensors()), optimizer=self._on_host(self._slots()), step=self._step
        )

    def load_state(self, state: TrainingState) -> None:
        self._load_model(state.model)
        load_slots(self.optimizer, dict(self.model.named_parameters()), state.optimizer, state.step, self.copy_into)
        self._step = state.step

    def _load_model(self, state: State) -> None:
        tensors = self._tensors()
        if state.keys() != tensors.keys():
            raise ValueError(
                f"state does not fit {self.workload.model}: missing {sorted(tensors.keys() - state.keys())}, "
                f"unknown {sorted(state.keys() - tensors.keys())}"
            )
        for name, tensor in tensors.items():
            self.copy_into(tensor, state[name])
        self._running_variance.restart()
        self._training = None

    def _on_host(self, tensors: Mapping[str, torch.Tensor]) -> State:
        return {name: self.full_tensor(tensor).cpu().numpy().copy() for name, tensor in tensors.items()}

    def _tensors(self) -> dict[str, torch.Tensor]:
        """The model's tensors by their framework-neutral names."""
        # num_batches_tracked counts steps and has no twin in TensorFlow.
        return {
            name: tensor for name, tensor in self.model.state_dict().items() if not name.endswith("num_batches_tracked")
        }

    def _slots(self) -> dict[str, torch.Tensor]:
        """`<slot>.<tensor>` -> what the optimizer remembers."""
        return {
            f"{SLOTS[slot]}.{name}": value
            for name, parameter in self.model.named_parameters()
            for slot, value in self.optimizer.state.get(parameter, {}).items()
            if slot in SLOTS
        }

    @property
    def num_holders(self) -> int:
        """Processes that hold the same tensors of model and optimizer."""
        return 1

    def held_part(self, tensor: torch.Tensor) -> torch.Tensor:
        """What this process holds of a tensor of model or optimizer."""
        return tensor

    def sum_over_parts(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over the processes that hold the parts of one model; all of them must call it."""
        return tensor

    def first_gradient_squares(self) -> float | None:
        squares = [
            self.held_part(tensor).double().div(FIRST_MOMENTS[slot]).square().sum().item()
            for name, tensor in self._slots().items()
            if (slot := name.partition(".")[0]) in FIRST_MOMENTS
        ]
        return sum(squares) / self.num_holders if squares else None

    def counted(self) -> Counted:
        return Counted(optimizer_steps=self._optimizer_steps, images=int(self._images_computed.item()))

    def barrier(self) -> None:
        """One process waits for nobody."""

    def teardown(self) -> None:
        """One process leaves nobody behind."""

    @contextmanager
    def profile(self, path: Path) -> Iterator[None]:
        with torch.profiler.profile() as profiler:
            yield
        profiler.export_chrome_trace(str(path))

    def describe(self) -> Description:
        return replace(
            super().describe(),
            devices=self._device_names(),
            peak_device_memory_bytes=self._peak_device_memory_bytes(),
            libraries=self._libraries(),
            gradients=self.gradients(),
        ).with_settings(
            tf32=_takes_tf32(), convolution_algorithms=self._convolution_algorithms(), **self._compilation_found()
        )

    def _compilation_found(self) -> dict[str, str]:
        """The setting `compilation`, with what torch's compiler says it left out, which is not always what was asked.

        A model whose step changes its buffers, as BatchNorm does, may get no CUDA graph (pytorch#139207).
        """
        if self._compile_mode is None:
            return {}
        counters = torch._dynamo.utils.counters
        left_out = {
            "CUDA graphs skipped": counters["inductor"]["cudagraph_skips"],
            "graph breaks": sum(counters["graph_break"].values()),
        }
        told = ", ".join(f"{name}: {count}" for name, count in left_out.items() if count)
        asked = self.config.tuning["compilation"]
        return {"compilation": f"{asked} ({told})" if told else asked}

    def gradients(self) -> Gradients:
        """What this mode exchanges in a step, as far as torch tells."""
        return self._gradient_times.found()

    def _convolution_algorithms(self) -> str:
        return "measured" if self.device.type == "cuda" and torch.backends.cudnn.benchmark else "fixed"

    def _libraries(self) -> dict[str, str]:
        if self.device.type == "cpu":
            return {}
        found = {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "driver": driver_version(),
        }
        return {name: str(version) for name, version in found.items() if version}

    def _device_names(self) -> list[str]:
        if self.device.type == "cpu":
            first = self.process_rank * self.config.topology.devices_per_process
            return list(self.config.cluster.devices[first : first + self.config.topology.devices_per_process])
        return [torch.cuda.get_device_name(device) for device in self.local_devices()]

    def _peak_device_memory_bytes(self) -> int | None:
        if self.device.type == "cpu":
            return None
        return sum(torch.cuda.max_memory_allocated(device) for device in self.local_devices())


def _takes_tf32() -> bool:
    """Read back, since a variable of CUDA's overrules torch's own switches."""
    overruled = os.environ.get("NVIDIA_TF32_OVERRIDE") == "0"
    try:
        allowed = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
    except RuntimeError:  # a model has set torch's newer switches meanwhile, and convolutions inherit TF32
        allowed = True
    return allowed and not overruled
