"""dpcompare: the same model on the same batches in every data-parallel mode of PyTorch, TensorFlow and JAX."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpcompare._version import __version__

if TYPE_CHECKING:
    from dpcompare.api.proof import Check, Verification, explain, explain_difference, verify
    from dpcompare.api.saved import SavedVerification, verify_saved
    from dpcompare.api.scripts import ScriptRun, run_script
    from dpcompare.api.studies import Arm, Report, Study, compare, gate, load
    from dpcompare.api.training import Batch, Evaluation, Training, backend, batches
    from dpcompare.backends.custom_optimizer import CustomOptimizer
    from dpcompare.config.cluster import Cluster, Node
    from dpcompare.config.run import RunConfig
    from dpcompare.config.workload import Workload
    from dpcompare.errors import RequestError, RunFailedError
    from dpcompare.launch.run import resume, run
    from dpcompare.models.custom import CustomModel
    from dpcompare.results.result import RunResult

__all__ = [
    "Arm",
    "Batch",
    "Check",
    "Cluster",
    "CustomModel",
    "CustomOptimizer",
    "Evaluation",
    "Node",
    "Report",
    "RequestError",
    "RunConfig",
    "RunFailedError",
    "RunResult",
    "SavedVerification",
    "ScriptRun",
    "Study",
    "Training",
    "Verification",
    "Workload",
    "__version__",
    "backend",
    "batches",
    "compare",
    "explain",
    "explain_difference",
    "gate",
    "load",
    "resume",
    "run",
    "run_script",
    "verify",
    "verify_saved",
]

_DEFINED_IN = {
    "Arm": "api.studies",
    "Batch": "api.training",
    "Check": "api.proof",
    "Cluster": "config.cluster",
    "CustomModel": "models.custom",
    "CustomOptimizer": "backends.custom_optimizer",
    "Evaluation": "api.training",
    "Node": "config.cluster",
    "Report": "api.studies",
    "RequestError": "errors",
    "RunConfig": "config.run",
    "RunFailedError": "errors",
    "RunResult": "results.result",
    "SavedVerification": "api.saved",
    "ScriptRun": "api.scripts",
    "Study": "api.studies",
    "Training": "api.training",
    "Verification": "api.proof",
    "Workload": "config.workload",
    "backend": "api.training",
    "batches": "api.training",
    "compare": "api.studies",
    "explain": "api.proof",
    "explain_difference": "api.proof",
    "gate": "api.studies",
    "load": "api.studies",
    "resume": "launch.run",
    "run": "launch.run",
    "run_script": "api.scripts",
    "verify": "api.proof",
    "verify_saved": "api.saved",
}
"""Public name -> the module that defines it. Resolved on first use, so that `dpcompare --help` loads none of them."""


def __getattr__(name: str) -> Any:
    if name not in _DEFINED_IN:
        raise AttributeError(f"module 'dpcompare' has no attribute {name!r}")
    return getattr(import_module(f"dpcompare.{_DEFINED_IN[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
