"""What a training process sees of itself: its threads, its cores, its switches and its environment."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from dpcompare.backends.base import Backend
from dpcompare.backends.description import Description, switched
from dpcompare.backends.other_variables import KEY_FILE, digest, other_variables, read_key
from dpcompare.config.run import PreparedRun
from dpcompare.data.batches import INPUT_THREAD, PREFETCH_DEPTH
from dpcompare.results.observed import Observed, OtherVariables
from dpcompare.system.gpu_state import in_ranges

BINDING = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND")
"""Variables by which OpenMP is asked to bind each thread to some cores; they are recorded with their values."""

LEAST_COLLECTIONS = 10
"""Full collections of garbage that are not Python's own: it makes one where a quarter more objects live than before."""


class Observer:
    """Looks when the process has been bound to its cores, at the end of the warm-up, and when training is done."""

    def __init__(self, config: PreparedRun) -> None:
        self._cores_at_start = in_ranges(os.sched_getaffinity(0))
        self._num_steps = config.workload.total_steps(config.inputs.num_train)
        self._looks_after = max(1, config.workload.least_warmup_steps)
        self._most_ahead = PREFETCH_DEPTH + config.input_threads * config.topology.num_replicas
        self._reads = not config.reuse_batch
        self._input_threads: int | None = None
        self._steps = 0
        self._collections = 0

    def after_step(self, step: int) -> None:
        """Count the threads that read ahead at the end of the warm-up, unless they may have read all there is."""
        self._looks_after -= 1
        self._steps += 1
        if self._looks_after != 0:
            return
        self._steps, self._collections = 0, full_collections()
        if self._reads and self._num_steps - step > self._most_ahead:
            self._input_threads = sum(thread.name == INPUT_THREAD for thread in threading.enumerate())

    def observed(self, backend: Backend, description: Description) -> Observed:
        """What is to be recorded when training is done."""
        return Observed(
            threads=description.threads,
            threads_asked=description.threads_asked,
            cores_at_start=self._cores_at_start,
            cores_at_end=None if is_bound_by_openmp(os.environ) else in_ranges(os.sched_getaffinity(0)),
            niceness=os.getpriority(os.PRIO_PROCESS, 0),
            input_threads=self._input_threads,
            input_threads_asked=backend.input_threads,
            switches=[*description.switches, *self._switches_of_python()],
        )

    def _switches_of_python(self) -> tuple[str, ...]:
        collections = full_collections() - self._collections
        return switched(
            {
                # Half of the smallest number is zero where the processor takes what is smaller for zero.
                "denormals taken for zero": sys.float_info.min / 2 == 0,
                "a function that traces Python": sys.gettrace() is not None or sys.getprofile() is not None,
                "garbage collected in most steps": collections >= max(self._steps / 2, LEAST_COLLECTIONS),
            }
        )


def full_collections() -> int:
    """How often Python has looked through all objects for garbage."""
    return int(gc.get_stats()[-1]["collections"])


def is_bound_by_openmp(environ: Mapping[str, str]) -> bool:
    """Whether OpenMP may bind the threads of this process, the first one included, to cores of their own."""
    return any(environ.get(name, "false").lower() not in ("", "false", "disabled") for name in BINDING)


def variables_of(run_dir: Path, environ: Mapping[str, str]) -> OtherVariables | None:
    """The variables that a process was started with and no list knows; None where the run has no key for digests."""
    key = read_key(run_dir / KEY_FILE)
    if key is None:
        return None
    return OtherVariables(key=digest(key, ""), digests=other_variables(environ, key))
