"""The optimizers: a row for each, with its constants, its memory and how it is verified.

A new optimizer is a row here and a kernel in `optimizer.py` of each framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Tolerances = Mapping[str, float | None]
"""Precision -> the largest difference; None: nothing absolute, see `dpcompare.experiments.verify.FLOOR_MULTIPLE`."""


@dataclass(frozen=True, kw_only=True)
class Verification:
    """How `verify` trains with an optimizer, and how closely two frameworks must agree."""

    num_steps: int
    """Enough for the kernel's memory to matter."""
    schedule: str
    learning_rate: float
    precisions: Mapping[str, tuple[str, ...]]
    """Size of the model (`tiny`, `big`, or `big, quick`) -> the precisions in which models of it are trained."""
    one_step: Tolerances
    all_steps: Tolerances
    one_step_on_gpus: Mapping[str, float]
    """In the place of `one_step` where a side ran on GPUs; as all of these, what is not here stays as it is."""
    all_steps_on_gpus: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """One row of OPTIMIZERS."""

    constants: Mapping[str, Any]
    """The constants of its formula, as the fairness sheet shows them."""
    slots: tuple[str, ...]
    """What it remembers of each parameter, in the names of checkpoints; the first is the first moment."""
    first_moment_factor: float
    """How many times the gradient of the first step the first moment is after that step; 1: the gradient itself."""
    fused_for_shards: bool
    """Whether torch has a fused kernel of it for the sharded tensors of FSDP."""
    verification: Verification


SGD_MOMENTUM = 0.9

ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-7
"""Added to the root of the second moment before its bias is corrected (Kingma and Ba 2015, section 2)."""

OPTIMIZERS: dict[str, OptimizerSpec] = {
    "sgd": OptimizerSpec(
        constants={"momentum": SGD_MOMENTUM},
        slots=("momentum",),
        first_moment_factor=1.0,
        fused_for_shards=False,
        verification=Verification(
            num_steps=6,
            schedule="cosine",
            learning_rate=0.01,
            precisions={
                "tiny": ("float32", "float64"),
                "big": ("float32", "float64"),
                "big, quick": ("float64",),
            },
            one_step={"float32": 2e-4, "float64": 1e-11},
            all_steps={"float32": None, "float64": 1e-7},
            one_step_on_gpus={"float32": 1e-3, "float64": 1e-10},
            all_steps_on_gpus={"float64": 1e-6},
        ),
    ),
    "adam": OptimizerSpec(
        constants={"betas": ADAM_BETAS, "epsilon": ADAM_EPSILON},
        slots=("exp_avg", "exp_avg_sq"),
        first_moment_factor=1 - ADAM_BETAS[0],
        fused_for_shards=True,
        verification=Verification(
            num_steps=20,
            schedule="constant",
            learning_rate=1e-3,
            precisions={
                # Adam divides by the root of the second moment: with a tiny model it makes updates of full size out of
                # the rounding of gradients that are nearly zero.
                "tiny": ("float64",),
                "big": ("float32", "float64"),
                "big, quick": ("float32",),
            },
            one_step={"float32": 5e-3, "float64": 1e-9},
            all_steps={"float32": None, "float64": 1e-7},
            one_step_on_gpus={"float32": 2e-2, "float64": 1e-8},
            all_steps_on_gpus={"float64": 1e-6},
        ),
    ),
}

FIRST_MOMENTS = {row.slots[0]: row.first_moment_factor for row in OPTIMIZERS.values()}
"""Slot -> how many times the gradient of the first step it is after that step."""


def optimizers_for(size: str, precision: str) -> tuple[str, ...]:
    """What `verify` trains models of a size with, see `Verification.precisions`."""
    return tuple(name for name, row in OPTIMIZERS.items() if precision in row.verification.precisions[size])


def require_all_kernels(slots: Mapping[str, tuple[str, ...]], framework: str) -> None:
    """Check the kernels of a framework: there must be one for every row, which remembers what the row says.

    Args:
        slots: name of each kernel -> what it remembers of each parameter, in the names of checkpoints.
        framework: whose kernels these are.

    Raises:
        TypeError: a row has no kernel, a kernel no row, or they differ; raised when the backend is imported.
    """
    for name in sorted(set(slots) | set(OPTIMIZERS)):
        received, expected = slots.get(name), OPTIMIZERS[name].slots if name in OPTIMIZERS else None
        if received != expected:
            raise TypeError(
                f"optimizer {name!r}: the kernel of {framework} remembers {received}, its row in OPTIMIZERS "
                f"{expected}; expected a row, and a kernel in each framework, that remember the same"
            )
