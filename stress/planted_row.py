"""What a numeric fault that is planted is, and healthy runs with odd settings: rows of the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpcompare import Cluster, RunConfig, Workload
from stress.injection import injected, write_sitecustomize

TINY: Mapping[str, Any] = {
    "model": "toy-bn", "dataset": "synthetic-mini", "image_size": 16, "global_batch_size": 16, "steps": 30,
    "warmup_steps": 1, "optimizer": "sgd", "learning_rate": 0.01, "augment": ("flip", "brightness", "contrast"),
}  # fmt: skip
"""What is trained where a row says nothing else. The fifth step of an epoch is its last, and half empty."""
OF_UPDATE = ("update", "one step of")
OF_GRADIENT = ("gradient", "momentum of", "exp_avg of")
"""An optimizer's first moment is the mean of gradients, and "momentum of" is how a late step calls it."""
OF_STATISTICS = ("statistics", "running", "evaluation")
"""What leads to faults of these kinds; see Planted."""
CHECKPOINT_EVERY = 12
"""Steps after which a run that is to be resumed was interrupted: in the middle of an epoch."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A mode of a framework on simulated devices."""

    framework: str
    mode: str = "single"
    nodes: int = 1
    devices: int = 1
    """Of each node."""

    def __str__(self) -> str:
        return f"{self.framework} {self.mode}" + ("" if self.mode == "single" else f" {self.nodes}x{self.devices}")

    def config(self, workload: Mapping[str, Any], *, resumed: bool = False, **fields: Any) -> RunConfig:
        """The run of a workload in this place, whose fields are added to TINY."""
        if resumed:
            fields |= {"checkpoint_every": CHECKPOINT_EVERY, "keep_checkpoints": 30}
        return RunConfig(
            framework=self.framework,
            mode=self.mode,
            workload=Workload(**{**TINY, **workload}),
            cluster=Cluster.partition(self.nodes, self.devices, device="cpu"),
            **fields,
        )


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A numeric fault: source that is applied in the training processes of one framework."""

    place: Place
    module: str
    """Below dpcompare: what is broken when it has been imported."""
    inject: str
    """Body of `inject(module)`; see `stress.injection`."""
    leads: tuple[str, ...]
    """What a name has, in any case of letters, that leads to the cause: one of these is enough."""
    workload: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the workload with which it shows; see TINY."""
    resumed: bool = False
    """Whether the run is interrupted and resumed."""

    def install(self, folder: Path) -> None:
        """Write the sitecustomize module into a folder that PYTHONPATH will name."""
        write_sitecustomize(folder, f"dpcompare.{self.module}", injected(self.inject))


@dataclass(frozen=True, kw_only=True)
class Odd:
    """Healthy runs whose settings look unusual, each pair of which is compared."""

    places: tuple[Place, ...]
    workload: Mapping[str, Any]
    resumed: bool = False
    proved: bool = True
    """Whether each run has a late step and goes through `verify --like` too."""


TORCH, TENSORFLOW, JAX = (Place(framework=name) for name in ("torch", "tensorflow", "jax"))
DDP = Place(framework="torch", mode="ddp", nodes=2)
FSDP = Place(framework="torch", mode="fsdp", nodes=2)
MIRRORED = Place(framework="tensorflow", mode="mirrored", devices=2)
MULTIWORKER = Place(framework="tensorflow", mode="multiworker", nodes=2)
SPMD = Place(framework="jax", mode="spmd", devices=2)
JIT = Place(framework="jax", mode="jit", devices=2)
MULTIPROCESS = Place(framework="jax", mode="multiprocess", nodes=2)
