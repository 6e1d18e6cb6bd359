"""The studies of docs/accuracy.md: do the modes reach the same accuracy, and which gets there first?

    python -m stress.accuracy_studies modes batchnorm batch models planted identical --data PHOTOS [--rounds 8]
        [--write [FOLDER]]

Each is a study below --out that the same command goes on with after an interruption. Prints its sentences, and
computes its means, deviations, differences and intervals again from the result files by a few lines of NumPy.
`--dry-run` prints the commands. Exit code 3 where a figure is another one, where a pair may not be compared or has too
few rounds, where the planted difference is not found, or where more than one of 20 studies of equal arms claims one.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from benchmarks.evidence import Keeper, Table, number, table, text
from dpcompare.experiments.accuracy_statistics import Measure
from dpcompare.experiments.statistics import FALSE_CLAIMS
from dpcompare.experiments.study import Arm, Study

PHOTOS = ["--model", "toy-cnn", "--image-size", "64", "--device", "cpu", "--augment", "flip"]
EPOCHS = "10"
"""The epochs of toy-cnn on the photographs: 54, 56 and 63% after 2, 3 and 4 in a first run; the page of `modes` shows
the rest."""
SHORT = {"--image-size": 32, "--epochs": 2}
"""At most, for a try of the studies that takes minutes and answers nothing."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One of STUDIES."""

    question: str
    arguments: Sequence[str]
    """The arguments of `dpcompare compare`, without the data and the rounds."""
    times: int = 1
    """Studies, each with seeds of its own."""
    least_rounds: int = 0
    """At least so many are made: where a difference is known to be there, as many as find it in 98 of 100 studies."""
    uses_photos: bool = True
    expected: Literal["higher", "no difference"] | None = None
    """What is known beforehand of the first arm's accuracy relative to the second's; None if that is the question."""


def _arms(*arms: str) -> list[str]:
    return [part for arm in arms for part in ("--arm", arm)]


def _about(*settings: str) -> list[str]:
    return [part for setting in settings for part in ("--subject", setting)]


STUDIES: dict[str, Question] = {
    "modes": Question(
        question="Do the modes reach the same accuracy, and which gets there first?",
        arguments=[
            *_arms("torch:single", "torch:ddp", "tensorflow:mirrored", "tensorflow:multiworker"),
            *(*PHOTOS, "--epochs", EPOCHS, "--target-accuracy", "0.55", "--keep-predictions", "--margin", "3"),
        ],
    ),
    "batchnorm": Question(
        question="How much accuracy does per-replica BatchNorm (4 images) lose against synchronized BatchNorm (16)?",
        arguments=[
            *_arms("torch:ddp", "torch:ddp,batchnorm=sync"),
            *("--nodes", "4", "--model", "toy-bn", "--image-size", "64", "--device", "cpu", "--augment", "flip"),
            # A step of four processes that synchronize BatchNorm takes 75 ms on two cores.
            *("--global-batch-size", "16", "--epochs", "4", *_about("BatchNorm scope")),
        ],
    ),
    "batch": Question(
        question="Does a batch of 256 reach the accuracy of one of 32, with and without the linear rule?",
        arguments=[
            *_arms(
                "torch:single,global_batch_size=32,learning_rate=0.0125",
                "torch:single,global_batch_size=256,learning_rate=0.0125",
                "torch:single,global_batch_size=256,learning_rate=0.1,lr_warmup_steps=24",
            ),
            *(*PHOTOS, "--optimizer", "sgd", "--epochs", EPOCHS, "--target-accuracy", "0.5"),
            *_about("global batch size", "batch per replica", "sample order", "steps trained", "measured steps"),
            *_about("learning rate", "learning-rate warm-up"),
        ],
    ),
    "models": Question(
        question="Do the frameworks reach the same accuracy with ResNet-18 and with ViT-Ti?",
        arguments=[
            *_arms("torch:single", "tensorflow:single", "jax:single"),
            *("--model", "resnet18,vit-ti16", "--image-size", "32", "--device", "cpu", "--global-batch-size", "64"),
            *("--epochs", "4", "--margin", "3"),
        ],
    ),
    "planted": Question(
        question="Is an arm found that trains 80% of the steps, while accuracy still rises?",
        arguments=[
            *_arms("torch:single,steps=60", "torch:single,steps=48"),
            *(*PHOTOS, *_about("sample order", "steps trained", "measured steps")),
        ],
        least_rounds=24,  # with 8, 2.4 points had an interval from -0.3 to 5.1
        expected="higher",
    ),
    "identical": Question(
        question="How often are equal arms under different seeds called different?",
        arguments=[
            *_arms("torch:single", "torch:single,seed=1000000"),
            *("--model", "mlp", "--image-size", "8", "--device", "cpu", "--steps", "60"),
            *_about("initial weights", "sample order"),
        ],
        times=20,
        uses_photos=False,
        expected="no difference",
    ),
}


def shortened(arguments: Sequence[str]) -> list[str]:
    """The arguments with values that are at most those of SHORT."""
    pairs = zip(["", *arguments], arguments, strict=False)
    return [str(min(int(value), SHORT[before])) if before in SHORT else value for before, value in pairs]


def commands(name: str, data: str, rounds: int, out: Path) -> Iterator[tuple[Path, list[str]]]:
    """(directory, command) of each study of a question; those of several have seeds far apart."""
    question = STUDIES[name]
    for turn in range(question.times):
        folder = out / (name if question.times == 1 else f"{name}-{turn + 1:02d}")
        arguments = [
            *question.arguments,
            "--vary-seed",
            "--repeats",
            str(max(rounds, question.least_rounds)),
            "--out",
            str(folder),
        ]
        if question.uses_photos:
            arguments += ["--dataset", data]
        if question.times > 1:
            arguments += ["--seed", str(1000 * turn)]
            arguments = [argument.replace("seed=1000000", f"seed={1_000_000 + 1000 * turn}") for argument in arguments]
        yield folder, arguments


def report(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "dpcompare", "report", str(folder), "--json"], capture_output=True, text=True, check=True
    )
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def claims(shown: dict[str, Any], *measures: Measure) -> list[dict[str, Any]]:
    """Those of a report on what its arms learned."""
    return [claim for claim in (shown["learning"] or {"claims": []})["claims"] if claim["measure"] in measures]


@dataclass(frozen=True, kw_only=True)
class Again:
    """Some figures of a report, and the same ones computed from the result files."""

    what: str
    reported: Sequence[float | None]
    """Mean, standard deviation or standard error, and both ends of the interval; None where rounds are too few."""
    computed: Sequence[float]

    @property
    def is_same(self) -> bool:
        kept = [each for each in zip(self.reported, self.computed, strict=True) if each[0] is not None]
        return all(np.isclose(one, other, rtol=1e-6, atol=1e-9) for one, other in kept)

    def __str__(self) -> str:
        mean, deviation, low, high = self.computed
        return f"by NumPy, {self.what}: {mean:.5f}, {deviation:.5f}, {low:.5f} to {high:.5f}"


def recomputed(folder: Path, shown: dict[str, Any]) -> Iterator[Again]:
    """Every mean and every difference of accuracy and loss, from the result files alone."""
    study = Study.load(folder)
    for measure in get_args(Measure):
        values = {arm.name: _last_evaluations(study, folder, arm, measure) for arm in study.arms}
        for row in shown["arms"]:
            reported = row[f"{measure}_over_seeds"] or {}  # nothing where no loss is finite
            yield Again(
                what=f"{measure} of {row['name']}, with its standard deviation",
                reported=[reported.get(name) for name in ("mean", "standard_deviation", "low", "high")],
                computed=_statistics(values[row["name"]], 0.95)[[0, 1, 3, 4]],
            )
        for claim in claims(shown, measure):
            if claim["outcome"] != "NOT COMPARABLE":
                difference = values[claim["first"]] - values[claim["second"]]
                yield Again(
                    what=f"{measure} of {claim['first']} - {claim['second']}, with its standard error",
                    reported=[claim[name] for name in ("difference", "standard_error", "low", "high")],
                    computed=_statistics(difference, claim["confidence"] or 0.95)[[0, 2, 3, 4]],
                )


def _last_evaluations(study: Study, folder: Path, arm: Arm, measure: Measure) -> NDArray[np.float64]:
    """A figure per round; NaN where a loss is not finite."""
    files = [study.run_dir(folder, number, arm) / "result.json" for number in study.rounds]
    return np.array([json.loads(file.read_text())["evaluations"][-1][measure] for file in files], np.float64)


def _statistics(values: NDArray[np.float64], confidence: float) -> NDArray[np.float64]:
    """Mean, standard deviation, standard error, and the ends of Student's interval of the mean, of finite values."""
    values = values[np.isfinite(values)]
    mean, deviation = values.mean(), values.std(ddof=1)
    error = deviation / np.sqrt(len(values))
    reach = t.ppf((1 + confidence) / 2, len(values) - 1) * error
    return np.array([mean, deviation, error, mean - reach, mean + reach])


def print_study(shown: dict[str, Any]) -> None:
    """All that a study says of accuracy, loss, and time to its target."""
    in_time = shown["time_to_accuracy"] or {"claims": []}
    targets = [row["to_target"] for row in shown["arms"] if row["to_target"]]
    for each in (*claims(shown, "accuracy", "loss"), *targets, *in_time["claims"]):
        print(f"- {each['sentence']}")


OF_ARMS = [*text("arm"), *(number(title, ".1f") for title in ("accuracy, %", "deviation", "from", "to"))]
OF_CLAIMS = [
    *text("pair", "found"),
    *(number(title, "+.2f") for title in ("points apart", "from", "to")),
    number("confidence", ".1%"),
]


def tables(studies: Sequence[dict[str, Any]]) -> Iterator[Table]:
    """The accuracy of each arm over its seeds, and the differences, in points."""
    arms = (row for shown in studies for row in shown["arms"])
    over_seeds = ((row["name"], row["accuracy_over_seeds"] or {}) for row in arms)
    names = ("mean", "standard_deviation", "low", "high")
    yield table(OF_ARMS, [(name, *(_points(found.get(each)) for each in names)) for name, found in over_seeds])
    found = (claim for shown in studies for claim in claims(shown, "accuracy"))
    yield table(
        OF_CLAIMS,
        [
            (
                f"{claim['first']} - {claim['second']}",
                claim["outcome"],
                *(_points(claim[name]) for name in ("difference", "low", "high")),
                claim["confidence"],
            )
            for claim in found
        ],
    )


def _points(part: float | None) -> float | None:
    return None if part is None else 100 * part


def problems(question: Question, studies: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for everything that the reports of a question leave open, or answer otherwise than is known."""
    for shown in studies:
        of_accuracy = claims(shown, "accuracy")
        unanswered = ("NOT COMPARABLE", "exploratory", "too few rounds", "not above chance")
        yield from (claim["sentence"] for claim in of_accuracy if claim["outcome"] in unanswered)
        if not of_accuracy:
            yield "nothing is claimed of any accuracy"
        elif question.expected == "higher" and of_accuracy[0]["outcome"] != "higher":
            yield f"the difference is not found: {of_accuracy[0]['sentence']}"
    different = sum(
        any(claim["outcome"] in ("higher", "lower") for claim in claims(shown, "accuracy", "loss")) for shown in studies
    )
    if question.expected == "no difference":
        print(f"{different} of {len(studies)} studies of equal arms claim a difference")
        if different > FALSE_CLAIMS * len(studies):
            yield f"more than {FALSE_CLAIMS:.0%} of the studies claim a difference that does not exist"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", choices=STUDIES)
    parser.add_argument("--data", default="../shared/datasets/clothing", help="folder of images, or a prepared store")
    parser.add_argument("--rounds", type=int, default=8, help="fewer than 6 answer nothing, which is exit code 3")
    parser.add_argument("--out", type=Path, default=Path("studies/accuracy"))
    parser.add_argument("--short", action="store_true", help="small images and few epochs: a try, and no answer")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and start nothing")
    keeper = Keeper(parser, "stress.accuracy_studies")
    arguments = parser.parse_args()
    if arguments.short and arguments.write:
        parser.error("--write: --short is a try; expected one of the two")
    wrong: list[str] = []
    for name in arguments.studies:
        began = time.monotonic()
        print(f"\n{name}: {STUDIES[name].question}", flush=True)
        studies, found = [], []
        for folder, asked in commands(name, arguments.data, arguments.rounds, arguments.out):
            options = shortened(asked) if arguments.short else asked
            print(f"dpcompare compare {shlex.join(options)}", flush=True)
            if arguments.dry_run:
                continue
            subprocess.run([sys.executable, "-m", "dpcompare", "compare", *options], check=True)
            shown = report(folder)
            studies.append(shown)
            print_study(shown)
            for again in recomputed(folder, shown):
                print(f"  {again}")
                found += [] if again.is_same else [f"{again}, but reported: {again.reported}"]
        if arguments.dry_run:
            continue
        found += problems(STUDIES[name], studies)
        keeper.keep(
            arguments.write,
            f"accuracy-{name}",
            "failed" if found else "measured",
            sentences=[STUDIES[name].question, *found],
            tables=list(tables(studies)),
            seconds=time.monotonic() - began,
        )
        wrong += found
    for problem in wrong:
        print(f"WRONG: {problem}", file=sys.stderr)
    sys.exit(3 if wrong else 0)


if __name__ == "__main__":
    main()
