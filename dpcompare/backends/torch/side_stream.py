"""Batches placed on a GPU by a stream of its own, so that their copies go on while the GPU computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from dpcompare.data.batches import DeviceBatch


@dataclass(frozen=True)
class PlacedBatch:
    """A batch that may still be on its way."""

    batch: DeviceBatch
    arrived: torch.cuda.Event


class SideStream:
    """What any thread gives it is done in order, beside what the device's other streams do."""

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
