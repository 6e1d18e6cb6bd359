"""The real runs and studies of two unequal arms under loads, torch and JAX on the CPU: kept, and continued.

Their training processes fork from one that holds the framework: to import it takes longer than to train, most of all
under load, and no figure of the claims is of that time.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from unittest.mock import patch

import dpcompare as dp
from dpcompare import Cluster, RunConfig, Workload
from dpcompare.backends.other_variables import make_key
from dpcompare.errors import RequestError
from dpcompare.experiments.collection import ArmRuns, collect
from dpcompare.experiments.statistics import ROUNDS_FOR_CLAIM, Plan
from dpcompare.experiments.study import Study, is_study
from dpcompare.experiments.study_runs import results
from dpcompare.launch.inputs import prepare_compared
from dpcompare.results.result import RunResult
from dpcompare.results.run_dir import RESULT_FILE
from stress.drawn_studies import Arms
from stress.loads import LOADS, loaded
from tests.support.warm import WarmLauncher

FRAMEWORKS = ("torch", "jax")
"""The first arm of every study, and the second."""
STEPS, WARMUP_STEPS = 50, 5
"""Of each run. torch computes a step of toy-cnn with 256 images of 32 px in 57 ms of a core, so on two cores those that
are measured take it about 1.3 s. With smaller batches a run takes longer under load, since its steps take no less."""
LONGEST_ROUND, LONGEST_STUDY = 1200, 4 * 3600
"""Seconds after which a load ends in any case."""


def workload(steps: int) -> Workload:
    return Workload(
        model="toy-cnn",
        image_size=32,
        dataset="synthetic",
        global_batch_size=256,
        steps=steps,
        warmup_steps=WARMUP_STEPS,
    )


def configs(steps: int) -> list[RunConfig]:
    """The arms, in the order of FRAMEWORKS; their data is prepared."""
    cluster = Cluster.partition(1, 1, device="cpu")
    return list(
        prepare_compared([
            RunConfig(framework=framework, mode="single", workload=workload(steps), cluster=cluster)
            for framework in FRAMEWORKS
        ])
    )  # fmt: skip


def kept_at(folder: Path, load: str, framework: str, number: int) -> Path:
    """The folder of the result of a run."""
    return folder / "runs" / load / f"{framework}-single" / f"{number:03d}"


def order(load: str, number: int) -> list[str]:
    """The frameworks in the order in which a round runs them."""
    return random.Random(f"{load} {number}").sample(FRAMEWORKS, len(FRAMEWORKS))


def rounds_kept(folder: Path, load: str) -> list[int]:
    """The numbers of the rounds that have both runs."""
    files = [kept_at(folder, load, name, 0).parent.glob(f"*/{RESULT_FILE}") for name in FRAMEWORKS]
    first, second = ({file.parent.name for file in files_of_arm} for files_of_arm in files)
    return sorted(map(int, first & second))


def arms_kept(folder: Path, load: str) -> Arms:
    """Both arms with their runs of these rounds.

    Raises:
        RequestError: there are fewer rounds than a claim needs.
    """
    numbers = rounds_kept(folder, load)
    if len(numbers) < ROUNDS_FOR_CLAIM:
        raise RequestError(
            f"{str(folder)!r} has {len(numbers)} rounds of the load {load}, expected at least {ROUNDS_FOR_CLAIM}; "
            f"make them with `runs {folder} --load {load}`"
        )
    first, second = (_arm_kept(folder, load, framework, numbers) for framework in FRAMEWORKS)
    return first, second


def _arm_kept(folder: Path, load: str, framework: str, numbers: Sequence[int]) -> ArmRuns:
    runs = [RunResult.load(kept_at(folder, load, framework, number)) for number in numbers]
    return ArmRuns(
        name=f"{framework} single",
        config=RunConfig.model_validate(runs[0].config),
        plan=Plan(rounds=len(runs)),
        runs=list(runs),
        run_dirs=[str(kept_at(folder, load, framework, number)) for number in numbers],
        positions=[1 + order(load, number).index(framework) for number in numbers],
    )


def make_runs(folder: Path, loads: Sequence[str], runs: int, seconds: float, steps: int) -> None:
    """Make the rounds that are missing, the first of each load before the second of any.

    Raises:
        RequestError: the folder has runs of other steps under one of these loads.
    """
    deadline = time.monotonic() + seconds
    folder.mkdir(parents=True, exist_ok=True)
    make_key(folder)
    _require_steps(folder, loads, steps)
    arms = dict(zip(FRAMEWORKS, configs(steps), strict=True))
    kept = {load: rounds_kept(folder, load) for load in loads}
    with forked():
        for number, load in product(range(1, runs + 1), loads):
            if number in kept[load]:
                continue
            if time.monotonic() > deadline:
                print(f"the time is up; the same command makes {load} {number} of {runs} next", file=sys.stderr)
                return
            speeds = make_round(folder, load, number, arms)
            said = ", ".join(f"{name} {speed:.0f} images/s" for name, speed in speeds.items() if speed)
            print(f"{load} {number} of {runs}: {said}", file=sys.stderr, flush=True)


@contextmanager
def forked() -> Iterator[None]:
    """Within it training processes fork from one that has imported their framework."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dpcompare-unequal-")))
        warm = WarmLauncher(folder)
        stack.callback(warm.close)
        for module in ("attempt", "late_step"):
            stack.enter_context(patch(f"dpcompare.launch.{module}.launch", warm.launch))
        yield


def make_round(folder: Path, load: str, number: int, arms: Mapping[str, RunConfig]) -> dict[str, float | None]:
    """Make one run of each arm under a load, and keep both results once both are there; returns images per second."""
    with tempfile.TemporaryDirectory(prefix="making-", dir=folder) as temporary:
        with loaded(LOADS[load], seconds=LONGEST_ROUND, seed=number):
            speeds = {name: dp.run(arms[name], Path(temporary) / name).compared_speed for name in order(load, number)}
        for name in FRAMEWORKS:
            target = kept_at(folder, load, name, number)
            target.mkdir(parents=True, exist_ok=True)
            (Path(temporary) / name / RESULT_FILE).rename(target / RESULT_FILE)
    return speeds


def _require_steps(folder: Path, loads: Sequence[str], steps: int) -> None:
    """Runs of several lengths would not be those of one study, which has rounds of one load."""
    first = {load: numbers[0] for load in loads if (numbers := rounds_kept(folder, load))}
    for load, number in first.items():
        there = RunResult.load(kept_at(folder, load, FRAMEWORKS[0], number)).config["workload"]["steps"]
        if there != steps:
            raise RequestError(
                f"--steps: received {steps}, but the runs of the load {load} have {there}; ask for as many, or choose "
                "another folder"
            )


def study_dir(folder: Path, load: str, number: int) -> Path:
    return folder / "studies" / load / f"{number:02d}"


def has_ended(path: Path) -> bool:
    """Whether all runs of a study are there."""
    return is_study(path) and all(result is not None for _, _, result in results(Study.load(path), path))


def make_studies(folder: Path, loads: Sequence[str], studies: int, seconds: float, steps: int) -> None:
    """Make the studies that are missing by `compare`, the first of each load before the second of any.

    Raises:
        RequestError: the folder has studies of other steps, or a run of a study has failed.
    """
    deadline = time.monotonic() + seconds
    with forked():
        for number, load in product(range(1, studies + 1), loads):
            out = study_dir(folder, load, number)
            if has_ended(out):
                continue
            if time.monotonic() > deadline:
                print(f"the time is up; the same command makes {load} {number} of {studies} next", file=sys.stderr)
                return
            sentence = make_study(out, load, number, steps)
            print(f"{load} {number} of {studies}: {sentence}", file=sys.stderr, flush=True)


def make_study(out: Path, load: str, number: int, steps: int) -> str:
    """Make a study under a load; returns what it claims.

    Raises:
        RequestError: a run of it has failed.
    """
    with loaded(LOADS[load], seconds=LONGEST_STUDY, seed=number):
        study = dp.compare(
            [f"{framework}:single" for framework in FRAMEWORKS],
            workload(steps),
            rounds=ROUNDS_FOR_CLAIM,
            device="cpu",
            out=out,
            order_seed=number,
        )
    if not has_ended(out):
        raise RequestError(
            f"{str(out)!r} has a run that failed, so it is not a study of {ROUNDS_FOR_CLAIM} rounds; repeat that "
            f"run with `dpcompare compare --resume {out} --retry-failed`"
        )
    return study.report().claims[0].sentence


def arms_of_studies(folder: Path, load: str) -> list[Arms]:
    """Both arms of each study of a load that has ended, in the order of FRAMEWORKS."""
    ended = sorted(path for path in (folder / "studies" / load).glob("*") if has_ended(path))
    studies = [{arm.config.framework: arm for arm in collect([path]).arms} for path in ended]
    return [(arms[FRAMEWORKS[0]], arms[FRAMEWORKS[1]]) for arms in studies]
