"""The arithmetic of a run: number types, TF32, and how convolutions choose their algorithms."""

from __future__ import annotations

import os

import torch
from torch import nn

from dpcompare.backends.torch.model import SharedDrop, set_drop_masks
from dpcompare.config.run import PreparedRun


class Precision:
    """Switches of torch that hold for the whole process, and the types of tensors."""

    def __init__(self, config: PreparedRun) -> None:
        self._config = config
        precision = config.workload.precision
        self.dtype = torch.float64 if precision == "float64" else torch.float32
        """The type of parameters, images and losses."""
        self._in_bfloat16 = precision == "bfloat16"

    def configure(self) -> None:
        """Set torch's switches."""
        on_gpus = self._config.cluster.device_type == "gpu"
        # TensorFlow measures convolution algorithms before it chooses one, torch only where this is set.
        torch.backends.cudnn.benchmark = True
        if on_gpus and self._config.task == "probe":
            # What is compared must not depend on which algorithm was fastest, or on the order in which threads add up.
            torch.backends.cudnn.benchmark = False
            torch.use_deterministic_algorithms(True, warn_only=True)
        for backend in (torch.backends, torch.backends.cudnn):
            # torch 2.9 has both these switches and newer ones, which a custom model's module may have set: where they
            # say "tf32", a convolution would take it in spite of the switches below.
            if hasattr(backend, "fp32_precision"):
                backend.fp32_precision = "none"  # type: ignore[attr-defined]  # as just asked
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self._config.allows_tf32

    def computation(self, module: nn.Module, device_type: str) -> Computation:
        """What a module computes in this arithmetic."""
        return Computation(module, device_type, enabled=self._in_bfloat16)

    def settings(self, device: torch.device) -> dict[str, bool | str]:
        """What the switches say at the end of a run, for the fairness sheet."""
        measured = device.type == "cuda" and torch.backends.cudnn.benchmark
        return {"tf32": _takes_tf32(), "convolution_algorithms": "measured" if measured else "fixed"}


class Computation(nn.Module):
    """A model as each replica computes it: in bfloat16 where asked, features multiplied by the drop masks of its rows.

    Autocast is a setting of a thread, and nn.DataParallel passes on to its threads that it is on but not its dtype:
    entered outside, replicas on GPUs would compute in float16. Drop masks enter here because replicas are copies of
    modules.
    """

    def __init__(self, module: nn.Module, device_type: str, *, enabled: bool) -> None:
        super().__init__()
        self.module = module
        self._device_type, self._enabled = device_type, enabled
        self._regularized = any(isinstance(layer, SharedDrop) for layer in module.modules())

    def forward(self, images: torch.Tensor, drop_masks: torch.Tensor | None = None) -> torch.Tensor:
        if self._regularized:
            set_drop_masks(self.module, drop_masks)
        if not self._enabled:
            return self.module(images)
        with torch.autocast(self._device_type, torch.bfloat16):
            return self.module(images)


def _takes_tf32() -> bool:
    """Read back, since a variable of CUDA's overrules torch's own switches."""
    overruled = os.environ.get("NVIDIA_TF32_OVERRIDE") == "0"
    try:
        allowed = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
    except RuntimeError:  # a model has set torch's newer switches meanwhile, and convolutions inherit TF32
        allowed = True
    return allowed and not overruled
