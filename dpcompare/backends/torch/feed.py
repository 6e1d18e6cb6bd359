"""The way of a batch from the host to its device, and back to the host for checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch

from dpcompare.data.batches import BatchLoader, DeviceBatch, HostBatch, prefetch
from dpcompare.data.pixels import NUM_BYTES
from dpcompare.system.type_names import Array


class DeviceFeed:
    """Places batches on a device in one number type and memory format."""

    def __init__(self, device: torch.device, dtype: torch.dtype, memory_format: torch.memory_format) -> None:
        self._device, self._dtype, self._memory_format = device, dtype, memory_format

    def batches(self, batch_loaders: Iterable[BatchLoader], num_threads: int) -> Iterator[DeviceBatch]:
        """The batches on the device, read and placed ahead of their use by as many threads."""
        if self._device.type == "cpu":
            return prefetch(batch_loaders, lambda load: self.place(load()), num_threads)
        stream = self._side_stream
        placed = prefetch(batch_loaders, lambda load: stream.place(partial(self.place, load())), num_threads)
        return map(stream.receive, placed)

    @cached_property
    def _side_stream(self) -> SideStream:
        """One for all that is read: torch keeps the memory that was taken for a stream to that stream."""
        return SideStream(self._device)

    def place(self, batch: HostBatch) -> DeviceBatch:
        """A batch on the device."""
        if self._device.type == "cpu":
            return self._on_host(batch)
        return DeviceBatch(
            images=self._images_on_gpu(batch),
            labels=self._move(batch.labels).long(),
            weights=self._move(batch.weights).to(self._dtype),
            global_count=batch.global_count,
            drop_masks=None if batch.drop_masks is None else self._move(batch.drop_masks).to(self._dtype),
        )

    def _on_host(self, batch: HostBatch) -> DeviceBatch:
        """The batch as the host has looked it up.

        NumPy changes type and order: torch would do it by threads of this thread's own, which then wait for more work
        on the cores that compute. ResNet-18 took a quarter longer.
        """
        dtype = np.float64 if self._dtype == torch.float64 else np.float32
        images = batch.images.astype(dtype, copy=False).transpose(0, 3, 1, 2)
        if self._memory_format == torch.contiguous_format:
            images = np.ascontiguousarray(images)
        return DeviceBatch(
            images=torch.from_numpy(images),
            labels=torch.from_numpy(batch.labels.astype(np.int64)),
            weights=torch.from_numpy(batch.weights.astype(dtype)),
            global_count=batch.global_count,
            drop_masks=None if batch.drop_masks is None else torch.from_numpy(batch.drop_masks.astype(dtype)),
        )

    def _images_on_gpu(self, batch: HostBatch) -> torch.Tensor:
        """(rows, channels, height, width), which the GPU looks up by their bytes."""
        flips = None if batch.flips is None else self._move(batch.flips)
        images = look_up(self._move(batch.pixels), self._move(batch.tables), flips).to(self._dtype)
        return images.permute(0, 3, 1, 2).contiguous(memory_format=self._memory_format)

    def _move(self, array: Array) -> torch.Tensor:
        # torch keeps pinned memory and gives it out again when the copies from it have ended.
        return torch.from_numpy(array).pin_memory().to(self._device, non_blocking=True)

    @staticmethod
    def read_back(batch: DeviceBatch) -> dict[str, Array]:
        """The arrays of a batch in the layout of a HostBatch; see `Backend.to_host`."""
        arrays = batch.arrays | {"images": batch.images.permute(0, 2, 3, 1), "labels": batch.labels.int()}
        return {name: array.contiguous().cpu().numpy() for name, array in arrays.items()}


@dataclass(frozen=True)
class PlacedBatch:
    """A batch that may still be on its way."""

    batch: DeviceBatch
    arrived: torch.cuda.Event


class SideStream:
    """A separate stream, so that copies continue while the GPU computes; it does in order what any thread gives it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def place(self, make: Callable[[], DeviceBatch]) -> PlacedBatch:
        """Have the stream do what `make` asks of the device; returns before it is done."""
        torch.cuda.set_device(self._device)  # of this thread, which would wake the first GPU otherwise
        with torch.cuda.stream(self._stream):
            batch = make()
            return PlacedBatch(batch, self._stream.record_event())

    def receive(self, placed: PlacedBatch) -> DeviceBatch:
        """The batch for the current stream, which waits for it; the host does not."""
        computing = torch.cuda.current_stream(self._device)
        computing.wait_event(placed.arrived)
        for tensor in vars(placed.batch).values():
            if isinstance(tensor, torch.Tensor):
                # Its memory was taken by the side stream, which else would use it again while this one computes.
                tensor.record_stream(computing)
        return placed.batch


def look_up(pixels: torch.Tensor, tables: torch.Tensor, flips: torch.Tensor | None) -> torch.Tensor:
    """The same as `dpcompare.data.pixels.look_up`, bit for bit, on the device of its arguments."""
    num_channels = tables.shape[1]
    first = torch.arange(num_channels, device=pixels.device) * NUM_BYTES
    if len(tables) > 1:
        rows = torch.arange(len(pixels), device=pixels.device) * (num_channels * NUM_BYTES)
        first = rows.view(-1, 1, 1, 1) + first
    if flips is not None:
        pixels = torch.where(flips.view(-1, 1, 1, 1), pixels.flip(2), pixels)
    return torch.take(tables, pixels.long() + first)
