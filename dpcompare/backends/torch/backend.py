"""The part of a backend that all torch modes share: model, data, one training step, one evaluation step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend

from dpcompare.backends.base import Counters, Inspectable
from dpcompare.backends.custom_optimizer import CustomOptimizer
from dpcompare.backends.description import NOT_KNOWN, PRODUCTS, Description, switched
from dpcompare.backends.torch.batchnorm import RunningVariance, synchronize_batch_norms
from dpcompare.backends.torch.feed import DeviceFeed
from dpcompare.backends.torch.gradient_times import GradientTimes
from dpcompare.backends.torch.model import build_model
from dpcompare.backends.torch.optimizer import Kernel, RuledUpdates, build_optimizer, custom_optimizer, load_slots
from dpcompare.backends.torch.own_batch_norms import OwnBatchNorms
from dpcompare.backends.torch.parallel import Parallel
from dpcompare.backends.torch.precision import Precision
from dpcompare.backends.update_rules import UpdateRules
from dpcompare.config.optimizers import FIRST_MOMENTS
from dpcompare.config.run import RunConfig
from dpcompare.config.tuning import COMPILE_MODES
from dpcompare.data.batches import BatchLoader, DeviceBatch
from dpcompare.models.architectures import model_of
from dpcompare.models.layers.in_torch import import_timm
from dpcompare.models.sealed import read_weights
from dpcompare.models.spec import IMAGE_CHANNELS
from dpcompare.models.state import State, TrainingState
from dpcompare.system.type_names import Array

MOST_ENDS_KEPT = 10_000
"""Most steps of a window whose times are kept; a longer window has none."""


class TorchBackend(Inspectable):
    """One process that trains on `device`; `parallel` makes and connects the replicas, differently in each mode."""

    packages: ClassVar[tuple[str, ...]] = ("torch", "timm", "keras")

    parallelism: ClassVar[type[Parallel]] = Parallel
    """How the mode makes and connects its replicas."""

    model: nn.Module
    """The model itself, whose tensors are those of replica 0 in this process."""
    replicated: nn.Module
    """The model as the mode trains it."""
    features_layout: torch.memory_format
    """How images and features are laid out in memory."""
    device_feed: DeviceFeed
    _has_own_batch_norms = False
    """Whether the layers of BatchNorm are not torch's, as those of a Keras model."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.parallel = self.parallelism(self.config)
        self.precision = Precision(self.config)

    @property
    def device(self) -> torch.device:
        """Where this process's batches go."""
        return self.parallel.device

    def build_model(self) -> nn.Module:
        """The model to train, on the host; override it together with `initial_state` to train another."""
        return build_model(self.workload, self.inputs.num_classes, self.config.drop_columns)

    def initial_state(self) -> State | None:
        """The model's tensors to start from: the file that all backends share. None keeps those of `build_model`."""
        return read_weights(self.inputs.weights)

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor of the model, once it is built."""
        return {name: tuple(tensor.shape) for name, tensor in self._tensors().items()}

    def row_losses(self, logits: torch.Tensor, labels: torch.Tensor, *, training: bool) -> torch.Tensor:
        """The loss of each row, from logits (rows, classes) and labels (rows,); override it to train with another.

        Their sum over the global batch is divided by its number of samples. What is returned for padding is ignored,
        if it is finite.
        """
        smoothing = self.workload.label_smoothing if training else 0.0
        return functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)

    def build_optimizer(self) -> Kernel:
        """The optimizer of the model as it is replicated; override it to train with another."""
        return build_optimizer(self.workload.optimizer, self.model.parameters(), self.parallel.optimizer_kernels)

    def custom_optimizer(self, given: CustomOptimizer | Callable[..., torch.optim.Optimizer]) -> Kernel:
        """The optimizer that a user gives."""
        made = custom_optimizer(given, self.model.parameters())
        if self.workload.weight_average is not None or self.workload.batchnorm_recompute:
            made.require_loadable(steps_taken=1)  # as each evaluation of such a workload does
        return made

    def setup(self) -> None:
        self._training: bool | None = None
        self._step = 0
        workload = self.workload
        torch.set_num_threads(self.config.topology.threads_per_process)
        self.precision.configure()
        self.parallel.connect()
        self.process_rank, self.num_processes = self.parallel.process_rank, self.parallel.num_processes
        self.num_replicas = self.parallel.num_replicas
        model = self.build_model().to(self.precision.dtype)
        self._has_own_batch_norms = isinstance(model, OwnBatchNorms)
        channels_last = self.config.tuning.get("memory_layout", "NHWC") == "NHWC"
        self.features_layout = torch.channels_last if channels_last else torch.contiguous_format
        self.device_feed = DeviceFeed(self.device, self.precision.dtype, self.features_layout)
        layout = self.parallel.parameter_layout(self.features_layout)
        self.model = model.to(self.device, memory_format=layout)  # type: ignore[call-overload]  # it takes both at once
        if self._has_sync_kernels:
            self.model = import_timm().layers.convert_sync_batchnorm(self.model)
        elif workload.batchnorm == "sync":
            synchronize_batch_norms(self.model, self.parallel.all_reduce_sum, self.num_replicas)
        placed = self.parallel.place_stages(self.model, self.blank_micro_batch)
        self._running_variance = RunningVariance(placed, self.blank_images(1))
        if (initial := self.initial_state()) is not None:
            self._load_model(initial)
        self._local = self.precision.computation(placed, self.device.type)
        self.parallel.replicated = self.replicated = self.replicate()
        self.optimizer = self.build_optimizer()
        self._stepped = self.parallel.wrap_optimizer(self.optimizer)
        self._images_computed = torch.zeros((), dtype=torch.float64, device=self.device)
        self._gradient_times = GradientTimes(list(self.model.parameters()), self.device)
        self._optimizer_steps = 0
        self._ends_of_steps: deque[torch.cuda.Event] = deque(maxlen=MOST_ENDS_KEPT)
        self.optimizer.register_step_post_hook(self._count_optimizer_step)
        RuledUpdates(UpdateRules.of(workload), self.parallel, steps_taken=lambda: self._step).register(self.optimizer)
        self._seed_own_draws()

    def replicate(self) -> nn.Module:
        """The model as it is trained, on all devices of the mode."""
        return self.parallel.replicate(self._compiled(self._local), self.model)

    def _count_optimizer_step(self, *_: Any) -> None:
        self._optimizer_steps += 1

    def blank_images(self, count: int) -> torch.Tensor:
        """Zeros as the model takes images, (count, channels, height, width), on this process's device."""
        size = (count, IMAGE_CHANNELS, self.workload.image_size, self.workload.image_size)
        return torch.zeros(size, dtype=self.precision.dtype, device=self.device)

    def blank_micro_batch(self) -> torch.Tensor:
        """A batch of zeros, as large as a replica trains on at once."""
        return self.blank_images(self.rows_trained_at_once)

    def _compiled(self, computation: nn.Module) -> nn.Module:
        if not self._compile_mode:
            return computation
        return torch.compile(computation, mode=self._compile_mode)  # type: ignore[return-value]  # a module of a module

    @property
    def _compile_mode(self) -> str | None:
        """None where nothing is compiled, as of a model of Keras: its calls break torch's graphs at every layer."""
        if self._has_own_batch_norms:
            return None
        return COMPILE_MODES.get(self.config.tuning.get("compilation", "none"))

    @property
    def num_compilations(self) -> int:
        if self._compile_mode is None:  # nor is torch's compiler loaded, which takes a second
            return 0
        graphs: int = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        return graphs

    def prefetch_to_device(self, batch_loaders: Iterable[BatchLoader]) -> Iterator[DeviceBatch]:
        return self.device_feed.batches(batch_loaders, self.input_threads)

    def train_step(self, batches: Sequence[DeviceBatch], learning_rate: float) -> torch.Tensor:
        self._set_training_mode(training=True)
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
            with self.parallel.gradient_sync(enabled=number == len(batches)):
                loss_sum = self._losses(self.replicated, batch)[1].sum()
                self.parallel.backward(loss_sum * (self.parallel.gradient_average_over / batch.global_count))
                backward_ended()
            self._running_variance.count_update(self._rows_of_statistics(batch))
            loss_sums.append(loss_sum.detach())
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self._stepped.step()
        return sum(loss_sums)

    def evaluate_step(self, batch: DeviceBatch) -> torch.Tensor:
        self._set_training_mode(training=False)
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

    def logits(self, batch: DeviceBatch, *, training: bool) -> Array:
        self._set_training_mode(training=training)
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
        asked = self.config.tuning.get("batchnorm_kernels") == "SyncBatchNorm"
        return asked and not self._has_own_batch_norms

    def _rows_of_statistics(self, batch: DeviceBatch) -> int:
        """How many rows torch's own layers take the variance of: those of a replica, or of all."""
        rows = len(batch.labels) // self.config.topology.replicas_per_process
        return rows * self.num_replicas if self._has_sync_kernels else rows

    def activations(self, batch: DeviceBatch) -> dict[str, Array]:
        self._set_training_mode(training=False)
        outputs: dict[str, torch.Tensor] = {}
        hooks = [
            module.register_forward_hook(lambda module, inputs, output, name=name: outputs.setdefault(name, output))
            for name, module in self.model.named_modules()
            if name and any(True for _ in module.parameters(recurse=False))
        ]
        with torch.no_grad():
            self._local(batch.images)
        for hook in hooks:
            hook.remove()
        return {
            name: (features.permute(0, 2, 3, 1) if features.dim() == 4 else features)
            .to(torch.promote_types(features.dtype, torch.float32))  # NumPy has no bfloat16
            .cpu()
            .numpy()
            for name, features in outputs.items()
        }

    def to_host(self, batch: DeviceBatch) -> dict[str, Array]:
        return self.device_feed.read_back(batch)

    def _set_training_mode(self, *, training: bool) -> None:
        """Switch between training and evaluation, where the statistics of replica 0 hold for all."""
        if training == self._training:
            return
        self._training = training
        self.replicated.train(training)
        if training:
            self._running_variance.use_for_training()
        else:
            self._running_variance.use_for_evaluation()
            self.parallel.broadcast_buffers(self.model)

    def _losses(self, model: nn.Module, batch: DeviceBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits, and the loss of each row: 0 for padding rows."""
        logits = model(batch.images, batch.drop_masks).to(batch.weights.dtype)
        if self._training:
            self._images_computed.add_(batch.weights.sum())
        return logits, self.row_losses(logits, batch.labels, training=bool(self._training)) * batch.weights

    def synchronize(self, *, drain: bool = False) -> None:
        self.parallel.synchronize()

    def reset_peak_memory(self) -> None:
        self.parallel.reset_peak_memory()

    def read(self, handles: Sequence[torch.Tensor]) -> npt.NDArray[np.float64]:
        return torch.stack(list(handles)).double().cpu().numpy()

    def state(self) -> TrainingState:
        self._set_training_mode(training=False)
        return TrainingState(
            model=self._on_host(self._tensors()), optimizer=self._on_host(self._slots()), step=self._step
        )

    def load_state(self, state: TrainingState) -> None:
        self.optimizer.require_loadable(state.step)
        self._load_model(state.model)
        load_slots(
            self.optimizer, dict(self.model.named_parameters()), state.optimizer, state.step, self.parallel.copy_into
        )
        self._step = state.step
        self._seed_own_draws()

    def _seed_own_draws(self) -> None:
        """Seed what nn.Dropout draws from: torch's own seeds differ in each process, or are the same on all GPUs."""
        place = self._step, self.data_parallel_rank
        # torch.manual_seed would load torch's compiler, which takes a second.
        torch.default_generator.manual_seed(self._seed_of_own_draws(*place))
        if self.device.type == "cuda":
            for number, generator in enumerate(torch.cuda.default_generators):
                generator.manual_seed(self._seed_of_own_draws(*place, number))

    def _load_model(self, state: State) -> None:
        tensors = self._tensors()
        if state.keys() != tensors.keys():
            raise ValueError(
                f"state does not fit {self.workload.model}: missing {sorted(tensors.keys() - state.keys())}, "
                f"unknown {sorted(state.keys() - tensors.keys())}"
            )
        for name, tensor in tensors.items():
            self.parallel.copy_into(tensor, state[name])
        self._running_variance.restart()
        self._training = None

    def _on_host(self, tensors: Mapping[str, torch.Tensor]) -> State:
        return {name: self.parallel.full_tensor(tensor).cpu().numpy().copy() for name, tensor in tensors.items()}

    def _tensors(self) -> dict[str, torch.Tensor]:
        """The model's tensors by their framework-neutral names."""
        # num_batches_tracked counts steps and has no twin in TensorFlow.
        return {
            name: tensor for name, tensor in self.model.state_dict().items() if not name.endswith("num_batches_tracked")
        }

    def _slots(self) -> dict[str, torch.Tensor]:
        """`<slot>.<tensor>` -> what the optimizer remembers."""
        return {
            f"{neutral_name}.{name}": self.optimizer.state[parameter][slot]
            for name, parameter in self.model.named_parameters()
            for slot, neutral_name in self.optimizer.names_in_checkpoints.items()
            if slot in self.optimizer.state.get(parameter, {})
        }

    def tensors_of_replicas(self) -> Iterator[tuple[str, Sequence[Array]]]:
        for name, tensor in {**dict(self.model.named_parameters()), **self._slots()}.items():
            whole = self.parallel.full_tensor(tensor).cpu().numpy()
            # Every process gathers the same copy of shards: only one counts.
            if self.process_rank == 0 or self.parallel.local_shard(tensor) is tensor:
                yield name, [whole]

    def first_grad_norm_sq(self) -> float | None:
        squares = [
            self.parallel.local_shard(tensor).double().div(FIRST_MOMENTS[slot]).square().sum().item()
            for name, tensor in self._slots().items()
            if (slot := name.partition(".")[0]) in FIRST_MOMENTS
        ]
        return sum(squares) / self.parallel.replication_factor if squares else None

    def counters(self) -> Counters:
        return Counters(optimizer_steps=self._optimizer_steps, images=int(self._images_computed.item()))

    def barrier(self) -> None:
        self.parallel.barrier()

    def teardown(self) -> None:
        self.parallel.leave()

    @contextmanager
    def profile(self, path: Path) -> Iterator[None]:
        with torch.profiler.profile() as profiler:
            yield
        profiler.export_chrome_trace(str(path))

    def describe(self) -> Description:
        return replace(
            super().describe(),
            devices=self.parallel.device_names(),
            peak_device_memory_bytes=self.parallel.peak_memory_bytes(),
            threads=torch.get_num_threads(),
            # Replicas on threads set the number for themselves, and torch may report it for this thread too.
            threads_asked=None if self.config.emulated else self.config.topology.threads_per_process,
            switches=switched(
                {
                    "anomaly detection of torch on": torch.is_anomaly_enabled(),
                    "profiler of torch on": torch.autograd._profiler_enabled(),
                    "oneDNN of torch off": not torch.backends.mkldnn.enabled,
                }
            ),
            libraries=self.parallel.libraries(),
            gradients=replace(self._gradient_times.found(), messages=self.parallel.messages(self.model)),
        ).with_settings(
            **self.precision.settings(self.device),
            **self._compilation_found(),
            **self._attention_found(),
            **self._batch_norms_found(),
            **self.parallel.settings(),
        )

    def _batch_norms_found(self) -> dict[str, str]:
        """The setting `batchnorm_kernels` of a model whose layers of BatchNorm are not torch's."""
        has_own = self._has_own_batch_norms and "batchnorm_kernels" in self.config.tuning
        return {"batchnorm_kernels": "the model's own"} if has_own else {}

    def _attention_found(self) -> dict[str, str]:
        """The setting `attention` of timm's ViT: torch chooses a kernel by type, device and width of a head."""
        attention = model_of(self.workload.model).attention(self.workload.image_size)
        layers: Iterable[Any] = self.model.modules() if attention else ()
        fused = next((layer for layer in layers if getattr(layer, "fused_attn", False)), None)
        if fused is None:
            return {}
        # The function that scaled_dot_product_attention asks, too; torch has no public one, and may rename this one.
        choose = getattr(torch, "_fused_sdp_choice", None)
        if choose is None:
            return {"attention": NOT_KNOWN}
        dtype = torch.bfloat16 if self.workload.precision == "bfloat16" else self.precision.dtype
        (tokens, _), *_ = attention.values()
        shape = (1, fused.num_heads, tokens, fused.head_dim)
        heads = torch.zeros(shape, dtype=dtype, device=self.device, requires_grad=True)
        chosen = SDPBackend(choose(heads, heads, heads))
        # SDPBackend is no enum of Python: each look makes another object, equal and not identical.
        return {"attention": PRODUCTS if chosen == SDPBackend.MATH else chosen.name.replace("_", " ").lower()}

    def _compilation_found(self) -> dict[str, str]:
        """The setting `compilation`, with what torch's compiler says it left out, which is not always what was asked.

        A model whose step changes its buffers, as BatchNorm does, may get no CUDA graph (pytorch#139207).
        """
        asked = self.config.tuning.get("compilation", "none")
        if self._compile_mode is None:
            return {} if asked == "none" else {"compilation": f"none ({asked} compiles no models of Keras)"}
        counters = torch._dynamo.utils.counters
        left_out = {
            "CUDA graphs skipped": counters["inductor"]["cudagraph_skips"],
            "graph breaks": sum(counters["graph_break"].values()),
        }
        reasons = ", ".join(f"{name}: {count}" for name, count in left_out.items() if count)
        return {"compilation": f"{asked} ({reasons})" if reasons else asked}
