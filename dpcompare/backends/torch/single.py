"""torch single: one device, the baseline."""

from __future__ import annotations

from dpcompare.backends.torch.backend import TorchBackend


class SingleDevice(TorchBackend):
    """Everything that the modes share is all it needs."""
