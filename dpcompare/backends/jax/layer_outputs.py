"""What the layers of a module of Flax or Equinox give while the module is called, by their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import jax

try:
    from jax.extend.core import get_opaque_trace_state
except ImportError:  # older versions of JAX
    from jax.core import get_opaque_trace_state


@contextmanager
def outputs_of(layers: Mapping[str, Any]) -> Iterator[dict[str, jax.Array]]:
    """What each layer gives where it is first called, as long as the context is open.

    What is computed in a trace of its own, as within `jax.checkpoint` or a scan, is left out: it is unknown outside.

    Args:
        layers: name -> the module that will be called; those of one class share its `__call__`.
    """
    found: dict[str, jax.Array] = {}
    names = {id(layer): name for name, layer in layers.items()}
    trace = get_opaque_trace_state(convention="flax")

    def recorded(call: Any) -> Any:
        @wraps(call)
        def recording(layer: Any, *arguments: Any, **named: Any) -> Any:
            # Taken out first: a subclass may call what it inherits, and its own output counts.
            name = names.pop(id(layer), None)
            output = call(layer, *arguments, **named)
            is_known = isinstance(output, jax.Array) and get_opaque_trace_state(convention="flax") == trace
            if name is not None and is_known:
                found[name] = output
            return output

        return recording

    own: dict[Any, Any] = {kind: vars(kind).get("__call__") for kind in map(type, layers.values())}
    for kind in own:
        kind.__call__ = recorded(kind.__call__)
    try:
        yield found
    finally:
        for kind, call in own.items():
            if call is None:  # inherited
                del kind.__call__
            else:
                kind.__call__ = call
