"""Names of what has no type of its own: Any to the type checker, while a signature says with them what is meant.

An Any without a name, in a public signature, is what JSON can hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:  # commands are listed and completed without NumPy
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"
"""An array of NumPy, of any type of number."""
FrameworkArray: TypeAlias = Any
"""A tensor of torch or TensorFlow, or an array of JAX."""
FrameworkModel: TypeAlias = Any
"""What the backend of a framework trains: a torch.nn.Module, a keras.Model, or functions of JAX."""
FieldValue: TypeAlias = Any
"""The value of a field or an option, each of which has a type of its own."""
PassedOn: TypeAlias = Any
"""An argument for another function, which knows its type."""
