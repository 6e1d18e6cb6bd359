"""Arrays that a run keeps: its predictions, and those of a probe."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpcompare.errors import RequestError
from dpcompare.results.run_dir import PREDICTIONS_DIR, probe_path
from dpcompare.system.files import no_link
from dpcompare.system.type_names import Array

Arrays = dict[str, Array]


def load(run_dir: Path, ranks: Iterable[int]) -> Arrays:
    """The arrays of processes of a probe; rows in the order of the global batch.

    They stay in the files, which may be removed or replaced meanwhile: those of ten modes can be gigabytes.
    """
    parts = [_mapped(probe_path(run_dir, rank)) for rank in ranks]
    rows = [name for name in parts[0] if name.startswith(("rows.", "activation.")) or name.endswith("_logits")]
    return parts[0] | {name: np.concatenate([part[name] for part in parts]) for name in rows}


def _mapped(path: Path) -> Arrays:
    """The tensors of a safetensors file, of which only what is looked at is read (its library reads all of it).

    The format: the length of a JSON header in 8 bytes, the header, the tensors (huggingface/safetensors, README).
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    content = np.memmap(path, np.uint8, mode="c", offset=8 + length).view(np.ndarray)
    arrays: Arrays = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            array = content[begin:end].view(_TYPES[entry["dtype"]]).reshape(entry["shape"])
            if entry["dtype"] == "BF16":  # the first half of a float32; NumPy has no such type
                array = (array.astype("<u4") << 16).view("<f4")
            arrays[name] = array
    return arrays


_TYPES = {"BOOL": "?", "U8": "u1", "I8": "i1", "I32": "<i4", "I64": "<i8"}
_TYPES |= {"BF16": "<u2", "F16": "<f2", "F32": "<f4", "F64": "<f8"}
"""Type in the file -> of NumPy, for what a probe writes."""


CLASSES_FILE = "classes.json"
HEADER = "index,label,prediction"

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """The predictions for all validation samples, in the order of the store."""

    classes: list[str]
    labels: Integers
    predicted: Integers


def save_predictions(run_dir: Path, process_rank: int, rows: Integers) -> None:
    """Write those of one process: (sample, 3), its index, label and prediction."""
    path = _folder(run_dir) / f"process-{process_rank}.csv"
    with open(path, "w", opener=no_link) as file:
        np.savetxt(file, rows, fmt="%d", delimiter=",", header=HEADER, comments="")


def save_classes(run_dir: Path, classes: Sequence[str]) -> None:
    with open(_folder(run_dir) / CLASSES_FILE, "w", opener=no_link) as file:
        json.dump(list(classes), file)


def _folder(run_dir: Path) -> Path:
    folder = run_dir / PREDICTIONS_DIR
    folder.mkdir(exist_ok=True)
    return folder


def load_predictions(run_dir: Path) -> Predictions | None:
    """What all processes of a run have kept; None where they kept nothing.

    Raises:
        RequestError: the files are not those of one evaluation.
    """
    folder = run_dir / PREDICTIONS_DIR
    if not folder.is_dir():
        return None
    try:
        classes = json.loads(_read(folder / CLASSES_FILE))
        lines = [line for path in folder.glob("process-*.csv") for line in _read(path).splitlines()[1:]]
        rows = np.array([line.split(",") for line in lines], np.int64).reshape(-1, 3)
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        raise _broken(folder, str(error)) from None
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    if not (isinstance(classes, list) and all(isinstance(name, str) for name in classes)):
        raise _broken(folder, f"{CLASSES_FILE} is not a list of names")
    if not len(rows) or (rows[:, 0] != np.arange(len(rows))).any():
        raise _broken(folder, "not every sample is there once")
    if rows[:, 1:].min() < 0 or rows[:, 1:].max() >= len(classes):
        raise _broken(folder, f"a class is not one of the {len(classes)}")
    return Predictions(classes=classes, labels=rows[:, 1], predicted=rows[:, 2])


def _read(path: Path) -> str:
    with open(path, opener=no_link) as file:
        return file.read()


def _broken(folder: Path, why: str) -> RequestError:
    return RequestError(
        f"{str(folder)!r} does not hold the predictions of a run ({why}); remove it to report the run without them"
    )
