"""The attempts of a run, and the records of their processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dpcompare.models.state import Gradients
from dpcompare.results.computed import ComputedByProcess, Evaluation
from dpcompare.results.observed import Observed, OtherVariables
from dpcompare.results.run_dir import HISTORY_FILE, process_record_path
from dpcompare.system.cores import CoresUsed
from dpcompare.system.gpu_state import GpuState
from dpcompare.system.json_files import Count, Finite, Number, Rate, read_document, write_document
from dpcompare.system.machine import Machine


class ProcessRecord(BaseModel):
    """process-<rank>.json: what one training process was, written when its training is done."""

    model_config = ConfigDict(frozen=True)

    attempt_id: str | None = None
    """As the event has it with which the process began."""
    process_rank: Count
    node_rank: Count
    local_rank: Count
    pid: Count
    host: str
    machine: Machine | None = None
    """None where an older release wrote it."""
    device_names: list[str]
    threads: Count
    bound_to_cores: str | None = None
    """Those near its GPUs, as ranges, where it was bound to them; None where it could run on all."""
    collective: str
    """What carried the gradients: nccl, gloo, ring, threads, or none for one replica."""
    settings: dict[str, Any]
    """What the backend chose or was given that a fair comparison must know; see `Backend.describe`."""
    sample_order_sha256: str
    peak_memory_bytes: Count
    """Most resident memory at once."""
    peak_device_memory_bytes: Count | None
    """Most memory of the process's GPUs at once, from the first measured step on; None on the CPU."""
    versions: dict[str, str]
    packages: dict[str, str] = {}
    """All that the environment of the first process has, by the names of distributions, if it is to be kept."""
    gpus: list[GpuState] = []
    """The GPUs of this process."""
    observed: Observed | None = None
    """None where an older release wrote it."""
    variables: OtherVariables | None = None
    """Variables of its environment that no list knows; None where it had no key for their digests."""
    cores_used: CoresUsed | None = None
    """From the first measured step to the last one; None if there was none, or the kernel does not report it."""
    computed: ComputedByProcess | None = None
    """None where it only served."""
    gradients: Gradients | None = None
    """The gradients of a replica; None if the framework does not report them."""

    def save(self, run_dir: Path) -> None:
        write_document(self, process_record_path(run_dir, self.process_rank))


Status = Literal["completed", "failed", "interrupted"]


class Attempt(BaseModel):
    """An earlier attempt of a run that was resumed from a checkpoint; its files are below attempts/."""

    model_config = ConfigDict(frozen=True)

    first_step: Count
    """Steps made before it."""
    last_step: Count
    """Steps made in all when it ended; those after the checkpoint that was resumed were repeated."""
    status: Status
    error: str | None
    framework: str
    mode: str
    num_replicas: Number
    images_per_second: Rate | None


class History(BaseModel):
    """history.json: what earlier attempts of a run contribute to its result."""

    model_config = ConfigDict(frozen=True)

    losses: list[Finite | None] = Field(default_factory=list)
    """The losses of every step up to the checkpoint that the present attempt was resumed from."""
    evaluations: list[Evaluation] = Field(default_factory=list)
    attempts: list[Attempt] = Field(default_factory=list)

    @classmethod
    def load(cls, run_dir: Path) -> History:
        """What the earlier attempts of a run measured; nothing where there were none."""
        if not (run_dir / HISTORY_FILE).is_file():
            return cls()
        return read_document(cls, run_dir / HISTORY_FILE, kind="the history of a run", expected="a run directory")

    def up_to(self, step: int) -> History:
        """Without what was trained beyond a step, which is trained again."""
        losses = self.losses[:step]
        return History(
            losses=losses + [None] * (step - len(losses)),  # events that a loss of power took, unlike the checkpoint
            evaluations=[evaluation for evaluation in self.evaluations if evaluation.step <= step],
            attempts=self.attempts,
        )

    def save(self, run_dir: Path) -> None:
        write_document(self, run_dir / HISTORY_FILE)
