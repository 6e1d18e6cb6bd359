"""The trace of a process, read: when it went forward and backward, exchanged and updated, and what operators took."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dpcompare.results.run_dir import TRACES_DIR

Phase = Literal["forward", "backward", "update", "other", "exchange"]
COMPUTES: tuple[Phase, ...] = ("update", "backward", "forward", "other")
"""What a device computes; an event that lies within one of an earlier phase is of that one."""
Interval = tuple[float, float]

LARGEST_TRACE = 256 * 2**20
"""Bytes of a trace that is read; a longer one is for a viewer."""
SMALLEST_PART = 1 / 2_000
"""Of the length of a timeline: what lies closer together is drawn as one."""


class TimelineError(ValueError):
    """A trace of which no timeline can be made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """A complete event of a trace in Chrome's format."""

    name: str
    start: float
    """In microseconds, of the trace's own clock."""
    end: float
    thread: str
    category: str
    arguments: Mapping[str, Any]

    @property
    def interval(self) -> Interval:
        return self.start, self.end


@dataclass(frozen=True, kw_only=True)
class Rules:
    """One row of RULES: how a framework's trace says what an event is."""

    text: Callable[[Event], str]
    """What of an event is matched."""
    phases: Mapping[Phase, str]
    """Phase -> a regular expression that the text of its events begins with, the first that does so counting."""
    operator: str
    """A regular expression that matches the text of an operator; its group is the operator's name."""
    holds: str = "(?!)"
    """The beginning of the names of calls in which a thread that computes is held up by communication."""
    needs: str = ""
    """The argument without which no event can be told apart: releases before 0.2 did not write it."""
    unread_devices: str = ""
    """The beginning of the names of devices whose events do not say to which operation they belong."""


def _name(event: Event) -> str:
    return event.name


def _instruction(event: Event) -> str:
    """Of XLA's own events: the instruction, and its origin in the program, if it has one."""
    arguments = event.arguments
    return f"{arguments['hlo_op']} {arguments.get('op_name', '')}" if "hlo_op" in arguments else ""


RULES = {
    "torch": Rules(
        text=_name,
        phases={
            "exchange": r"(gloo|nccl):|ncclDevKernel|ncclKernel",
            "update": r"Optimizer\.step#",
            "backward": r"autograd::engine::evaluate_function: ",
            "forward": r"aten::|DistributedDataParallel\.forward$|Torch-Compiled Region",
        },
        operator=r"(aten::\w+)$",
        holds=r"(c10d|FSDP|fsdp)::",
    ),
    "tensorflow": Rules(
        text=_name,
        phases={
            "exchange": r"[^ :]*:\w*(Collective|Nccl)",
            "backward": r"([^ :]*/)?gradient_tape/[^ :]*:[A-Z_]\w+$",
            "update": r"[^ :/]*:(ResourceApply|Assign)",
            "forward": r"[^ :]+/[^ :]*:[A-Z_]\w+$",
        },
        operator=r"[^ :]+:([A-Z_]\w+)$",
        unread_devices="/device:GPU",
    ),
    "jax": Rules(
        text=_instruction,
        phases={
            "exchange": r"(all-reduce|all-gather|reduce-scatter|collective-permute)",
            "backward": r".* .*transpose\(jvp",
            "forward": r".* .*jvp\(",
            "update": r".* .*\w",
            "other": r".",
        },
        operator=r"([\w-]+?)(\.\d+)* ",
        needs="op_name",
    ),
}
"""Framework -> how its traces are read. PyTorch's Kineto names operators and what autograd calls, TensorFlow's executor
`name:operation`, where its gradients have `gradient_tape`, and XLA says from what an instruction was made."""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """What one process did, from the first of its events on."""

    process_rank: int
    milliseconds: float
    """How long it is."""
    parts: Mapping[Phase, Sequence[Interval]]
    """Phase -> its intervals, (start, end) in ms, which do not overlap; what is computed excludes each other, while an
    exchange may be under way at the same time."""

    def total(self, phase: Phase) -> float:
        """Milliseconds of a phase."""
        return _length(self.parts[phase])

    @property
    def overlapped(self) -> float:
        """Milliseconds in which an exchange was under way while a device of the process computed."""
        computing = _union([interval for phase in COMPUTES for interval in self.parts[phase]])
        exchange = self.parts["exchange"]
        return _length(exchange) - _length(_without(exchange, computing))

    @property
    def idle(self) -> float:
        """Milliseconds in which there was neither."""
        return self.milliseconds - _length(_union([each for parts in self.parts.values() for each in parts]))

    def drawn(self, phase: Phase) -> list[Interval]:
        """The intervals of a phase, those that lie too close together to be seen apart as one."""
        return _union(self.parts[phase], gap=self.milliseconds * SMALLEST_PART)


def traced_processes(run_dir: Path) -> list[int]:
    """The ranks of the processes that have kept a trace."""
    names = (re.fullmatch(r"process-(\d{1,6})\.json", path.name) for path in (run_dir / TRACES_DIR).glob("*"))
    return sorted(int(found[1]) for found in names if found)


def timeline_of(run_dir: Path, process_rank: int, framework: str) -> Timeline:
    """The timeline of a process that has kept a trace.

    Args:
        run_dir: of the run.
        process_rank: one of `traced_processes`.
        framework: of the run.

    Raises:
        TimelineError: the trace cannot be read, is too long, or has nothing that is known.
    """
    path, rules = run_dir / TRACES_DIR / f"process-{process_rank}.json", RULES[framework]
    events = _events(path, rules)
    if rules.needs and not any(rules.needs in event.arguments for event in events):
        raise TimelineError(
            f"{path.name} does not say which operations its instructions came from; trace the run again"
        )
    by_phase = _by_phase(events, rules)
    every = [interval for intervals in by_phase.values() for interval in intervals]
    if not every:
        raise TimelineError(f"{path.name} has no event of a known kind")
    first = min(start for start, _ in every)
    parts: dict[Phase, list[Interval]] = {"exchange": _union(by_phase["exchange"])}
    taken = _union(event.interval for event in events if re.match(rules.holds, event.name))
    for phase in COMPUTES:
        parts[phase] = _without(_union(by_phase[phase]), taken)
        taken = _union([*taken, *parts[phase]])
    return Timeline(
        process_rank=process_rank,
        milliseconds=(max(end for _, end in every) - first) / 1e3,
        parts={
            phase: [((start - first) / 1e3, (end - first) / 1e3) for start, end in found]
            for phase, found in parts.items()
        },
    )


def operators_of(run_dir: Path, process_rank: int, framework: str) -> dict[str, float]:
    """Operator -> the milliseconds that it took by itself, of all traced steps together; of a GPU, its kernels.

    What operators called by an operator take is theirs. Operators of several threads may run at the same time.

    Args:
        run_dir: of the run.
        process_rank: one of `traced_processes`.
        framework: of the run.

    Raises:
        TimelineError: the trace cannot be read, or is too long.
    """
    rules = RULES[framework]
    events = _events(run_dir / TRACES_DIR / f"process-{process_rank}.json", rules)
    kernels = [event for event in events if event.category == "kernel"]
    named = [(event.name, event) for event in kernels] or [
        (found[1], event) for event in events if (found := re.match(rules.operator, rules.text(event)))
    ]
    milliseconds: dict[str, float] = defaultdict(float)
    open_calls: dict[str, list[tuple[str, float]]] = defaultdict(list)
    """Thread -> the operators that have begun, each with when it ends."""
    for name, event in sorted(named, key=lambda pair: (pair[1].start, -pair[1].end)):
        calls = open_calls[event.thread]
        while calls and calls[-1][1] <= event.start:
            calls.pop()
        if calls:
            caller, end = calls[-1]
            milliseconds[caller] -= (min(end, event.end) - event.start) / 1e3
        milliseconds[name] += (event.end - event.start) / 1e3
        calls.append((name, event.end))
    return dict(milliseconds)


def _events(path: Path, rules: Rules) -> list[Event]:
    """The complete events of a trace, which anyone may have written."""
    try:
        size = path.stat().st_size
        text = path.read_bytes() if size <= LARGEST_TRACE else b""
    except OSError as error:
        raise TimelineError(f"{path.name} cannot be read ({error.strerror})") from None
    if size > LARGEST_TRACE:
        raise TimelineError(f"{path.name} has {size >> 20} MiB, more than the {LARGEST_TRACE >> 20} that are read")
    try:
        written = json.loads(text)["traceEvents"]
        planes = [str(event["args"]["name"]) for event in written if event.get("name") == "process_name"]
        events = [_event(event) for event in written if event.get("ph") == "X" and "dur" in event]
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise TimelineError(f"{path.name} is no trace in Chrome's format ({type(error).__name__})") from None
    if rules.unread_devices and any(name.startswith(rules.unread_devices) for name in planes):
        raise TimelineError(f"{path.name} is a trace of GPUs, which does not tie kernels to operations")
    return events


def _event(written: Mapping[str, Any]) -> Event:
    start, duration, arguments = float(written["ts"]), float(written["dur"]), written.get("args") or {}
    if not math.isfinite(start + duration) or duration < 0 or not isinstance(arguments, dict):
        raise TypeError("an event without a time")
    return Event(
        name=str(written["name"]),
        start=start,
        end=start + duration,
        thread=f"{written.get('pid')} {written.get('tid')}",
        category=str(written.get("cat")),
        arguments=arguments,
    )


def _by_phase(events: Sequence[Event], rules: Rules) -> dict[Phase, list[Interval]]:
    """The intervals of each phase, as they come; of a GPU's kernels, where there are any."""
    found: dict[Phase, list[Interval]] = {phase: [] for phase in ("exchange", *COMPUTES)}
    if any(event.category == "kernel" for event in events):
        of_events: Iterable[tuple[Event, Phase | None]] = _of_kernels(events, rules)
    else:
        of_events = ((event, _phase_of(event, rules)) for event in events)
    for event, phase in of_events:
        if phase is not None:
            found[phase].append(event.interval)
    return found


def _phase_of(event: Event, rules: Rules) -> Phase | None:
    text = rules.text(event)
    return next((phase for phase, begins in rules.phases.items() if re.match(begins, text)), None)


def _of_kernels(events: Sequence[Event], rules: Rules) -> Iterator[tuple[Event, Phase | None]]:
    """The kernels of a GPU, with the phase in which a thread of the host launched them.

    Kineto gives a launch and its kernel the same `correlation`. Kernels of NCCL are exchanges by their own name.
    """
    on_thread: dict[tuple[str, Phase], list[Interval]] = defaultdict(list)
    launches: dict[str, Event] = {}
    for event in (event for event in events if event.category != "kernel"):
        if "correlation" in event.arguments:
            launches[str(event.arguments["correlation"])] = event
        elif (phase := _phase_of(event, rules)) is not None:
            on_thread[event.thread, phase].append(event.interval)
    within = {key: _union(intervals) for key, intervals in on_thread.items()}
    for event in (event for event in events if event.category == "kernel"):
        phase = _phase_of(event, rules)
        launch = launches.get(str(event.arguments.get("correlation")))
        if phase is None and launch is not None:
            moment = launch.start
            phase = next((each for each in COMPUTES if _has(within.get((launch.thread, each), []), moment)), None)
        yield event, phase


def _has(intervals: Sequence[Interval], moment: float) -> bool:
    """Whether one of some intervals, as `_union` gives them, has a moment in it."""
    at = bisect_right(intervals, (moment, math.inf)) - 1
    return at >= 0 and moment <= intervals[at][1]


def _union(intervals: Iterable[Interval], gap: float = 0.0) -> list[Interval]:
    """Intervals that do not overlap and cover the same; those that are at most `gap` apart become one."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1] + gap:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def _without(intervals: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """What of some intervals lies in none of the others; both are as `_union` gives them."""
    left, first = [], 0
    for start, end in intervals:
        while first < len(others) and others[first][1] <= start:
            first += 1
        at = first
        while at < len(others) and others[at][0] < end:
            if others[at][0] > start:
                left.append((start, others[at][0]))
            start = max(start, others[at][1])
            at += 1
        if start < end:
            left.append((start, end))
    return left


def _length(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)
