"""The layers of a custom model, found in a separate process: `python -m dpcompare.backends.custom_model`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from functools import cache
from importlib import import_module
from itertools import dropwhile
from pathlib import Path
from sysconfig import get_paths
from traceback import walk_tb
from typing import Any

from dpcompare.backends.keras import compute_with
from dpcompare.errors import RequestError, in_words
from dpcompare.models.initial_weights import require_rules
from dpcompare.models.layer_matching import Layer, shapes_of
from dpcompare.system.commands import run_command

LONGEST_SECONDS = 600.0
"""The seconds that building a user's model may take, if no other limit was asked for."""


@cache
def described_layers(
    model: str, framework: str, python: str, image_size: int, num_classes: int, seconds: float = LONGEST_SECONDS
) -> tuple[Layer, ...]:
    """The layers of a custom model as they are in a framework, in the order in which they compute.

    A separate process builds and tries the model, so that this one loads no framework.

    Args:
        model: `package.module:NAME`.
        framework: torch, tensorflow or jax.
        python: the interpreter whose environment holds the framework.
        image_size: in pixels.
        num_classes: of the dataset.
        seconds: that it may take to be built.

    Raises:
        RequestError: there is no such model, or it gives something else than logits.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "layers.json")
        argv = [python, "-P", "-m", "dpcompare.backends.custom_model", model, framework, str(image_size)]
        try:
            done = run_command(
                [*argv, str(num_classes), str(answer)],
                seconds=seconds,
                env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
                until_exit=True,
            )
        except subprocess.TimeoutExpired:
            raise RequestError(
                f"model: {model!r} was not built in {framework} within {seconds:.0f} s; expected a model that is, or "
                "more time with --start-timeout"
            ) from None
        described = json.loads(answer.read_text()) if answer.exists() else None
    if described is None:  # killed, crashed, or ended by its own code
        said = done.stderr.rstrip()[-2000:] or "it printed nothing"
        raise RequestError(
            f"model: {model!r} failed in {framework}: the process that built it ended with exit status "
            f"{done.returncode} before the model was there; {said}"
        )
    if "error" in described:
        raise RequestError(described["error"])
    layers = tuple(Layer(**_with_tuples(layer)) for layer in described["layers"])
    require_rules(model, shapes_of(layers))
    return layers


def tensor_shapes(
    model: str, framework: str, python: str, image_size: int, num_classes: int, seconds: float = LONGEST_SECONDS
) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of `described_layers`, which has the same arguments and errors."""
    return shapes_of(described_layers(model, framework, python, image_size, num_classes, seconds))


def _with_tuples(value: Any) -> Any:
    """What JSON has made lists of, as tuples again."""
    if isinstance(value, dict):
        return {name: _with_tuples(each) for name, each in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def _describe(model: str, framework: str, image_size: int, num_classes: int) -> dict[str, Any]:
    compute_with(framework)
    backend = import_module(f"dpcompare.backends.{framework}.model")
    try:
        return {"layers": [asdict(layer) for layer in backend.custom_layers(model, image_size, num_classes)]}
    except RequestError as error:
        return {"error": str(error)}
    except BaseException as error:  # whatever a user's model does, sys.exit included
        return {"error": f"model: {model!r} failed in {framework} ({in_words(error)}){_expected(error, framework)}"}


_LIBRARIES = ("keras", "torch", "tensorflow", "jax", "dpcompare")
_FOLDERS_OF_LIBRARIES = ("<", *(get_paths()[kind] for kind in ("stdlib", "platlib", "purelib")))
"""How paths of code begin that users have not written; what was compiled from a string has a name in brackets."""


def _expected(error: BaseException, framework: str) -> str:
    """What a user's layer of Keras must be to train in each framework, if it has failed in what Keras calls."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    packages = [frame.f_globals.get("__name__", "").partition(".")[0] for frame in frames]
    of_users = (
        package not in _LIBRARIES and not frame.f_code.co_filename.startswith(_FOLDERS_OF_LIBRARIES)
        for package, frame in dropwhile(lambda each: each[0] != "keras", zip(packages, frames, strict=True))
    )
    if not any(of_users):
        return ""
    return f"; a layer of yours that calls another framework needs keras.ops in its place to train in {framework}"


if __name__ == "__main__":
    described = json.dumps(_describe(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
    # Under another name until it is whole, and the process ends at once: a model may have left threads.
    written = Path(f"{sys.argv[5]}.tmp")
    written.write_text(described)
    written.replace(sys.argv[5])
    os._exit(0)
