"""The file of initial weights that all frameworks read: drawn, published by timm, or a custom file."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from dpcompare.errors import RequestError
from dpcompare.models.architectures import MODELS
from dpcompare.models.initial_weights import INITIALIZATION, Weights, custom_weights, initial_weights
from dpcompare.models.keras_file import is_of_keras, read_keras_file
from dpcompare.models.sealed import is_whole, seal, unseal
from dpcompare.models.spec import ARE_DRAWN, ZERO_INIT, Shape
from dpcompare.models.torch_file import is_of_torch, read_torch_file
from dpcompare.system.files import write_synced

HUB = "https://huggingface.co"
"""Where timm publishes; HF_ENDPOINT, which other tools read too, names a mirror."""
FETCH_TIMEOUT_SECONDS = 30

CONVERSION = 1
"""Number of the rule by which files become weights, so that no cached file of another rule is taken for it."""

EXPECTED = (
    "a safetensors file or one of torch.save (.pth) with the names of timm or torchvision, or a Keras weights file "
    "(.weights.h5, .keras or .h5)"
)

UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, SafetensorError)
"""What reading a file raises that is damaged, or none."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file to take weights from, read."""

    name: str
    sha256: str
    tensors: dict[str, Any]
    """Tensors by framework-neutral names, in framework-neutral layouts."""


def load_source(weights: str, model: str, image_size: int, cache: Path) -> Source | None:
    """The file that a workload names; None where all weights are drawn.

    Args:
        weights: `random`, `zero-init`, `imagenet`, or a file.
        model: which they are for.
        image_size: of its images, in pixels.
        cache: where a file that was fetched is kept.

    Raises:
        RequestError: it cannot be had, or holds no weights.
    """
    if weights in ARE_DRAWN:
        return None
    if weights == "imagenet":
        return _published(model, image_size, cache)
    try:
        path = Path(weights).expanduser()
        content = path.read_bytes()
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: the home of an unknown user
        raise RequestError(
            f"weights: received {weights!r}, which cannot be read ({error}); expected {', '.join(ARE_DRAWN)}, "
            f"imagenet, or {EXPECTED}"
        ) from None
    return read_source(content, str(path))


def read_source(content: bytes, name: str) -> Source:
    """The tensors of a timm safetensors file or a Keras file.

    Raises:
        RequestError: it is neither.
    """
    try:
        tensors = _tensors(content)
    except UNREADABLE as error:
        raise RequestError(f"weights: {name} cannot be read ({error}); expected {EXPECTED}") from None
    return Source(name=name, sha256=hashlib.sha256(content).hexdigest(), tensors=tensors)


def prepare_weights(
    model: str,
    image_size: int,
    seed: int,
    num_classes: int,
    source: Source | None,
    cache: Path,
    custom_shapes: Mapping[str, Shape] | None = None,
    *,
    zero_init: bool = False,
) -> Path:
    """The file of a model's initial weights, made now unless the cache has it undamaged.

    Args:
        model: whose weights they are.
        image_size: of its images, in pixels.
        seed: of what is drawn.
        num_classes: of its dataset.
        source: the file to take weights from, if any.
        cache: where it is kept.
        custom_shapes: of the tensors of a custom model.
        zero_init: whether residual branches begin with adding nothing.

    Raises:
        RequestError: the source's weights are not those of the model, or nothing can be written into the cache.
    """
    shape = f"{image_size}px-{num_classes}classes"
    origin = f"-{ZERO_INIT}" if zero_init else "" if source is None else f"-{source.sha256[:16]}-v{CONVERSION}"
    shapes = MODELS[model].shapes(image_size, num_classes) if custom_shapes is None else custom_shapes
    name = f"{_name_of(model, shapes)}-{shape}-seed{seed}-v{INITIALIZATION}{origin}.safetensors"
    path = cache / "weights" / name
    if is_whole(path):
        return path
    if custom_shapes is not None:
        weights = custom_weights(custom_shapes, seed)
    else:
        weights = initial_weights(model, image_size, num_classes, seed)
    if zero_init:
        weights |= {name: np.zeros_like(weights[name]) for name in MODELS[model].ends_of_branches}
    classifier = "drawn"
    if source is not None:
        weights, classifier = fit(source, weights, model)
    content = seal(weights, {"classifier": classifier})
    with _written_below(path.parent) as temporary:
        write_synced(content, path, temporary / name)
    return path


@contextmanager
def _written_below(folder: Path) -> Iterator[Path]:
    """A folder of this process alone, in a folder of the cache.

    Raises:
        RequestError: the disk is full, or nothing may be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            yield Path(temporary)
    except OSError as error:
        raise RequestError(
            f"weights cannot be written below {str(folder)!r} ({error.strerror}); free some room or make it writable, "
            "or choose another cache with DPCOMPARE_CACHE_DIR"
        ) from None


def _name_of(model: str, shapes: Mapping[str, Shape]) -> str:
    """A model's name as part of that of a file, with a digest of its shapes: a model may change and keep its name."""
    described = json.dumps(sorted(shapes.items()))
    return f"{model.replace(':', '.')}-{hashlib.sha256(described.encode()).hexdigest()[:16]}"


def classifier_of(path: Path) -> str:
    """`drawn` or `from file`: where the classifier in a file of `prepare_weights` comes from."""
    return unseal(path.read_bytes())[0].get("classifier", "drawn")


def _published(model: str, image_size: int, cache: Path) -> Source:
    """timm's file for a model, fetched on first use."""
    name = MODELS[model].published
    assert name is not None  # checked with the workload
    path = cache / "published" / f"{name}.safetensors"
    damage = ""
    if path.is_file():
        try:
            return read_source(path.read_bytes(), str(path))
        except RequestError as error:  # fetched again, where that is possible
            damage = f" in the place of a damaged one ({error})"
    hub = (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
    url = f"{hub}/timm/{name}/resolve/main/model.safetensors"
    with _written_below(path.parent) as temporary:
        # Imported here: every command would wait for it, and nearly none fetches anything.
        import urllib.request
        from http.client import HTTPException

        try:
            with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT_SECONDS) as answer:
                fetched = answer.read()
            # Kept only if it is what was asked for: a proxy may answer with a page, and a connection may break off.
            source = read_source(fetched, url)
            fit(source, initial_weights(model, image_size, 1, 0), model)
        except (OSError, ValueError, HTTPException, RequestError) as error:
            raise RequestError(
                f"weights: the ImageNet weights of {model} cannot be fetched from {url}{damage} ({error}); download "
                f"that file elsewhere and put it at {path}, or name it with --weights FILE, or set HF_ENDPOINT to a "
                "mirror"
            ) from None
        write_synced(fetched, path, temporary / path.name)
    return source


def _tensors(content: bytes) -> dict[str, Any]:
    if is_of_torch(content):
        return read_torch_file(content)
    if is_of_keras(content):
        return read_keras_file(content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] not in ("F16", "F32", "F64") and not _is_ignored(name):
            raise ValueError(f"{name} is of type {entry['dtype']}; save it in float32")
    return load(content)


def _is_ignored(name: str) -> bool:
    """Tensors without a place here: timm counts steps, and Keras normalises pixels in the model instead of the host."""
    return name.endswith("num_batches_tracked") or name in {f"normalization.{n}" for n in ("mean", "variance", "count")}


OTHERS = {
    "conv2_block1_0_conv": "Keras's ResNet version 1, whose convolutions have biases",
    "block1_conv1": "Keras's VGG, which was trained on pixels of another scale, with blue first",
}
"""A layer of a published model that is none of ours -> that model. Keras's ResNet version 2 has `preact` layers too."""


def fit(source: Source, drawn: Weights, model: str) -> tuple[Weights, str]:
    """The tensors of a source in the place of those drawn, and where the classifier comes from.

    A classifier for other classes, or none at all, is left as drawn.

    Args:
        source: what is read.
        drawn: every tensor of the model, as drawn from the seed; the last layer is the classifier.
        model: its name, for the error.

    Raises:
        RequestError: other tensors are missing or have another shape, there are tensors that the model does not have,
            or values that are not finite.
    """
    found = {name: value for name, value in source.tensors.items() if not _is_ignored(name)}
    if model in MODELS:
        found = MODELS[model].from_published(found)
    shapes: dict[str, Shape] = {name: value.shape for name, value in drawn.items()}
    weight, bias = list(shapes)[-2:]
    classifier = "from file"
    if _is_other_head(found, shapes, weight, bias):
        classifier = "drawn"
        found |= {weight: drawn[weight], bias: drawn[bias]}
    # What float32 cannot hold becomes infinite, and is refused below by name.
    with np.errstate(over="ignore"):
        fitted = {name: np.ascontiguousarray(found[name], np.float32) for name in shapes if name in found}
    problems = [
        *(f"{name} is missing" for name in shapes if name not in found),
        *(f"{name} is not one of its tensors" for name in found if name not in shapes),
        *(f"{n} has shape {v.shape}, expected {shapes[n]}" for n, v in fitted.items() if v.shape != shapes[n]),
        *(f"{name} has values that are not finite" for name, value in fitted.items() if not np.isfinite(value).all()),
    ]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise RequestError(
            f"weights: {source.name} does not fit {model}: {'; '.join(problems[:5])}{more}{_whose(found)}; expected "
            "weights of this model, with any number of classes"
        )
    return fitted, classifier


def _whose(names: Collection[str]) -> str:
    """Of which of OTHERS these tensors are, as a remark; empty of any other model."""
    if any("preact" in name for name in names):
        return ""
    layers = {name.partition(".")[0] for name in names}
    return next((f" (its layers are named as in {name})" for layer, name in OTHERS.items() if layer in layers), "")


def _is_other_head(found: dict[str, Any], shapes: dict[str, Shape], weight: str, bias: str) -> bool:
    """Whether the classifier is for another number of classes, or left out altogether."""
    if weight not in found or bias not in found:
        return weight not in found and bias not in found
    classes = found[bias].shape
    consistent = len(classes) == 1 and found[weight].shape == (*classes, *shapes[weight][1:])
    return consistent and classes != shapes[bias]
