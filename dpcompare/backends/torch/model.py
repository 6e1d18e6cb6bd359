"""The models as torch modules, whose parameters have the framework-neutral names."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from types import ModuleType

import torch
from torch import nn
from torch.nn import functional

from dpcompare.backends.constants import BATCH_NORM_EPSILON
from dpcompare.config.workload import Workload
from dpcompare.data.regularization import columns
from dpcompare.errors import RequestError
from dpcompare.models.architectures import IMAGE_CHANNELS, MODELS
from dpcompare.models.custom import custom_model
from dpcompare.system.import_path import is_custom


def import_timm() -> ModuleType:
    """timm, imported where its models or layers are needed: those of ours need not wait for it.

    It imports wandb where that is installed, which takes seconds, and leaves a folder in /tmp if the process is killed.
    """
    if "wandb" in sys.modules:
        import timm
    else:
        sys.modules["wandb"] = None  # type: ignore[assignment]  # an import of it then fails, and timm does without
        try:
            import timm
        finally:
            del sys.modules["wandb"]
    return timm


def build_model(workload: Workload, num_classes: int) -> nn.Module:
    """The model of a workload, with weights that are still to be replaced by the initial ones."""
    if is_custom(workload.model):
        return custom_model(workload.model).build("torch", workload.image_size, num_classes)
    if workload.model == "toy-cnn":
        return ToyCnn(workload.image_size, num_classes)
    if workload.model == "mlp":
        return _aligned(Mlp(workload.image_size, num_classes), workload)
    if workload.model == "toy-bn":
        return _aligned(ToyBn(num_classes), workload)
    # tf_: padding as TensorFlow's "same"; torchvision's model pads strided convolutions differently.
    model = import_timm().create_model(
        f"tf_{workload.model.replace('-', '_')}", num_classes=num_classes, drop_rate=0.0, drop_path_rate=0.0
    )
    # timm's dropout is a function call between pooling and classifier, not a layer that could be replaced.
    model.global_pool = nn.Sequential(OrderedDict(pool=model.global_pool, dropout=nn.Identity()))
    return _aligned(model, workload)


def custom_shapes(name: str, image_size: int, num_classes: int) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of a custom model, which is also tried on two images.

    Raises:
        RequestError: it is no torch model, or gives something else than logits.
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
    return {
        key: tuple(tensor.shape)
        for key, tensor in model.state_dict().items()
        if not key.endswith("num_batches_tracked")
    }


def _aligned(model: nn.Module, workload: Workload) -> nn.Module:
    """The same model with the constants of BatchNorm and the regularization that all frameworks share."""
    for norm in batch_norms(model).values():
        norm.eps, norm.momentum = BATCH_NORM_EPSILON, 1 - workload.batchnorm_momentum
    if workload.regularization == "shared":
        for name, mask_columns in columns(MODELS[workload.model].drops).items():
            if name == "dropout" and hasattr(model, "global_pool"):
                name = "global_pool.dropout"
            parent, _, child = name.rpartition(".")
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


def batch_norms(model: nn.Module) -> dict[str, nn.BatchNorm2d | nn.SyncBatchNorm]:
    """Name -> module of every BatchNorm of a model that is torch's own."""
    kinds = (nn.BatchNorm2d, nn.SyncBatchNorm)
    return {name: module for name, module in model.named_modules() if isinstance(module, kinds)}


Layer = Callable[[torch.Tensor], torch.Tensor]


class Layered(nn.Module, ABC):
    """A model that is its layers one after the other."""

    @abstractmethod
    def layers(self) -> list[Layer]:
        """In the order of `dpcompare.models.architectures.Model.layers`."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = images
        for layer in self.layers():
            x = layer(x)
        return x


def layers_of(model: nn.Module) -> list[Layer]:
    """What a model does, cut between the layers of `dpcompare.models.architectures.Model.layers`."""
    if isinstance(model, Layered):
        return model.layers()
    blocks = [block for blocks in model.blocks for block in blocks]  # timm's EfficientNet
    return [
        lambda images: model.bn1(model.conv_stem(images)),
        *blocks,
        lambda x: model.bn2(model.conv_head(x)),
        lambda x: model.classifier(model.global_pool(x)),
    ]


class ToyCnn(Layered):
    """conv(5)-pool-conv(5)-pool and three dense layers, with valid padding."""

    def __init__(self, image_size: int, num_classes: int) -> None:
        super().__init__()
        side = ((image_size - 4) // 2 - 4) // 2
        self.conv1 = nn.Conv2d(IMAGE_CHANNELS, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(side * side * 16, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, num_classes)

    def layers(self) -> list[Layer]:
        return [
            lambda images: functional.max_pool2d(functional.relu(self.conv1(images)), 2),
            lambda x: functional.max_pool2d(functional.relu(self.conv2(x)), 2),
            lambda x: functional.relu(self.fc1(_flatten(x))),
            lambda x: functional.relu(self.fc2(x)),
            self.fc3,
        ]


class Conv2dSame(nn.Conv2d):
    """A convolution with TensorFlow's "same" padding: the odd pixel goes to the right and to the bottom."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        height, width = (
            max((-(-side // stride) - 1) * stride + kernel - side, 0)
            for side, stride, kernel in zip(images.shape[2:], self.stride, self.kernel_size, strict=True)
        )
        padding = (width // 2, width - width // 2, height // 2, height - height // 2)
        return super().forward(functional.pad(images, padding))


class ToyBn(Layered):
    """Two strided convolutions with TensorFlow's "same" padding, a residual, BatchNorm, and a dense layer."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv_stem = Conv2dSame(IMAGE_CHANNELS, 8, 3, stride=2, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv_dw = Conv2dSame(8, 8, 3, stride=2, groups=8, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.conv_pwl = nn.Conv2d(8, 8, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(8)
        self.drop_path = nn.Identity()
        self.dropout = nn.Identity()
        self.classifier = nn.Linear(8, num_classes)

    def layers(self) -> list[Layer]:
        return [
            lambda images: functional.relu(self.bn1(self.conv_stem(images))),
            lambda x: functional.relu(self.bn2(self.conv_dw(x))),
            lambda x: x + self.drop_path(self.bn3(self.conv_pwl(x))),
            lambda x: self.classifier(self.dropout(x.mean((2, 3)))),
        ]


class Mlp(Layered):
    """One hidden layer of 512 units on the flattened pixels."""

    def __init__(self, image_size: int, num_classes: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(image_size * image_size * IMAGE_CHANNELS, 512)
        self.dropout = nn.Identity()
        self.fc2 = nn.Linear(512, num_classes)

    def layers(self) -> list[Layer]:
        return [
            lambda images: functional.relu(self.fc1(_flatten(images))),
            lambda x: self.fc2(self.dropout(x)),
        ]


def _flatten(features: torch.Tensor) -> torch.Tensor:
    """(batch, channels, height, width) flattened in the order of the shared weights: height, width, channel."""
    return features.permute(0, 2, 3, 1).flatten(1)
