"""Models split into stages: the seconds of their layers, and a model with stages on several devices of one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn

from dpcompare.backends.torch.model import layers_of
from dpcompare.models.costs import seconds_of
from dpcompare.models.layers.in_torch import Layer


def seconds_of_layers(model: nn.Module, images: torch.Tensor, synchronize: Callable[[], None]) -> list[float]:
    """Seconds of each layer, forward and backward; in evaluation, so that running statistics stay as they are."""
    training = model.training
    model.eval()
    calls: list[Callable[[], None]] = []
    features = images
    for layer in layers_of(model):
        calls.append(_forward_and_backward(layer, features.detach().requires_grad_()))
        with torch.no_grad():
            features = layer(features)
    seconds = seconds_of(calls, synchronize)
    model.train(training)
    model.zero_grad(set_to_none=True)
    return seconds


def _forward_and_backward(layer: Layer, features: torch.Tensor) -> Callable[[], None]:
    return lambda: layer(features).sum().backward()


class StagedModel(nn.Module):
    """A model whose layers are on several devices of this process; takes images on the first and gives logits there."""

    def __init__(
        self, model: nn.Module, prefixes: Sequence[Sequence[str]], cuts: Sequence[int], devices: Sequence[torch.device]
    ) -> None:
        """Args:
        model: its layers are moved to the devices.
        prefixes: of the names of each layer's tensors.
        cuts: indices of the layers with which the second and all later stages start.
        devices: one per stage.
        """
        super().__init__()
        self.model = model
        self._stages = [
            (device, range(begin, end))
            for device, (begin, end) in zip(devices, pairwise([0, *cuts, len(prefixes)]), strict=True)
        ]
        for device, layers in self._stages:
            for name in (name for layer in layers for name in prefixes[layer]):
                _move(model, name, device)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        layers = layers_of(self.model)
        x = images
        for device, numbers in self._stages:
            x = x.to(device)
            for number in numbers:
                x = layers[number](x)
        return x.to(images.device)


def _move(model: nn.Module, name: str, device: torch.device) -> None:
    """Move a layer, or a tensor of the model itself, to a device."""
    own = dict(model.named_parameters(recurse=False))
    if name in own:
        own[name].data = own[name].data.to(device)
    else:
        model.get_submodule(name).to(device)
