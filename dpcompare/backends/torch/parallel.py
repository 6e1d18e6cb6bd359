"""How the replicas of a mode are made, connected and kept the same: what the torch modes differ in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from dpcompare.backends.cuda_wheels import driver_version
from dpcompare.backends.torch.build import build_of_torch
from dpcompare.config.run import PreparedRun
from dpcompare.system.type_names import Array


class Parallel:
    """One device alone; the modes of several override what is different there.

    Order of use, as `TorchBackend.setup` has it: `connect`, which sets `device` and, where there are several processes,
    the counts below; `place_stages`, `replicate`, `wrap_optimizer`.
    """

    device: torch.device
    """Where this process's batches go; chosen by `connect`."""
    replicated: nn.Module
    """What `replicate` returned, where the backend keeps it."""

    process_rank = 0
    num_processes = 1
    num_replicas = 1
    gradient_average_over = 1
    """Processes over which the mode averages gradients, where a sum is wanted."""
    replication_factor = 1
    """Processes that hold the same tensors of model and optimizer."""

    def __init__(self, config: PreparedRun) -> None:
        self.config = config

    def connect(self) -> None:
        """Join the other processes and choose `device`."""
        # With an index, also where there is one GPU only: torch.cuda.set_device takes no device without.
        self.device = torch.device("cuda", 0) if self.config.cluster.device_type == "gpu" else torch.device("cpu")

    def local_devices(self) -> list[torch.device]:
        """This process's devices, one per replica and stage."""
        if self.device.type == "cpu":
            return [self.device] * self.config.topology.devices_per_process
        return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]

    def synchronize(self) -> None:
        """Wait until this process's devices have computed what they were given."""
        if self.device.type == "cuda":
            for device in self.local_devices():
                # Not the whole device, which copies the next batches meanwhile.
                torch.cuda.current_stream(device).synchronize()

    def device_names(self) -> list[str]:
        """This process's devices as the framework names them, or the simulated ones."""
        if self.device.type == "cpu":
            first = self.process_rank * self.config.topology.devices_per_process
            return list(self.config.cluster.devices[first : first + self.config.topology.devices_per_process])
        return [torch.cuda.get_device_name(device) for device in self.local_devices()]

    def reset_peak_memory(self) -> None:
        """Forget how much memory of GPUs was held up to now."""
        if self.device.type == "cuda":
            for device in self.local_devices():
                torch.cuda.reset_peak_memory_stats(device)

    def libraries(self) -> dict[str, str]:
        """Name -> version of what torch computes with, how it was built, and the driver of a GPU."""
        if self.device.type == "cpu":
            return build_of_torch()
        found = {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "driver": driver_version(),
        }
        return build_of_torch() | {name: str(version) for name, version in found.items() if version}

    def peak_memory_bytes(self) -> int | None:
        """The peak of this process's GPUs together; None on the CPU."""
        if self.device.type == "cpu":
            return None
        return sum(torch.cuda.max_memory_allocated(device) for device in self.local_devices())

    def parameter_layout(self, features: torch.memory_format) -> torch.memory_format:
        """The memory format of the parameters: that of the features, unless the mode takes no other."""
        return features

    @property
    def optimizer_kernels(self) -> str:
        """Which of torch's implementations updates the parameters; see `dpcompare.config.tuning`."""
        return self.config.tuning.get("optimizer_kernels", "default")

    def place_stages(self, model: nn.Module, micro_batch: Callable[[], torch.Tensor]) -> nn.Module:
        """The model as it computes, its layers on the devices of this process's replica.

        Args:
            model: on `device`.
            micro_batch: gives images of zeros, as many as a replica trains with at once, to measure its layers with.
        """
        return model

    def replicate(self, computation: nn.Module, model: nn.Module) -> nn.Module:
        """What computes on all devices of this mode.

        Args:
            computation: what each replica computes.
            model: the model in it.
        """
        return computation

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """What makes the steps in the place of this optimizer."""
        return optimizer

    def backward(self, loss: torch.Tensor) -> None:
        """The backward pass of a micro-batch."""
        loss.backward()

    def gradient_sync(self, *, enabled: bool) -> AbstractContextManager[None]:
        """Within it, a backward pass sums gradients over the replicas; not `enabled`, it keeps them local."""
        return nullcontext()

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over all replicas, differentiable; called by every replica in its forward pass."""
        return tensor

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Give every replica the BatchNorm statistics of replica 0."""

    def full_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of model or optimizer, gathered where processes hold shards of it; all of them must call it."""
        return tensor.detach()

    def copy_into(self, tensor: torch.Tensor, values: Array) -> None:
        """Replace what a tensor, or this process's shard of it, holds by these values of the full tensor."""
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(values))

    def local_shard(self, tensor: torch.Tensor) -> torch.Tensor:
        """What this process holds of a tensor of model or optimizer."""
        return tensor

    def all_reduce_shards(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over the processes that hold the parts of one model; all of them must call it."""
        return tensor

    def messages(self, model: nn.Module) -> tuple[int, ...]:
        """Bytes of each collective of a step, as far as torch reports them; see `Gradients.messages`."""
        return ()

    def settings(self) -> dict[str, Any]:
        """Settings of the fairness sheet that the mode chose by itself."""
        return {}

    def barrier(self) -> None:
        """Wait until all processes are here; with one process there is nothing to wait for."""

    def leave(self) -> None:
        """Leave the other processes in good order; one process alone has none to leave."""
