"""An Equinox module as a custom model: a tree of arrays with torch's layouts, called image by image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np

from dpcompare.errors import RequestError
from dpcompare.models.custom import require_called_with_images, tied_tensors
from dpcompare.models.layer_matching import Source
from dpcompare.models.layers.in_jax import Tensors

NORMS = (eqx.nn.LayerNorm, eqx.nn.GroupNorm, eqx.nn.RMSNorm)
TRANSPOSED = eqx.nn.ConvTranspose


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
        for part in jax.tree.leaves(module, is_leaf=lambda part: _keeps_state(part) or isinstance(part, TRANSPOSED)):
            if _keeps_state(part):
                raise RequestError(
                    f"model: {name!r} has a {type(part).__name__}, which keeps a state; expected layers without one, "
                    "such as GroupNorm, or a module of flax.nnx"
                )
            if isinstance(part, TRANSPOSED):
                raise RequestError(
                    f"model: {name!r} has a {type(part).__name__}, whose layout is not known here; expected Linear, "
                    "Conv2d, LayerNorm and GroupNorm"
                )
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
        """The logits of images, (rows, height, width, channels)."""
        values = [tensors[name].reshape(shape) for name, shape in zip(self._names, self._shapes, strict=True)]
        module = eqx.combine(jax.tree_util.tree_unflatten(self._structure, values), self._rest)
        return jax.vmap(module)(images.transpose(0, 3, 1, 2)), {}


def _parts(module: eqx.Module, kinds: tuple[type, ...]) -> dict[str, Any]:
    """The parts of a module that are of some kinds, by name."""
    paths, _ = jax.tree_util.tree_flatten_with_path(module, is_leaf=lambda part: isinstance(part, kinds))
    return {_joined(path): part for path, part in paths if isinstance(part, kinds)}


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
