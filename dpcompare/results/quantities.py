"""The kinds of numbers that a result may hold: what cannot have been measured is refused where it is read."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

MOST = 1e100
"""Far above all that can be measured, and what is scaled, squared or divided by stays finite."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
"""Any number, such as a difference of two readings of a clock that is set meanwhile."""
Measured = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]
"""A duration, an energy or a part."""
Rate = Annotated[float, Field(ge=1 / MOST, le=MOST, allow_inf_nan=False)]
"""Images per second: of no images in a second there is no result."""
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
"""A part of a whole."""
Count = Annotated[int, Field(ge=0)]
Number = Annotated[int, Field(ge=1)]
"""Of what there is at least one of."""
