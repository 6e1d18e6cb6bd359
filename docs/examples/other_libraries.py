"""Models of Flax NNX, Equinox and Keras, as their users write them, and their twins in torch.

    dpcompare verify --model other_libraries:flax --frameworks torch,jax --regularization shared --quick

Each factory imports its library, so that the others need not be installed. Layers of a twin have the same names.
"""

from dpcompare import CustomModel


def flax_net(image_size, num_classes):
    from flax import nnx
    from jax import numpy as jnp

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(3, 8, (3, 3), strides=2, padding=1, rngs=rngs)  # Flax pads "SAME", torch nothing
            self.norm = nnx.BatchNorm(8, momentum=0.9, rngs=rngs)  # Flax keeps 0.99, torch 0.9
            self.dropout = nnx.Dropout(0.1, rngs=rngs)
            self.head = nnx.Linear(8, num_classes, rngs=rngs)

        def __call__(self, images):  # (rows, height, width, channels)
            features = self.norm(nnx.relu(self.conv(images)))
            return self.head(self.dropout(jnp.mean(features, (1, 2))))

    return Net(nnx.Rngs(0))


def torch_net(image_size, num_classes):
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
            self.norm = nn.BatchNorm2d(8)
            self.dropout = nn.Dropout(0.1)
            self.head = nn.Linear(8, num_classes)

        def forward(self, images):  # (rows, channels, height, width)
            features = self.norm(self.conv(images).relu())
            return self.head(self.dropout(features.mean((2, 3))))

    return Net()


def equinox_net(image_size, num_classes):
    import equinox as eqx
    import jax

    first, second = jax.random.split(jax.random.key(0))

    class Net(eqx.Module):
        conv: eqx.nn.Conv2d
        norm: eqx.nn.GroupNorm
        head: eqx.nn.Linear

        def __call__(self, image):  # (channels, height, width)
            features = self.norm(jax.nn.relu(self.conv(image)))
            return self.head(features.mean((1, 2)))

    return Net(
        eqx.nn.Conv2d(3, 8, 3, stride=2, padding=1, key=first),
        eqx.nn.GroupNorm(2, 8),
        eqx.nn.Linear(8, num_classes, key=second),
    )


def torch_twin(image_size, num_classes):
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
            self.norm = nn.GroupNorm(2, 8)
            self.head = nn.Linear(8, num_classes)

        def forward(self, images):
            return self.head(self.norm(self.conv(images).relu()).mean((2, 3)))

    return Net()


def keras_net(image_size, num_classes):
    import keras
    from keras import layers

    images = keras.Input((image_size, image_size, 3))
    features = layers.Conv2D(8, 3, strides=2, activation="relu")(images)
    features = layers.Dropout(0.1)(layers.BatchNormalization()(features))
    return keras.Model(images, layers.Dense(num_classes)(layers.GlobalAveragePooling2D()(features)))


flax = CustomModel(torch=torch_net, jax=flax_net)
equinox = CustomModel(torch=torch_twin, jax=equinox_net)
keras = CustomModel(keras=keras_net)  # the same in torch, TensorFlow and JAX
