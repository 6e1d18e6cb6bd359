"""Does `explain A B` name what was planted into B, at its size? A slower input, exchange, kernel and process.

    python -m stress.difference_planted [--only NAME ...] [--rounds 6] [--out FOLDER] [--write [FOLDER]]

The variants of a healthy run and of all cases run in one interleaved study, with torch ddp on two simulated nodes;
about 25 minutes on two quiet cores. Exit code 3 where another part is named first, or a size is wrong by more than 10%.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.evidence import Cell, Keeper, Status, number, table, text
from dpcompare.experiments.variants import Part
from dpcompare.projection.difference import Difference, difference
from stress.explain_planted import (
    COMPUTES,
    INPUT_SECONDS,
    LARGEST_ERROR,
    PROCESS_SECONDS,
    SLOW_INPUT,
    SLOW_PROCESS,
    Case,
    Dots,
    variants,
)
from stress.studies import run_in_rounds

EXCHANGE_SECONDS, IMAGE_SECONDS = 0.1, 0.001
IMAGES = COMPUTES["global_batch_size"] // 2
"""Of each replica."""

SLOW_EXCHANGE = f"""
def inject(module):
    import time
    step = module.TorchBackend.train_step
    def slow(self, *arguments):
        if self.config.sync_gradients:
            time.sleep({EXCHANGE_SECONDS})
        return step(self, *arguments)
    module.TorchBackend.train_step = slow
"""

SLOW_KERNEL = f"""
def inject(module):
    import time
    step = module.TorchBackend.train_step
    def slow(self, batches, *arguments):
        time.sleep({IMAGE_SECONDS} * sum(len(batch.labels) for batch in batches))
        return step(self, batches, *arguments)
    module.TorchBackend.train_step = slow
"""


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One row of CASES."""

    fault: tuple[str, str]
    part: Part
    seconds: float
    """That were planted into each step."""


BACKEND = "dpcompare.backends.torch.backend"
CASES = {
    "slower input": Planted(fault=("dpcompare.data.batches", SLOW_INPUT), part="input", seconds=INPUT_SECONDS),
    "slower exchange": Planted(fault=(BACKEND, SLOW_EXCHANGE), part="exchange", seconds=EXCHANGE_SECONDS),
    "slower kernel": Planted(fault=(BACKEND, SLOW_KERNEL), part="computing", seconds=IMAGE_SECONDS * IMAGES),
    "one slow process": Planted(fault=(BACKEND, SLOW_PROCESS), part="waiting", seconds=PROCESS_SECONDS),
}
HEALTHY = "healthy"


def measured(cases: Mapping[str, Planted], folder: Path, rounds: int) -> dict[str, Difference]:
    """The difference of each case from the healthy run, all of them made in the same rounds."""
    (folder / "pythons").mkdir(parents=True, exist_ok=True)
    all_cases = {HEALTHY: Case()} | {name: Case(fault=case.fault) for name, case in cases.items()}
    of = {name: variants(name, case, folder / "pythons") for name, case in all_cases.items()}
    arms = [arm for each in of.values() for arm in each.arms.values()]
    study = run_in_rounds(arms, folder / "study", rounds, Dots())
    print(file=sys.stderr)
    healthy = of[HEALTHY].prepared(study)
    return {name: difference(study, folder / "study", (healthy, of[name].prepared(study))) for name in cases}


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What was found of a case."""

    name: str
    planted: Planted
    found: Difference

    @property
    def largest(self) -> Part | None:
        return max(self.found.parts, key=lambda row: abs(row.milliseconds)).part

    @property
    def milliseconds(self) -> float:
        (row,) = (row for row in self.found.parts if row.part == self.planted.part)
        return row.milliseconds

    @property
    def error(self) -> float:
        """Relative to what was planted."""
        return self.milliseconds / (1000 * self.planted.seconds) - 1

    @property
    def is_right(self) -> bool:
        return self.largest == self.planted.part and abs(self.error) <= LARGEST_ERROR

    @property
    def row(self) -> tuple[Cell, ...]:
        error = f"{self.error:+.1%}" + ("" if self.is_right else " **WRONG**")
        whole = self.found.step.milliseconds
        return self.name, self.planted.part, 1000 * self.planted.seconds, self.largest, whole, self.milliseconds, error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES, action="append", metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keeps all runs; the same one is continued")
    keeper = Keeper(parser, "stress.difference_planted")
    arguments = parser.parse_args()
    cases = {name: case for name, case in CASES.items() if not arguments.only or name in arguments.only}
    with tempfile.TemporaryDirectory(prefix="dpcompare-difference-") as temporary:
        found = measured(cases, arguments.out or Path(temporary), arguments.rounds)
    rows = [Judged(name=name, planted=cases[name], found=each) for name, each in found.items()]
    for each in rows:
        print(f"{each.name}: {each.found.verdict}", file=sys.stderr)
    columns = [
        *text("planted", "into"),
        number("ms", "g"),
        *text("named first"),
        number("a step differs by, ms", "+.1f"),
        number("found, ms", "+.1f"),
        number("error"),
    ]
    keeper.keep(
        arguments.write,
        "difference-planted",
        _status(rows, is_whole=not arguments.only and arguments.rounds >= parser.get_default("rounds")),
        tables=[table(columns, [each.row for each in rows])],
        figures={"cases": len(rows), "largest_error": f"{max(abs(each.error) for each in rows):.1%}"},
    )
    sys.exit(0 if all(each.is_right for each in rows) else 3)


def _status(rows: Sequence[Judged], *, is_whole: bool) -> Status:
    if not all(each.is_right for each in rows):
        return "failed"
    return "passed" if is_whole else "open"


if __name__ == "__main__":
    main()
