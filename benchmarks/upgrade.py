"""Does another version of a framework make training slower on this machine, and does it compute the same?

    python -m benchmarks.upgrade OUT FRAMEWORK ENV [--rounds 6] [--write [FOLDER]]

ENV is an environment that `dpcompare setup --env` made with another version of FRAMEWORK, such as
`dpcompare setup --env old 'torch==2.8.*'`. Runs what the how-to on upgrades says: `verify --quick` of both, then a
study with a small model and one with EfficientNet-B2, each on one replica and on two. OUT keeps the studies; the same
command continues them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.evidence import Cell, Keeper, number, table, text
from dpcompare.experiments.analysis import analyse
from dpcompare.experiments.collection import collect
from dpcompare.experiments.comparison import Comparison

WORKLOADS = {
    "toy-cnn": ("--model", "toy-cnn", "--image-size", "32", "--steps", "1000"),
    "efficientnet-b2": ("--model", "efficientnet-b2", "--image-size", "64", "--batch-size", "16", "--steps", "30"),
}
MODES = {
    "torch": {"one replica": ("torch:single",), "two replicas": ("torch:ddp", "--nodes", "2")},
    "tensorflow": {
        "one replica": ("tensorflow:single",),
        "two replicas": ("tensorflow:mirrored", "--devices-per-node", "2"),
    },
    "jax": {"one replica": ("jax:single",), "two replicas": ("jax:spmd", "--devices-per-node", "2")},
}


def dpcompare(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of ours, whose progress is shown."""
    command = [sys.executable, "-m", "dpcompare", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)


def verified(framework: str, environment: str) -> str:
    """How many checks passed between the two versions."""
    done = dpcompare("verify", "--quick", "--frameworks", framework, "--env", environment, "--device", "cpu", "--json")
    checks = json.loads(done.stdout)["checks"]
    return f"{sum(check['passed'] for check in checks)} of {len(checks)} checks passed"


def studies(out: Path, framework: str, environment: str, rounds: int) -> Iterator[tuple[str, str, Comparison]]:
    """Model, replicas and what was found of the usual version against the other."""
    for model, workload in WORKLOADS.items():
        for replicas, (arm, *topology) in MODES[framework].items():
            folder = out / f"{framework}-{model}-{replicas.replace(' ', '-')}"
            arms = (arm, f"{arm},env={environment}")
            common = (*topology, *workload, "--device", "cpu", "--repeats", str(rounds), "--out", str(folder))
            done = dpcompare("compare", *arms, *common, "--dataset", "digits")
            if done.returncode:
                sys.exit(f"{folder}: exit code {done.returncode}")
            yield model, replicas, analyse(collect([folder]))


def row(model: str, replicas: str, found: Comparison) -> tuple[Cell, ...]:
    (claim,) = found.claims
    interval = None if claim.low is None or claim.high is None else f"{claim.low:.3f} to {claim.high:.3f}"
    speeds = [arm.steady_images_per_second for arm in found.arms]
    return model, replicas, *speeds, claim.ratio, interval, claim.outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="directory of all studies")
    parser.add_argument("framework", choices=MODES)
    parser.add_argument("environment", help="made by `dpcompare setup --env`")
    parser.add_argument("--rounds", type=int, default=6)
    keeper = Keeper(parser, "benchmarks.upgrade")
    asked = parser.parse_args()
    same = verified(asked.framework, asked.environment)
    found = list(studies(asked.out, asked.framework, asked.environment, asked.rounds))
    change_log = found[0][2].environments
    columns = [
        *text("model", "on"),
        number("usual, images/s", ",.1f"),
        number("other, images/s", ",.1f"),
        number("usual / other", ".3f"),
        number("interval"),
        *text("outcome"),
    ]
    keeper.keep(
        asked.write,
        f"upgrade-{asked.framework}",
        "measured",
        sentences=[f"`verify --quick` between both: {same}.", *(f"{line}." for line in change_log)],
        tables=[table(columns, [row(*each) for each in found])],
        figures={"checks": same, "studies": len(found)},
    )


if __name__ == "__main__":
    main()
