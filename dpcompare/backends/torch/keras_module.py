"""A Keras model as a torch module, whose parameters have the framework-neutral names and layouts."""

from __future__ import annotations

from typing import Any

import keras
import torch
from torch import nn

from dpcompare.backends.keras.function import Call, KerasFunction
from dpcompare.backends.torch.own_batch_norms import OwnBatchNorms
from dpcompare.errors import RequestError
from dpcompare.models.custom import without_gradient
from dpcompare.models.dropout_matching import images_to_try
from dpcompare.models.state import is_statistic


class Layer(nn.Module):
    """What a layer of the model has as a module: its tensors; it is called with what the layer gives."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features


class KerasModule(OwnBatchNorms):
    """Takes images as torch does, (rows, channels, height, width), and gives logits.

    Keras's own modules would have their tensors in Keras's layouts and names. Here a step gives Keras the module's
    tensors, in other views.
    """

    computes_as_one = True
    """Its layers are not called one by one, so their shards are gathered together."""

    def __init__(self, model: keras.Model, name: str) -> None:
        """Read a model, with the arguments of `KerasFunction`.

        Raises:
            RequestError: as `KerasFunction` does, or a layer has a name that torch's modules use themselves.
        """
        super().__init__()
        self._function = KerasFunction(model, name)
        initial = self._function.initial()
        self._tensors = [tensor.rpartition(".")[::2] for tensor in initial]
        """(layer, kind) of each tensor."""
        for (layer, kind), (tensor, values) in zip(self._tensors, initial.items(), strict=True):
            value = torch.from_numpy(values.copy())
            if is_statistic(tensor):
                self._layer(layer).register_buffer(kind, value)
            else:
                self._layer(layer).register_parameter(kind, nn.Parameter(value))
        for layer in self._function.dropouts:
            self._layer(layer)

    def _layer(self, name: str) -> nn.Module:
        """The module of a layer, made if there is none."""
        module: nn.Module = self
        for part in filter(None, name.split(".")):  # a tensor that belongs to no layer is the model's
            if part not in dict(module.named_children()):
                if hasattr(module, part):
                    raise RequestError(
                        f"model: the layer {name} has a name that torch's modules use themselves; expected another "
                        "name, or CustomModel(layer_names={...})"
                    )
                module.add_module(part, Layer())
            module = module.get_submodule(part)
        return module

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tensors = {
            f"{layer}.{kind}" if layer else kind: getattr(self.get_submodule(layer), kind)
            for layer, kind in self._tensors
        }
        # Keras moves what it is given to a device of its own choice, which is the first GPU.
        with keras.device(str(images.device)):
            computed = self._function(
                tensors,
                images.permute(0, 2, 3, 1),
                Call(drop=self._drop, mean_over_replicas=self.mean_over_replicas),
                training=self.training,
                with_features=self._is_watched(),
            )
        with torch.no_grad():
            for name, value in computed.statistics.items():
                tensors[name].copy_(value)
        for name, features in computed.features.items():
            self.get_submodule(name)(_channels_first(features))
        logits: torch.Tensor = computed.logits
        return logits

    def _is_watched(self) -> bool:
        """Whether hooks ask for what layers give."""
        return any(self.get_submodule(layer)._forward_hooks for layer, _ in self._tensors)

    def _drop(self, name: str, features: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        dropped: torch.Tensor = self.get_submodule(name)(_channels_first(features))
        return dropped.permute(0, 2, 3, 1) if dropped.dim() == 4 else dropped


def require_gradients(module: KerasModule, name: str, image_size: int) -> None:
    """Raise RequestError if some parameter of a model gets no gradient: a layer has left torch's graph.

    Args:
        module: of the model.
        name: of the custom model, for errors.
        image_size: in pixels.
    """
    module.train()(torch.from_numpy(images_to_try(image_size)[:2]).permute(0, 3, 1, 2)).sum().backward()
    if without := [parameter for parameter, value in module.named_parameters() if value.grad is None]:
        raise without_gradient(name, "torch", without)


def _channels_first(features: torch.Tensor) -> torch.Tensor:
    return features.permute(0, 3, 1, 2) if features.dim() == 4 else features
