"""The TensorFlow side: one file per mode, and what the modes share in backend.py."""

import sys

# For a converter TensorFlow imports JAX, and for a wrapper Keras imports scikit-learn, wherever that is installed: a
# third of the start. An import of a module that stands here as None fails, and both then work without it.
hidden = [name for name in ("jax", "sklearn") if name not in sys.modules]
sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
try:
    import tensorflow  # noqa: F401  # the others import what is then there
finally:
    for name in hidden:
        del sys.modules[name]
