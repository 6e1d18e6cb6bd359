"""The file of initial weights that all frameworks read: drawn, published by timm, or a custom file."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load

from dpcompare.errors import RequestError
from dpcompare.models import keras_layout
from dpcompare.models.architectures import INITIALIZATION, MODELS, Shape, Weights, custom_weights, initial_weights
from dpcompare.models.keras_layout import BATCH_NORM_VARIABLES, neutral_name
from dpcompare.models.sealed import DamagedError, seal, unseal
from dpcompare.system.files import write_synced

HUB = "https://huggingface.co"
"""Where timm publishes; HF_ENDPOINT, which other tools read too, names a mirror."""
FETCH_TIMEOUT_SECONDS = 30

CONVERSION = 1
"""Number of the rule by which files become weights, so that no cached file of another rule is taken for it."""

EXPECTED = "a safetensors file with timm's names, or a Keras weights file (.weights.h5, .keras or .h5)"

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"

# What reading a file that is damaged or none raises; h5py and zipfile add more kinds to the usual ones.
UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RuntimeError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    SafetensorError,
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file to take weights from, read."""

    name: str
    sha256: str
    tensors: dict[str, Any]
    """By framework-neutral names, in framework-neutral layouts."""


def load_source(weights: str, model: str, image_size: int, cache: Path) -> Source | None:
    """The file that a workload names; None where all weights are drawn.

    Args:
        weights: `random`, `imagenet`, or a file.
        model: which they are for.
        image_size: of its images, in pixels.
        cache: where a file that was fetched is kept.

    Raises:
        RequestError: it cannot be had, or holds no weights.
    """
    if weights == "random":
        return None
    if weights == "imagenet":
        return _published(model, image_size, cache)
    try:
        path = Path(weights).expanduser()
        content = path.read_bytes()
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: the home of an unknown user
        raise RequestError(
            f"weights: received {weights!r}, which cannot be read ({error}); expected random, imagenet, or {EXPECTED}"
        ) from None
    return read_source(content, str(path))


def read_source(content: bytes, name: str) -> Source:
    """The tensors of a timm safetensors file or a Keras file.

    Raises:
        RequestError: it is neither.
    """
    try:
        tensors: dict[str, Any] = {}
        for tensor, value in _tensors(content):
            if tensor in tensors:
                raise ValueError(f"it holds {tensor} twice, as a file of several models does")
            tensors[tensor] = value
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

    Raises:
        RequestError: the source's weights are not those of the model, or nothing can be written into the cache.
    """
    shape = f"{image_size}px-{num_classes}classes"
    origin = "" if source is None else f"-{source.sha256[:16]}-v{CONVERSION}"
    name = f"{_name_of(model, custom_shapes)}-{shape}-seed{seed}-v{INITIALIZATION}{origin}.safetensors"
    path = cache / "weights" / name
    if _is_whole(path):
        return path
    if custom_shapes is not None:
        weights = custom_weights(custom_shapes, seed)
    else:
        weights = initial_weights(model, image_size, num_classes, seed)
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
            f"weights cannot be written below {str(folder)!r} ({error.strerror}); free or permit it, or choose another "
            "cache with DPCOMPARE_CACHE_DIR"
        ) from None


def _is_whole(path: Path) -> bool:
    """Whether a file of weights is there as it was written; whatever else is there is made again."""
    try:
        unseal(path.read_bytes())
    except (OSError, DamagedError):
        return False
    return True


def _name_of(model: str, custom_shapes: Mapping[str, Shape] | None) -> str:
    """A model's name as part of that of a file; of a custom model, with a digest of its shapes."""
    if custom_shapes is None:
        return model
    described = json.dumps(sorted(custom_shapes.items()))
    return f"{model.replace(':', '.')}-{hashlib.sha256(described.encode()).hexdigest()[:16]}"


def classifier_of(path: Path) -> str:
    """`drawn` or `from file`: where the classifier in a file of `prepare_weights` comes from."""
    with safe_open(path, framework="numpy") as file:
        return str((file.metadata() or {}).get("classifier", "drawn"))


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


def _tensors(content: bytes) -> Iterator[tuple[str, Any]]:
    if content.startswith(HDF5_SIGNATURE):
        yield from _of_keras(content)
    elif zipfile.is_zipfile(io.BytesIO(content)):  # Keras's archive of a model; also what torch.save writes
        yield from _of_keras(_unpacked(zipfile.ZipFile(io.BytesIO(content)), "model.weights.h5"))
    else:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        for name, entry in header.items():
            if name != "__metadata__" and entry["dtype"] not in ("F16", "F32", "F64") and not _is_ignored(name):
                raise ValueError(f"{name} is of type {entry['dtype']}; save it in float32")
        yield from load(content).items()


MOST_BYTES = 16 * 2**30
"""Of the tensors of a file, unpacked: a few kilobytes of a stranger's may become any number of them."""


def _unpacked(archive: zipfile.ZipFile, name: str) -> bytes:
    if (size := archive.getinfo(name).file_size) > MOST_BYTES:  # which `read` exceeds in no case
        raise ValueError(f"its {name} is of {size:,} bytes when unpacked, expected at most {MOST_BYTES:,}")
    return archive.read(name)


def _require_own_values(file: Any) -> None:
    """Refuse an HDF5 file whose values lie in other files of this machine, or fill its memory.

    Raises:
        ValueError: they do.
    """
    import h5py

    links: list[tuple[str, Any]] = []
    file.visititems_links(lambda name, link: links.append((name, link)))  # from within it nothing may be raised
    size = 0
    for name, link in links:
        if isinstance(link, h5py.ExternalLink):
            raise ValueError(f"its {name} is a link to another file")
        item = file[name] if isinstance(link, h5py.HardLink) else None
        if isinstance(item, h5py.Dataset):
            if item.external or item.is_virtual:
                raise ValueError(f"the values of its {name} are in another file")
            size += item.nbytes
    if size > MOST_BYTES:
        raise ValueError(f"its values are of {size:,} bytes when unpacked, expected at most {MOST_BYTES:,}")


def _of_keras(content: bytes) -> Iterator[tuple[str, Any]]:
    """The tensors of an HDF5 file that Keras has written, in its present or its older format."""
    import h5py

    with h5py.File(io.BytesIO(content), "r") as file:
        _require_own_values(file)
        older = file.get("model_weights", file)
        if "layer_names" in older.attrs:
            for layer in map(_text, older.attrs["layer_names"]):
                for variable in map(_text, older[layer].attrs["weight_names"]):
                    # `stem_conv/kernel:0`; in a nested model the group of the layer is that of the outer one.
                    *path, name = variable.split(":")[0].split("/")
                    yield _neutral(path[-1] if path else layer, name, older[layer][variable][()])
            return
        groups: list[Any] = []
        # Sequential and functional models nest in one another; a layer's group is `.../layers/<class>/vars`.
        file.visititems(lambda name, item: groups.append(item) if name.endswith("/vars") else None)
        for group in groups:
            values = [group[key][()] for key in sorted(group, key=int)]
            *_, container, kind, _ = group.name.split("/")
            if not values or container != "layers" or kind.startswith("normalization"):
                continue  # of an optimizer, or of the normalisation of pixels, which is done on the host here
            if "name" not in group.attrs:
                raise ValueError("it does not name its layers; save it again with a current release of Keras")
            names = BATCH_NORM_VARIABLES if len(values) == len(BATCH_NORM_VARIABLES) else ("kernel", "bias")
            for variable, value in zip(names, values, strict=False):  # a layer without bias has a kernel only
                yield _neutral(group.attrs["name"], variable, value)


def _neutral(layer: str, variable: str, value: Any) -> tuple[str, Any]:
    name = neutral_name(layer, variable)
    if value.ndim == 4:
        depthwise = name.endswith("conv_dw.weight")
        layout = keras_layout.DEPTHWISE if depthwise else keras_layout.CONVOLUTION
    else:
        layout = keras_layout.DENSE if value.ndim == 2 else keras_layout.AS_IT_IS
    return name, layout.to_neutral(value)


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _is_ignored(name: str) -> bool:
    """Tensors without a place here: timm counts steps, and Keras normalises pixels in the model instead of the host."""
    return name.endswith("num_batches_tracked") or name in {f"normalization.{n}" for n in ("mean", "variance", "count")}


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
            f"weights: {source.name} does not fit {model}: {'; '.join(problems[:5])}{more}; expected weights of this "
            "model, with any number of classes"
        )
    return fitted, classifier


def _is_other_head(found: dict[str, Any], shapes: dict[str, Shape], weight: str, bias: str) -> bool:
    """Whether the classifier is for another number of classes, or left out altogether."""
    if weight not in found or bias not in found:
        return weight not in found and bias not in found
    classes = found[bias].shape
    consistent = len(classes) == 1 and found[weight].shape == (*classes, *shapes[weight][1:])
    return consistent and classes != shapes[bias]
