"""The kinds of numbers that results, records and events may hold: what cannot have been measured is refused."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

MOST = 1e18
"""Above any duration, energy or rate; what is scaled, squared or divided by stays finite. Messages print it whole."""
LARGEST_INTEGER = 2**63 - 1
"""As most programs that read results have it; far larger ones are no floats, and their quotients an OverflowError."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
"""Any number, such as a difference of two readings of a clock that is set meanwhile."""
Measured = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]
"""A duration, an energy or a part."""
Duration = Annotated[float, Field(gt=0, le=MOST, allow_inf_nan=False)]
"""Of what takes some time on any clock."""
Rate = Annotated[float, Field(ge=1 / MOST, le=MOST, allow_inf_nan=False)]
"""Images per second: of no images in a second there is no result."""
Norm = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Of a gradient, say, which is as large as its type allows where a training explodes."""
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
"""A part of a whole."""
Integer = Annotated[int, Field(ge=-LARGEST_INTEGER, le=LARGEST_INTEGER)]
"""Any of them, such as a difference of two readings of a counter."""
Count = Annotated[int, Field(ge=0, le=LARGEST_INTEGER)]
Number = Annotated[int, Field(ge=1, le=LARGEST_INTEGER)]
"""Of what there is at least one of."""
