"""A loop of one's own with a model, a loss, an optimizer and a dataset of one's own, the same in three frameworks.

    python own_loop.py FRAMEWORK MODE FOLDER

`small_resnet.py` has models with BatchNorm. Modes of several processes: torchrun, or `dpcompare.run_script`.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import dpcompare as dp


class Bars:
    """Grey images with a bright bar, whose length is the class."""

    class_names = ("short", "middle", "long")

    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        image = np.full((32, 32, 3), 40, np.uint8)
        image[index % 24 : index % 24 + 4, : 8 * (index % 3 + 1)] = 220
        return image, index % 3


def in_torch(image_size: int, num_classes: int) -> Any:
    from torch import nn

    net = nn.Sequential()
    net.add_module("conv", nn.Conv2d(3, 8, 3, stride=2))
    net.add_module("relu", nn.ReLU())
    net.add_module("pool", nn.AdaptiveAvgPool2d(1))
    net.add_module("flatten", nn.Flatten())
    net.add_module("head", nn.Linear(8, num_classes))
    return net


def in_keras(image_size: int, num_classes: int) -> Any:
    import keras

    images = keras.Input((image_size, image_size, 3))
    features = keras.layers.Conv2D(8, 3, strides=2, activation="relu", name="conv")(images)
    features = keras.layers.GlobalAveragePooling2D()(features)
    return keras.Model(images, keras.layers.Dense(num_classes, name="head")(features))


def in_jax(image_size: int, num_classes: int) -> Any:
    import jax

    def init() -> dict[str, np.ndarray]:  # shapes; dpcompare draws the values
        shapes = {
            "conv.weight": (8, 3, 3, 3),
            "conv.bias": (8,),
            "head.weight": (num_classes, 8),
            "head.bias": (num_classes,),
        }
        return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}

    def apply(tensors: Any, images: Any, *, training: bool, axis_name: str | None) -> Any:
        kernel = tensors["conv.weight"].transpose(2, 3, 1, 0)
        layout = ("NHWC", "HWIO", "NHWC")
        features = jax.lax.conv_general_dilated(images, kernel, (2, 2), "VALID", dimension_numbers=layout)
        features = jax.nn.relu(features + tensors["conv.bias"]).mean((1, 2))
        return features @ tensors["head.weight"].T + tensors["head.bias"], {}

    return init, apply


def squared_errors(logits: Any, labels: Any) -> Any:
    """The loss of each row; every framework has these operators, and one-hot codes of its own."""
    module = type(logits).__module__.partition(".")[0]
    if module == "torch":
        from torch.nn.functional import one_hot

        return ((logits - one_hot(labels, logits.shape[1])) ** 2).sum(1)
    if module == "tensorflow":
        import tensorflow as tf

        return tf.reduce_sum((logits - tf.one_hot(labels, logits.shape[1], dtype=logits.dtype)) ** 2, 1)
    import jax

    return ((logits - jax.nn.one_hot(labels, logits.shape[1], dtype=logits.dtype)) ** 2).sum(1)


def momentum(parameter: Any, gradient: Any, slots: Any, learning_rate: Any, step: Any) -> Any:
    velocity = 0.9 * slots[0] + gradient
    return parameter - learning_rate * velocity, [velocity]


def main(framework: str, mode: str, folder: str) -> None:
    workload = dp.Workload(image_size=32, global_batch_size=16, precision="float64", steps=6, warmup_steps=1)
    with dp.backend(
        framework,
        mode,
        workload,
        model=dp.CustomModel(torch=in_torch, tensorflow=in_keras, jax=in_jax),
        dataset=Bars(),
        loss=squared_errors,
        optimizer=dp.CustomOptimizer(slots=["velocity"], update=momentum),
    ) as training:
        for batch in training.batches():
            loss = training.step(batch, lr=0.02)
            print(f"process {training.process_rank}, step {batch.step}: {loss:.12f}", flush=True)
        print(training.evaluate())
        training.save(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
