"""A ledger: the figures of studies over days and versions, one line for each arm, of which no two days make a claim."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from dpcompare.backends.other_variables import KEY_FILE, read_key
from dpcompare.errors import RequestError
from dpcompare.experiments.arm_rows import ArmRow
from dpcompare.experiments.collection import ArmRuns, Collection
from dpcompare.experiments.comparison import Comparison
from dpcompare.experiments.figures import FIGURES
from dpcompare.experiments.sentences import devices_in_words
from dpcompare.report.charts import Plot, colour_of_arms, load_altair
from dpcompare.report.formats import figure
from dpcompare.report.text import GAP, NARROWEST, WIDEST, aligned, filled
from dpcompare.system.cache import exclusive_lock
from dpcompare.system.terminal_text import pluralize, printable

LEDGER_FILE = "ledger.jsonl"
KEPT = tuple(name for name, row in FIGURES.items() if row.over_rounds)
"""The figures of an arm that a ledger keeps."""
LARGEST_IN_DIGITS = 10_000
DAY = "day:T"
"""The axis of days."""
NO_CLAIM = (
    "Points of different studies make no claim: between days a machine changes by more than versions do. Arms of one "
    "study were measured side by side."
)


class Entry(BaseModel):
    """One arm of a study, as it was when it was added."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = 1
    study: str
    """The same for all arms that were measured side by side, and after rounds were added."""
    study_dir: str
    day: date
    """Of the first run of the study."""
    dpcompare_version: str
    arm: str
    environment: str | None
    """Name of its own environment; None: the usual one."""
    framework: str
    workload: str
    """Model, data, batch and precision."""
    machine: str
    hardware: str = ""
    """What may be shown in one table: the CPU and the devices, whatever the kernel. Older lines have their machine."""
    versions: dict[str, str]
    rounds: int
    figures: dict[str, float | None]
    """As KEPT has them."""
    comparable: bool
    """Whether all arms of its study are."""
    headline: str
    """Of its study."""

    @property
    def version(self) -> str:
        """The framework with its version."""
        return f"{self.framework} {self.versions.get(self.framework, 'of an unknown version')}"

    @property
    def place(self) -> tuple[str, str]:
        """What the figures of a table have in common: the workload, and what it ran on."""
        return self.workload, self.hardware or self.machine


def entries_of(collection: Collection, comparison: Comparison, study_dir: Path) -> list[Entry]:
    """The lines of a study, for all arms that have a completed run.

    Args:
        collection: of the study alone.
        comparison: of the same.
        study_dir: where it is.
    """
    rows = {row.name: row for row in comparison.arms}
    arms = [replace(arm, name=printable(arm.name)) for arm in collection.arms if arm.completed]
    began = sorted(run.started_at for arm in arms for run in arm.completed if run.started_at)
    if not began:
        raise RequestError(f"{str(study_dir)!r} does not say when it was measured; expected a study of 0.2.0 or later")
    identity = read_key(study_dir / KEY_FILE) or str(began[0])  # each study has a key of its own
    study = hashlib.sha256(f"ledger {identity}".encode()).hexdigest()[:12]
    return [
        Entry(
            study=study,
            study_dir=printable(str(study_dir.resolve())),
            day=began[0].date(),
            dpcompare_version=arm.completed[0].dpcompare_version,
            arm=arm.name,
            environment=arm.completed[0].environment,
            framework=arm.config.framework,
            workload=_workload(rows[arm.name]),
            machine=_machine(arm),
            hardware=_hardware(arm),
            versions=dict(sorted(arm.completed[0].versions.items())),
            rounds=len(arm.completed),
            figures={name: getattr(rows[arm.name], name) for name in KEPT},
            comparable=all(group.all_comparable for group in comparison.groups),
            headline=comparison.headline,
        )
        for arm in arms
    ]


def _workload(row: ArmRow) -> str:
    return printable(
        f"{row.model} · {row.dataset} {row.image_size} px · batch {row.global_batch_size} · {row.precision}"
    )


def _machine(arm: ArmRuns) -> str:
    nodes = arm.completed[0].nodes
    return printable(nodes[0].machine.in_words) if nodes and nodes[0].machine else "not known"


def _hardware(arm: ArmRuns) -> str:
    run = arm.completed[0]
    cpu = run.nodes[0].machine.cpu_model if run.nodes and run.nodes[0].machine else None
    return printable(f"{cpu or 'a CPU of an unknown model'}, {devices_in_words(run)}")


def add(folder: Path, entries: Sequence[Entry]) -> bool:
    """Append a study to a ledger, which is made if there is none.

    Args:
        folder: of the ledger.
        entries: of one study.

    Returns:
        whether anything was added: a study that is there as it is now is not added again. One that has changed, such
        as by more rounds, is; what it was before stays in the file and is no longer shown.

    Raises:
        RequestError: the folder cannot be written, its ledger cannot be read, or another process writes to it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(folder, f"the ledger {str(folder)!r} is being written by another process; wait for it"):
            there = read(folder) if (folder / LEDGER_FILE).exists() else []
            known = [entry.model_copy(update={"study_dir": ""}) for entry in there]
            if all(entry.model_copy(update={"study_dir": ""}) in known for entry in entries):  # it may have been moved
                return False
            with (folder / LEDGER_FILE).open("a", encoding="utf-8") as file:
                file.write("".join(f"{entry.model_dump_json()}\n" for entry in entries))
    except OSError as error:
        raise RequestError(f"{str(folder)!r} cannot be written ({error.strerror}); choose another folder") from None
    return True


def read(folder: Path) -> list[Entry]:
    """The lines of a ledger, of each study as it was added last; by day.

    Raises:
        RequestError: there is none, or a line of it cannot be read.
    """
    file = folder / LEDGER_FILE
    if not file.is_file():
        raise RequestError(
            f"{str(folder)!r} is no ledger: {LEDGER_FILE} is missing; make one with: dpcompare ledger add {folder} "
            "STUDY_DIR"
        )
    found: dict[tuple[str, str], Entry] = {}
    lines = file.read_text(encoding="utf-8", errors="replace").removesuffix("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            entry = Entry.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            why = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
            raise RequestError(
                f"line {number} of {str(file)!r} cannot be read ({why}); delete it and add its study again"
            ) from None
        found[entry.study, entry.arm] = entry
    return sorted(found.values(), key=lambda entry: entry.day)


def as_text(entries: Sequence[Entry], name: str, width: int) -> str:
    """A table for each workload and hardware, then what may be said of it.

    Args:
        entries: of a ledger.
        name: of the figure that is shown.
        width: characters of a line of sentences; those of tables may be longer.
    """
    width = max(NARROWEST, min(width, WIDEST))
    blocks = []
    for place, of_both in _grouped(entries, lambda entry: entry.place):
        heads = ("day", "study", "arm", "version", "rounds", name)
        rows = [
            (
                entry.day.isoformat(),
                entry.study,
                entry.arm,
                entry.version,
                str(entry.rounds),
                _in_digits(entry.figures.get(name)),
            )
            for entry in of_both
        ]
        machines = dict.fromkeys(entry.machine for entry in of_both)
        blocks.append(f"{filled([*place, *machines], width)}\n{_left_aligned([heads, *rows])}")
    studies = dict(_grouped(entries, lambda entry: entry.study))
    said = [f"{study}: {of_study[0].headline}" for study, of_study in studies.items() if len(of_study) > 1]
    counted = f"{pluralize(len(studies), 'study')}, {pluralize(len(entries), 'arm')}."
    return "\n\n".join([*blocks, filled([f"{counted} {NO_CLAIM}", *said], width)]) + "\n"


def _in_digits(value: float | None) -> str:
    """Four digits, and never an exponent of a large number."""
    return figure(value, "{:.4g}" if value is not None and abs(value) < LARGEST_IN_DIGITS else "{:,.0f}")


def _left_aligned(cells: Sequence[Sequence[str]]) -> str:
    """All columns but the last two are words."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    words = len(widths) - 2
    joined = ((GAP.join(map(str.ljust, row[:words], widths)), *row[words:]) for row in cells)
    return aligned(list(joined))


def _grouped(entries: Sequence[Entry], key: Callable[[Entry], Any]) -> Iterator[tuple[Any, list[Entry]]]:
    found: dict[Any, list[Entry]] = {}
    for entry in entries:
        found.setdefault(key(entry), []).append(entry)
    yield from found.items()


def make_plots(entries: Sequence[Entry], name: str) -> list[Plot]:
    """A figure over days, and over versions; of each workload and hardware by itself.

    Args:
        entries: of a ledger.
        name: of the figure.

    Raises:
        RequestError: the libraries that draw are not installed, or the figure was never measured.
    """
    plots = []
    for number, (_, of_both) in enumerate(_grouped(entries, lambda entry: entry.place), start=1):
        data = [
            {
                "arm": entry.arm,
                "study": entry.study,
                "day": entry.day.isoformat(),
                "version": entry.version,
                "value": value,
                "text": f"{entry.arm}, {entry.version}, {entry.day}: {value:.4g}",
            }
            for entry in of_both
            if (value := entry.figures.get(name)) is not None
        ]
        if data:
            plots += [
                _plot(data, f"{name}-{number}-over-days", DAY, name),
                _plot(data, f"{name}-{number}-over-versions", "version:N", name),
            ]
    if not plots:
        raise RequestError(
            f"--figure: received {name!r}, which no arm of this ledger has; expected one that was measured"
        )
    return plots


def _by_numbers(version: str) -> list[tuple[bool, int, str]]:
    """What versions are sorted by: 2.8 comes before 2.10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", version)]


def _plot(data: list[dict[str, Any]], file: str, x: str, name: str) -> Plot:
    """A point per arm and study; a line joins those that were measured side by side, and no others."""
    alt = load_altair()
    arms = list(dict.fromkeys(row["arm"] for row in data))
    over = (
        {"axis": alt.Axis(format="%Y-%m-%d")}
        if x == DAY
        else {"sort": sorted({row["version"] for row in data}, key=_by_numbers)}
    )
    base = alt.Chart(alt.Data(values=data)).encode(
        x=alt.X(x, title=None, **over),
        y=alt.Y("value:Q", scale=alt.Scale(zero=False), title=f"{name}, {FIGURES[name].unit}"),
    )
    joined = base.mark_line(strokeWidth=1, opacity=0.5, color="#888888").encode(detail="study:N")
    points = base.mark_point(filled=True, opacity=1, size=70).encode(
        color=colour_of_arms(alt, arms, []), description=alt.Description("text:N")
    )
    return Plot(
        name=file,
        title=name,
        explanation=f"A line joins arms that were measured side by side. {NO_CLAIM}",
        chart=(joined + points).properties(height=260),
    )
