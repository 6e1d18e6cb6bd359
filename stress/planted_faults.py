"""All numeric faults that `stress.planted` plants, by their names."""

from __future__ import annotations

from stress.planted_host import HOST_FAULTS
from stress.planted_jax import JAX_FAULTS
from stress.planted_row import Planted
from stress.planted_tensorflow import TENSORFLOW_FAULTS
from stress.planted_torch import TORCH_FAULTS

FAULTS: dict[str, Planted] = {
    f"{area}: {name}": fault
    for area, faults in {
        "torch": TORCH_FAULTS,
        "host": HOST_FAULTS,
        "jax": JAX_FAULTS,
        "tensorflow": TENSORFLOW_FAULTS,
    }.items()
    for name, fault in faults.items()
}
