"""An Equinox module as a custom model: a tree of arrays with torch's layouts, called image by image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np

from dpcompare.backends.jax.layer_outputs import outputs_of
from dpcompare.errors import RequestError
from dpcompare.models.custom import require_called_with_images, tied_tensors
from dpcompare.models.layer_matching import Source
from dpcompare.models.layers.in_jax import Tensors

NORMS = (eqx.nn.LayerNorm, eqx.nn.GroupNorm, eqx.nn.RMSNorm)
REFUSED = {
    eqx.nn.ConvTranspose: ("whose layout is not known here", "Linear, Conv2d, LayerNorm and GroupNorm"),
    eqx.nn.Shared: ("which gives one tensor to several layers", "a tensor of its own for each layer"),
}
"""Part of a module -> why it is refused, and what is expected."""


class EquinoxModel:
    """The pair `init` and `apply` of a module that takes one image, (channels, height, width), and gives its logits.

    Its layers of dropout drop nothing.
    """

    def __init__(self, name: str, module: eqx.Module) -> None:
        """Read a module.

        Args:
            name: of the custom model, for errors.
            module: just made.

        Raises:
            RequestError: it keeps a state, as BatchNorm does, has a tensor twice or in a layout without a rule, or must
                be called with more than an image.
        """
        # A tree has whatever a module consists of as its leaves, if these are said to be leaves.
        for part in jax.tree.leaves(module, is_leaf=_is_refused):
            if _keeps_state(part):
                raise RequestError(
                    f"model: {name!r} has a {type(part).__name__}, which keeps a state; expected layers without one, "
                    "such as GroupNorm, or a module of flax.nnx"
                )
            for kind, (why, expected) in REFUSED.items():
                if isinstance(part, kind):
                    raise RequestError(f"model: {name!r} has a {type(part).__name__}, {why}; expected {expected}")
        require_called_with_images(module, name, "the default None, since layers of dropout drop nothing")
        parts = _parts(module, (*NORMS, eqx.nn.Dropout))
        self.norms = frozenset(name for name, part in parts.items() if isinstance(part, NORMS))
        self.settings = {name: {"epsilon": parts[name].eps} for name in self.norms} | {
            name: {"idle_rate": part.p}
            for name, part in parts.items()
            if isinstance(part, eqx.nn.Dropout) and part.p and not part.inference
        }
        """Layer that normalises or drops -> what must be the same in other frameworks, or is left out."""
        arrays, self._rest = eqx.partition(eqx.nn.inference_mode(module), eqx.is_inexact_array)
        leaves, self._structure = jax.tree_util.tree_flatten_with_path(arrays)
        self._names = [_joined(path) for path, _ in leaves]
        owners = dict.fromkeys(path[:-1] for path, _ in leaves if path[:-1] and all(map(_is_step, path)))
        self._layers = [path for path in owners if _is_layer(_at(module, path))]
        self._shapes = [value.shape for _, value in leaves]
        # On the host: on a device they would count as memory of the training.
        self._initial = {
            tensor: _in_torch(tensor, np.asarray(value)) for tensor, (_, value) in zip(self._names, leaves, strict=True)
        }
        self.sources = {
            tensor: Source("bias", shape)
            for tensor, shape in zip(self._names, self._shapes, strict=True)
            if shape != self._initial[tensor].shape
        }
        """Tensor -> what it is in Equinox, where its shape is another."""
        places: dict[int, str] = {}
        for tensor, (_, value) in zip(self._names, leaves, strict=True):
            if (first := places.setdefault(id(value), tensor)) != tensor:
                raise tied_tensors(name, first, tensor)

    def init(self) -> Mapping[str, np.ndarray]:
        """The module's tensors, as torch has them, in the order of its fields."""
        return self._initial

    def apply(
        self, tensors: Tensors, images: jax.Array, *, training: bool, axis_name: str | None, drop: Any
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The logits of images, (rows, height, width, channels), and in evaluation the features of layers."""
        values = [tensors[name].reshape(shape) for name, shape in zip(self._names, self._shapes, strict=True)]
        module = eqx.combine(jax.tree_util.tree_unflatten(self._structure, values), self._rest)
        layers = {} if training else {_joined(path): _at(module, path) for path in self._layers}

        def computed(image: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
            with outputs_of(layers) as features:
                return module(image), features

        logits, features = jax.vmap(computed)(images.transpose(0, 3, 1, 2))
        channels_last = {
            name: array.transpose(0, 2, 3, 1) if array.ndim == 4 else array for name, array in features.items()
        }
        return logits, channels_last


def _is_step(key: Any) -> bool:
    """Whether `_at` can take it: parts of other trees have no names."""
    return isinstance(key, (jax.tree_util.GetAttrKey, jax.tree_util.SequenceKey, jax.tree_util.DictKey))


def _is_layer(part: Any) -> bool:
    """Whether it is called for what its tensors compute, as a dict of arrays is not."""
    return isinstance(part, eqx.Module) and callable(part)


def _at(module: eqx.Module, path: Iterable[Any]) -> Any:
    """The part of a module at the end of a path."""
    part: Any = module
    for key in path:
        part = getattr(part, key.name) if hasattr(key, "name") else part[key.idx if hasattr(key, "idx") else key.key]
    return part


def _parts(module: eqx.Module, kinds: tuple[type, ...]) -> dict[str, Any]:
    """The parts of a module that are of some kinds, by name."""
    paths, _ = jax.tree_util.tree_flatten_with_path(module, is_leaf=lambda part: isinstance(part, kinds))
    return {_joined(path): part for path, part in paths if isinstance(part, kinds)}


def _is_refused(part: Any) -> bool:
    return _keeps_state(part) or isinstance(part, tuple(REFUSED))


def _keeps_state(part: Any) -> bool:
    """Whether a part of a module does; a Sequential is of the same class, and its layers are looked at themselves."""
    return isinstance(part, eqx.nn.StatefulLayer) and not isinstance(part, eqx.nn.Sequential)


def _in_torch(name: str, value: np.ndarray) -> np.ndarray:
    """The bias of a convolution is (out, 1, 1) in Equinox, and (out,) in torch."""
    is_bias = name.endswith("bias") and value.shape[1:] == (1, 1)
    return value.reshape(-1) if is_bias else value


def _joined(path: Iterable[Any]) -> str:
    """A path through a tree, as torch writes it."""
    return ".".join(
        str(next(getattr(key, kind) for kind in ("name", "idx", "key") if hasattr(key, kind))) for key in path
    )
