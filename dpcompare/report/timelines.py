"""The timelines of traced runs: a plot, and a table of how long each part took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dpcompare.experiments.comparison import ArmRow
from dpcompare.report.charts import COLOURS, Plot, load_altair
from dpcompare.results.timeline import Phase, Timeline, TimelineError, timelines

PHASE_COLOURS: dict[Phase, str] = {
    "forward": COLOURS[0],
    "backward": COLOURS[2],
    "update": COLOURS[3],
    "exchange": COLOURS[1],
}
MOST_PROCESSES = 4
"""Of each arm; the others are in the traces."""


@dataclass(frozen=True, kw_only=True)
class Traced:
    """One arm with a traced run."""

    arm: str
    framework: str
    run_dir: str
    timelines: tuple[Timeline, ...]
    """Of its first processes, of the first of its runs that has traces."""
    num_processes: int
    """With a trace."""
    problem: str = ""
    """Why there are no timelines, although there are traces."""

    def name_of(self, timeline: Timeline) -> str:
        return f"{self.arm}, process {timeline.process_rank}"


def traced(arms: Sequence[ArmRow]) -> list[Traced]:
    """The arms that have traces."""
    return [found for row in arms if (found := _traced(row)) is not None]


def _traced(row: ArmRow) -> Traced | None:
    for shown in row.rounds_shown:
        try:
            found = _read(shown.run_dir, row.framework)
        except TimelineError as error:
            return Traced(
                arm=row.name,
                framework=row.framework,
                run_dir=shown.run_dir,
                timelines=(),
                num_processes=0,
                problem=str(error),
            )
        if found:
            return Traced(
                arm=row.name,
                framework=row.framework,
                run_dir=shown.run_dir,
                timelines=found[:MOST_PROCESSES],
                num_processes=len(found),
            )
    return None


@cache
def _read(run_dir: str, framework: str) -> tuple[Timeline, ...]:
    """A completed run changes no more, and a trace takes seconds to read."""
    try:
        return tuple(timelines(Path(run_dir), framework))
    except OSError as error:  # moved, or not to be read
        raise TimelineError(f"its trace cannot be read ({error.strerror})") from None


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
    return Plot(
        name="timeline",
        title="Timeline of the traced steps",
        explanation="What the traces of `--profile-steps` show: what the device of each process computes, and below "
        "that its exchange of gradients. Where both have a bar, the exchange overlaps with computing; an exchange "
        "includes waiting for the other processes, and a gap is waiting for the host, for data, or between steps. "
        "Tracing takes time, and each process has a clock of its own.",
        chart=chart,
    )


def _marks(each: Traced, timeline: Timeline) -> Iterator[dict[str, object]]:
    for phase in PHASE_COLOURS:
        name = each.name_of(timeline)
        lane = "exchanges" if phase == "exchange" else "computes"
        for start, end in timeline.drawn(phase):
            text = f"{name}: {phase} from {start:.2f} to {end:.2f} ms"
            yield {
                "arm": each.arm,
                "process": name,
                "lane": lane,
                "phase": phase,
                "start": start,
                "end": end,
                "text": text,
            }


HEADS = ("process", *PHASE_COLOURS, "exchange that overlaps", "neither", "in all")


def table_of(found: Sequence[Traced]) -> list[tuple[str, ...]]:
    """A row for each process, in milliseconds, below HEADS."""
    return [
        (
            each.name_of(timeline),
            *(
                f"{value:.1f}"
                for value in (
                    *(timeline.total(phase) for phase in PHASE_COLOURS),
                    *(timeline.overlapped, timeline.idle, timeline.milliseconds),
                )
            ),
        )
        for each in found
        for timeline in each.timelines
    ]


def notes_on(found: Sequence[Traced]) -> list[str]:
    """What the plot leaves out, a sentence each."""
    problems = [f"{each.arm}: no timeline, {each.problem}." for each in found if each.problem]
    left_out = [
        f"{each.arm}: {len(each.timelines)} of {each.num_processes} traced processes are shown."
        for each in found
        if each.num_processes > len(each.timelines)
    ]
    return problems + left_out
