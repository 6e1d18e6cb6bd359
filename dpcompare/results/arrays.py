"""The arrays that a probe writes for `dpcompare verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from dpcompare.results.run_dir import probe_path

Arrays = dict[str, npt.NDArray[Any]]


def load(run_dir: Path, num_processes: int) -> Arrays:
    """The arrays of all processes of a probe; rows in the order of the global batch."""
    parts = [load_file(probe_path(run_dir, rank)) for rank in range(num_processes)]
    rows = [name for name in parts[0] if name.startswith(("rows.", "activation.")) or name.endswith("_logits")]
    return parts[0] | {name: np.concatenate([part[name] for part in parts]) for name in rows}
