"""The load of a machine while a run was measured: what the run took of its cores, and what others did."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from dpcompare.system.cores import CoresUsed
from dpcompare.system.quantities import Finite, Integer, Measured, Number
from dpcompare.system.words import counted

LARGEST_PART = 0.1
"""Of what the run itself took, that others may take before anything is said."""
LARGEST_SECONDS = 0.5
"""Of cores, that they may take in any case: the kernel counts in hundredths, and a short run is measured in few."""


class MachineLoad(BaseModel):
    """Cores of one machine, on average over the measured steps and the evaluations between them."""

    model_config = ConfigDict(frozen=True)

    seconds: Measured
    cores: Number
    """That the processes of the run may use."""
    planned_cores: Number
    """That the run was to use."""
    run_cores: Measured
    """That its training processes took."""
    other_cores: Measured
    """That all other processes took, its launcher among them."""
    stolen_cores: Finite
    """That the host of this virtual machine gave to others."""
    waiting_fraction: Finite | None
    """Part of the time in which some process waited for a core, be it one of the run; None where it is not counted."""
    heat_throttles: Integer | None
    """Times that a core or a package became too hot; None where that is not counted."""

    @classmethod
    def of(cls, used: Sequence[CoresUsed], *, planned_cores: int) -> MachineLoad:
        """Of one machine, by its training processes; what all processes took is what the first one read."""
        first = used[0]
        own = sum(each.own_seconds for each in used) / first.seconds
        return cls(
            seconds=first.seconds,
            cores=first.cores,
            planned_cores=planned_cores,
            run_cores=own,
            other_cores=max(0.0, first.busy_seconds / first.seconds - own),
            stolen_cores=first.stolen_seconds / first.seconds,
            waiting_fraction=None if first.waiting_seconds is None else first.waiting_seconds / first.seconds,
            heat_throttles=first.heat_throttles,
        )

    @property
    def disturbance(self) -> str | None:
        """A sentence about others that the run had to share its cores with; None where it had enough all the same."""
        taken = self.other_cores + self.stolen_cores
        idle = self.cores - self.run_cores - taken
        missing = taken - max(idle, self.cores - self.planned_cores)
        if missing * self.seconds <= max(LARGEST_PART * self.run_cores * self.seconds, LARGEST_SECONDS):
            return None
        others = [
            f"{who} {cores:.1f}"
            for who, cores in (
                ("other processes took", self.other_cores),
                ("the host of this virtual machine took", self.stolen_cores),
            )
            if cores >= taken / 4
        ]
        return f"{' and '.join(others)} of {counted(self.cores, 'core')} while this run was measured"

    @property
    def slowdown(self) -> str | None:
        """A sentence about cores that became too hot."""
        return f"cores were throttled {counted(self.heat_throttles, 'time')} for heat" if self.heat_throttles else None
