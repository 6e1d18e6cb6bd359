"""Remarks: what is said aloud of a run whose figures do not show only what was to be measured."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

RemarkKind = Literal["CLOCK", "STALLED", "RECOMPILED", "NOT WARM", "DISTURBED", "SLOWED DOWN"]
"""CLOCK: the seconds of the run contradict those of its launcher, or leave out much of the time.
STALLED: some steps were far slower than the others.
RECOMPILED: a framework traced or compiled something within the measured time.
NOT WARM: the first measured steps were slower than those after them.
DISTURBED: others took of the cores that the run was to have.
SLOWED DOWN: by heat or the supply of power."""

UNSTABLE: tuple[RemarkKind, ...] = ("CLOCK", "STALLED", "RECOMPILED", "NOT WARM", "DISTURBED")
"""What `report --fail-if unstable` finds."""

DISTURBANCES: tuple[RemarkKind, ...] = ("CLOCK", "STALLED", "DISTURBED")
"""What a study makes a run again for: what happened to the run alone, never how fast it was beside other runs."""


class Remark(BaseModel):
    """A word that is easy to find, and a sentence with the figures."""

    model_config = ConfigDict(frozen=True)

    kind: RemarkKind
    sentence: str
