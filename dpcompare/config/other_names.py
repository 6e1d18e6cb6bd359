"""The names that values have elsewhere: what they are called here, or why there is no such value."""

from __future__ import annotations

from collections.abc import Mapping

from dpcompare.system.type_names import FieldValue

NO_FLOAT16 = (
    "float16 needs scaled losses, or gradients underflow, and torch and TensorFlow share no rule for that; use "
    "bfloat16, or float32 on GPUs older than Ampere, which have no hardware for bfloat16"
)

OTHER_NAMES: Mapping[str, Mapping[str, str]] = {
    "device": {"cuda": "gpu"},
    "precision": {"bf16": "bfloat16", "fp32": "float32", "fp64": "float64"},
}
"""Option or field -> other name -> the name here."""

NOT_HERE: Mapping[str, Mapping[str, str]] = {
    "optimizer": {"adamw": "adam with a weight decay is AdamW (--weight-decay RATE)"},
    "model": {
        name: f"it is not built in; torchvision:{name} trains it in torch alone"
        for name in ("resnet34", "resnet101", "densenet121", "mobilenet_v2")
    },
    "precision": dict.fromkeys(("float16", "fp16", "half"), NO_FLOAT16),
}
"""Option or field -> name of what it cannot be -> why, and what to use."""


def name_here(setting: str, received: FieldValue) -> FieldValue:
    """The name that a value has here; what has no other name is returned as it is, known or not.

    Raises:
        ValueError: there is no such value; the message says what to use.
    """
    if not isinstance(received, str):
        return received
    if reason := NOT_HERE.get(setting, {}).get(received.lower()):
        raise ValueError(f"received {received}; {reason}")
    return OTHER_NAMES.get(setting, {}).get(received.lower(), received)
