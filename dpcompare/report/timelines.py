"""The timelines of traced runs: a plot, and a table of how long each part took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from dpcompare.config.modes import MODES
from dpcompare.experiments.arm_rows import ArmRow
from dpcompare.report.charts import COLOURS, Plot, load_altair
from dpcompare.results.timeline import Phase, Timeline, TimelineError, timeline_of, traced_processes

PHASE_COLOURS: dict[Phase, str] = {
    "forward": COLOURS[0],
    "backward": COLOURS[2],
    "update": COLOURS[3],
    "other": "#7A828C",
    "exchange": COLOURS[1],
}
MOST_PROCESSES = 4
"""Of each arm; the others are in the traces."""


@dataclass(frozen=True, kw_only=True)
class Traced:
    """One arm with a traced run, the first of its completed runs that has traces."""

    arm: str
    has_several_devices: bool
    """Whether a process drives several, which all are in its timeline: what overlaps may be on two of them."""
    num_processes: int
    """With a trace."""
    timelines: list[Timeline] = field(default_factory=list)
    """Of its first processes."""
    problems: list[str] = field(default_factory=list)
    """Why processes have none, although they have a trace."""

    def name_of(self, timeline: Timeline) -> str:
        return f"{self.arm}, process {timeline.process_rank}"


def traced(arms: Sequence[ArmRow]) -> list[Traced]:
    """The arms that have traces."""
    return [found for row in arms if (found := _traced(row)) is not None]


def _traced(row: ArmRow) -> Traced | None:
    completed = [Path(shown.run_dir) for shown in row.rounds_shown if shown.run_dir and not shown.failure]
    for run_dir in completed:
        if ranks := traced_processes(run_dir):
            process_per = MODES[row.framework, row.mode].process_per
            found = Traced(
                arm=row.name,
                has_several_devices=process_per == "node" and row.devices_per_node > 1,
                num_processes=len(ranks),
            )
            for rank in ranks[:MOST_PROCESSES]:
                timeline = _read(run_dir, rank, row.framework)
                if isinstance(timeline, str):
                    found.problems.append(timeline)
                else:
                    found.timelines.append(timeline)
            return found
    return None


@cache
def _read(run_dir: Path, rank: int, framework: str) -> Timeline | str:
    """The timeline of a process of a completed run, whose trace takes seconds to read; or why it has none."""
    try:
        return timeline_of(run_dir, rank, framework)
    except TimelineError as error:
        return str(error)


def plot_of(found: Sequence[Traced]) -> Plot | None:
    """What every traced process did when; None where there is nothing to draw."""
    alt = load_altair()
    data = [row for each in found for timeline in each.timelines for row in _marks(each, timeline)]
    if not data:
        return None
    names = list(dict.fromkeys(str(row["process"]) for row in data))
    phases = [phase for phase in PHASE_COLOURS if any(row["phase"] == phase for row in data)]
    colours = alt.Color(
        "phase:N",
        scale=alt.Scale(domain=phases, range=[PHASE_COLOURS[phase] for phase in phases]),
        legend=alt.Legend(title=None, orient="top", direction="horizontal"),
    )
    chart = (
        alt.Chart(alt.Data(values=data))
        .mark_bar()
        .encode(
            y=alt.Y("process:N", sort=names, title=None, scale=alt.Scale(paddingInner=0.3)),
            yOffset=alt.YOffset("lane:N", sort=["computes", "exchanges"]),
            x=alt.X("start:Q", title="ms from the first event of the process"),
            x2="end:Q",
            color=colours,
            description=alt.Description("text:N"),
        )
        .properties(height=alt.Step(34, **{"for": "position"}))
    )
    several = any(each.has_several_devices for each in found)
    apart = " (in a process with several devices, perhaps on another device)" if several else ""
    return Plot(
        name="timeline",
        title="Timeline of the traced steps",
        explanation="What the traces of `--profile-steps` show: what each process computes, and below that its "
        "exchange of gradients. Where both have a bar, the exchange overlaps with computing"
        f"{apart}. An exchange includes waiting for the other processes, and a gap is waiting for the host, for "
        "data, or between steps. Tracing slows steps down, and the processes have separate clocks.",
        chart=chart,
    )


def _marks(each: Traced, timeline: Timeline) -> Iterator[dict[str, object]]:
    name = each.name_of(timeline)
    for phase in PHASE_COLOURS:
        lane = "exchanges" if phase == "exchange" else "computes"
        for start, end in timeline.drawn(phase):
            text = f"{name}: {phase} from {start:.2f} to {end:.2f} ms"
            yield {
                **{"arm": each.arm, "process": name, "lane": lane, "phase": phase},
                **{"start": start, "end": end, "text": text},
            }


HEADS = ("process", *PHASE_COLOURS, "exchange that overlaps", "idle", "total")


def table_of(found: Sequence[Traced]) -> list[tuple[str, ...]]:
    """A row for each process, in milliseconds, below HEADS."""
    return [_cells(each, timeline) for each in found for timeline in each.timelines]


def _cells(each: Traced, timeline: Timeline) -> tuple[str, ...]:
    parts = [f"{timeline.total(phase):.1f}" for phase in PHASE_COLOURS]
    overlapped = "-" if each.has_several_devices else f"{timeline.overlapped:.1f}"
    return each.name_of(timeline), *parts, overlapped, f"{timeline.idle:.1f}", f"{timeline.milliseconds:.1f}"


def notes_on(found: Sequence[Traced]) -> list[str]:
    """What the plot leaves out, a sentence each."""
    problems = [f"{each.arm}: no timeline, {problem}." for each in found for problem in each.problems]
    left_out = [
        f"{each.arm}: {len(each.timelines)} of {each.num_processes} traced processes are shown."
        for each in found
        if each.num_processes > MOST_PROCESSES
    ]
    return problems + left_out
