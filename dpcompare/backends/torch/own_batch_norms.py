"""What the torch backend knows of a model whose layers are another library's, without importing it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


class OwnBatchNorms(nn.Module):
    """A model whose layers of BatchNorm are not torch's."""

    mean_over_replicas: Callable[[torch.Tensor], torch.Tensor] | None = None
    """How they take the mean of moments, differentiably; None: each replica has statistics of its own."""
