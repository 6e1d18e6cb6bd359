"""The proof of the models of papers: each in three frameworks, on one device and on replicas, accumulated and resumed.

    python -m stress.verify_models [--model resnet18 ...] [--write [FOLDER]]

The checks are those of `dpcompare verify`, with its tolerances; here a model that counts as big there trains in every
group, at the smallest size of its images that shows all of its layers. The largest ones make one step on one device.
Exit code 3 if a check fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, permutations
from pathlib import Path
from typing import Any

from benchmarks.evidence import Cell, Keeper, load, number, table, text
from dpcompare import Workload
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.optimizers import OPTIMIZERS
from dpcompare.experiments.contenders import Contender, Group, has_local_batchnorm, usable_contenders
from dpcompare.experiments.verify import verify
from dpcompare.experiments.verify_workloads import verified_workload
from dpcompare.models.architectures import MODELS
from dpcompare.system.type_names import FieldValue
from stress.exact_resume import trained

SIZES = {"vit-ti16": 32, "vit-narrow": 32, "vgg16-narrow": 75, "resnet50-narrow": 75, "resnet18": 64}
"""Model -> side of its images in pixels; an odd one pads otherwise than an even one. At 32 px BatchNorm would divide by
the deviation of the four values that a micro-batch leaves at the end of ResNet-18, which multiplies rounding."""
LARGEST = {"vit-s16": 32, "resnet50": 32, "vgg16": 32, "vit-b16": 32}
"""Those that make one step."""
REPLICATED = ("ddp", "fsdp", "mirrored", "multiworker", "spmd", "jit")
STEPS, CHANGED_AFTER = 12, 5
"""Steps of a run that changes its framework, and after how many it does."""
TOLERATED = OPTIMIZERS["adam"].verification.all_steps["float64"]
"""The largest difference of a loss of such a run: that of losses over steps of Adam in `verify`."""

NAME = "models-verified"
SHOWN = {
    "evaluation logits": "logits",
    "gradient": "gradient",
    "one step of {optimizer}": "one step",
    "losses over {optimizer} steps": "losses",
}
"""Check -> the column that has its figure."""


COLUMNS = [
    *text("model", "what", "modes", "optimizer", "precision", "passed"),
    *(number(title, ".1e") for title in SHOWN.values()),
]


@dataclass(frozen=True)
class Row:
    """What came out of a part."""

    model: str
    what: str
    modes: str
    optimizer: str
    precision: str
    passed: int
    checks: int
    figures: tuple[float | None, ...]
    """Of SHOWN."""

    @classmethod
    def from_cells(cls, cells: Sequence[Any]) -> Row:
        """What `cells` made."""
        model, what, modes, optimizer, precision, counted, *figures = cells
        passed, checks = map(int, counted.split(" of "))
        return cls(model, what, modes, optimizer, precision, passed, checks, tuple(figures))

    @property
    def cells(self) -> tuple[Cell, ...]:
        passed = f"{self.passed} of {self.checks}"
        return self.model, self.what, self.modes, self.optimizer, self.precision, passed, *self.figures


@dataclass(frozen=True, kw_only=True)
class Part:
    """What is verified of a model."""

    words: str
    group: Group


def parts_of(model: str) -> Iterator[Part]:
    """The groups of a model, the first ones of two frameworks each."""
    singles = usable_contenders(list(FRAMEWORKS), ["single"], 1)

    def workload(optimizer: str, precision: str, **asked: FieldValue) -> Workload:
        asked = {"image_size": (SIZES | LARGEST)[model]} | asked
        return verified_workload(model, optimizer, precision, quick=False, asked=asked)

    if model in LARGEST:
        yield Part(words="one step", group=Group(workload=workload("sgd", "float64", steps=1), contenders=singles))
        return
    for pair in combinations(singles, 2):
        yield Part(words="one device", group=Group(workload=workload("adam", "float64"), contenders=pair))
    for precision in ("float64", "float32"):
        yield Part(words="one device", group=Group(workload=workload("sgd", precision), contenders=singles))
    resumed = tuple(replace(one, resumed=True) for one in singles)
    yield Part(words="resumed", group=Group(workload=workload("adam", "float64"), contenders=(*singles, *resumed)))
    several = usable_contenders(list(FRAMEWORKS), REPLICATED, 2)
    replicas = tuple(each for each in several if has_local_batchnorm(each, model))
    baseline = singles[0] if MODELS[model].batchnorm_stride is None else None
    alone = " against one device" if baseline else ""
    group = Group(workload=workload("adam", "float64"), contenders=replicas, baseline=baseline)
    yield Part(words=f"two replicas{alone}", group=group)
    accumulating = tuple(replace(one, accumulate=2) for one in replicas)
    group = Group(workload=workload("sgd", "float64", accumulate=2), contenders=accumulating)
    yield Part(words="two replicas, two micro-batches", group=group)
    if MODELS[model].drops:
        group = Group(workload=workload("adam", "float64", regularization="shared"), contenders=replicas)
        yield Part(words="two replicas, regularization", group=group)


def described(contenders: Sequence[Contender]) -> str:
    return ", ".join(dict.fromkeys(f"{one.framework} {one.mode}" for one in contenders))


def verified(model: str) -> Iterator[Row]:
    """A row for each group; the figure of a check is the largest of its sides."""
    for part in parts_of(model):
        workload, checks = part.group.workload, list(verify([part.group]))
        measured = {check.name: check.measured for check in checks}
        for check in checks:
            if not check.passed:
                print(f"{model}, {part.words}: {check}", file=sys.stderr)
        yield Row(
            model=model,
            what=part.words,
            modes=described(part.group.to_run),
            optimizer=workload.optimizer,
            precision=workload.precision,
            passed=sum(check.passed for check in checks),
            checks=len(checks),
            figures=tuple(measured.get(name.format(optimizer=workload.optimizer)) for name in SHOWN),
        )


def changed(model: str) -> Iterator[Row]:
    """Runs that begin in one framework and end in another, against one that stays in the first."""
    options = ["--model", model, "--image-size", str(SIZES[model]), "--dataset", "synthetic-mini"]
    options += ["--global-batch-size", "16", "--precision", "float64", "--warmup-steps", "0"]
    options += ["--learning-rate", str(OPTIMIZERS["adam"].verification.learning_rate)]
    options += ["--checkpoint-every", str(CHANGED_AFTER)]
    with tempfile.TemporaryDirectory(prefix="dpcompare-models-") as name:
        folder = Path(name)
        stayed: dict[str, list[float]] = {}
        for first, second in permutations(FRAMEWORKS, 2):
            run_dir = str(folder / f"{first}-{second}")
            begin = ["--framework", first, "--mode", "single", *options]
            if first not in stayed:
                whole = trained(folder, *begin, "--steps", str(STEPS), "--run-dir", str(folder / first))
                stayed[first] = whole["train_loss"]
            trained(folder, *begin, "--steps", str(CHANGED_AFTER), "--run-dir", run_dir)
            resume = ["--resume", run_dir, "--framework", second, "--mode", "single", "--steps", str(STEPS)]
            losses = trained(folder, *resume)["train_loss"]
            difference = max(abs(one - other) for one, other in zip(losses, stayed[first], strict=True))
            yield Row(
                model=model,
                what=f"begun in {first}, ended in {second}",
                modes="single",
                optimizer="adam",
                precision="float64",
                passed=int(difference <= TOLERATED),
                checks=1,
                figures=(None, None, None, difference),
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [*SIZES, *LARGEST]
    parser.add_argument("--model", nargs="+", choices=known, default=known)
    keeper = Keeper(parser, "stress.verify_models")
    arguments = parser.parse_args()
    rows = earlier_rows(arguments.write, arguments.model)
    for model in arguments.model:
        for row in chain(verified(model), changed(model) if model in SIZES else ()):
            print(*row.cells, sep=" | ", file=sys.stderr)
            rows.append(row)
            keep(keeper, arguments.write, rows, is_whole=False)  # minutes of work, which nothing may lose
    failed = keep(keeper, arguments.write, rows, is_whole={row.model for row in rows} == set(known))
    sys.exit(3 if failed else 0)


def earlier_rows(folder: Path | None, models: Collection[str]) -> list[Row]:
    """The rows of other models that an earlier command has left in the folder."""
    path = folder / f"{NAME}.json" if folder else None
    if path is None or not path.exists():
        return []
    rows = [Row.from_cells(cells) for cells in load(path).tables[0].rows]
    return [row for row in rows if row.model not in models]


def keep(keeper: Keeper, folder: Path | None, rows: Sequence[Row], *, is_whole: bool) -> int:
    """The result of the rows so far, and how many checks have failed."""
    failed = sum(row.checks - row.passed for row in rows)
    passed = sum(row.passed for row in rows)
    of_float64 = [row for row in rows if row.precision == "float64"]
    keeper.keep(
        folder,
        NAME,
        "failed" if failed else "passed" if is_whole else "open",
        sentences=[
            f"{passed} of {passed + failed} checks passed.",
            "Rows of models that the command does not name are from earlier commands and commits.",
        ],
        tables=[table(COLUMNS, [row.cells for row in rows])],
        figures={
            "passed": passed,
            "checks": passed + failed,
            **{
                f"largest_{title.replace(' ', '_')}": largest(row.figures[index] for row in of_float64)
                for index, title in enumerate(SHOWN.values())
            },
        },
    )
    return failed


def largest(figures: Iterable[float | None]) -> str:
    known = [figure for figure in figures if figure is not None]
    return format(max(known), ".1e") if known else "-"


if __name__ == "__main__":
    main()
