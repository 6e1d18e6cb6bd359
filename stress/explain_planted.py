"""Does `explain` name what was planted, at its size? A slow input, link or process, tiny batches, slow launches.

    python -m stress.explain_planted [--only NAME ...] [--rounds 6] [--out FOLDER] [--write [FOLDER]]

All variants of all cases run in one interleaved study, of real runs with torch; about an hour on two quiet cores. The
link needs root. Exit code 3 where another cause is named, a size is wrong by more than 10%, or it is not said of the
healthy run that nothing stands out.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.evidence import Cell, Keeper, Status, Table, number, table, text
from dpcompare import Cluster, RunConfig, Workload
from dpcompare.config.placement import Placement
from dpcompare.experiments.study_runs import Watcher
from dpcompare.experiments.variants import JUDGED, Part, StepParts, Variant, Variants, variants_of
from dpcompare.projection.explanation import Explanation, explain, parts_of
from stress.injection import interpreter_with
from stress.studies import run_in_rounds

INPUT_SECONDS, PROCESS_SECONDS = 0.4, 0.2
LAYERS, LAUNCH_SECONDS = 7, 0.01
"""The layers of toy-bn that have parameters, and the seconds planted into the launch of each."""
LINK = "100mbit"
LARGEST_ERROR = 0.10

SLOW_INPUT = f"""
def inject(module):
    import time
    read = module.BatchReader._read
    def slow(self, *arguments):
        if self._augmentation is not None:  # of training, even if it changes nothing
            time.sleep({INPUT_SECONDS})
        return read(self, *arguments)
    module.BatchReader._read = slow
"""

SLOW_PROCESS = f"""
def inject(module):
    import time
    step = module.TorchBackend.train_step
    def slow(self, *arguments):
        if self.process_rank == 1:
            time.sleep({PROCESS_SECONDS})
        return step(self, *arguments)
    module.TorchBackend.train_step = slow
"""

SLOW_LAUNCHES = f"""
def inject(module):
    import time, torch
    def launch(layer, arguments):
        if layer._parameters:
            end = time.perf_counter() + {LAUNCH_SECONDS}
            while time.perf_counter() < end:  # the processor launches; it does not sleep
                pass
    torch.nn.modules.module.register_module_forward_pre_hook(launch)
"""

HEALTHY = {"model": "efficientnet-b0", "image_size": 96, "global_batch_size": 128, "steps": 11, "warmup_steps": 3}
"""A workload of which little but computing can be found on the CPU; in steps of tiny models images and gradients
count."""
COMPUTES = {"model": "toy-bn", "image_size": 64, "global_batch_size": 256, "steps": 25, "warmup_steps": 5}
EXCHANGES = {"model": "mlp", "image_size": 16, "global_batch_size": 64, "steps": 25, "warmup_steps": 5}
TINY = COMPUTES | {"global_batch_size": 4, "steps": 4005}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of CASES."""

    workload: Mapping[str, Any] = field(default_factory=lambda: COMPUTES)
    nodes: int = 2
    num_cores: int | None = None
    """The cores of the machine; None: all. On several cores, threads take longer to meet than such tiny operations to
    compute."""
    fault: tuple[str, str] | None = None
    """The module that is broken, and how; see `stress.injection`."""
    placement: Placement = field(default_factory=Placement)
    part: Part | None = None
    """What it must be called; None: nothing stands out."""
    variants: tuple[Variant, ...] | None = None
    """Those that are run, of a case that is not judged itself; None: all."""
    compared_with: tuple[str, ...] = ()
    """The cases from which the size of this one is told: the same without what was planted; of tiny batches, the steps
    of two smaller ones, which `explain` does not see: steps grow by more per image the larger the batch is."""
    seconds: float | None = None
    """Seconds that were planted into each step and cannot be hidden; None: how much longer a step takes."""


def _tinier(images: int) -> Case:
    """`explain` does not see this run, which shows what a step of no images takes."""
    workload = TINY | {"global_batch_size": images}
    return Case(workload=workload, nodes=1, num_cores=1, variants=("as it is", "no input"))


CASES = {
    "healthy": Case(workload=HEALTHY, nodes=1),
    "healthy, 2 nodes": Case(workload=HEALTHY),
    "slow input": Case(fault=("dpcompare.data.batches", SLOW_INPUT), part="input", compared_with=("no fault",)),
    "slow process": Case(
        fault=("dpcompare.backends.torch.backend", SLOW_PROCESS),
        part="waiting",
        compared_with=("no fault",),
        seconds=PROCESS_SECONDS,
    ),
    "no fault": Case(variants=("as it is", "no input", "no exchange", "computing alone")),
    f"link of {LINK}": Case(
        workload=EXCHANGES,
        placement=Placement(engine="namespaces", link=LINK),
        part="exchange",
        compared_with=("free link",),
    ),
    "free link": Case(
        workload=EXCHANGES, placement=Placement(engine="namespaces"), variants=("as it is", "no exchange")
    ),
    "tiny batches": Case(
        workload=TINY, nodes=1, num_cores=1, part="launching", compared_with=("batches of one", "batches of two")
    ),
    "slow launches": Case(
        workload=TINY | {"steps": 155},
        nodes=1,
        num_cores=1,
        fault=("dpcompare.backends.torch.model", SLOW_LAUNCHES),
        part="launching",
        compared_with=("tiny batches",),
        seconds=LAYERS * LAUNCH_SECONDS,
    ),
    "batches of one": _tinier(1),
    "batches of two": _tinier(2),
}


class Dots(Watcher):
    """A dot per run."""

    def run_ended(self, number, arm, result):
        print("." if result.status == "completed" else "F", end="", flush=True, file=sys.stderr)


def variants(name: str, case: Case, folder: Path) -> Variants:
    config = RunConfig(
        framework="torch",
        mode="single" if case.nodes == 1 else "ddp",
        workload=Workload(**case.workload),
        cluster=Cluster.partition(case.nodes, 1, device="cpu", num_cores=case.num_cores),
        placement=case.placement,
        python=interpreter_with(folder / name.replace(" ", "-"), *case.fault) if case.fault else sys.executable,
    )
    found = variants_of(config, name)
    arms = {variant: arm for variant, arm in found.arms.items() if case.variants is None or variant in case.variants}
    return replace(found, arms=arms)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was measured of a case."""

    parts: StepParts
    explanation: Explanation | None
    """None where it is not judged."""

    @property
    def step_milliseconds(self) -> float:
        return 1000 * (self.parts.seconds or 0.0)

    def milliseconds(self, part: Part) -> float:
        return self.parts.shares[part].value * self.step_milliseconds

    def without_input(self) -> float:
        """Milliseconds of a step whose batch is on its device already."""
        return 1000 * (self.parts.median(lambda each: each.step("no input")) or 0.0)


def measured(cases: Mapping[str, Case], folder: Path, rounds: int) -> dict[str, Found]:
    """All variants of all cases, in one study, so that what drifts does so for all of them."""
    (folder / "pythons").mkdir(parents=True, exist_ok=True)
    of = {name: variants(name, case, folder / "pythons") for name, case in cases.items()}
    arms = [arm for each in of.values() for arm in each.arms.values()]
    study = run_in_rounds(arms, folder / "study", rounds, Dots())
    print(file=sys.stderr)
    found = {}
    for name, each in of.items():
        there = study, folder / "study", each.prepared(study)
        is_judged = cases[name].variants is None
        found[name] = Found(parts=parts_of(*there), explanation=explain(*there) if is_judged else None)
    return found


def named(explanation: Explanation) -> Part | None:
    """What stands out most; at a first look the largest part other than computing, if it is large."""
    judged = sorted((row for row in explanation.parts if row.part in JUDGED), key=lambda row: -row.share)
    is_first_look = explanation.verdict.startswith("FIRST LOOK")
    return next((row.part for row in judged if row.stands_out or (is_first_look and row.share >= 0.1)), None)


def step_of_no_images(batches: Sequence[tuple[int, float]]) -> float:
    """Where the line through the steps of two batches, (images, milliseconds) each, meets a batch of no images."""
    (images, milliseconds), (more_images, more_milliseconds) = batches
    return (more_images * milliseconds - images * more_milliseconds) / (more_images - images)


def sizes(name: str, cases: Mapping[str, Case], found: Mapping[str, Found]) -> tuple[float, float, str]:
    """The true size of what was planted, the found one, and their unit."""
    case, planted = cases[name], found[name]
    assert case.part is not None
    size = planted.milliseconds(case.part)
    if case.part == "launching" and not case.seconds:
        # Without input, which has a part of its own: some of it does not grow with the batch either.
        batches = [
            (cases[each].workload["global_batch_size"], found[each].without_input()) for each in case.compared_with
        ]
        return step_of_no_images(batches), size, "ms, by a line through batches of 1 and 2"
    (reference,) = (found[each] for each in case.compared_with)
    true = 1000 * case.seconds if case.seconds else planted.step_milliseconds - reference.step_milliseconds
    return true, size - reference.milliseconds(case.part), "ms more than without"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What was found of a case, and whether it is right."""

    name: str
    step_milliseconds: float
    said: str
    true: str | None = None
    """The true size with its unit; None where nothing was planted whose size is told."""
    size: float | None = None
    error: float | None = None
    right: bool

    @property
    def row(self) -> tuple[Cell, ...]:
        size = None if self.size is None else three_digits(self.size)
        error: Cell = self.error
        if not self.right:
            error = "**WRONG**" if self.error is None else f"{self.error:+.1%} **WRONG**"
        return self.name, three_digits(self.step_milliseconds), self.said, self.true, size, error


def three_digits(value: float) -> float:
    """For the format `g`: `.3g` writes an exponent from 1000 on."""
    return float(f"{value:.3g}")


def judged(cases: Mapping[str, Case], found: Mapping[str, Found]) -> Iterator[Judged]:
    for name, case in cases.items():
        if (explanation := found[name].explanation) is None:
            continue
        cause = named(explanation)
        is_clear = explanation.verdict.startswith("Nothing stands out")
        right = is_clear if case.part is None else cause == case.part
        said = cause or ("nothing stands out" if is_clear else "nothing claimed")
        judged_case = Judged(name=name, step_milliseconds=found[name].step_milliseconds, said=said, right=right)
        if not case.compared_with:
            yield judged_case
            continue
        true, size, unit = sizes(name, cases, found)
        error = size / true - 1
        right = right and abs(error) <= LARGEST_ERROR
        yield replace(judged_case, true=f"{three_digits(true):g} {unit}", size=size, error=error, right=right)


def table_of(cases: Sequence[Judged]) -> Table:
    columns = [
        *text("planted"),
        number("step, ms", "g"),
        *text("named"),
        number("true size"),
        number("found", "g"),
        number("error", "+.1%"),
    ]
    return table(columns, [each.row for each in cases])


def figures_of(cases: Sequence[Judged]) -> dict[str, str | int]:
    errors = [abs(each.error) for each in cases if each.error is not None]
    return {
        "cases": len(cases),
        "wrong": sum(not each.right for each in cases),
        "largest_error": f"{max(errors):.1%}" if errors else "-",
    }


def result_name(only: Sequence[str] | None) -> str:
    """Of the result file: cases that were made alone have one of their own."""
    return re.sub("[^a-z0-9]+", "-", " ".join(["explain planted", *(only or ())]))


def chosen(names: list[str] | None) -> dict[str, Case]:
    """The cases that were asked for, with those that their sizes are told from, in the order of CASES."""
    wanted, added = set[str](), set(names or CASES)
    while added:
        wanted |= added
        added = {other for name in added for other in CASES[name].compared_with} - wanted
    return {name: case for name, case in CASES.items() if name in wanted}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES, action="append", metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keeps all runs; the same one is continued")
    keeper = Keeper(parser, "stress.explain_planted")
    arguments = parser.parse_args()
    if arguments.write and len(arguments.only or ()) > 1:
        parser.error("--write: received several --only; expected one, which has a result file of its own, or none")
    cases = chosen(arguments.only)
    with tempfile.TemporaryDirectory(prefix="dpcompare-explain-") as temporary:
        found = measured(cases, arguments.out or Path(temporary), arguments.rounds)
        for name, each in found.items():
            sizes_of = ", ".join(f"{part} {each.milliseconds(part):.1f}" for part in each.parts.shares)
            verdict = each.explanation.verdict if each.explanation else "not judged"
            print(f"{name}: {verdict} Step {each.step_milliseconds:.1f} ms: {sizes_of}", file=sys.stderr)
        rows = list(judged(cases, found))
    passed = all(each.right for each in rows)
    is_whole = not arguments.only and arguments.rounds >= parser.get_default("rounds")
    status: Status = "failed" if not passed else "passed" if is_whole else "open"
    name = result_name(arguments.only)
    keeper.keep(arguments.write, name, status, tables=[table_of(rows)], figures=figures_of(rows))
    sys.exit(0 if passed else 3)


if __name__ == "__main__":
    main()
