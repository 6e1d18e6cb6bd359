"""Loads that other work puts on a machine while runs are made: processes that end with the script, whatever ends it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dpcompare.system.processes import available_memory, die_with_parent

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
MOST_PROCESSES = 256
LARGEST_ARRAY = 512 << 20
USUAL_CACHE = 32 << 20
"""Bytes of a last-level cache that the kernel does not report, as in some virtual machines."""
MEMORY_SHARE = 0.25
"""Part of the available memory that the arrays of a load may take, all its processes together."""

START = """
import os, random, signal, sys, time
seconds, core, seed, size = map(int, sys.argv[1:])
signal.alarm(seconds)  # ends it, whatever becomes of the script
if core >= 0:
    os.sched_setaffinity(0, {core})
"""
READY = "\nprint(flush=True)\n"

BUSY = f"""{READY}
while True:
    pass
"""

BURSTS = f"""{READY}
generator = random.Random(seed)
while True:
    time.sleep(generator.uniform(0.3, 6.0))
    end = time.monotonic() + generator.uniform(0.3, 6.0)
    while time.monotonic() < end:
        pass
"""

STREAM = f"""
import numpy
source, target = numpy.ones(size // 8), numpy.zeros(size // 8)
{READY}
while True:
    numpy.copyto(target, source)
    source, target = target, source
"""


@dataclass(frozen=True, kw_only=True)
class Load:
    """One row of LOADS."""

    about: str
    code: str = BUSY
    """What each of its processes does, in Python."""
    processes: Callable[[int], int]
    """From the cores that the runs may use to how many processes there are."""
    pinned: bool = False
    """Whether each process is bound to a core of its own, of those that the runs may use."""


LOADS = {
    "none": Load(about="nothing but the runs", processes=lambda cores: 0),
    "one-loop": Load(about="one busy loop", processes=lambda cores: 1),
    "two-loops": Load(about="two busy loops", processes=lambda cores: 2),
    "eight-loops": Load(about="eight busy loops", processes=lambda cores: 8),
    "smt": Load(about="a busy loop bound to each core of the runs", processes=lambda cores: cores, pinned=True),
    "memory": Load(
        about="a process per two cores that copies arrays larger than the last-level cache",
        code=STREAM,
        processes=lambda cores: max(1, cores // 2),
    ),
    "bursts": Load(
        about="busy loops that come and go at random, one per core, for up to 6 s",
        code=BURSTS,
        processes=lambda cores: cores,
    ),
}


class LoadEndedError(RuntimeError):
    """A process of a load has ended before the runs did, which were then not made under it."""


@contextmanager
def loaded(load: Load, *, seconds: int, seed: int = 0) -> Iterator[None]:
    """Put a load on the machine while the context lasts, at the priority of this process.

    Its processes are started here and ended by their ids. They also end by themselves after `seconds`, and with the
    thread that enters the context, even if that is killed.

    Args:
        load: a row of LOADS.
        seconds: after which it ends in any case.
        seed: of what is random in it.

    Raises:
        LoadEndedError: one of its processes could not start, or ended within the context.
        ValueError: it would have more than MOST_PROCESSES processes.
    """
    cores = sorted(os.sched_getaffinity(0))
    count = load.processes(len(cores))
    if count > MOST_PROCESSES:
        raise ValueError(f"load: received {count} processes, expected at most {MOST_PROCESSES}; use fewer cores")
    processes: list[subprocess.Popen[str]] = []
    try:
        for number in range(count):
            core = cores[number % len(cores)] if load.pinned else -1
            arguments = map(str, (seconds, core, seed + number, array_bytes(count)))
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", START + load.code, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,  # Linux may share cores out by sessions, and Ctrl-C is for the script alone
                    preexec_fn=partial(die_with_parent, os.getpid()),
                )
            )
        if not all(process.stdout and process.stdout.readline() for process in processes):
            raise LoadEndedError(f"a process of the load {load.about!r} did not start; see its error above")
        yield
        if any(process.poll() is not None for process in processes):
            raise LoadEndedError(
                f"a process of the load {load.about!r} ended before the runs did, after at most {seconds} s; "
                "what was run meanwhile is not kept: make shorter runs"
            )
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def array_bytes(num_processes: int, caches: Path = CACHES) -> int:
    """The size of an array that does not fit into the last-level cache: four times that, if memory allows.

    Args:
        num_processes: that have two such arrays each.
        caches: of a core, as the kernel shows them.
    """
    sizes = [_bytes_of(file.read_text()) for file in caches.glob("index*/size")]
    most = int(MEMORY_SHARE * available_memory() / (2 * max(1, num_processes)))
    return min(4 * max(sizes, default=USUAL_CACHE), LARGEST_ARRAY, most)


def _bytes_of(size: str) -> int:
    """`32768K` as bytes."""
    text = size.strip()
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    return unit * int(text.rstrip("KMG"))
