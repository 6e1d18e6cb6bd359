"""torch dp: nn.DataParallel on GPUs; on the CPU its algorithm on threads, which is an emulation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from torch import nn

from dpcompare.backends.torch.backend import TorchBackend
from dpcompare.backends.torch.parallel import Parallel


class DataParallel(Parallel):
    """One process that drives all devices of its node."""

    def connect(self) -> None:
        super().connect()
        self.num_replicas = (
            torch.cuda.device_count() if self.device.type == "cuda" else self.config.topology.num_replicas
        )

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.num_replicas == 1:
            return tensor
        return self.replicated.all_reduce_sum(tensor)  # type: ignore[operator]  # a ThreadedDataParallel

    def replicate(self, computation: nn.Module, model: nn.Module) -> nn.Module:
        if self.num_replicas == 1:
            return computation
        if self.device.type == "cuda":
            return nn.DataParallel(computation)
        return ThreadedDataParallel(computation, self.num_replicas, self.config.topology.threads_per_process)


class DpBackend(TorchBackend):
    """A backend whose replicas are the devices of one process."""

    parallelism = DataParallel


class ThreadedDataParallel(nn.Module):
    """DataParallel's scatter, replicate, parallel_apply and gather, with threads in the place of GPUs.

    nn.DataParallel itself silently runs the plain module when there is no GPU, and its parts refuse CPU tensors.
    As there, the parameters of a replica are differentiable copies, so that backward sums their gradients, and
    only the buffers of replica 0 outlive the step.
    """

    def __init__(self, module: nn.Module, num_replicas: int, num_threads: int) -> None:
        super().__init__()
        self.module = module
        self._num_replicas = num_replicas
        self._rank = threading.local()
        self._threads_per_replica = max(1, num_threads // num_replicas)

    def forward(self, images: torch.Tensor, drop_masks: torch.Tensor | None = None) -> torch.Tensor:
        chunks = images.chunk(self._num_replicas)
        masks = [None] * len(chunks) if drop_masks is None else drop_masks.chunk(self._num_replicas)
        replicas = [_replica(self.module, rank) for rank in range(len(chunks))]
        self._barrier = threading.Barrier(len(chunks))
        self._parts = [images] * len(chunks)

        def run(rank: int) -> torch.Tensor:
            # A setting of the calling thread: the replicas share the cores instead of each taking all.
            torch.set_num_threads(self._threads_per_replica)
            self._rank.value = rank
            try:
                return replicas[rank](chunks[rank], masks[rank])
            except BaseException:
                self._barrier.abort()  # the other replicas may be waiting for this one
                raise

        return torch.cat(_in_threads(run, len(chunks)))

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over the replicas; autograd connects the threads, as it does their outputs."""
        self._parts[self._rank.value] = tensor
        self._barrier.wait()
        total = torch.stack(self._parts).sum(0)
        self._barrier.wait()  # all have read the parts before one writes the next
        return total


def _replica(module: nn.Module, rank: int) -> nn.Module:
    """A copy of the module tree whose tensors are those of replica `rank`."""
    copies = {original: original._replicate_for_data_parallel() for original in module.modules()}
    for original, copy in copies.items():
        for name, child in original._modules.items():
            copy._modules[name] = None if child is None else copies[child]
        for name, parameter in original._parameters.items():
            # A clone is not an nn.Parameter but a plain attribute: gradients flow through it to the original.
            setattr(copy, name, parameter if parameter is None or rank == 0 else parameter.clone())
        for name, buffer in original._buffers.items():
            copy._buffers[name] = buffer if buffer is None or rank == 0 else buffer.clone()
    return copies[module]


def _in_threads(run: Callable[[int], torch.Tensor], count: int) -> list[torch.Tensor]:
    """run(0) ... run(count - 1), each in its thread; the first error is raised."""
    outputs: list[torch.Tensor | None] = [None] * count
    errors: list[BaseException] = []
    grad_enabled = torch.is_grad_enabled()  # a setting of a thread too

    def work(rank: int) -> None:
        try:
            with torch.set_grad_enabled(grad_enabled):
                outputs[rank] = run(rank)
        except BaseException as error:  # raised in the calling thread below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        causes = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
        raise (causes or errors)[0]
    return _complete(outputs)


def _complete(outputs: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    return [output for output in outputs if output is not None]
