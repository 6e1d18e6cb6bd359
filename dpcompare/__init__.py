"""dpcompare: the same model on the same batches in every data-parallel mode of PyTorch, TensorFlow and JAX."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpcompare._version import __version__

if TYPE_CHECKING:
    from dpcompare.backends import load_backend
    from dpcompare.config.cluster import Cluster, Node
    from dpcompare.config.run import RunConfig
    from dpcompare.config.workload import Workload
    from dpcompare.errors import RequestError, RunFailedError
    from dpcompare.launch.inputs import prepare_inputs
    from dpcompare.launch.run import resume, run
    from dpcompare.models.custom import CustomModel
    from dpcompare.results.result import RunResult

__all__ = [
    "Cluster",
    "CustomModel",
    "Node",
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
    "Cluster": "config.cluster",
    "Node": "config.cluster",
    "CustomModel": "models.custom",
    "RequestError": "errors",
    "RunConfig": "config.run",
    "RunFailedError": "errors",
    "RunResult": "results.result",
    "Workload": "config.workload",
    "load_backend": "backends",
    "prepare_inputs": "launch.inputs",
    "resume": "launch.run",
    "run": "launch.run",
}


def __getattr__(name: str) -> Any:
    if name not in _DEFINED_IN:
        raise AttributeError(f"module 'dpcompare' has no attribute {name!r}")
    return getattr(import_module(f"dpcompare.{_DEFINED_IN[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
