"""The settings of Keras that hold for a whole process, such as the types that it computes in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

from dpcompare.errors import RequestError
from dpcompare.models.spec import IMAGE_CHANNELS

M = TypeVar("M")

FUZZ = 1e-7
"""What Keras adds to divisors where nothing else is asked for; a user's keras.json may have another number."""


def apply(framework: str, precision: str) -> None:
    """Set what a user's keras.json may have set otherwise, for what is made from now on.

    Args:
        framework: that Keras is to compute with.
        precision: of the workload.

    Raises:
        RequestError: Keras computes with another framework in this process.
    """
    import keras
    from keras.src.backend.common import dtypes

    if (found := keras.backend.backend()) != framework:
        raise RequestError(
            f"Keras was imported in this process to compute with {found}, and a run of {framework} needs it to compute "
            f"with {framework}; expected KERAS_BACKEND={framework} where Keras is imported first, or a process of its "
            "own for each training"
        )
    for limit in ("set_max_epochs", "set_max_steps_per_epoch"):  # of KERAS_MAX_...; older versions have none
        getattr(keras.config, limit, lambda most: None)(None)
    keras.config.set_image_data_format("channels_last")
    keras.config.set_epsilon(FUZZ)
    floats = "float64" if precision == "float64" else "float32"
    keras.config.set_floatx(floats)
    # In torch and JAX, Keras takes float32 wherever two types meet, also where both are float64.
    dtypes.BIT64_TO_BIT32_DTYPE["float64"] = floats
    keras.config.set_dtype_policy("mixed_bfloat16" if precision == "bfloat16" else floats)


Scope = Callable[[], AbstractContextManager[Any]]
"""Of what Keras keeps for each thread, such as its device."""


def made_with(
    framework: str, precision: str, image_size: int, factory: Callable[[], M], scope: Scope | None = None
) -> M:
    """What a factory makes; a model of Keras under the settings of `apply`, with all its variables.

    Args:
        framework: that Keras is to compute with.
        precision: of the workload.
        image_size: in pixels, for which a `keras.Sequential` without an input gets its variables.
        factory: makes it.
        scope: of the factory; None: Keras's own values, which are not those that are trained, are on the host in torch.

    Raises:
        RequestError: as `apply` does.
    """
    imported = sys.modules.get("keras")
    if imported is None or imported.backend.backend() != framework:
        try:
            made = factory()
        except Exception:
            if imported is not None or "keras" not in sys.modules:
                raise
            # The factory was what imported Keras, and may have failed because of the settings of a user's keras.json.
        else:
            if not is_keras(made):
                return made
        # It makes the model again.
    import keras
    from keras.src.utils import naming

    naming.reset_uids()  # names are counted from 0, as in the process that described the layers
    apply(framework, precision)
    on_host = partial(keras.device, "cpu") if framework == "torch" else nullcontext
    with (scope or on_host)():
        made = factory()
        if isinstance(made, keras.Sequential) and not made.built:
            made.build((None, image_size, image_size, IMAGE_CHANNELS))
    apply(framework, precision)  # the factory may have set others, for what is made later
    return made


def is_keras(made: object) -> bool:
    """Whether an object is of a class of Keras's, or of one below it."""
    return any(kind.__module__.partition(".")[0] == "keras" for kind in type(made).__mro__)
