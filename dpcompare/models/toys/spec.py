"""The toys: small models that train in seconds, each with something that is hard to align."""

from __future__ import annotations

from collections.abc import Iterator

from dpcompare.models.spec import IMAGE_CHANNELS, Drop, ModelSpec, Shape, batch_norm, biased, halved, squares


def _toy_cnn(image_size: int, num_classes: int) -> Iterator[tuple[str, Shape]]:
    """conv(5)-pool-conv(5)-pool and three dense layers, with valid padding."""
    side = ((image_size - 4) // 2 - 4) // 2
    yield from biased("conv1", (6, IMAGE_CHANNELS, 5, 5))
    yield from biased("conv2", (16, 6, 5, 5))
    yield from biased("fc1", (120, side * side * 16))
    yield from biased("fc2", (84, 120))
    yield from biased("fc3", (num_classes, 84))


def _toy_cnn_sides(image_size: int) -> Iterator[tuple[str, tuple[int, int]]]:
    pooled = (image_size - 4) // 2
    yield from (("conv1", (image_size, image_size - 4)), ("conv2", (pooled, pooled - 4)))
    yield from ((dense, (1, 1)) for dense in ("fc1", "fc2", "fc3"))


def _toy_bn(num_classes: int) -> Iterator[tuple[str, Shape]]:
    """What is hard to align in EfficientNet, in miniature: strided "same" convolutions, BatchNorm and a residual."""
    yield "conv_stem.weight", (8, IMAGE_CHANNELS, 3, 3)
    yield from batch_norm("bn1", 8)
    yield "conv_dw.weight", (8, 1, 3, 3)
    yield from batch_norm("bn2", 8)
    yield "conv_pwl.weight", (8, 8, 1, 1)
    yield from batch_norm("bn3", 8)
    yield from biased("classifier", (num_classes, 8))


def _toy_bn_sides(image_size: int) -> Iterator[tuple[str, tuple[int, int]]]:
    stem = halved(image_size, 2)
    side = halved(stem, 2)
    yield from (("conv_stem", (image_size, stem)), ("bn1", (stem, stem)))
    yield from (("conv_dw", (stem, side)), ("bn2", (side, side)))
    yield from (("conv_pwl", (side, side)), ("bn3", (side, side)), ("classifier", (1, 1)))


def _mlp(image_size: int, num_classes: int) -> Iterator[tuple[str, Shape]]:
    """One hidden layer of 512 units on the flattened (height, width, channel) pixels."""
    yield from biased("fc1", (512, image_size * image_size * IMAGE_CHANNELS))
    yield from biased("fc2", (num_classes, 512))


SPECS = {
    "toy-cnn": ModelSpec(
        family="toys",
        min_image_size=32,
        shapes=lambda size, classes: dict(_toy_cnn(size, classes)),
        layers=(("conv1",), ("conv2",), ("fc1",), ("fc2",), ("fc3",)),
        positions=lambda size: squares(_toy_cnn_sides(size)),
    ),
    "toy-bn": ModelSpec(
        family="toys",
        min_image_size=4,
        batchnorm_stride=4,
        batchnorm_epsilon=1e-3,
        clip_norm_of_verify=0.4,
        shapes=lambda size, classes: dict(_toy_bn(classes)),
        layers=(("conv_stem", "bn1"), ("conv_dw", "bn2"), ("conv_pwl", "bn3"), ("classifier",)),
        drops=(
            Drop(name="drop_path", kind="stochastic depth", rate=0.2),
            Drop(name="dropout", kind="dropout", rate=0.25, features=8),
        ),
        positions=lambda size: squares(_toy_bn_sides(size)),
    ),
    "mlp": ModelSpec(
        family="toys",
        min_image_size=1,
        shapes=lambda size, classes: dict(_mlp(size, classes)),
        layers=(("fc1",), ("fc2",)),
        positions=lambda image_size: {"fc1": (1, 1), "fc2": (1, 1)},
        clip_norm_of_verify=14.0,
        drops=(Drop(name="dropout", kind="dropout", rate=0.5, features=512),),
    ),
}
