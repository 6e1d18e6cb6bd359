"""Weight files that Keras writes, read by HDF5 in a process of its own: `python -m dpcompare.models.keras_file`.

HDF5's library is not made for untrusted files: it hangs in some, and crashes in others.
"""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from dpcompare.errors import in_words
from dpcompare.models import keras_layout
from dpcompare.models.keras_layout import BATCH_NORM_VARIABLES, neutral_name
from dpcompare.models.state import State
from dpcompare.system.commands import run_command

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
LONGEST_SECONDS = 60.0
"""The seconds that a file may take; one of 100 MB takes a second."""


def is_of_keras(content: bytes) -> bool:
    """Whether a file is HDF5, or an archive as of Keras."""
    return content.startswith(HDF5_SIGNATURE) or zipfile.is_zipfile(io.BytesIO(content))


def read_keras_file(content: bytes) -> State:
    """The tensors of an HDF5 file or of Keras's archive, by framework-neutral names, in framework-neutral layouts.

    Raises:
        OSError: the process that reads it cannot be started.
        ValueError: it holds none, or that process crashes or hangs.
    """
    with tempfile.TemporaryDirectory() as folder:
        received, found = Path(folder, "received"), Path(folder, "found")
        received.write_bytes(content)
        argv = [sys.executable, "-P", "-m", "dpcompare.models.keras_file", str(received), str(found)]
        try:
            done = run_command(argv, seconds=LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            raise ValueError(f"HDF5 did not end within {LONGEST_SECONDS:.0f} s") from None
        if not found.exists():
            said = done.stderr.strip().rpartition("\n")[2]
            raise ValueError(f"the process that reads it ended with exit status {done.returncode}; {said}")
        if done.returncode:
            raise ValueError(json.loads(found.read_text()))
        return load(found.read_bytes())


MOST_BYTES = 2 * 2**30
"""The most bytes of the tensors of a file, unpacked: a few kilobytes of an untrusted one may become any number of
them."""
MOST_ADDRESSES = 8 * 2**30
"""Bytes of the process that reads: what is unpacked, twice what is written, and the libraries."""


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


def _read(content: bytes) -> dict[str, Any]:
    if not content.startswith(HDF5_SIGNATURE):
        content = _unpacked(zipfile.ZipFile(io.BytesIO(content)), "model.weights.h5")
    tensors: dict[str, Any] = {}
    for name, value in _of_keras(content):
        if name in tensors:
            raise ValueError(f"it holds {name} twice, as a file of several models does")
        tensors[name] = np.asarray(value, order="C")
    return tensors


def main(received: Path, found: Path) -> None:
    """Write the tensors of a file, or why they cannot be had; this ends the process."""
    status, answer = 0, b""
    try:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = MOST_ADDRESSES if hard == resource.RLIM_INFINITY else min(MOST_ADDRESSES, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
        answer = save(_read(received.read_bytes()))
    except ValueError as error:
        status, answer = 1, json.dumps(str(error)).encode()
    except Exception as error:  # h5py, HDF5 and zipfile raise whatever a damaged file leads them to
        status, answer = 1, json.dumps(in_words(error)).encode()
    found.write_bytes(answer)
    os._exit(status)  # a library that has met damage may crash when it is taken down


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
