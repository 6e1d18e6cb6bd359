"""What trainings in loops of their own have computed, kept in files and compared with each other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from dpcompare.backends.base import Backend
from dpcompare.config.optimizers import Tolerances
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError
from dpcompare.models.state import State
from dpcompare.system.files import atomic_write
from dpcompare.system.terminal_text import pluralize

TOLERANCES: dict[str, Tolerances] = {
    "initial weights": {"float32": 0.0, "float64": 0.0, "bfloat16": 0.0},
    "first loss": {"float32": 5e-5, "float64": 1e-12, "bfloat16": 4e-2},
    "losses": {"float32": None, "float64": 1e-6},
    "updates": {"float32": None, "float64": 1e-6},
}
"""Check -> precision -> the largest difference; None: float32 drifts apart beyond the first step, and is not
judged."""


@dataclass(frozen=True, kw_only=True)
class SavedCheck:
    """How far trainings are apart in one respect."""

    name: str
    pair: tuple[str, str]
    """The two folders that differ most."""
    measured: float
    """The largest relative difference."""
    tolerance: float | None
    """None: it is only reported."""
    detail: str = ""
    """The tensor or step that differs most."""

    @property
    def passed(self) -> bool:
        """Whether it is within its tolerance, or not judged."""
        return self.tolerance is None or self.measured <= self.tolerance

    def __str__(self) -> str:
        bound = "not judged in this precision" if self.tolerance is None else f"at most {self.tolerance:.0e}"
        verdict = "pass" if self.passed else "FAIL"
        return f"{verdict} {self.name}: {self.measured:.1e} ({bound}){', ' * bool(self.detail)}{self.detail}"


@dataclass(frozen=True)
class SavedVerification:
    """Whether trainings have computed the same."""

    checks: list[SavedCheck]

    @property
    def passed(self) -> bool:
        """Whether something was judged, and all of it agreed."""
        return any(check.tolerance is not None for check in self.checks) and not self.failed

    @property
    def failed(self) -> list[SavedCheck]:
        """The checks that did not pass."""
        return [check for check in self.checks if not check.passed]

    def __str__(self) -> str:
        return "\n".join(map(str, self.checks))


def save(folder: Path, backend: Backend, *, losses: npt.NDArray[np.float64], initial: State, trained: State) -> None:
    """Write what a process has computed: its losses, and process 0 the weights at the start and at the end.

    Raises:
        RequestError: no step was made, the folder has another training, or nothing can be written there.
    """
    if not len(losses):
        raise RequestError("save: received a training without a step, expected one that has made some")
    rank, size = backend.data_parallel_rank, backend.data_parallel_size
    end = f"-of-{backend.num_processes}.safetensors"
    path = folder / f"process-{backend.process_rank}{end}"
    if path.exists() or any(not other.name.endswith(end) for other in folder.glob("process-*")):
        raise RequestError(f"{str(folder)!r} has another training already; expected a new folder")
    arrays = {"losses": losses}
    if backend.process_rank == 0:
        arrays |= {f"initial.{name}": array for name, array in initial.items()}
        arrays |= {f"trained.{name}": array for name, array in trained.items()}
    metadata = {
        "workload": backend.workload.model_dump_json(),
        "part": json.dumps([rank, size]),
        "trained_by": f"{backend.config.framework} {backend.config.mode}",
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, temporary, metadata)
    except OSError as error:
        raise RequestError(f"{str(folder)!r} cannot be written ({error.strerror}); choose another folder") from None


def remove(folder: Path, backend: Backend) -> None:
    """Remove the training in a folder, if there is one, before any process of this one writes its own."""
    if backend.process_rank == 0:
        for path in folder.glob("process-*.safetensors"):
            path.unlink()
    backend.barrier()


@dataclass(frozen=True, kw_only=True)
class _Saved:
    folder: str
    workload: Workload
    losses: npt.NDArray[np.float64]
    """The mean over the global batch of each step."""
    initial: State
    trained: State


def verify_saved(*folders: str | Path) -> SavedVerification:
    """Compare trainings that `Training.save` has written: the same weights, losses and updates?

    Args:
        folders: at least two; the first is the reference of the others.

    Raises:
        RequestError: a folder has no training, or one of another precision, number of steps or model.
    """
    if len(folders) < 2:
        raise RequestError(
            f"verify_saved: received {pluralize(len(folders), 'folder')}, expected at least two trainings"
        )
    reference, *others = [_load(Path(folder)) for folder in folders]
    for other in others:
        _require_same_work(reference, other)
    return SavedVerification(list(_checks(reference, others)))


def _load(folder: Path) -> _Saved:
    paths = sorted(folder.glob("process-*.safetensors"))
    if not paths:
        raise RequestError(f"{str(folder)!r} has no training; expected a folder of Training.save")
    arrays: State = {}
    described: set[tuple[str, str]] = set()
    parts: dict[int, npt.NDArray[np.float64]] = {}
    try:
        for path in paths:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata()
                rank, size = json.loads(metadata["part"])
                read = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it has no __iter__
            described.add((metadata["workload"], metadata["trained_by"]))
            parts[rank] = read.pop("losses")
            arrays |= read
        workload = Workload.model_validate_json(metadata["workload"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RequestError(f"{str(path)!r} is damaged ({error}); expected a file of Training.save") from None
    if len(described) > 1:
        raise RequestError(f"{str(folder)!r} has files of several trainings; expected those of one")
    if len(parts) != size or len({len(part) for part in parts.values()}) != 1:
        raise RequestError(
            f"{str(folder)!r} has the losses of {len(parts)} of {size} parts of each batch; expected all processes of "
            "the training to call save after the same step"
        )
    return _Saved(
        folder=str(folder),
        workload=workload,
        losses=np.mean(list(parts.values()), axis=0),
        initial=_named(arrays, "initial."),
        trained=_named(arrays, "trained."),
    )


def _named(arrays: State, prefix: str) -> State:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _updates(saved: _Saved) -> State:
    """What the training has added to each tensor."""
    return {name: saved.trained[name] - value for name, value in saved.initial.items()}


def _relative(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float:
    """The largest difference of two tensors, relative to the largest value of the first."""
    if one.shape != other.shape:
        return float("inf")
    difference, largest = float(np.abs(one - other).max()), float(np.abs(one).max())
    if difference == 0:
        return 0.0
    return difference / largest if largest else float("inf")


def _require_same_work(one: _Saved, other: _Saved) -> None:
    if one.workload.precision != other.workload.precision:
        raise RequestError(
            f"{other.folder!r} is in {other.workload.precision}, {one.folder!r} in {one.workload.precision}; expected "
            "the same precision"
        )
    if len(one.losses) != len(other.losses):
        raise RequestError(
            f"{other.folder!r} has {pluralize(len(other.losses), 'step')}, {one.folder!r} {len(one.losses)}; expected "
            "as many"
        )
    if one.initial.keys() != other.initial.keys():
        apart = sorted(one.initial.keys() ^ other.initial.keys())
        raise RequestError(
            f"the models of {one.folder!r} and {other.folder!r} have other tensors: {', '.join(apart[:4])}; expected "
            "the same names"
        )


def _checks(reference: _Saved, others: Sequence[_Saved]) -> Iterator[SavedCheck]:
    found: dict[str, list[tuple[float, str, str]]] = {name: [] for name in TOLERANCES}
    for other in others:
        losses = np.array([_relative(*pair) for pair in zip(reference.losses, other.losses, strict=True)])
        worst = int(np.argmax(losses))  # also of those that are not numbers
        found["first loss"].append((float(losses[0]), other.folder, ""))
        found["losses"].append((float(losses.max()), other.folder, f"step {worst + 1}"))
        for check, one, two in (
            ("initial weights", reference.initial, other.initial),
            ("updates", _updates(reference), _updates(other)),
        ):
            apart = {name: _relative(one[name], two[name]) for name in one}
            name = max(apart, key=lambda each: (np.isnan(apart[each]), apart[each]))
            found[check].append((apart[name], other.folder, name))
    for name, measured in found.items():
        value, folder, detail = max(measured, key=lambda each: (np.isnan(each[0]), each[0]))
        value = float("inf") if np.isnan(value) else value
        precision = reference.workload.precision
        yield SavedCheck(
            name=name,
            pair=(reference.folder, folder),
            measured=value,
            tolerance=TOLERANCES[name].get(precision),
            detail=detail if value else "",
        )
