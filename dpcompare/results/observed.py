"""What training processes were seen to have, in addition to what was asked for them."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from dpcompare.system.json_files import Count, Integer, Number

DIFFERS_BETWEEN_PROCESSES = "not the same in all processes"


class OtherVariables(BaseModel):
    """What of an environment is neither known to change speed nor harmless; no value is recorded."""

    model_config = ConfigDict(frozen=True)

    key: str
    """A digest of the key: digests under different keys say nothing of each other."""
    digests: dict[str, str]
    """Name -> digest of its value."""

    @classmethod
    def of(cls, processes: Sequence[OtherVariables | None]) -> OtherVariables | None:
        """Those of a run; None where one of its processes did not look."""
        known = [variables for variables in processes if variables is not None]
        if len(known) < len(processes) or not known:
            return None
        names = sorted({name for variables in known for name in variables.digests})
        digests = {name: {variables.digests.get(name) for variables in known} for name in names}
        return cls(
            key=known[0].key,
            digests={
                name: next(iter(values)) or "" if len(values) == 1 else DIFFERS_BETWEEN_PROCESSES
                for name, values in digests.items()
            },
        )


class Observed(BaseModel):
    """What one training process was seen to have, when its training was done."""

    model_config = ConfigDict(frozen=True)

    threads: Count | None = None
    """Threads that compute, by the framework's own word; None where it has none, as JAX."""
    threads_asked: Count | None = None
    """Those that the backend asked it for."""
    cores_at_start: str
    """The cores that it could run on when it started, after it was bound to some, as ranges."""
    cores_at_end: str | None = None
    """The same at the end; None where OpenMP was asked to bind its threads, the first of which is the process's own."""
    niceness: Integer
    """From -20 to 19; the higher, the sooner others go first."""
    input_threads: Count | None = None
    """Threads that read batches ahead at the end of the warm-up; None where too few steps were left to say."""
    input_threads_asked: Number | None = None
    switches: list[str] | None = None
    """What changes speed and is otherwise than by default, in words; None of older releases."""
