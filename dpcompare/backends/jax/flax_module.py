"""A Flax NNX module as a custom model: its tensors by torch's names and layouts, and what it computes from them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import nnx
from flax.nnx.nn import dtypes
from jax import numpy as jnp

from dpcompare.backends.jax.layer_outputs import outputs_of
from dpcompare.errors import RequestError
from dpcompare.models.custom import require_called_with_images, tied_tensors
from dpcompare.models.layer_matching import Source
from dpcompare.models.layers.in_jax import Tensors
from dpcompare.models.state import is_statistic

Path = tuple[str | int, ...]
"""Attributes, and places in lists, from a module to a part of it."""
Drop = Callable[..., jax.Array]
"""`dpcompare.backends.jax.model.Dropping`."""

NORM = {"scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
RULES: dict[type[nnx.Module], dict[str, str]] = {
    nnx.Linear: {"kernel": "weight", "bias": "bias"},
    nnx.Conv: {"kernel": "weight", "bias": "bias"},
    nnx.BatchNorm: NORM,
    nnx.LayerNorm: NORM,
    nnx.GroupNorm: NORM,
    nnx.Embed: {"embedding": "weight"},
}
"""Module -> variable -> the kind of tensor that it is in torch."""
NORMS: tuple[Any, ...] = tuple(kind for kind, names in RULES.items() if names is NORM)
TYPED: tuple[Any, ...] = (*NORMS, nnx.Embed)
"""Modules whose output has the type that they were made with, unless they are given another."""
AXES = {2: (1, 0), 4: (3, 2, 0, 1)}
"""Axes of a kernel -> their order in torch: of (in, out), and of (height, width, in, out)."""
SPATIAL = (1, 2)
"""Axes of features over which a dropout of whole channels is the same."""
MODE_ARGUMENTS = (
    *("train", "training", "is_training", "is_train", "deterministic", "use_running_average"),
    *("eval", "evaluate", "evaluating", "inference", "test", "testing"),
)
"""Arguments of a call that say whether a module is trained, and that overrule what `train()` and `eval()` have set."""
MODE_ATTRIBUTES = tuple(name for name in MODE_ARGUMENTS if name not in ("deterministic", "use_running_average"))
"""Attributes that say the same, and that `train()` and `eval()` do not set."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A variable of a module, and its name in torch."""

    name: str
    owner: Path
    variable: str
    axes: tuple[int, ...]
    """The order of its axes in torch."""

    @property
    def in_flax(self) -> tuple[int, ...]:
        """The order in Flax of the axes that it has in torch."""
        return tuple(map(int, np.argsort(self.axes)))


class SharedDropout(nnx.Module):
    """In the place of an `nnx.Dropout`: drops what the host has drawn."""

    def __init__(self, name: str, dropout: nnx.Dropout) -> None:
        self.name, self.rate = name, dropout.rate
        self.whole_channels = tuple(dropout.broadcast_dims) == SPATIAL
        self.drop: Drop | None = None
        self.in_training = False

    def __call__(self, features: jax.Array, *, deterministic: bool | None = None, rngs: Any = None) -> jax.Array:
        """The features, a part of them dropped unless a caller asks for none; `rngs` is not needed."""
        if deterministic is False and not self.in_training:
            raise RequestError(
                f"model: the dropout {self.name} is called with deterministic=False, so that it would drop in "
                "evaluation too; expected no such argument, or None"
            )
        if self.drop is None or deterministic:
            return features
        draws = {"draws": features.shape[-1]} if self.whole_channels else {}
        return self.drop(self.name, features, self.rate, **draws)


class NoRandomNumbers:
    """What a module gets that asks for `rngs`: layers of dropout leave it alone."""

    def __init__(self, model: str) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        raise RequestError(
            f"model: {self._model!r} draws random numbers (rngs.{name}) when it is called; expected layers of "
            "nnx.Dropout alone to do so"
        )

    __call__ = __getitem__ = lambda self, *_: self.__getattr__("()")


class FlaxModel:
    """The pair `init` and `apply` of a module, and what is known of its layers."""

    def __init__(self, name: str, module: nnx.Module) -> None:
        """Read a module.

        Args:
            name: of the custom model, for errors.
            module: just made; its layers of dropout are replaced.

        Raises:
            RequestError: a tensor of it has no name in torch, or it draws random numbers itself.
        """
        self._name = name
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(nnx.state(module))):
            raise RequestError(
                f"model: {name!r} has shapes without values; expected a module made outside nnx.eval_shape"
            )
        if lazy := [path for path, owner in _modules(module) if isinstance(owner, nnx.bridge.ToNNX)]:
            raise RequestError(
                f"model: {name!r} has a module of flax.linen ({_joined(lazy[0]) or 'itself'}), whose tensors are made "
                "when it is first called; expected layers of flax.nnx alone"
            )
        self._dropouts: list[Path] = []
        self._replace_dropouts(module)
        self._tensors = list(self._named(module))
        self.settings = {
            _joined(path): {name: getattr(norm, name) for name in ("epsilon", "momentum") if hasattr(norm, name)}
            for path, norm in _modules(module)
            if isinstance(norm, NORMS)
        }
        """Layer that normalises -> what must be the same in other frameworks."""
        self.norms = frozenset(_joined(path) for path, owner in _modules(module) if isinstance(owner, NORMS))
        for _, owner in _modules(module):
            self._refuse_mode_arguments(owner)
            self._refuse_own_types(owner)
        require_called_with_images(module, name, "a default, or a module without it", besides=("rngs",))
        self._asks_for_rngs = "rngs" in inspect.signature(type(module).__call__).parameters
        self._graph, state = nnx.split(module)
        leaves, self._structure = jax.tree_util.tree_flatten_with_path(state)
        places = {
            tuple(key.key for key in path if isinstance(key, jax.tree_util.DictKey)): place
            for place, (path, _) in enumerate(leaves)
        }
        self._places = [places.pop((*tensor.owner, tensor.variable)) for tensor in self._tensors]
        if places:
            raise RequestError(
                f"model: {name!r} has tensors outside its layers: {', '.join(map(_joined, places))}; expected layers "
                "as attributes of modules or in lists, and random numbers in nnx.Dropout alone"
            )
        self.sources = {
            tensor.name: Source(
                tensor.variable,
                tuple(leaves[place][1].shape),
                tensor.axes if tensor.axes != tuple(range(len(tensor.axes))) else (),
            )
            for tensor, place in zip(self._tensors, self._places, strict=True)
            if tensor.name.rpartition(".")[2] != tensor.variable
        }
        """Tensor -> what it is in Flax, where its name or its layout is another."""
        # On the host: on a device they would count as memory of the training.
        self._initial = {
            tensor.name: np.asarray(leaves[place][1]).transpose(tensor.axes)
            for tensor, place in zip(self._tensors, self._places, strict=True)
        }

    def init(self) -> Mapping[str, np.ndarray]:
        """The module's tensors, as torch has them, in the order in which its layers were made."""
        return self._initial

    def apply(
        self, tensors: Tensors, images: jax.Array, *, training: bool, axis_name: str | None, drop: Drop
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The logits of images, and in training new running statistics, in evaluation the features of layers."""
        # A module may change only what was made while it is traced: so not that of another call.
        values: list[Any] = [None] * len(self._places)
        for tensor, place in zip(self._tensors, self._places, strict=True):
            values[place] = tensors[tensor.name].transpose(tensor.in_flax)
        module = nnx.merge(self._graph, jax.tree_util.tree_unflatten(self._structure, values))
        for path in self._dropouts:
            dropout = _at(module, path)
            dropout.drop, dropout.in_training = drop, training
        for _, owner in _modules(module):
            if isinstance(owner, nnx.BatchNorm):
                owner.axis_name = axis_name
            if isinstance(owner, TYPED):
                owner.dtype = images.dtype
            if isinstance(owner, NORMS):  # in bfloat16 their own tensors, and what they compute, stay float32
                owner.promote_dtype = _widened
        set_mode: Callable[[], None] = module.train if training else module.eval
        set_mode()
        arguments = {"rngs": NoRandomNumbers(self._name)} if self._asks_for_rngs else {}
        with outputs_of({} if training else self._layers(module)) as features:
            logits = module(images, **arguments)
        statistics = {}  # of one axis
        for tensor, place in zip(self._tensors, self._places, strict=True):
            if is_statistic(tensor.name):
                statistics[tensor.name] = getattr(_at(module, tensor.owner), tensor.variable)[...]
                self._require_mode(tensor.name, values[place], statistics[tensor.name], training=training)
        # An embedding of no image has no row for each.
        of_rows = {name: array for name, array in features.items() if array.shape[:1] == images.shape[:1]}
        return logits, statistics if training else of_rows

    def _layers(self, module: nnx.Module) -> dict[str, nnx.Module]:
        """The layers of a module that have tensors."""
        return {_joined(tensor.owner): _at(module, tensor.owner) for tensor in self._tensors if tensor.owner}

    def _require_mode(self, statistic: str, before: jax.Array, after: jax.Array, *, training: bool) -> None:
        """Raise RequestError unless a running statistic is new in training, and in training alone.

        Of an evaluation that is traced this is not known: nnx.remat gives back what did not change as new arrays. The
        description of a model evaluates it without a trace.
        """
        is_new = after is not before
        if not training:
            is_new = is_new and not isinstance(after, jax.core.Tracer) and not np.array_equal(after, before)
        if is_new != training:
            what = "stays as it is in training" if training else "changes in evaluation"
            raise RequestError(
                f"model: {self._name!r}: the running statistic {statistic} {what}; expected BatchNorm that is always "
                "called, and without use_running_average: it follows train() and eval(), which dpcompare calls"
            )

    def _refuse_mode_arguments(self, owner: nnx.Module) -> None:
        """Raise RequestError for an attribute, or an argument's default, that would overrule `train()` and `eval()`."""
        if type(owner).__module__.startswith("flax."):
            return
        if of_mode := [each for each in MODE_ATTRIBUTES if isinstance(getattr(owner, each, None), bool)]:
            raise RequestError(
                f"model: {self._name!r}: {type(owner).__name__} has the attribute {of_mode[0]}, which train() and "
                "eval() do not set; expected none, since nnx.BatchNorm and nnx.Dropout follow these by themselves"
            )
        arguments = inspect.signature(type(owner).__call__).parameters
        # By None, Flax's layers follow `train()` and `eval()`.
        if of_mode := [each for each in MODE_ARGUMENTS if each in arguments and arguments[each].default is not None]:
            raise RequestError(
                f"model: {self._name!r}: {type(owner).__name__} takes the argument {of_mode[0]} when it is called; "
                "expected no such argument, or None as its default, since dpcompare calls train() and eval(), which "
                "nnx.BatchNorm and nnx.Dropout follow by themselves"
            )

    def _refuse_own_types(self, owner: nnx.Module) -> None:
        """Raise RequestError for a layer that would compute in another type than the run."""
        if not isinstance(owner, tuple(RULES)):
            return
        as_usual = [
            ("precision", None),
            ("param_dtype", "float32"),
            ("dtype", "float32" if isinstance(owner, TYPED) else None),
        ]
        for setting, usual in as_usual:
            found = getattr(owner, setting, None)
            named = found if found is None or setting == "precision" else jnp.dtype(found).name
            if named not in (None, usual):
                raise RequestError(
                    f"model: {self._name!r} has a {type(owner).__name__} with {setting}={named}; expected the default, "
                    "since --precision and --tune tf32=... say how a run computes"
                )

    def _named(self, module: nnx.Module) -> Iterator[Tensor]:
        known: dict[int, str] = {}
        for path, owner in _modules(module):
            rule = next((names for kind, names in RULES.items() if isinstance(owner, kind)), {})
            for variable, value in vars(owner).items():
                if not isinstance(value, nnx.Variable):
                    continue
                name = _joined((*path, variable))
                if id(value) in known:
                    raise tied_tensors(self._name, known[id(value)], name)
                known[id(value)] = name
                axes = tuple(range(value[...].ndim))
                if variable == "kernel":
                    axes = AXES.get(len(axes), ())
                if variable not in rule or not (axes or value[...].ndim == 0):
                    raise RequestError(
                        f"model: {self._name!r} has {name} of a {type(owner).__name__}, a layer that dpcompare does "
                        f"not know; expected layers of {', '.join(kind.__name__ for kind in RULES)} (Conv: of images)"
                    )
                if not isinstance(value, nnx.BatchStat if is_statistic(f".{rule[variable]}") else nnx.Param):
                    raise RequestError(
                        f"model: {self._name!r} has {name} as an nnx.{type(value).__name__}; expected an nnx.Param, "
                        "since every tensor of a model is trained"
                    )
                yield Tensor(name=_joined((*path, rule[variable])), owner=path, variable=variable, axes=axes)

    def _replace_dropouts(self, module: nnx.Module) -> None:
        for path, owner in list(_modules(module)):
            if not isinstance(owner, nnx.Dropout):
                continue
            if type(owner) is not nnx.Dropout:
                raise RequestError(
                    f"model: {self._name!r} has the dropout {_joined(path)} of its own class {type(owner).__name__}; "
                    "expected nnx.Dropout, without changes"
                )
            if tuple(owner.broadcast_dims) not in ((), SPATIAL):
                raise RequestError(
                    f"model: {self._name!r} has the dropout {_joined(path)} with broadcast_dims="
                    f"{tuple(owner.broadcast_dims)}; expected none, or {SPATIAL}, which drops whole channels"
                )
            parent, last = _at(module, path[:-1]), path[-1]
            if isinstance(parent, tuple):
                raise RequestError(
                    f"model: {self._name!r} has the dropout {_joined(path)} in a tuple; expected it in an nnx.List"
                )
            if isinstance(last, int):
                parent[last] = SharedDropout(_joined(path), owner)
            else:
                setattr(parent, last, SharedDropout(_joined(path), owner))
            self._dropouts.append(path)


def _modules(module: nnx.Module) -> Iterator[tuple[Path, nnx.Module]]:
    """A module and those that it consists of, in the order in which they were made."""

    def walk(part: Any, path: Path, above: tuple[nnx.Module, ...]) -> Iterator[tuple[Path, nnx.Module]]:
        if isinstance(part, (list, tuple, nnx.List)):
            for number, value in enumerate(part):
                yield from walk(value, (*path, number), above)
        elif isinstance(part, nnx.Module) and not any(part is each for each in above):
            yield path, part
            for attribute, value in vars(part).items():
                yield from walk(value, (*path, attribute), (*above, part))

    return walk(module, (), ())


def _widened(arrays: tuple[Any, ...], **_: Any) -> tuple[Any, ...]:
    """Arrays in the widest of their types, where a layer of Flax would compute in the type that it gives."""
    widened: tuple[Any, ...] = dtypes.promote_dtype(arrays)
    return widened


def _at(module: nnx.Module, path: Path) -> Any:
    """The part of a module at the end of a path."""
    part: Any = module
    for step in path:
        part = part[step] if isinstance(step, int) else getattr(part, step)
    return part


def _joined(path: Path) -> str:
    """A path as torch writes it."""
    return ".".join(map(str, path))
