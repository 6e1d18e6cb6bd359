"""The table of every image looked up by torch, where its bytes are."""

from __future__ import annotations

import torch

from dpcompare.data.pixels import NUM_BYTES


def look_up(pixels: torch.Tensor, tables: torch.Tensor, flips: torch.Tensor | None) -> torch.Tensor:
    """As `dpcompare.data.pixels.look_up`, bit for bit, on the device of its arguments."""
    num_channels = tables.shape[1]
    first = torch.arange(num_channels, device=pixels.device) * NUM_BYTES
    if len(tables) > 1:
        rows = torch.arange(len(pixels), device=pixels.device) * (num_channels * NUM_BYTES)
        first = rows.view(-1, 1, 1, 1) + first
    if flips is not None:
        pixels = torch.where(flips.view(-1, 1, 1, 1), pixels.flip(2), pixels)
    return torch.take(tables, pixels.long() + first)
