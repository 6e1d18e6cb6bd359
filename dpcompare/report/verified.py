"""The checks of `verify` as lines for a terminal: what failed, a summary, and in full a row for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpcompare.experiments.verify import Check
from dpcompare.system.terminal_text import pluralize

INDENT = "  "


def failures(checks: Sequence[Check]) -> Iterator[str]:
    """Lines for each check that failed; those that failed for the same reason are counted."""
    by_reason: dict[str, list[Check]] = {}
    for number, check in enumerate(check for check in checks if not check.passed):
        by_reason.setdefault(check.detail or str(number), []).append(check)
    for check, *others in by_reason.values():
        yield f"FAILED {check.name}, {check.workload}, {check.precision}: {check.pair}: {_against(check)}"
        yield from (f"{INDENT}{line}" for line in check.detail.splitlines())
        if others:
            yield f"{INDENT}so did {pluralize(len(others), 'more check')}: {', '.join(_names(others))}"


def _names(checks: Sequence[Check]) -> Iterator[str]:
    yield from dict.fromkeys(check.name for check in checks)


def summary(checks: Sequence[Check]) -> Iterator[str]:
    """How many passed, in all and by precision, and which of them was closest to its tolerance."""
    if not checks:
        yield "nothing was compared"
        return
    passed = [check for check in checks if check.passed]
    yield f"{len(passed)} of {len(checks)} checks passed"
    for precision in dict.fromkeys(check.precision for check in checks):
        made = [check for check in checks if check.precision == precision]
        kept = [check for check in made if check.passed]
        line = f"{INDENT}{precision}: {len(kept)} of {len(made)}"
        if near := [check for check in kept if check.measured and check.tolerance]:
            closest = max(near, key=_part_of_tolerance)
            share = f"{100 * _part_of_tolerance(closest):.2g}% of its tolerance"
            line += f"; closest: {closest.name}, {closest.workload}: {_against(closest)} ({share}), {closest.pair}"
        yield line


def _part_of_tolerance(check: Check) -> float:
    return (check.measured or 0.0) / check.tolerance


def _against(check: Check) -> str:
    """What was measured, and what was allowed."""
    if check.measured is None:
        return "did not run"
    floor = "" if check.floor is None else f", floor {check.floor:.1e}"
    return f"{check.measured:.1e} of {check.tolerance:.1e}{floor}"


def rows(checks: Sequence[Check], width: int) -> Iterator[str]:
    """All checks, below their workload and precision; the pair that differs most where there is room, else below."""
    name_width = max((len(check.name) for check in checks), default=0)
    figure_width = max((len(_against(check)) for check in checks), default=0)
    for workload, precision in dict.fromkeys((check.workload, check.precision) for check in checks):
        yield f"{workload}, {precision}"
        for check in (check for check in checks if (check.workload, check.precision) == (workload, precision)):
            verdict = "pass" if check.passed else "FAIL"
            line = f"{INDENT}{verdict}  {check.name:{name_width}}  {_against(check):{figure_width}}"
            modes = check.modes.count(",") + 1
            pair = f"{check.pair}, of {modes} modes" if modes > 2 else check.pair
            if len(line) + len(INDENT) + len(pair) <= width:
                yield f"{line}{INDENT}{pair}"
            else:
                yield line.rstrip()
                yield f"{4 * INDENT}{pair}"
