"""The studies of docs/accuracy.md: which modes learn the same, and which is there first; run by the command line.

    python -m stress.accuracy_studies modes batchnorm batch planted identical --data PHOTOS [--rounds 8]

Each is a study below --out that the same command goes on with after an interruption. Prints its sentences, and the
differences computed again from the result files by a few lines of NumPy. `--dry-run` prints the commands. Exit code 3
where a figure is another one, where planted differences are not found, or where more than one of 20 studies of equal
arms claims a difference.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpcompare.experiments.study import Study

PHOTOS = ["--model", "toy-cnn", "--image-size", "64", "--device", "cpu", "--augment", "flip"]
EPOCHS = "10"
"""Of toy-cnn on the photographs: 54, 56 and 63% after 2, 3 and 4 in a first run; the page of `modes` shows the rest."""
SHORT = {"--image-size": "32", "--epochs": "2"}
"""For a try of the studies that takes minutes and answers nothing."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One of STUDIES."""

    question: str
    arguments: Sequence[str]
    """Of `dpcompare compare`, without the data and the rounds."""
    times: int = 1
    """Studies, each with seeds of its own."""
    uses_photos: bool = True
    is_false: bool = False
    """Whether a difference that is claimed is none."""
    is_true: bool = False
    """Whether there is a difference to be found."""


def _arms(*arms: str) -> list[str]:
    return [part for arm in arms for part in ("--arm", arm)]


def _about(*knobs: str) -> list[str]:
    return [part for knob in knobs for part in ("--subject", knob)]


STUDIES: dict[str, Question] = {
    "modes": Question(
        question="Do the modes learn the same, and which is there first?",
        arguments=[
            *_arms("torch:single", "torch:ddp", "tensorflow:mirrored", "tensorflow:multiworker"),
            *(*PHOTOS, "--epochs", EPOCHS, "--target-accuracy", "0.55", "--keep-predictions", "--margin", "3"),
        ],
    ),
    "batchnorm": Question(
        question="What does BatchNorm lose that sees the images of one of 4 replicas?",
        arguments=[
            *_arms("torch:ddp", "torch:ddp,batchnorm=sync"),
            *("--nodes", "4", "--model", "toy-bn", "--image-size", "64", "--device", "cpu", "--augment", "flip"),
            *("--global-batch-size", "16", "--epochs", EPOCHS, *_about("BatchNorm scope")),
        ],
    ),
    "batch": Question(
        question="Does a batch of 256 learn what one of 32 does, with and without the linear rule?",
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
    "planted": Question(
        question="Is an arm found that trains 80% of the steps, while accuracy still rises?",
        arguments=[
            *_arms("torch:single,steps=60", "torch:single,steps=48"),
            *(*PHOTOS, *_about("sample order", "steps trained", "measured steps")),
        ],
        is_true=True,
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
        is_false=True,
    ),
}


def shortened(arguments: Sequence[str]) -> list[str]:
    """With the values of SHORT."""
    return [SHORT.get(before, value) for before, value in zip(["", *arguments], arguments, strict=False)]


def commands(name: str, data: str, rounds: int, out: Path) -> Iterator[tuple[Path, list[str]]]:
    """(directory, command) of each study of a question; those of several have seeds far apart."""
    question = STUDIES[name]
    for number in range(question.times):
        folder = out / (name if question.times == 1 else f"{name}-{number + 1:02d}")
        arguments = [*question.arguments, "--vary-seed", "--repeats", str(rounds), "--out", str(folder)]
        if question.uses_photos:
            arguments += ["--dataset", data]
        if question.times > 1:
            arguments += ["--seed", str(1000 * number)]
            arguments = [
                argument.replace("seed=1000000", f"seed={1_000_000 + 1000 * number}") for argument in arguments
            ]
        yield folder, arguments


def recomputed(folder: Path, first: str, second: str) -> tuple[float, float]:
    """Mean difference of accuracy and its standard error, from the result files alone."""
    study = Study.load(folder)
    accuracies = {
        arm.name: [
            json.loads((study.run_dir(folder, number, arm) / "result.json").read_text())["evaluations"][-1]["accuracy"]
            for number in study.rounds
        ]
        for arm in study.arms
    }
    difference = np.subtract(accuracies[first], accuracies[second])
    return float(difference.mean()), float(difference.std(ddof=1) / math.sqrt(len(difference)))


def report(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "dpcompare", "report", str(folder), "--json"], capture_output=True, text=True, check=True
    )
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def is_wrong(folder: Path, shown: dict[str, Any]) -> bool:
    """Print what a study says; whether one of its figures is not that of the result files."""
    wrong = False
    for claim in shown["learning"]["claims"]:
        print(f"- {claim['sentence']}")
        if claim["measure"] == "accuracy" and claim["standard_error"] is not None:
            mean, error = recomputed(folder, claim["first"], claim["second"])
            wrong |= not np.allclose([mean, error], [claim["difference"], claim["standard_error"]])
            print(f"  by NumPy {mean * 100:+.4f} points, standard error {error * 100:.4f}")
    for row in shown["arms"]:
        spread, target = row["accuracy_over_seeds"], row["to_target"]
        needed = f"; {target['steps']} steps, {target['seconds']} s to {target['accuracy']}" if target else ""
        deviation = spread["standard_deviation"] or 0.0
        print(f"- {row['name']}: accuracy {spread['mean']:.4f}, standard deviation {deviation:.4f}{needed}")
    in_time = shown["time_to_accuracy"]
    for sentence in (*in_time["left_out"], *(claim["sentence"] for claim in in_time["claims"])) if in_time else ():
        print(f"- {sentence}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", choices=STUDIES)
    parser.add_argument("--data", default="../shared/datasets/clothing", help="folder of images, or a prepared store")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("studies/accuracy"))
    parser.add_argument("--short", action="store_true", help="small images and few epochs: a try, and no answer")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and start nothing")
    arguments = parser.parse_args()
    failed = False
    for name in arguments.studies:
        question, different = STUDIES[name], 0
        print(f"\n{name}: {question.question}", flush=True)
        for folder, asked in commands(name, arguments.data, arguments.rounds, arguments.out):
            options = shortened(asked) if arguments.short else asked
            print(f"dpcompare compare {shlex.join(options)}", flush=True)
            if arguments.dry_run:
                continue
            subprocess.run([sys.executable, "-m", "dpcompare", "compare", *options], check=True)
            shown = report(folder)
            failed |= is_wrong(folder, shown)
            different += any(claim["outcome"] in ("higher", "lower") for claim in shown["learning"]["claims"])
        if question.is_false and not arguments.dry_run:
            print(f"{different} of {question.times} studies of equal arms claim a difference")
            failed |= different > 1
        failed |= question.is_true and not different and not arguments.dry_run
    sys.exit(3 if failed else 0)


if __name__ == "__main__":
    main()
