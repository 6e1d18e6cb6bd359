"""The record of a training process, from which results are aggregated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from dpcompare.models.gradients import Gradients
from dpcompare.results.computed import ComputedByProcess
from dpcompare.results.run_dir import process_record_path
from dpcompare.system.cores import CoresUsed
from dpcompare.system.gpu_state import GpuState
from dpcompare.system.json_files import write_document
from dpcompare.system.quantities import Count


class ProcessRecord(BaseModel):
    """process-<rank>.json: what one training process was, written when its training is done."""

    model_config = ConfigDict(frozen=True)

    process_rank: Count
    node_rank: Count
    local_rank: Count
    pid: Count
    host: str
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
    gpus: list[GpuState] = []
    """Of this process."""
    cores_used: CoresUsed | None = None
    """From the first measured step to the last one; None where there was none, or the kernel does not tell."""
    computed: ComputedByProcess | None = None
    """None where it only served."""
    gradients: Gradients | None = None
    """Of a replica; None where the framework does not tell."""

    def save(self, run_dir: Path) -> None:
        write_document(self, process_record_path(run_dir, self.process_rank))
