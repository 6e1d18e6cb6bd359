"""Checkpoints: one safetensors file each, in names of neither framework, written atomically and checked when read."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from dpcompare._version import __version__
from dpcompare.config.run import PreparedRun
from dpcompare.config.workload import WORKLOAD_SETTINGS
from dpcompare.errors import RequestError
from dpcompare.models.sealed import DamagedError, seal, unseal
from dpcompare.models.state import State, TrainingState
from dpcompare.results.run_dir import checkpoint_path, checkpoint_paths
from dpcompare.system.files import no_link, write_synced

FORMAT = 1
"""The format of the file; a reader refuses a newer one."""


class BrokenCheckpointError(RequestError):
    """A file that is not a checkpoint of this run, or not the one that was written."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint(TrainingState):
    """The state of a certain training."""

    training: str
    """`training_id` of the run that wrote it."""


def training_id(config: PreparedRun) -> str:
    """sha256 of what decides a training: workload, data and initial weights; not topology, mode or framework."""
    # Without defaults: a setting that a later release adds does not make another training of it.
    may_change = {name for name, facts in WORKLOAD_SETTINGS.items() if facts.same_training}
    workload = config.workload.model_dump(mode="json", exclude=may_change, exclude_defaults=True)
    content = [workload, config.inputs.store_sha256, config.inputs.weights_sha256]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def save_checkpoint(checkpoint: Checkpoint, run_dir: Path, *, keep: int) -> int:
    """Write a checkpoint, then remove all but the newest `keep`; returns its size in bytes.

    Until the new file is on the disk under its name the old ones are there.
    """
    content = encode(checkpoint)
    path = checkpoint_path(run_dir, checkpoint.step)
    path.parent.mkdir(exist_ok=True)
    for unfinished in path.parent.glob("*.tmp"):  # of a process that was killed
        unfinished.unlink()
    write_synced(content, path, path.with_suffix(".tmp"))
    # Those of later steps are of a training that was given up: they were damaged, say, and an earlier one was resumed.
    others = [other for other in checkpoint_paths(run_dir) if other != path]
    later = [other for other in others if other.name > path.name]
    for old in later + [other for other in others if other.name < path.name][keep - 1 :]:
        old.unlink()
    return len(content)


def encode(checkpoint: Checkpoint) -> bytes:
    """The bytes of a checkpoint's file."""
    tensors = {f"model.{name}": tensor for name, tensor in checkpoint.model.items()}
    tensors |= {f"optimizer.{name}": tensor for name, tensor in checkpoint.optimizer.items()}
    metadata = {
        "format": str(FORMAT),
        "dpcompare_version": __version__,
        "step": str(checkpoint.step),
        "training": checkpoint.training,
    }
    return seal(tensors, metadata)


def decode(content: bytes) -> Checkpoint:
    """The checkpoint in the bytes of a file. Nothing in it is ever executed.

    Raises:
        BrokenCheckpointError: it is not one, a byte has changed since it was written, or a newer dpcompare wrote it.
    """
    try:
        metadata, tensors = unseal(content)
        form, step, training = int(metadata["format"]), int(metadata["step"]), str(metadata["training"])
    except DamagedError as error:
        raise BrokenCheckpointError(str(error)) from None
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise BrokenCheckpointError(f"it is not a checkpoint ({type(error).__name__}: {error})") from None
    if form > FORMAT:
        raise BrokenCheckpointError(
            f"its format is {form}, expected at most {FORMAT}: dpcompare {metadata.get('dpcompare_version')} wrote it, "
            "use that"
        )
    if step < 1:
        raise BrokenCheckpointError(f"its step is {step}, expected at least 1")
    parts: dict[str, State] = {"model": {}, "optimizer": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        if part not in parts:
            raise BrokenCheckpointError(f"it holds a tensor {name!r}; expected model.* and optimizer.*")
        parts[part][rest] = tensor
    return Checkpoint(step=step, training=training, model=parts["model"], optimizer=parts["optimizer"])


def load_checkpoint(path: Path, *, training: str) -> Checkpoint:
    """Read a checkpoint of a certain training.

    Raises:
        BrokenCheckpointError: it cannot be read, is damaged, or belongs to another training.
    """
    try:
        with open(path, "rb", opener=no_link) as file:
            content = file.read()
    except OSError as error:
        raise BrokenCheckpointError(f"checkpoint {str(path)!r} cannot be read: {error.strerror}") from None
    try:
        checkpoint = decode(content)
        if checkpoint.training != training:
            raise BrokenCheckpointError("it belongs to another model, dataset, seed or other setting of the training")
    except BrokenCheckpointError as error:
        raise BrokenCheckpointError(f"checkpoint {str(path)!r} cannot be used: {error}") from None
    return checkpoint


def newest_checkpoint(run_dir: Path, *, training: str) -> tuple[Path | None, int, list[str]]:
    """The newest checkpoint of a run that can be used.

    Returns:
        its path and step (None and 0 where there is none), and why newer ones cannot be used.
    """
    problems: list[str] = []
    for path in checkpoint_paths(run_dir):
        try:
            return path, load_checkpoint(path, training=training).step, problems
        except BrokenCheckpointError as error:
            problems.append(str(error))
    return None, 0, problems
