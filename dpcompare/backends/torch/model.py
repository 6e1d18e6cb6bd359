"""The models as torch modules, whose parameters have the framework-neutral names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, get_args

import torch
from torch import nn

from dpcompare.backends.keras.settings import is_keras, made_with
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError
from dpcompare.models.architectures import family_of, model_of
from dpcompare.models.custom import custom_model, refuse_made, refuse_probabilities, tied_tensors
from dpcompare.models.dropout_matching import drop_settings, images_to_try, noise, randomness
from dpcompare.models.layer_matching import (
    CHANNELS_FIRST,
    OWN_FORWARD,
    order_flattened,
    same_padding,
    window_settings,
)
from dpcompare.models.layer_matching import Layer as CustomLayer
from dpcompare.models.layers.in_torch import Layer
from dpcompare.models.spec import IMAGE_CHANNELS, IMAGE_DIMENSIONS, NO_COLUMNS, columns, shape_of_draws
from dpcompare.system.python_environment import is_custom
from dpcompare.system.type_names import Array

BatchNorm: TypeAlias = nn.BatchNorm1d | nn.BatchNorm2d | nn.SyncBatchNorm
"""torch's own kinds."""
BATCH_NORMS = get_args(BatchNorm)
OTHER_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.RMSNorm)
WITH_RULES = (nn.Conv2d, nn.Linear, nn.Embedding, nn.EmbeddingBag, *BATCH_NORMS, *OTHER_NORMS)
"""Modules of torch with tensors for which there is a rule of initial values."""


def build_model(workload: Workload, num_classes: int, drop_columns: Mapping[str, slice] = NO_COLUMNS) -> nn.Module:
    """The model of a workload, with weights that are still to be replaced by the initial ones.

    Args:
        workload: which it is, and how it is trained.
        num_classes: of the dataset.
        drop_columns: `RunConfig.drop_columns` of a custom model.
    """
    if is_custom(workload.model):
        own = _custom(workload.model, workload.image_size, num_classes, workload.precision)
        for name, of_masks in drop_columns.items():
            SharedDrop.take_the_place_of(own.get_submodule(name), of_masks)
        return own
    model = _family(workload.model).build(workload.model, workload.image_size, num_classes)
    model.built_as = workload.model
    return _aligned(model, workload)


def _custom(name: str, image_size: int, num_classes: int, precision: str) -> nn.Module:
    custom = custom_model(name)
    made = made_with("torch", precision, image_size, lambda: custom.build("torch", image_size, num_classes))
    if not is_keras(made):
        return made  # type: ignore[no-any-return]  # `custom_layers` has seen that it is a module
    # Imported here: Keras is there, since the model is of it.
    from dpcompare.backends.keras.model import with_neutral_names
    from dpcompare.backends.torch.keras_module import KerasModule

    return KerasModule(with_neutral_names(made, name, custom, "torch"), name)


def layers_of(model: nn.Module) -> list[Layer]:
    """What a model of `build_model` does, cut between the layers of its row of MODELS."""
    layers: list[Layer] = _family(str(model.built_as)).layers_of(model)
    return layers


def _family(name: str) -> Any:
    return family_of(name, "torch")


def custom_layers(name: str, image_size: int, num_classes: int) -> list[CustomLayer]:
    """The layers of a custom model in the order in which they compute, which is tried on two images.

    Raises:
        RequestError: it is not a torch model, gives something else than logits, has tensors that no other framework
            would have or that are not trained, or a BatchNorm that does not compute what those of all frameworks do.
    """
    custom = custom_model(name)
    model = made_with("torch", "float32", image_size, lambda: custom.build("torch", image_size, num_classes))
    if is_keras(model):
        from dpcompare.backends.keras.function import described
        from dpcompare.backends.keras.model import with_neutral_names
        from dpcompare.backends.torch.keras_module import KerasModule, require_gradients

        named = with_neutral_names(model, name, custom, "torch")
        layers = described(named, name, "torch", image_size, num_classes)
        require_gradients(KerasModule(named, name), name, image_size)
        return layers
    if not isinstance(model, nn.Module):
        raise refuse_made(name, "torch", model, "a torch.nn.Module or a keras.Model of Keras 3")
    for problem in _problems(model):
        raise RequestError(f"model: {name!r} {problem}")
    evaluated, settings = (
        _settings_of_calls(name, model.train(mode), image_size, num_classes) for mode in (False, True)
    )
    if uncalled := batch_norms(model).keys() - evaluated.keys():
        raise RequestError(
            f"model: BatchNorm {min(uncalled)!r} of {name!r} is not called in evaluation; expected a model that calls "
            "it there too, or does not have it"
        )
    names: dict[int, str] = {}
    for key, parameter in model.named_parameters(remove_duplicate=False):
        if (first := names.setdefault(id(parameter), key)) != key:
            raise tied_tensors(name, first, key)
    tensors: dict[str, dict[str, tuple[int, ...]]] = {}
    for key, tensor in model.state_dict().items():
        layer_name, _, kind = key.rpartition(".")
        if kind != "num_batches_tracked":
            tensors.setdefault(layer_name, {})[kind] = tuple(tensor.shape)
    layers = [
        CustomLayer(
            name=layer_name,
            tensors=tensors.get(layer_name, {}),
            settings=settings.get(layer_name, {}),
        )
        for layer_name in dict.fromkeys((*settings, *tensors))
        if settings.get(layer_name) or layer_name in tensors
    ]
    return [*layers, *randomness(_logits_without_dropout(model, [layer.name for layer in layers], image_size))]


def _problems(model: nn.Module) -> Iterator[str]:
    """What a model has that would not train as it is written, with what is expected."""
    norms = batch_norms(model)
    for layer_name, norm in norms.items():
        if norm.running_var is None or norm.momentum is None:
            yield (
                f"made its BatchNorm {layer_name!r} with track_running_stats=False or momentum=None; expected running "
                "statistics with a momentum, as the other frameworks keep them"
            )
    for layer_name, layer in model.named_modules():
        of_torch = next(kind for kind in type(layer).__mro__ if kind.__module__.startswith("torch.nn.modules."))
        may_hold_any = of_torch is nn.Module or of_torch.__module__ == nn.Sequential.__module__
        if layer._parameters.get("weight") is not None and not (may_hold_any or isinstance(layer, WITH_RULES)):
            yield (
                f"has the layer {layer_name!r}, {of_torch.__name__} of torch, for whose tensors there is no rule of "
                f"initial values; expected layers of {', '.join(kind.__name__ for kind in WITH_RULES)}"
            )
    for tensor, parameter in model.named_parameters():
        if not parameter.requires_grad:
            yield f"has the parameter {tensor} with requires_grad=False; expected parameters that are trained"
    kept = model.state_dict().keys() - dict(model.named_parameters(remove_duplicate=False)).keys()
    for tensor in sorted(kept):
        owner, _, kind = tensor.rpartition(".")
        if owner not in norms and kind != "num_batches_tracked":
            yield (
                f"has the buffer {tensor}, which would be drawn or averaged by rules that are not its own; expected no "
                "buffers but BatchNorm's, or register_buffer(..., persistent=False)"
            )


def _settings_of_calls(name: str, model: nn.Module, image_size: int, num_classes: int) -> dict[str, dict[str, Any]]:
    """The settings of the layers that a model calls, in the order of their first calls."""
    settings: dict[str, dict[str, Any]] = {}
    hooks = [
        layer.register_forward_hook(partial(_keep_settings, settings, layer_name))
        for layer_name, layer in model.named_modules()
    ]
    _require_logits(name, model, image_size, num_classes)
    for hook in hooks:
        hook.remove()
    return settings


def _require_logits(name: str, model: nn.Module, image_size: int, num_classes: int) -> None:
    """Raise RequestError unless a model gives logits of two images."""
    with torch.no_grad():
        logits = model(torch.zeros(2, IMAGE_CHANNELS, image_size, image_size))
    shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if shape != (2, num_classes):
        when = " in training" if model.training else ""
        raise RequestError(
            f"model: {name!r} gives {shape} for 2 images in torch{when}; expected logits (2, {num_classes})"
        )
    refuse_probabilities(name, "torch", logits.numpy())


def _logits_without_dropout(model: nn.Module, found: Sequence[str], image_size: int) -> Iterator[Array]:
    """Logits of the same images in training, where the modules of dropout that were found drop nothing."""
    for module in map(model.get_submodule, found):
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    images = torch.from_numpy(images_to_try(image_size)).permute(0, 3, 1, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.from_numpy(noise(parameter.shape)))
    while True:
        with torch.no_grad():
            yield model(images).numpy()


def _keep_settings(
    settings: dict[str, dict[str, Any]], name: str, layer: nn.Module, inputs: tuple[Any, ...], output: Any
) -> None:
    """A hook that keeps what a layer was made with, when it is called first, and how often one of dropout is called."""
    if name not in settings:
        settings[name] = _settings_of(layer, inputs[0], output) if inputs else {}
    elif "calls" in settings[name]:
        settings[name]["calls"] += 1


def _settings_of(layer: nn.Module, features: Any, output: Any) -> dict[str, Any]:
    """What `dpcompare.models.layer_matching` compares of a layer that is torch's own."""
    if isinstance(layer, OTHER_NORMS):
        return {"epsilon": layer.eps} if layer.eps is not None else {}  # RMSNorm takes that of the type
    if isinstance(layer, BATCH_NORMS):
        return {
            "epsilon": layer.eps,
            "momentum": None if layer.momentum is None else round(1 - layer.momentum, 12),
            **({OWN_FORWARD: True} if _has_own_forward(layer) else {}),
        }
    if isinstance(layer, nn.Flatten):
        channels = features.shape[1]
        return {"flattened": order_flattened(channels, features[0].numel() // channels, CHANNELS_FIRST)}
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        draws = features[0].numel() if type(layer) is nn.Dropout and len(features) == 2 else 0  # a row for each image
        if type(layer) is nn.Dropout2d and features.dim() == IMAGE_DIMENSIONS:
            draws = features.shape[1]
        return drop_settings(layer.p, draws, features.shape[1:])
    if not isinstance(layer, nn.Conv2d | nn.MaxPool2d) or features.dim() != 4:
        return {}
    if isinstance(layer, nn.Conv2d) and layer.padding_mode != "zeros":
        return {}
    kernel, stride, dilation = (_pair(value) for value in (layer.kernel_size, layer.stride, layer.dilation))
    sides = tuple(features.shape[2:])
    if isinstance(layer.padding, str):
        padding = same_padding(kernel, stride, dilation, sides) if layer.padding == "same" else ((0, 0), (0, 0))
    else:
        rows, columns = _pair(layer.padding)
        padding = (rows, rows), (columns, columns)
    return window_settings(
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        padding=padding,
        sides=sides,
        sides_after=tuple(output.shape[2:]),
    )


def _has_own_forward(norm: BatchNorm) -> bool:
    """Whether a BatchNorm is of a class that computes something else than torch's and timm's.

    `GlobalBatchNorm` keeps the activation of timm's.
    """
    kind = type(norm)
    return kind.forward not in {each.forward for each in BATCH_NORMS} and not kind.__module__.startswith("timm.")


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _aligned(model: nn.Module, workload: Workload) -> nn.Module:
    """The same model with the constants of BatchNorm and the regularization that all frameworks share."""
    spec, places = model_of(workload.model), _family(workload.model).DROP_PLACES
    for norm in batch_norms(model).values():
        assert spec.batchnorm_epsilon is not None
        norm.eps, norm.momentum = spec.batchnorm_epsilon, 1 - workload.batchnorm_momentum
    for name, of_masks in columns(spec.drops if workload.regularization == "shared" else ()).items():
        SharedDrop.take_the_place_of(model.get_submodule(places.get(name, name)), of_masks)
    return model


class SharedDrop(nn.Module):
    """Dropout or stochastic depth by drop masks drawn on the host, which are set before every forward pass."""

    drop_masks: torch.Tensor | None = None
    """(rows, features of all such layers); None leaves all features as they are."""

    _columns: slice

    @staticmethod
    def take_the_place_of(module: nn.Module, columns: slice) -> None:
        """Have a module compute this from now on, wherever and under whatever names its model keeps it."""
        module.__class__ = SharedDrop
        module._columns = columns  # type: ignore[assignment]  # no tensor or module

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if not self.training or self.drop_masks is None:
            return features
        masks = self.drop_masks[:, self._columns].to(features)
        factors = masks.reshape(-1, *shape_of_draws(masks.shape[1], features.shape[1:]))
        # A model may use what it gave the layer, in the place of what the layer returns.
        return features.mul_(factors) if getattr(self, "inplace", False) else features * factors


def set_drop_masks(model: nn.Module, drop_masks: torch.Tensor | None) -> None:
    """Hand the drop masks of a batch to the layers that apply them."""
    for layer in model.modules():
        if isinstance(layer, SharedDrop):
            layer.drop_masks = drop_masks


def batch_norms(model: nn.Module) -> dict[str, BatchNorm]:
    """Name -> module of every BatchNorm of a model that is torch's own."""
    return {name: module for name, module in model.named_modules() if isinstance(module, BATCH_NORMS)}
