"""A comparison as text for a terminal of any width: numbers and words stay whole, and columns go instead."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from dpcompare.config.cluster import topology_in_words
from dpcompare.experiments.comparison import Comparison, Group, SettingRow
from dpcompare.report.formats import SHORT_COLUMNS, columns, figure
from dpcompare.system.terminal_text import pluralize

NARROWEST = 40
WIDEST = 110
"""Beyond it a line is read with difficulty."""
BAR = 20
"""Characters of the longest bar."""
GAP = "  "
EMULATED = " *"
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def as_text(comparison: Comparison, width: int) -> str:
    """What was measured, the headline, and the arms by their number of devices.

    Args:
        comparison: any.
        width: characters of a line; below NARROWEST lines are longer than it.
    """
    topologies = list(_topologies(comparison))
    width = max(NARROWEST, min(width, WIDEST))
    blocks = [
        filled([comparison.measured] if comparison.measured else [], width),
        headline_lines(comparison, width),
        filled(topologies, width),
        "\n".join(_table(comparison, width)),
        filled(list(_warnings(comparison)), width),
    ]
    return "\n".join(block for block in blocks if block) + "\n"


def headline_lines(comparison: Comparison, width: int) -> str:
    """The headline as it stands in `as_text`."""
    return filled([comparison.headline], max(NARROWEST, min(width, WIDEST)))


def _topologies(comparison: Comparison) -> Iterator[str]:
    """A line that says by two examples what `2x1` in the names of arms is, where one has several devices."""
    shapes = [(row.num_nodes, row.devices_per_node) for row in comparison.arms if row.rounds]
    if words := [f"{n}x{d} is {topology_in_words(n, d)}" for n, d in dict.fromkeys(shapes) if n * d > 1]:
        yield f"{', '.join(words[:2])}."


def filled(lines: Sequence[str], width: int) -> str:
    """Sentences in lines of at most this many characters, words kept whole."""
    return "\n".join(textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) for line in lines)


def aligned(cells: Sequence[Sequence[str]]) -> str:
    """Rows whose first column is aligned to the left, and all others to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        GAP.join([row[0].ljust(widths[0]), *(cell.rjust(size) for cell, size in zip(row[1:], widths[1:], strict=True))])
        for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def _table(comparison: Comparison, width: int) -> Iterator[str]:
    rows = {row.name: row for row in comparison.arms if row.rounds}
    names = {name: name + (EMULATED if row.emulated else "") for name, row in rows.items()}
    longest = max(map(len, names.values()), default=0) + 2
    columns = {
        title: column
        for title, column in SHORT_COLUMNS.items()
        if any(column.cell(row).strip("-") for row in rows.values())
    }
    widths = {name: max(len(name), *(len(c.cell(row)) for row in rows.values())) + 2 for name, c in columns.items()}
    while len(columns) > 1 and longest + sum(widths[title] for title in columns) > width:
        columns.popitem()
    taken = sum(widths[title] for title in columns)
    name_width = min(longest, max(width - taken, 0))
    bar = min(BAR, width - name_width - taken - 2)
    fastest = max((speed for row in rows.values() if (speed := row.steady_images_per_second)), default=0.0)
    yield (" " * name_width + "".join(title.rjust(widths[title]) for title in columns)).rstrip()
    for group in comparison.groups:
        if len(comparison.groups) > 1:
            yield _title(group)
        for row in (rows[name] for name in group.arms):
            *above, last = textwrap.wrap(names[row.name], max(name_width - 2, 10), break_on_hyphens=False)
            yield from (f"  {line}" for line in above)
            line = f"  {last}".ljust(name_width)
            line += "".join(column.cell(row).rjust(widths[title]) for title, column in columns.items())
            speed = row.steady_images_per_second
            yield (line + f"  {_bar(speed / fastest, bar)}" if speed and fastest and bar >= 5 else line).rstrip()


def figure_lines(comparison: Comparison, width: int) -> Iterator[str]:
    """All figures of all arms, in as many tables below each other as it takes."""
    cells = []
    for name, column in columns(comparison).items():
        texts = [name, *(column.cell(row) for row in comparison.arms)]
        cells.append(_left_aligned(texts) if column.is_text else right_aligned(texts))
    return folded(cells, width)


def folded(cells: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """A table with as many columns as fit, and the others in further tables below, each with the first column again.

    Args:
        cells: columns of equal length, each with cells of equal width, its title first.
        width: characters of a line; a table has a second column even where that is too wide.
    """
    first, *left = cells
    while left:
        shown = [first, left.pop(0)]
        while left and len(GAP.join(column[0] for column in [*shown, left[0]])) <= width:
            shown.append(left.pop(0))
        for line in zip(*shown, strict=True):
            yield GAP.join(line).rstrip()
        if left:
            yield ""


def right_aligned(texts: Sequence[str]) -> list[str]:
    """All as wide as the widest, as numbers stand in a column."""
    widest = max(map(len, texts))
    return [text.rjust(widest) for text in texts]


def _left_aligned(texts: Sequence[str]) -> list[str]:
    widest = max(map(len, texts))
    return [text.ljust(widest) for text in texts]


def _title(group: Group) -> str:
    devices = pluralize(group.num_devices, "device")
    return f"{group.model} on {devices}" if group.model else devices


def _bar(fraction: float, width: int) -> str:
    whole, rest = divmod(round(fraction * width * 8), 8)
    return "█" * whole + _EIGHTHS[rest].strip()


def _warnings(comparison: Comparison) -> Iterator[str]:
    if any(row.emulated and row.rounds for row in comparison.arms):
        yield "* emulated, on the CPU or on a shared GPU, so never ranked."
    for group in comparison.groups:
        if len(group.arms) > 1:
            yield within(group, comparison)
    if not comparison.not_judged and _accuracies_of_one_seed_differ(comparison):
        yield "Accuracies are from one seed, and rounding alone can move them; use --vary-seed to compare them."


def _accuracies_of_one_seed_differ(comparison: Comparison) -> bool:
    """Whether arms that are comparable show different accuracies, and have no seed per round that would judge them."""
    single_seed_rows = (row for row in comparison.arms if row.accuracy is not None and row.accuracy_over_seeds is None)
    accuracy = {row.name: figure(row.accuracy, "{:.3f}") for row in single_seed_rows}
    together = (names for group in comparison.groups for names in group.comparable)
    return any(len({accuracy[name] for name in names if name in accuracy}) > 1 for names in together)


def within(group: Group, comparison: Comparison) -> str:
    """Which arms on the same number of devices are comparable; where accuracy is claimed, that speed is meant."""
    which, in_what = _which(group), " in speed" if comparison.learning else ""
    if len(comparison.groups) > 1:
        where = _title(group) if group.model else f"On {_title(group)}"
        return f"{where}: {which} are comparable{in_what}."
    return f"{which[0].upper()}{which[1:]} are comparable{in_what}."


def arms_by_value(setting: SettingRow, comparison: Comparison) -> dict[str, list[str]]:
    """Value of a setting -> the arms that have it."""
    found: dict[str, list[str]] = {}
    names = (row.name for row in comparison.arms if row.rounds)
    for name, value in zip(names, setting.values, strict=True):
        found.setdefault(value, []).append(name)
    return found


def _which(group: Group) -> str:
    if not group.comparable:
        return "no two arms"
    if len(group.comparable) > 1:
        return "; and ".join(", ".join(names) for names in group.comparable)
    apart = [name for name in group.arms if name not in group.comparable[0]]
    return f"all but {', '.join(apart)}" if apart else "all"
