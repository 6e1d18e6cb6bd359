"""Is the faster of two unequal arms still called the faster one under load? torch and JAX, which load harms unequally.

    python -m stress.unequal_under_load runs FOLDER [--load none ...] [--runs 60] [--seconds 3000] [--steps 50]
    python -m stress.unequal_under_load truth FOLDER
    python -m stress.unequal_under_load drawn FOLDER [--studies 2000] [--seed 1]
    python -m stress.unequal_under_load studies FOLDER [--load none ...] [--studies 15] [--seconds 3000] [--steps 50]
    python -m stress.unequal_under_load report FOLDER [--write [FOLDER]]

A claim is about a machine that is left alone: no reader has the load that a writer had. So the right sign is that of
the load `none`, whatever the load of the study: what all its rounds together claim, judged as one study. A study under
load may claim that sign or nothing; the rule of `dpcompare/experiments/soundness.py` withholds claims where most rounds
were disturbed or too short. What it saves is counted under each load, and what it costs under `none`.

`runs` makes rounds of one run of each arm, in random order, one load after the other in turn, and keeps each
result.json below FOLDER; `studies` makes whole studies by `compare`, which repeats some disturbed runs. Both continue
where they were, and stop before a round or study that would begin after --seconds. A drawn study has six rounds of one
load: as they were run, so that both runs share a drift of the machine, or with the runs of each arm drawn by
themselves. It repeats no run. `report` also cuts the rounds of a load into studies, in the order of their runs. To
judge 2,000 studies takes about a minute of a core. Figures count from 60 runs of each arm and 15 studies per load on,
made on a machine that does nothing else; fewer try the script, and so does --assume torch where the truth is not known.

Exit code 3 where fewer than 97.5% of the claims under a load have the right sign, or the truth is not known.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.evidence import Keeper, Table, number, table, text
from dpcompare.errors import RequestError
from dpcompare.experiments.analysis import analyse
from dpcompare.experiments.claim_rows import ClaimRow
from dpcompare.experiments.collection import Collection
from dpcompare.experiments.sentences import machines_in_words
from dpcompare.experiments.statistics import ROUNDS_FOR_CLAIM, Outcome
from dpcompare.system.signals import terminated_as_interrupted
from stress.drawn_studies import CLAIMS, DRAWS, LEAST_RIGHT, Counts, counted, drawn, one_after_the_other, verdict_of
from stress.loads import LOADS
from stress.unequal_runs import (
    FRAMEWORKS,
    STEPS,
    WARMUP_STEPS,
    arms_kept,
    arms_of_studies,
    make_runs,
    make_studies,
    rounds_kept,
)

QUIET = "none"
RUNS_TO_COUNT, STUDIES_TO_COUNT = 60, 15
REAL = "real studies"
CUT = "the rounds in their order, six to a study"


def truth_of(folder: Path) -> ClaimRow:
    """What all rounds of the load `none` claim together, as one study of so many rounds, its fairness sheet included.

    Raises:
        RequestError: there are fewer rounds than a claim needs.
    """
    first, second = arms_kept(folder, QUIET)
    return analyse(Collection(arms=[first, second], repeats=first.plan.rounds)).claims[0]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    load: str
    kind: str
    """How its studies came about: one of DRAWS, CUT or REAL."""
    rounds: int
    """The rounds that they are drawn from; of real studies, all that they have."""
    counts: Counts

    @property
    def counts_for_docs(self) -> bool:
        """Whether there is as much of it as figures need."""
        return self.counts.studies >= STUDIES_TO_COUNT if self.kind == REAL else self.rounds >= RUNS_TO_COUNT

    @property
    def figures(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "load": self.load,
            "about": LOADS[self.load].about,
            "kind": self.kind,
            "rounds": self.rounds,
            "enough": self.counts_for_docs,
            **self.counts.figures,
        }


def drawn_rows(folder: Path, truth: Outcome, studies: int, seed: int) -> Iterator[Row]:
    """The loads that have rounds enough for a study."""
    for load in LOADS:
        if len(rounds_kept(folder, load)) >= ROUNDS_FOR_CLAIM:
            arms = arms_kept(folder, load)
            for kind, draw in DRAWS.items():
                verdicts = drawn(arms, draw, studies=studies, seed=seed)
                yield Row(load=load, kind=kind, rounds=len(arms[0].runs), counts=counted(verdicts, truth))
                print(f"{load}, {kind}: {studies} studies", file=sys.stderr, flush=True)


def cut_rows(folder: Path, truth: Outcome) -> Iterator[Row]:
    """The loads that have rounds enough for a study, as studies of one round after the other."""
    for load in LOADS:
        if len(rounds_kept(folder, load)) >= ROUNDS_FOR_CLAIM:
            arms = arms_kept(folder, load)
            yield Row(load=load, kind=CUT, rounds=len(arms[0].runs), counts=counted(one_after_the_other(arms), truth))


def real_rows(folder: Path, truth: Outcome) -> Iterator[Row]:
    """The loads that have studies."""
    for load in LOADS:
        if studies := arms_of_studies(folder, load):
            counts = counted(map(verdict_of, studies), truth)
            yield Row(load=load, kind=REAL, rounds=ROUNDS_FOR_CLAIM * len(studies), counts=counts)


def table_of(rows: Sequence[Row]) -> Table:
    """A row for each load and kind of studies."""
    columns = [
        *text("load", "studies"),
        *(number(title, ",") for title in ("made", "claims", "right sign", "withheld")),
        *text("why"),
        *(number(title, ",") for title in ("NOT COMPARABLE", "claims without the rule", "wrong of them")),
    ]
    return table(columns, map(cells_of, rows))


def cells_of(row: Row) -> Sequence[str | int | None]:
    """A row of the table."""
    counts = row.counts
    few = "" if row.counts_for_docs else f", of {row.rounds} rounds: too few to count"
    return (
        LOADS[row.load].about,
        f"{row.kind}{few}",
        counts.studies,
        counts.claims,
        counts.right if counts.claims else None,
        counts.withheld,
        ", ".join(f"{flaw} {times}" for flaw, times in counts.flaws.items()),
        counts.not_comparable,
        counts.claims_without_rule,
        counts.claims_without_rule - counts.right_without_rule,
    )


def power_lost(rows: Sequence[Row]) -> Iterator[str]:
    """What the rule costs on a machine that is left alone, a sentence for each kind of studies."""
    for row in (row for row in rows if row.load == QUIET):
        yield (
            f"Under the load {QUIET}, {row.kind}: {row.counts.power:.1%} of studies make a right claim, "
            f"{row.counts.power_without_rule:.1%} without the rule."
        )


def sign_of(truth: ClaimRow, assumed: str | None) -> Outcome:
    """Say what the truth is, and return it; ends the script with exit code 3 where it is not known.

    Args:
        truth: as it was measured.
        assumed: the framework that is taken for the faster one instead; None: what was measured counts.
    """
    print(f"Truth, {truth.rounds} rounds of the load {QUIET}: {truth.sentence}", flush=True)
    if assumed:
        print(f"ASSUMED to try the script: {assumed} is the faster one. These figures do not count.", flush=True)
        return "faster" if assumed == FRAMEWORKS[0] else "slower"
    if truth.outcome not in CLAIMS:
        print("The truth is not known: make more rounds, on a machine that does nothing else.", file=sys.stderr)
        sys.exit(3)
    return truth.outcome


def wrong(rows: Sequence[Row]) -> list[Row]:
    """Those in which the sign is wrong too often."""
    return [row for row in rows if not row.counts.is_right]


def end(rows: Sequence[Row]) -> None:
    """End the script, with exit code 3 where the sign is wrong too often."""
    for row in wrong(rows):
        print(f"WRONG: {row.load}, {row.kind}: fewer than {LEAST_RIGHT:.1%} of the claims are right", file=sys.stderr)
    sys.exit(3 if wrong(rows) else 0)


def show(rows: Sequence[Row]) -> None:
    """Print the table, and end the script."""
    print("\n".join(["", *table_of(rows).markdown, "", *power_lost(rows)]))
    end(rows)


def report(folder: Path, asked: argparse.Namespace, keeper: Keeper) -> None:
    """Everything that there is, as a result file if one is asked for."""
    truth = truth_of(folder)
    sign = sign_of(truth, asked.assume)
    rows = [*drawn_rows(folder, sign, asked.studies, asked.seed), *cut_rows(folder, sign), *real_rows(folder, sign)]
    arms = arms_kept(folder, QUIET)
    runs = [run for arm in arms for run in arm.completed]
    has_all = {(row.load, row.kind) for row in rows if row.counts_for_docs} >= {*product(LOADS, [*DRAWS, REAL])}
    assumed = [f"ASSUMED to try the script: {asked.assume} is the faster one. These figures do not count."]
    keeper.keep(
        asked.write,
        "unequal-under-load",
        "open" if asked.assume else "failed" if wrong(rows) else "passed" if has_all else "open",
        sentences=[*(assumed if asked.assume else []), truth.sentence, *power_lost(rows)],
        tables=[table_of(rows)],
        figures={
            "loads": len({row.load for row in rows}),
            "claims_wrong": sum(row.counts.claims - row.counts.right for row in rows),
            "wrong_without_rule": sum(row.counts.claims_without_rule - row.counts.right_without_rule for row in rows),
        },
        machine="; ".join(machines_in_words(runs)),
        versions={name: version for run in runs for name, version in run.versions.items()},
    )
    end(rows)


def parser_of() -> tuple[argparse.ArgumentParser, Keeper]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, about: str) -> argparse.ArgumentParser:
        subparser = commands.add_parser(name, help=about)
        subparser.add_argument("folder", type=Path, help="of all runs and studies")
        return subparser

    makes = {
        "runs": ("make rounds of real runs", "runs of each arm, those in the folder included", RUNS_TO_COUNT),
        "studies": ("make real studies", "studies, those in the folder included", STUDIES_TO_COUNT),
    }
    judges = {
        "drawn": "judge studies that are drawn from the runs",
        "report": "judge everything that is there",
    }
    subparsers = {
        "truth": command("truth", "say which arm is faster on a machine that is left alone"),
        **{name: command(name, f"{about} under loads") for name, (about, _, _) in makes.items()},
        **{name: command(name, about) for name, about in judges.items()},
    }
    for name, (_, what, default) in makes.items():
        subparsers[name].add_argument("--load", choices=LOADS, action="append", help="default: all, in turn")
        subparsers[name].add_argument(f"--{name}", type=int, default=default, help=what)
        subparsers[name].add_argument("--seconds", type=float, default=float("inf"), help="none begins later")
        subparsers[name].add_argument(
            "--steps", type=int, default=STEPS, help=f"of each run, {WARMUP_STEPS} of which warm up"
        )
    for name in judges:
        subparsers[name].add_argument("--studies", type=int, default=2000, help="drawn per load and way of drawing")
        subparsers[name].add_argument("--seed", type=int, default=1)
    for name in ("studies", *judges):
        subparsers[name].add_argument("--assume", choices=FRAMEWORKS, help="as the faster one, to try the script")
    return parser, Keeper(subparsers["report"], "stress.unequal_under_load")


def main() -> None:
    parser, keeper = parser_of()
    asked = parser.parse_args()
    folder: Path = asked.folder
    try:
        match asked.command:
            case "runs":
                with terminated_as_interrupted():
                    make_runs(folder, asked.load or list(LOADS), asked.runs, asked.seconds, asked.steps)
            case "studies":
                sign = sign_of(truth_of(folder), asked.assume)
                with terminated_as_interrupted():
                    make_studies(folder, asked.load or list(LOADS), asked.studies, asked.seconds, asked.steps)
                show(list(real_rows(folder, sign)))
            case "truth":
                sign_of(truth_of(folder), None)
            case "drawn":
                sign = sign_of(truth_of(folder), asked.assume)
                show(list(drawn_rows(folder, sign, asked.studies, asked.seed)))
            case "report":
                report(folder, asked, keeper)
    except RequestError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
