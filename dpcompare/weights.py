"""The file of initial weights that both frameworks read: drawn, published by timm, or a user's own."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from dpcompare import keras_layout
from dpcompare.config import Workload
from dpcompare.errors import RequestError
from dpcompare.keras_layout import BATCH_NORM_VARIABLES, neutral_name
from dpcompare.models import EFFICIENTNET_SCALES, INITIALIZATION, Shape, Weights, initial_weights

# Of the ImageNet weights that timm has converted from the reference code, those trained with AutoAugment: the only kind
# published for all of B0 to B7. Keras's own files come from other checkpoints and are never mixed with these.
PUBLISHED = {f"efficientnet-{scale}": f"tf_efficientnet_{scale}.aa_in1k" for scale in EFFICIENTNET_SCALES}
HUB = "https://huggingface.co"
"""Where timm publishes; HF_ENDPOINT, as everywhere in its field, names a mirror."""
FETCH_TIMEOUT_SECONDS = 30

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def prepare_weights(workload: Workload, num_classes: int, cache: Path) -> Path:
    """The file of initial weights of a workload, made now unless the cache has it.

    Raises:
        RequestError: the weights cannot be had, or are not those of the model.
    """
    shape = f"{workload.image_size}px-{num_classes}classes"
    source = _source(workload, cache)
    origin = "" if source is None else f"-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}"
    name = f"{workload.model}-{shape}-seed{workload.seed}-v{INITIALIZATION}{origin}.safetensors"
    path = cache / "weights" / name
    if path.is_file():
        return path
    weights = initial_weights(workload.model, workload.image_size, num_classes, workload.seed)
    if source is not None:
        weights = fit(read_weights(source), weights, source=f"{source} as the weights of {workload.model}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
        # Written apart and moved: a run started at the same time reads a whole file or none.
        written = Path(temporary) / name
        save_file(weights, written)
        written.replace(path)
    return path


def _source(workload: Workload, cache: Path) -> Path | None:
    """The file to take weights from; None where all are drawn."""
    if workload.weights == "random":
        return None
    if workload.weights == "imagenet":
        return _published(workload.model, cache)
    path = Path(workload.weights).expanduser()
    if not path.is_file():
        raise RequestError(
            f"weights: received {workload.weights!r}, which is no file; expected random, imagenet, a timm safetensors "
            "file or a Keras weights file (.weights.h5, .keras or .h5)"
        )
    return path


def _published(model: str, cache: Path) -> Path:
    """timm's file for a model, fetched on first use."""
    if model not in PUBLISHED:
        raise RequestError(
            f"weights: received imagenet, but nobody publishes weights of {model}; expected random or a file, or one of "
            f"the models {', '.join(PUBLISHED)}"
        )
    path = cache / "published" / f"{PUBLISHED[model]}.safetensors"
    if path.is_file():
        return path
    hub = os.environ.get("HF_ENDPOINT", HUB).rstrip("/")
    url = f"{hub}/timm/{PUBLISHED[model]}/resolve/main/model.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
        fetched = Path(temporary) / path.name
        try:
            # A connection that breaks off raises nothing by itself, but the header of the file says how long it is.
            with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT_SECONDS) as answer, fetched.open("wb") as file:
                shutil.copyfileobj(answer, file)
            load_file(fetched)
        except (OSError, ValueError, SafetensorError) as error:
            raise RequestError(
                f"weights: the ImageNet weights of {model} cannot be fetched from {url} ({error}); download that file "
                f"elsewhere and put it at {path}, or name it with --weights FILE, or set HF_ENDPOINT to a mirror"
            ) from None
        fetched.replace(path)
    return path


def read_weights(path: Path) -> dict[str, Any]:
    """The tensors of a timm safetensors file or a Keras file by their framework-neutral names and layouts.

    Raises:
        RequestError: it is neither.
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(HDF5_SIGNATURE))
            file.seek(0)
            if start == HDF5_SIGNATURE:
                return dict(_of_keras(file))
            if zipfile.is_zipfile(file):  # Keras's archive of a whole model; also what torch.save writes
                return dict(_of_keras(io.BytesIO(zipfile.ZipFile(file).read("model.weights.h5"))))
        return load_file(path)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, SafetensorError) as error:
        raise RequestError(
            f"weights: {path} cannot be read ({error}); expected a safetensors file with timm's names, or a Keras "
            "weights file (.weights.h5, .keras or .h5)"
        ) from None


def _of_keras(file: IO[bytes]) -> Iterator[tuple[str, Any]]:
    """The tensors of an HDF5 file that Keras has written, in its present or its older format."""
    import h5py

    with h5py.File(file, "r") as content:
        older = content.get("model_weights", content)
        if "layer_names" in older.attrs:
            for layer in older.attrs["layer_names"]:
                group = older[layer]
                for variable in group.attrs["weight_names"]:
                    text = variable.decode() if isinstance(variable, bytes) else variable
                    layer_text = layer.decode() if isinstance(layer, bytes) else layer
                    short = text.rsplit("/", 1)[-1].split(":")[0]
                    yield _neutral(layer_text, short, group[variable][()])
            return
        groups: list[Any] = []
        # Sequential and functional models nest in one another; a layer's own group is `.../layers/<class>/vars`.
        content.visititems(lambda name, item: groups.append(item) if name.endswith("/vars") else None)
        for group in groups:
            values = [group[key][()] for key in sorted(group, key=int)]
            if not values or group.name.split("/")[-3] != "layers":
                continue
            if "name" not in group.attrs:
                raise ValueError("it does not name its layers; save it again with a current release of Keras")
            names = BATCH_NORM_VARIABLES if len(values) == len(BATCH_NORM_VARIABLES) else ("kernel", "bias")
            # strict=False: a layer of a third kind, such as normalisation, has no place in the model and is left out.
            for variable, value in zip(names, values, strict=False):
                yield _neutral(group.attrs["name"], variable, value)


def _neutral(layer: str, variable: str, value: Any) -> tuple[str, Any]:
    name = neutral_name(layer, variable)
    if value.ndim == 4:
        depthwise = name.endswith("conv_dw.weight")
        layout = keras_layout.DEPTHWISE if depthwise else keras_layout.CONVOLUTION
    else:
        layout = keras_layout.DENSE if value.ndim == 2 else keras_layout.AS_IT_IS
    return name, layout.to_neutral(value)


def fit(found: dict[str, Any], drawn: Weights, *, source: str) -> Weights:
    """The tensors of a file in the place of those drawn; a classifier for other classes is left as drawn.

    Args:
        found: from `read_weights`.
        drawn: every tensor of the model, as drawn from the seed; the last layer is the classifier.
        source: what is tried, for the error.

    Raises:
        RequestError: other tensors are missing or have another shape, or there are tensors that the model has not.
    """
    # timm counts steps; Keras normalises pixels in the model, which is done on the host here.
    found = {
        name: value
        for name, value in found.items()
        if not name.endswith("num_batches_tracked") and not name.startswith(("normalization", "rescaling"))
    }
    shapes: dict[str, Shape] = {name: value.shape for name, value in drawn.items()}
    head = list(shapes)[-2:]
    if any(name not in found or found[name].shape != shapes[name] for name in head):
        found = {name: value for name, value in found.items() if name not in head} | {
            name: drawn[name] for name in head
        }
    problems = [
        *(f"{name} is missing" for name in shapes if name not in found),
        *(f"{name} is not one of its tensors" for name in found if name not in shapes),
        *(
            f"{name} has shape {found[name].shape}, expected {shape}"
            for name, shape in shapes.items()
            if name in found and found[name].shape != shape
        ),
    ]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise RequestError(f"weights: {source} do not fit: {'; '.join(problems[:5])}{more}")
    return {name: np.ascontiguousarray(found[name], np.float32) for name in shapes}
