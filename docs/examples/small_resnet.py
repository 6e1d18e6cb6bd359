"""The same small ResNet in three frameworks: `dpcompare verify --model small_resnet:model` in this folder proves it.

What makes two models the same is in the comments. The first lines of each factory import its framework, so that the
others need not be installed.
"""

from dpcompare import CustomModel

CHANNELS = (16, 32, 64)
EPSILON = 1e-3  # Keras's; torch's own is 1e-5
KEPT = 0.9  # of BatchNorm's running statistics; torch counts what it takes, 0.1


def torch_model(image_size, num_classes):
    from torch import nn
    from torch.nn import functional

    def conv(channels_in, channels_out, stride=1):
        # A fixed number of pixels on every side: Keras would pad a strided "same" convolution on one side only.
        return nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)

    def norm(channels):
        return nn.BatchNorm2d(channels, eps=EPSILON, momentum=1 - KEPT)

    class SmallResNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = conv(3, CHANNELS[0])
            self.stem_norm = norm(CHANNELS[0])
            inside = CHANNELS[0]
            for number, channels in enumerate(CHANNELS):
                self.add_module(f"block{number}_conv1", conv(inside, channels, stride=2))
                self.add_module(f"block{number}_norm1", norm(channels))
                self.add_module(f"block{number}_conv2", conv(channels, channels))
                self.add_module(f"block{number}_norm2", norm(channels))
                self.add_module(f"block{number}_skip", nn.Conv2d(inside, channels, 1, stride=2, bias=False))
                inside = channels
            self.classifier = nn.Linear(inside, num_classes)

        def forward(self, images):
            x = functional.relu(self.stem_norm(self.stem(images)))
            for number in range(len(CHANNELS)):
                layer = {
                    name: self.get_submodule(f"block{number}_{name}")
                    for name in ("conv1", "norm1", "conv2", "norm2", "skip")
                }
                y = functional.relu(layer["norm1"](layer["conv1"](x)))
                x = functional.relu(layer["norm2"](layer["conv2"](y)) + layer["skip"](x))
            return self.classifier(x.mean((2, 3)))

    return SmallResNet()


def tensorflow_model(image_size, num_classes):
    import keras
    from keras import layers

    def conv(x, channels, name, stride=1):
        padded = layers.ZeroPadding2D(1)(x)
        return layers.Conv2D(channels, 3, stride, use_bias=False, name=name)(padded)

    def norm(x, name):
        return layers.BatchNormalization(epsilon=EPSILON, momentum=KEPT, name=name)(x)

    images = keras.Input((image_size, image_size, 3))
    x = layers.ReLU()(norm(conv(images, CHANNELS[0], "stem"), "stem_norm"))
    for number, channels in enumerate(CHANNELS):
        y = layers.ReLU()(norm(conv(x, channels, f"block{number}_conv1", stride=2), f"block{number}_norm1"))
        y = norm(conv(y, channels, f"block{number}_conv2"), f"block{number}_norm2")
        skip = layers.Conv2D(channels, 1, 2, use_bias=False, name=f"block{number}_skip")(x)
        x = layers.ReLU()(layers.Add()([y, skip]))
    # The last layer is called otherwise, as an example of layer_names.
    return keras.Model(images, layers.Dense(num_classes, name="head")(layers.GlobalAveragePooling2D()(x)))


def jax_model(image_size, num_classes):
    import jax
    import numpy as np
    from jax import lax
    from jax import numpy as jnp

    def init():
        """The tensors, with the names and in the layouts that they have in torch; their values are drawn elsewhere."""
        tensors = {}

        def conv(name, channels_in, channels_out, size=3):
            tensors[f"{name}.weight"] = np.zeros((channels_out, channels_in, size, size))

        def norm(name, channels):
            for tensor in ("weight", "bias", "running_mean", "running_var"):
                tensors[f"{name}.{tensor}"] = np.ones(channels)

        conv("stem", 3, CHANNELS[0])
        norm("stem_norm", CHANNELS[0])
        inside = CHANNELS[0]
        for number, channels in enumerate(CHANNELS):
            conv(f"block{number}_conv1", inside, channels)
            norm(f"block{number}_norm1", channels)
            conv(f"block{number}_conv2", channels, channels)
            norm(f"block{number}_norm2", channels)
            conv(f"block{number}_skip", inside, channels, size=1)
            inside = channels
        tensors["classifier.weight"], tensors["classifier.bias"] = (
            np.zeros((num_classes, inside)),
            np.zeros(num_classes),
        )
        return tensors

    def apply(tensors, images, *, training, axis_name):
        made = {}  # new running statistics, and the features of layers, by which verify names the first that differs

        def conv(name, x, stride=1):
            weight = tensors[f"{name}.weight"]
            padding = weight.shape[2] // 2  # the same on every side
            made[name] = lax.conv_general_dilated(
                x.astype(weight.dtype),
                weight,
                (stride, stride),
                [(padding, padding)] * 2,
                dimension_numbers=("NHWC", "OIHW", "NHWC"),
            )
            return made[name]

        def norm(name, x):
            scale, shift, mean, variance = (
                tensors[f"{name}.{tensor}"] for tensor in ("weight", "bias", "running_mean", "running_var")
            )
            if training:
                moments = x.mean((0, 1, 2)), jnp.square(x).mean((0, 1, 2))
                of_batch, squares = moments if axis_name is None else lax.pmean(moments, axis_name)
                variance_of_batch = squares - jnp.square(of_batch)
                made[f"{name}.running_mean"] = KEPT * mean + (1 - KEPT) * of_batch
                made[f"{name}.running_var"] = KEPT * variance + (1 - KEPT) * variance_of_batch
                mean, variance = of_batch, variance_of_batch
            made[name] = (x - mean) * lax.rsqrt(variance + EPSILON) * scale + shift
            return made[name]

        x = jax.nn.relu(norm("stem_norm", conv("stem", images)))
        for number in range(len(CHANNELS)):
            y = jax.nn.relu(norm(f"block{number}_norm1", conv(f"block{number}_conv1", x, stride=2)))
            y = norm(f"block{number}_norm2", conv(f"block{number}_conv2", y))
            x = jax.nn.relu(y + conv(f"block{number}_skip", x, stride=2))
        made["classifier"] = x.mean((1, 2)) @ tensors["classifier.weight"].T + tensors["classifier.bias"]
        return made["classifier"], made

    return init, apply


model = CustomModel(torch=torch_model, tensorflow=tensorflow_model, jax=jax_model, layer_names={"classifier": "head"})


class Squares:
    """A dataset of one's own: a bright square on noise, in one of four corners."""

    class_names = ("upper left", "upper right", "lower left", "lower right")

    def __init__(self, count, seed):
        import numpy as np

        generator = np.random.default_rng(seed)
        self._images = generator.integers(0, 128, (count, 32, 32, 3), dtype=np.uint8)
        self._labels = generator.integers(0, 4, count)
        for image, label in zip(self._images, self._labels, strict=True):
            top, left = 16 * (label // 2), 16 * (label % 2)
            image[top : top + 16, left : left + 16] += 64

    def __len__(self):
        return len(self._images)

    def __getitem__(self, index):
        return self._images[index], self._labels[index]


def squares():
    return {"train": Squares(256, seed=0), "validation": Squares(64, seed=1)}
