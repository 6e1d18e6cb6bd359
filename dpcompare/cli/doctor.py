"""`dpcompare doctor`: would a run work here, and what difference could a study show."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from pathlib import Path
from typing import Any

import click

from dpcompare.cli.option_values import interpreters
from dpcompare.cli.output import EXIT_NEGATIVE, print_json, stderr_console
from dpcompare.system.terminal_text import counted, printable

WORKLOAD_OF_NOISE: dict[str, Any] = {"model": "toy-bn", "image_size": 64, "steps": 40, "warmup_steps": 5}
"""Steps of some milliseconds, so that a round takes seconds."""


@click.command()
@click.option("--device", type=click.Choice(["auto", "cpu"]), default="auto", show_default=True)
@click.option("--python", multiple=True, metavar="FRAMEWORK=PATH", help="As for `run`.")
@click.option("--no-trials", is_flag=True, help="Do not try the modes, only look.")
@click.option(
    "--noise",
    type=click.IntRange(min=6),
    is_flag=False,
    flag_value=8,
    metavar="ROUNDS",
    help="Also run an arm against itself for so many rounds; 8 where this is the last option and has no number.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(device: str, python: tuple[str, ...], no_trials: bool, noise: int | None, as_json: bool) -> int:
    """Check this machine, every framework and the usual modes; include its output in a bug report.

    --noise runs `single` of a framework that is usable against itself and says which difference a study of as many
    rounds can show here. Exit code 3: something would break a run.
    """
    from dpcompare.cli.waiting import Waiting
    from dpcompare.errors import RequestError, RunFailedError
    from dpcompare.launch.doctor import Finding, diagnose

    chosen = interpreters(python)
    findings = []
    with Waiting(stderr_console()) as waiting:
        for finding in diagnose(chosen, device=device, trials=not no_trials, begins=waiting.begin):
            waiting.end()
            findings.append(finding)
            if not as_json:
                click.echo(f"{finding.status:8}{finding.name}: {printable(finding.found)}")
                if finding.remedy:
                    click.echo(f"{'':8}  -> {finding.remedy}")
    noise_found = None
    if noise is not None:
        try:
            noise_found = _noise(noise, device, chosen)
        except (RequestError, RunFailedError) as error:  # what was found so far is still to be shown
            findings.append(Finding(name="noise", status="problem", found=str(error)))
        if not as_json:
            click.echo(noise_found["sentence"] if noise_found else f"problem noise: {findings[-1].found}")
    problems = [finding.name for finding in findings if finding.status == "problem"]
    if as_json:
        print_json(
            {
                "usable": not problems,
                "findings": [dataclasses.asdict(finding) for finding in findings],
                **({"noise": noise_found} if noise_found else {}),
            }
        )
    elif problems:
        click.echo(f"{counted(len(problems), 'problem')}: {', '.join(problems)}")
    else:
        click.echo("nothing found that would break a run")
    return EXIT_NEGATIVE if problems else 0


def _noise(rounds: int, device: str, chosen: dict[str, str]) -> dict[str, object]:
    """An A/A study: the same arm twice per round."""
    from scipy.stats import t

    from dpcompare.backends.availability import require_framework
    from dpcompare.cli.waiting import Waiting
    from dpcompare.config.cluster import Cluster
    from dpcompare.config.frameworks import FRAMEWORKS
    from dpcompare.config.run import RunConfig
    from dpcompare.config.workload import Workload
    from dpcompare.errors import RequestError, RunFailedError
    from dpcompare.experiments.analysis import analyse
    from dpcompare.experiments.collection import collect
    from dpcompare.experiments.study import Arm, Study, open_study
    from dpcompare.experiments.study_runs import Watcher, run_study
    from dpcompare.launch.inputs import prepare_inputs

    for framework in FRAMEWORKS:
        given = {"python": chosen[framework]} if framework in chosen else {}
        try:
            require_framework(framework, **given)
            break
        except RequestError:
            continue
    else:
        raise RequestError("--noise: no framework is usable here; expected one of " + ", ".join(FRAMEWORKS))
    workload = Workload(**WORKLOAD_OF_NOISE)
    cluster = Cluster.partition(1, 1, device=device)  # type: ignore[arg-type]
    config = prepare_inputs(RunConfig(framework=framework, mode="single", workload=workload, cluster=cluster, **given))
    study = Study(arms=tuple(Arm(name=f"{framework} single {name}", config=config) for name in "AB"), repeats=rounds)
    console = stderr_console()

    class Lines(Watcher):
        def run_begins(self, number, arm, run_dir):  # type: ignore[no-untyped-def]
            waiting.begin(f"round {number} of {rounds}: {arm.name}")
            return lambda event: None

        def run_ended(self, number, arm, result):  # type: ignore[no-untyped-def]
            waiting.end()
            console.print(f"round {number}: {arm.name}: {result.images_per_second or 0:.1f} images/s")

    with tempfile.TemporaryDirectory(prefix="dpcompare-noise-") as folder, Waiting(console) as waiting:
        path = Path(folder) / "study"
        open_study(study, path)
        run_study(study, path, Lines())
        claims = analyse(collect([path])).claims
    if len(claims) != 1 or not (claims[0].low and claims[0].high and claims[0].confidence):
        raise RunFailedError("--noise: too many of the runs failed for an answer", "")
    made = claims[0]
    assert made.low and made.high and made.confidence  # noqa: PT018 (for the type checker)
    # An interval of half width h = t s / sqrt(n) misses 1 in 80% of studies when the truth is (t + t') s / sqrt(n)
    # away, t and t' being Student's quantiles of the interval's end and of 80%.
    half_width = math.log(made.high / made.low) / 2
    detectable = math.expm1(
        half_width * (1 + t.ppf(0.8, made.rounds - 1) / t.isf((1 - made.confidence) / 2, made.rounds - 1))
    )
    sentence = (
        f"noise: {made.sentence} Here a study of {counted(rounds, 'round')} of such runs shows a difference of "
        f"{detectable:.1%} in four of five cases."
    )
    return {"rounds": rounds, "detectable": detectable, "sentence": sentence}
