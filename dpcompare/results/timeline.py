"""When a process of a traced run went forward and backward, exchanged gradients and updated: its trace, read."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dpcompare.results.run_dir import TRACES_DIR

Phase = Literal["forward", "backward", "update", "exchange"]
COMPUTES: tuple[Phase, ...] = ("backward", "update", "forward")
"""What a device computes; an event that lies within one of an earlier phase is of that one."""
Interval = tuple[float, float]

LARGEST_TRACE = 256 * 2**20
"""Bytes of a trace that is read; a longer one is for a viewer."""
SMALLEST_PART = 1 / 2_000
"""Of the length of a timeline: what lies closer together is drawn as one."""


class TimelineError(ValueError):
    """A trace of which no timeline can be made."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """One row of RULES: how a framework's trace says what an event is."""

    text: Callable[[Mapping[str, Any]], str]
    """What of an event is matched."""
    phases: Mapping[Phase, str]
    """Phase -> a regular expression that the text of its events begins with, the first that does so counting."""
    unread_devices: str = ""
    """The beginning of the names of devices whose events do not say to which operation they belong."""


def _name(event: Mapping[str, Any]) -> str:
    return str(event["name"])


def _instruction(event: Mapping[str, Any]) -> str:
    """Of XLA's own events: the instruction, and its origin in the program."""
    arguments = event.get("args", {})
    return f"{arguments['hlo_op']} {arguments.get('op_name', '')}" if "hlo_op" in arguments else ""


RULES = {
    "torch": Rules(
        text=_name,
        phases={
            "exchange": r"(gloo|nccl):|ncclDevKernel|ncclKernel",
            "update": r"Optimizer\.step#",
            "backward": r"autograd::engine::evaluate_function: ",
            "forward": r"aten::|DistributedDataParallel\.forward$",
        },
    ),
    "tensorflow": Rules(
        text=_name,
        phases={
            "exchange": r"[^ :]*(Collective(Reduce|Gather)\w*|NcclAllReduce\w*|AddN_\d+):\w*(Collective|Nccl)",
            "update": r"[^ :]*:ResourceApply",
            "backward": r"gradient_tape/[^ :]*:[A-Z_]\w+$",
            "forward": r"[^ :]+:[A-Z_]\w+$",
        },
        unread_devices="/device:GPU",
    ),
    "jax": Rules(
        text=_instruction,
        phases={
            "exchange": r"(all-reduce|all-gather|reduce-scatter|collective-permute)",
            "backward": r".* .*transpose\(jvp",
            "forward": r".* .*jvp\(",
            "update": r".* .*\w",
        },
    ),
}
"""Framework -> how its traces are read. PyTorch's Kineto names operators and what autograd calls, TensorFlow's executor
`name:operation`, where its gradients begin with `gradient_tape`, and XLA says from what an instruction was made."""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """What one process did, from the first of its events on."""

    process_rank: int
    milliseconds: float
    """How long it is."""
    parts: Mapping[Phase, Sequence[Interval]]
    """Phase -> its intervals, (start, end) in ms, which do not overlap; forward, backward and update exclude each
    other, while an exchange may be under way at the same time."""

    def total(self, phase: Phase) -> float:
        """Milliseconds of a phase."""
        return _length(self.parts[phase])

    @property
    def overlapped(self) -> float:
        """Milliseconds in which an exchange was under way while the device computed."""
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


def timelines(run_dir: Path, framework: str) -> list[Timeline]:
    """One for each process that has kept a trace, in the order of their ranks.

    Args:
        run_dir: of a run; without traces there are no timelines.
        framework: of the run.

    Raises:
        TimelineError: a trace cannot be read, is too long, or has nothing that is known.
    """
    found = {int(path.stem.rpartition("-")[2]): path for path in (run_dir / TRACES_DIR).glob("process-*.json")}
    return [_timeline(rank, found[rank], RULES[framework]) for rank in sorted(found)]


def _timeline(rank: int, path: Path, rules: Rules) -> Timeline:
    events = _events(path, rules)
    if any(str(event.get("cat")) == "kernel" for event in events):
        events = list(_on_gpu(events, rules))
        by_phase = {phase: [_interval(event) for event in events if event["phase"] == phase] for phase in rules.phases}
    else:
        by_phase = _by_phase(events, rules)
    every = [interval for intervals in by_phase.values() for interval in intervals]
    if not every:
        raise TimelineError(f"{path.name} has no event of a known kind")
    first = min(start for start, _ in every)
    milliseconds = (max(end for _, end in every) - first) / 1e3
    parts: dict[Phase, list[Interval]] = {"exchange": _union(by_phase["exchange"])}
    taken: list[Interval] = []
    for phase in COMPUTES:
        parts[phase] = _without(_union(by_phase[phase]), taken)
        taken = _union([*taken, *parts[phase]])
    moved = {
        phase: [((start - first) / 1e3, (end - first) / 1e3) for start, end in found] for phase, found in parts.items()
    }
    return Timeline(process_rank=rank, milliseconds=milliseconds, parts=moved)


def _events(path: Path, rules: Rules) -> list[dict[str, Any]]:
    """The complete events of a trace."""
    if (size := path.stat().st_size) > LARGEST_TRACE:
        raise TimelineError(f"{path.name} has {size >> 20} MiB, more than the {LARGEST_TRACE >> 20} that are read")
    try:
        events = json.loads(path.read_text())["traceEvents"]
        planes = [str(event["args"]["name"]) for event in events if event.get("name") == "process_name"]
        complete = [event for event in events if event.get("ph") == "X" and "dur" in event]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TimelineError(f"{path.name} is no trace in Chrome's format ({error})") from None
    if rules.unread_devices and any(name.startswith(rules.unread_devices) for name in planes):
        raise TimelineError(f"{path.name} is of GPUs, whose kernels do not say there to which operation they belong")
    return complete


def _phase_of(event: Mapping[str, Any], rules: Rules) -> Phase | None:
    text = rules.text(event)
    return next((phase for phase, begins in rules.phases.items() if re.match(begins, text)), None)


def _by_phase(events: Iterable[dict[str, Any]], rules: Rules) -> dict[Phase, list[Interval]]:
    found: dict[Phase, list[Interval]] = {phase: [] for phase in rules.phases}
    for event in events:
        if (phase := _phase_of(event, rules)) is not None:
            found[phase].append(_interval(event))
    return found


def _on_gpu(events: Sequence[dict[str, Any]], rules: Rules) -> Iterator[dict[str, Any]]:
    """The kernels of a GPU, with the phase in which a thread of the host launched them.

    Kineto gives a launch and its kernel the same `correlation`. Kernels of NCCL are exchanges by their own name.
    """
    on_thread: dict[tuple[Any, Any], list[tuple[Interval, Phase]]] = defaultdict(list)
    launches: dict[Any, dict[str, Any]] = {}
    for event in events:
        arguments = event.get("args", {})
        if "correlation" in arguments and event.get("cat") != "kernel":
            launches[arguments["correlation"]] = event
        elif event.get("cat") != "kernel" and (phase := _phase_of(event, rules)) not in (None, "exchange"):
            assert phase is not None
            on_thread[event["pid"], event["tid"]].append((_interval(event), phase))
    for event in events:
        if event.get("cat") != "kernel":
            continue
        phase = _phase_of(event, rules)
        launch = launches.get(event.get("args", {}).get("correlation"))
        if phase is None and launch is not None:
            within = on_thread[launch["pid"], launch["tid"]]
            phases = {name for (start, end), name in within if start <= launch["ts"] <= end}
            phase = next((name for name in COMPUTES if name in phases), None)
        if phase is not None:
            yield event | {"phase": phase}


def _interval(event: Mapping[str, Any]) -> Interval:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])


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
    left = []
    for start, end in intervals:
        for other_start, other_end in others:
            if other_end <= start or other_start >= end:
                continue
            if other_start > start:
                left.append((start, other_start))
            start = max(start, other_end)
        if start < end:
            left.append((start, end))
    return left


def _length(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)
