"""Numeric faults planted in the backends, one at a time: which check names them first, and whether that leads to them.

    python -m stress.planted [--out planted.jsonl] [--write [FOLDER]] [--only NAME ...] [--limit N] [--minutes M]
    python -m stress.planted --list

For each fault of `stress.planted_faults` a tiny model is trained with it and without, also in float64 if the precision
of the run does not show that it changes something. Then it is asked who names it: the fairness sheet of the run and one
of another framework, `verify --like` of the run, and the groups of `verify` with the faulty mode and one of another
framework. Each pair of healthy runs of `stress.planted_pairs` goes through the sheet too, and those of ODD_PAIRS
through `verify --like`; none may raise an alarm. --out gets a line of JSON for each; rows that it has are not repeated.
--write keeps the table and the counts as a result file. Exit code 3 if a fault was let through by all, or healthy runs
raised an alarm.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from benchmarks.evidence import Keeper, Table, number, table, text
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.run import RunConfig
from dpcompare.errors import RunFailedError
from dpcompare.experiments.fairness import compare
from dpcompare.experiments.fairness_checks import changes_only_speed
from dpcompare.experiments.verify import Check, verify
from dpcompare.experiments.verify_groups import Group, plan_groups
from dpcompare.experiments.verify_like import group_like, late_step_of
from dpcompare.results.result import RunResult
from stress.planted_faults import FAULTS
from stress.planted_pairs import PAIRS
from stress.planted_row import Odd, Place, Planted
from stress.planted_runs import Bench

ROUNDING = 1e-9
"""A difference of float64 that is no more than this, relative to a loss above 1, is no effect."""
BEYOND_ROUNDING = 1e-2
"""A difference in the run's own precision that needs no run in float64 to be an effect."""
STAGES = ("sheet", "like", "verify")
"""Who may name a fault, in the order in which a user meets them."""


def effect(one: RunResult, other: RunResult) -> float:
    """The largest difference of a loss or an evaluation, relative to a loss above 1; infinite for other numbers."""
    figures = [
        [*result.train_loss, *(figure for row in result.evaluations for figure in (row.loss, row.accuracy))]
        for result in (one, other)
    ]
    if len(figures[0]) != len(figures[1]):
        return math.inf
    differences = [
        (0.0 if a == b else math.inf) if a is None or b is None else abs(a - b) / max(1.0, abs(a), abs(b))
        for a, b in zip(*figures, strict=True)
    ]
    return max(differences)


def counterpart(config: RunConfig) -> Place:
    """Where another framework trains the same, as `verify --like` chooses it."""
    other = group_like(config, None, {}, {}).contenders[1]
    return Place(framework=other.framework, mode=other.mode, nodes=other.num_nodes, devices=other.devices_per_node)


def on_sheet(results: Sequence[RunResult]) -> list[str]:
    """The reasons of the sheet that are not of speed alone."""
    return [
        f"{row.setting}: {row.detail}"
        for row in compare(results).rows
        if row.reason and not changes_only_speed(row.setting)
    ]


def failures(checks: Iterable[Check]) -> list[str]:
    return [f"{check.name}: {check.detail}" for check in checks if not check.passed]


def groups_of_verify(fault: Planted) -> list[Group]:
    """The groups of `verify` of a small model that have the faulty mode, in float64: those of float32 tolerate more.

    Nothing is compiled by torch.compile, which takes longer than all else and whose code has the same fault.
    """
    place = fault.place
    other = next(name for name in FRAMEWORKS if name != place.framework)
    replicas = 1 if place.mode == "single" else 2
    modes = (place.mode, "single" if replicas == 1 else FRAMEWORKS[other].usual_modes[0])
    groups = plan_groups(
        (place.framework, other), modes, model="toy-bn", replicas=[replicas], precisions=["float64"], quick=False
    )
    return [replace(group, contenders=tuple(replace(one, tune={}) for one in group.contenders)) for group in groups]


def judge(bench: Bench, fault: Planted) -> dict[str, Any]:
    """Who names a fault, and how large its effect is."""
    place, resumed = fault.place, fault.resumed
    row: dict[str, Any] = {"place": str(place), "precision": place.config(fault.workload).workload.precision}
    config = place.config(fault.workload, resumed=resumed, late_step=True)
    exact = place.config({**fault.workload, "precision": "float64"}, resumed=resumed)
    with bench.planted(fault) as folder:
        try:
            broken = bench.trained(config, folder / "run", resumed=resumed)
            row["effect"] = effect(bench.healthy(config.changed(late_step=False), resumed=resumed), broken)
            if row["effect"] <= BEYOND_ROUNDING:
                in_float64 = bench.trained(exact, folder / "exact", resumed=resumed)
                row["effect"] = effect(bench.healthy(exact, resumed=resumed), in_float64)
                if row["effect"] <= ROUNDING:
                    return row
        except RunFailedError as error:
            name = f"run: {str(error).splitlines()[0]}"
            leads = [any(word.lower() in name.lower() for word in fault.leads)]
            return row | {"effect": math.inf, "sheet": [name], "first": name, "leads": leads}
        other = counterpart(config).config(fault.workload, resumed=resumed)
        row["sheet"] = on_sheet([bench.healthy(other, resumed=resumed), broken])
        late, _ = late_step_of(folder / "run")
        row["like"] = failures([*verify([group_like(config, None, {}, {})]), *([late] if late else [])])
        row["verify"] = []
        for group in groups_of_verify(fault):
            if found := failures(verify([group])):
                row |= {"verify": found, "group": f"{group.described}, {group.workload.precision}, {group.kind}"}
                break
    names = [row[stage][0] for stage in STAGES if row[stage]]
    row["first"] = names[0] if names else None
    row["leads"] = [any(word.lower() in name.lower() for word in fault.leads) for name in names]
    return row


def alarms(bench: Bench, odd: Odd) -> dict[str, Any]:
    """What is said of healthy runs, each pair of which is compared."""
    configs = [place.config(odd.workload, resumed=odd.resumed, late_step=odd.proved) for place in odd.places]
    row: dict[str, Any] = {"place": " / ".join(map(str, odd.places)), "healthy": True}
    with bench.planted(None):
        pairs = list(combinations([bench.healthy(config, resumed=odd.resumed) for config in configs], 2))
        groups = [group_like(config, None, {}, {}) for config in configs] if odd.proved else []
        row |= {"pairs": len(pairs), "proved": len(groups)}
        row["sheet"] = [line for pair in pairs for line in on_sheet(pair)]
        row["like"] = [line for group in groups for line in failures(verify([group]))]
    return row


def is_let_through(row: dict[str, Any]) -> bool:
    return "sheet" in row and not row.get("healthy") and not any(row.get(stage) for stage in STAGES)


def is_alarm(row: dict[str, Any]) -> bool:
    return bool(row.get("healthy") and (row["sheet"] or row["like"]))


def faults_of(rows: Sequence[dict[str, Any]]) -> Table:
    """The table of all faults: the first two names that each stage gives, and whether they lead to the cause."""
    shown = []
    for row in (row for row in rows if not row.get("healthy")):
        names = [", ".join(line.partition(":")[0] for line in row.get(stage, [])[:2]) or None for stage in STAGES]
        leads = "no effect" if "sheet" not in row else "yes" if row.get("leads", [False])[:1] == [True] else "no"
        shown.append((row["name"], f"{row['place']}, {row['precision']}", f"{row['effect']:.1e}", *names, leads))
    columns = [*text("fault", "where"), number("effect"), *text("sheet", "verify --like", "verify")]
    return table([*columns, *text("leads to the cause")], shown)


def counts(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """How many faults each stage names, and how many healthy comparisons raised an alarm."""
    faults = [row for row in rows if not row.get("healthy")]
    counted = [row for row in faults if "sheet" in row]
    named = [row for row in counted if not is_let_through(row)]
    healthy = [row for row in rows if row.get("healthy")]
    leading = sum(row.get("leads", [False])[:1] == [True] for row in named)
    return {
        "faults": len(counted),
        "named": len(named),
        **{f"named_by_{stage}": sum(bool(row.get(stage)) for row in counted) for stage in STAGES},
        "without_effect": len(faults) - len(counted),
        "leading": leading,
        "leading_later": sum(any(row.get("leads", [])) for row in named) - leading,
        "odd_settings": len(healthy),
        "pairs": sum(row["pairs"] for row in healthy),
        "proved": sum(row["proved"] for row in healthy),
        "alarms": sum(is_alarm(row) for row in healthy),
    }


def sentences(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The counts in words, then each fault that was let through and each false alarm."""
    found = counts(rows)
    stages = ", ".join(f"{stage} {found[f'named_by_{stage}']}" for stage in STAGES)
    yield (
        f"{found['named']} of {found['faults']} faults are named ({stages}); {found['without_effect']} had no effect. "
        f"The first name leads to the cause of {found['leading']}, that of another stage to {found['leading_later']}."
    )
    yield (
        f"Healthy: {found['pairs']} pairs on the sheet and {found['proved']} runs of `verify --like`, of "
        f"{found['odd_settings']} odd settings; {found['alarms']} settings raised an alarm."
    )
    for row in rows:
        if is_let_through(row):
            yield f"LET THROUGH: {row['name']}."
        if is_alarm(row):
            yield f"ALARM: {row['name']} ({row['place']}): {'; '.join([*row['sheet'], *row['like']])}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("planted.jsonl"), help="of the rows; continued if it is there")
    keeper = Keeper(parser, "stress.planted")
    parser.add_argument("--only", nargs="+", choices=[*FAULTS, *PAIRS], metavar="NAME", help="these alone")
    parser.add_argument("--limit", type=int, help="most rows to make now")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no row begins later")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join([*FAULTS, *PAIRS]))
        return
    out: Path = arguments.out
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.is_file() else []
    earlier = len(rows)
    there = {row["name"] for row in rows}
    asked = [name for name in arguments.only or [*FAULTS, *PAIRS] if name not in there][: arguments.limit]
    deadline = time.monotonic() + 60 * arguments.minutes
    with Bench() as bench:
        for name in asked:
            if time.monotonic() > deadline:
                print("the time is up; the same command goes on", file=sys.stderr)
                break
            began = time.monotonic()
            row = judge(bench, FAULTS[name]) if name in FAULTS else alarms(bench, PAIRS[name])
            rows.append({"name": name, **row, "seconds": round(time.monotonic() - began, 1)})
            with out.open("a") as lines:
                print(json.dumps(rows[-1]), file=lines)
            print(f"{name}: {rows[-1]['seconds']} s", file=sys.stderr, flush=True)
    bad = any(is_let_through(row) or is_alarm(row) for row in rows)
    is_whole = {*FAULTS, *PAIRS} <= {row["name"] for row in rows}
    keeper.keep(
        arguments.write,
        "planted",
        "failed" if bad else "passed" if is_whole else "open",
        sentences=[
            *sentences(rows),
            f"{earlier} of {len(rows)} rows were made by earlier commands; the rows do not name commits and versions.",
        ],
        tables=[faults_of(rows)],
        figures=counts(rows),
        seconds=sum(row["seconds"] for row in rows),
    )
    sys.exit(3 if bad else 0)


if __name__ == "__main__":
    main()
