"""The TensorFlow side: one file per mode, and what the modes share in backend.py."""

import sys

if "jax" not in sys.modules:
    # For a converter TensorFlow imports JAX wherever that is installed, which takes a seventh of its own start.
    sys.modules["jax"] = None  # type: ignore[assignment]  # an import of it then fails, and TensorFlow does without
    try:
        import tensorflow  # noqa: F401  # the others import what is then there
    finally:
        del sys.modules["jax"]
