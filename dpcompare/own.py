"""A user's own model and dataset, named `package.module:NAME`: found, checked, and described by `python -m dpcompare.own`."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from dpcompare.data.order import epoch_order
from dpcompare.data.sources import VALIDATION_SHARE
from dpcompare.errors import RequestError

Factory = Callable[[int, int], Any]
"""(image_size, num_classes) -> a model."""


@dataclass(frozen=True, kw_only=True)
class OwnModel:
    """A model in one or both frameworks, which must be the same one.

    Both take normalised pixels and give logits, (rows, num_classes), and draw no random numbers. Their layers have the same
    names, or `layer_names` says how those of one are called in the other.
    """

    torch: Factory | None = None
    """Makes a torch.nn.Module that takes (rows, 3, image_size, image_size)."""
    tensorflow: Factory | None = None
    """Makes a keras.Model that takes (rows, image_size, image_size, 3)."""
    layer_names: Mapping[str, str] = field(default_factory=dict)
    """Name of a torch module -> name of the Keras layer that is its twin, where that is another."""

    def build(self, framework: str, image_size: int, num_classes: int) -> Any:
        """The model of a framework.

        Raises:
            RequestError: there is none.
        """
        factory: Factory | None = getattr(self, framework)
        if factory is None:
            raise RequestError(f"model: received one without a factory for {framework}; give OwnModel({framework}=...)")
        return factory(image_size, num_classes)


def is_own(name: str) -> bool:
    """Whether a name is `package.module:NAME`."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name) is not None


def _found(name: str, what: str) -> Any:
    module, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # last: a folder named torch/ there is not the framework
    try:
        return getattr(import_module(module), attribute)
    except (Exception, SystemExit) as error:  # whatever a user's module does
        raise RequestError(
            f"{what}: {name!r} cannot be imported ({type(error).__name__}: {error}); expected package.module:NAME that "
            "Python finds from the current directory"
        ) from None


def own_model(name: str) -> OwnModel:
    """The model of a name: an OwnModel, or a function of no arguments that returns one.

    Raises:
        RequestError: there is none.
    """
    model = _found(name, "model")
    if not isinstance(model, OwnModel) and callable(model):
        try:
            model = model()
        except Exception as error:
            raise RequestError(f"model: {name!r} failed ({type(error).__name__}: {error}); {EXPECTED_MODEL}") from None
    if not isinstance(model, OwnModel):
        raise RequestError(f"model: {name!r} is of type {type(model).__name__}; {EXPECTED_MODEL}")
    return model


def source_sha256(model: str) -> str:
    """sha256 of the file that an own model's module is written in; what that imports is not looked at."""
    file = import_module(model.partition(":")[0]).__file__
    assert file is not None
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


EXPECTED_MODEL = "expected a dpcompare.OwnModel, or a function of no arguments that returns one"


@cache
def tensor_shapes(
    model: str, framework: str, python: str, image_size: int, num_classes: int
) -> dict[str, tuple[int, ...]]:
    """Framework-neutral name -> shape of every tensor of an own model, as it is in a framework; asked of a process of its own.

    Raises:
        RequestError: there is no such model, or it gives something else than logits.
    """
    argv = [python, "-P", "-m", "dpcompare.own", model, framework, str(image_size), str(num_classes)]
    done = subprocess.run(
        argv,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    last = (done.stdout.splitlines() or [""])[-1]
    try:
        told = json.loads(last)
    except ValueError:
        raise RequestError(f"model: {model!r} failed in {framework}:\n{done.stderr.rstrip()[-2000:]}") from None
    if "error" in told:
        raise RequestError(told["error"])
    shapes = {name: tuple(shape) for name, shape in told["shapes"].items()}
    kinds = (".weight", ".bias", ".running_mean", ".running_var")
    if strange := [name for name, shape in shapes.items() if not name.endswith(kinds) or len(shape) not in (1, 2, 4)]:
        raise RequestError(
            f"model: {model!r} has tensors for which there is no rule of initial values: {', '.join(strange)}; expected those of "
            "convolutions of images, dense layers and BatchNorm"
        )
    return shapes


@dataclass(frozen=True, kw_only=True)
class OwnDataset:
    """Samples, (image, class index), of each split: items of the user's datasets by their indices."""

    class_names: tuple[str, ...]
    splits: dict[str, tuple[Any, list[int]]]


def own_dataset(name: str) -> OwnDataset:
    """The dataset of a name: anything with a length, items (image, class index) and class_names, or a function that returns it.

    A mapping of `train` and `validation` to such; of a single one a fifth is held out. Images are Pillow's, or arrays of uint8,
    (height, width, 3).

    Raises:
        RequestError: there is none.
    """
    found = _found(name, "dataset")
    if callable(found) and (isinstance(found, type) or not hasattr(found, "__getitem__")):
        try:
            found = found()
        except Exception as error:
            raise RequestError(f"dataset: {name!r} failed ({type(error).__name__}: {error})") from None
    parts = dict(found) if isinstance(found, Mapping) else {"": found}
    if set(parts) not in ({""}, {"train", "validation"}):
        raise RequestError(
            f"dataset: {name!r} has the splits {', '.join(map(repr, parts))}; expected train and validation"
        )
    for part in parts.values():
        lacking = [needed for needed in ("__len__", "__getitem__", "class_names") if not hasattr(part, needed)]
        if lacking:
            raise RequestError(
                f"dataset: {name!r} is of type {type(part).__name__}, which lacks {', '.join(lacking)}; expected a length, "
                "items (image, class index), and class_names"
            )
    try:
        named = {split: tuple(map(str, part.class_names)) for split, part in parts.items()}
        lengths = {split: len(part) for split, part in parts.items()}
    except Exception as error:  # whatever a user's dataset does
        raise RequestError(
            f"dataset: {name!r} cannot be taken ({type(error).__name__}: {error}); expected a length, and class_names that are texts"
        ) from None
    if len(set(named.values())) > 1:
        raise RequestError(
            f"dataset: {name!r} has other class_names in its splits: {named}; expected the same, in the same order"
        )
    whole = parts.get("")
    if whole is None:
        splits = {split: (part, list(range(lengths[split]))) for split, part in parts.items()}
    else:
        order = [int(index) for index in epoch_order(0, 0, lengths[""])]
        held_out = round(lengths[""] * VALIDATION_SHARE)
        splits = {"train": (whole, sorted(order[held_out:])), "validation": (whole, sorted(order[:held_out]))}
    if empty := [split for split, (_, indices) in splits.items() if not indices]:
        raise RequestError(
            f"dataset: {name!r} has no samples in its {' and '.join(empty)} split; expected at least one per split"
        )
    return OwnDataset(class_names=next(iter(named.values())), splits=splits)


def _describe(model: str, framework: str, image_size: int, num_classes: int) -> dict[str, Any]:
    backend = import_module(f"dpcompare.backends.{framework}.model")
    try:
        return {"shapes": backend.own_shapes(model, image_size, num_classes)}
    except RequestError as error:
        return {"error": str(error)}
    except Exception as error:  # whatever a user's model does
        return {"error": f"model: {model!r} failed in {framework} ({type(error).__name__}: {error})"}


if __name__ == "__main__":
    print(json.dumps(_describe(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
