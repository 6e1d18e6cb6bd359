"""The shapes of a custom model's tensors, found in a separate process: `python -m dpcompare.backends.custom_model`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from importlib import import_module
from typing import Any

from dpcompare.errors import RequestError
from dpcompare.system.commands import run_command

LONGEST_SECONDS = 600.0
"""That a user's model may take to be built."""


@cache
def tensor_shapes(
    model: str, framework: str, python: str, image_size: int, num_classes: int
) -> dict[str, tuple[int, ...]]:
    """Framework-neutral name -> shape of every tensor of a custom model, as it is in a framework.

    A separate process builds and tries the model, so that this one loads no framework.

    Args:
        model: `package.module:NAME`.
        framework: torch or tensorflow.
        python: the interpreter whose environment holds the framework.
        image_size: in pixels.
        num_classes: of the dataset.

    Raises:
        RequestError: there is no such model, or it gives something else than logits.
    """
    argv = [python, "-P", "-m", "dpcompare.backends.custom_model", model, framework, str(image_size), str(num_classes)]
    try:
        done = run_command(
            argv,
            seconds=LONGEST_SECONDS,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
    except subprocess.TimeoutExpired:
        raise RequestError(
            f"model: {model!r} was not built in {framework} within {LONGEST_SECONDS:.0f} s; expected a model that is"
        ) from None
    last = (done.stdout.splitlines() or [""])[-1]
    try:
        described = json.loads(last)
    except ValueError:
        raise RequestError(f"model: {model!r} failed in {framework}:\n{done.stderr.rstrip()[-2000:]}") from None
    if "error" in described:
        raise RequestError(described["error"])
    shapes = {name: tuple(shape) for name, shape in described["shapes"].items()}
    kinds = (".weight", ".bias", ".running_mean", ".running_var")
    if strange := [name for name, shape in shapes.items() if not name.endswith(kinds) or len(shape) not in (1, 2, 4)]:
        raise RequestError(
            f"model: {model!r} has tensors for which there is no rule of initial values: {', '.join(strange)}; "
            "expected those of convolutions of images, dense layers and BatchNorm"
        )
    return shapes


def _describe(model: str, framework: str, image_size: int, num_classes: int) -> dict[str, Any]:
    backend = import_module(f"dpcompare.backends.{framework}.model")
    try:
        return {"shapes": backend.custom_shapes(model, image_size, num_classes)}
    except RequestError as error:
        return {"error": str(error)}
    except Exception as error:  # whatever a user's model does
        return {"error": f"model: {model!r} failed in {framework} ({type(error).__name__}: {error})"}


if __name__ == "__main__":
    print(json.dumps(_describe(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
