"""dpcompare: the same model on the same batches in every data-parallel mode of PyTorch and TensorFlow."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dpcompare.backends import load_backend
    from dpcompare.cluster import Cluster, Node
    from dpcompare.config import RunConfig, Workload
    from dpcompare.errors import RequestError, RunFailedError
    from dpcompare.inputs import prepare_inputs
    from dpcompare.own import OwnModel
    from dpcompare.result import RunResult
    from dpcompare.runner import resume, run

__all__ = [
    "Cluster",
    "Node",
    "OwnModel",
    "RequestError",
    "RunConfig",
    "RunFailedError",
    "RunResult",
    "Workload",
    "__version__",
    "load_backend",
    "prepare_inputs",
    "resume",
    "run",
]

# Public name -> the module that defines it. Resolved on first use, so that `dpcompare --help` loads none of them.
_DEFINED_IN = {
    "Cluster": "cluster",
    "Node": "cluster",
    "OwnModel": "own",
    "RequestError": "errors",
    "RunConfig": "config",
    "RunFailedError": "errors",
    "RunResult": "result",
    "Workload": "config",
    "load_backend": "backends",
    "prepare_inputs": "inputs",
    "resume": "runner",
    "run": "runner",
}


def __getattr__(name: str) -> Any:
    if name not in _DEFINED_IN:
        raise AttributeError(f"module 'dpcompare' has no attribute {name!r}")
    return getattr(import_module(f"dpcompare.{_DEFINED_IN[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
