"""torch single: one device, the baseline."""

from __future__ import annotations

from dpcompare.backends.torch.backend import TorchBackend


class SingleDevice(TorchBackend):
    """All that it needs is what the modes share."""
