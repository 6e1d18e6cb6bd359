"""The models as torch modules, whose parameters have the framework-neutral names."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import nn

from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError
from dpcompare.models.architectures import family_of, model_of
from dpcompare.models.custom import custom_model
from dpcompare.models.layers.in_torch import Layer
from dpcompare.models.spec import IMAGE_CHANNELS, columns
from dpcompare.system.python_environment import is_custom

BatchNorm: TypeAlias = nn.BatchNorm2d | nn.SyncBatchNorm
"""torch's own kinds."""


def build_model(workload: Workload, num_classes: int) -> nn.Module:
    """The model of a workload, with weights that are still to be replaced by the initial ones."""
    if is_custom(workload.model):
        return custom_model(workload.model).build("torch", workload.image_size, num_classes)
    model = _family(workload.model).build(workload.model, workload.image_size, num_classes)
    model.built_as = workload.model
    return _aligned(model, workload)


def layers_of(model: nn.Module) -> list[Layer]:
    """What a model of `build_model` does, cut between the layers of its row of MODELS."""
    layers: list[Layer] = _family(str(model.built_as)).layers_of(model)
    return layers


def _family(name: str) -> Any:
    return family_of(name, "torch")


def custom_shapes(name: str, image_size: int, num_classes: int) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of a custom model, which is also tried on two images.

    Raises:
        RequestError: it is not a torch model, gives something else than logits, or has a BatchNorm without the running
            statistics that all frameworks share.
    """
    model = custom_model(name).build("torch", image_size, num_classes)
    if not isinstance(model, nn.Module):
        raise RequestError(
            f"model: the torch factory of {name!r} gave a {type(model).__name__}; expected a torch.nn.Module"
        )
    with torch.no_grad():
        logits = model.eval()(torch.zeros(2, IMAGE_CHANNELS, image_size, image_size))
    if tuple(logits.shape) != (2, num_classes):
        raise RequestError(
            f"model: {name!r} gives {tuple(logits.shape)} for 2 images in torch; expected logits (2, {num_classes})"
        )
    for layer, norm in batch_norms(model).items():
        if norm.running_var is None or norm.momentum is None:
            raise RequestError(
                f"model: BatchNorm {layer!r} of {name!r} was made with track_running_stats=False or momentum=None; "
                "expected running statistics with a momentum, as the other frameworks keep them"
            )
    return {
        key: tuple(tensor.shape)
        for key, tensor in model.state_dict().items()
        if not key.endswith("num_batches_tracked")
    }


def _aligned(model: nn.Module, workload: Workload) -> nn.Module:
    """The same model with the constants of BatchNorm and the regularization that all frameworks share."""
    spec, places = model_of(workload.model), _family(workload.model).DROP_PLACES
    for norm in batch_norms(model).values():
        assert spec.batchnorm_epsilon is not None
        norm.eps, norm.momentum = spec.batchnorm_epsilon, 1 - workload.batchnorm_momentum
    if workload.regularization == "shared":
        for name, mask_columns in columns(spec.drops).items():
            parent, _, child = places.get(name, name).rpartition(".")
            setattr(model.get_submodule(parent), child, SharedDrop(mask_columns))
    return model


class SharedDrop(nn.Module):
    """Dropout or stochastic depth by drop masks drawn on the host, which are set before every forward pass."""

    drop_masks: torch.Tensor | None = None
    """(rows, features of all such layers); None leaves all features as they are."""

    def __init__(self, columns: slice) -> None:
        super().__init__()
        self._columns = columns

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if not self.training or self.drop_masks is None:
            return features
        masks = self.drop_masks[:, self._columns].to(features)
        return features * masks.reshape(*masks.shape, *[1] * (features.dim() - 2))


def set_drop_masks(model: nn.Module, drop_masks: torch.Tensor | None) -> None:
    """Hand the drop masks of a batch to the layers that apply them."""
    for layer in model.modules():
        if isinstance(layer, SharedDrop):
            layer.drop_masks = drop_masks


def batch_norms(model: nn.Module) -> dict[str, BatchNorm]:
    """Name -> module of every BatchNorm of a model that is torch's own."""
    kinds = (nn.BatchNorm2d, nn.SyncBatchNorm)
    return {name: module for name, module in model.named_modules() if isinstance(module, kinds)}
