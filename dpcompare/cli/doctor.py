"""`dpcompare doctor`: would a run work here, and what difference could a study show."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from dpcompare.cli.option_values import environments_called, interpreters
from dpcompare.cli.output import EXIT_NEGATIVE, print_json, stderr_console
from dpcompare.system.terminal_text import pluralize, printable

WORKLOAD_OF_NOISE: dict[str, Any] = {"model": "toy-bn", "image_size": 64, "steps": 400, "warmup_steps": 5}
"""Steps of some milliseconds, so that a round takes seconds, and each of its runs the second that a claim needs."""


@click.command()
@click.option("--device", type=click.Choice(["auto", "cpu"]), default="auto", show_default=True)
@click.option("--python", multiple=True, metavar="FRAMEWORK=PATH", help="As for `run`.")
@click.option(
    "--env",
    multiple=True,
    metavar="NAME[=PYTHON|=VARIABLE=VALUE]",
    help="Also check this environment and its modes, as arms use it with env=NAME.",
)
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
def doctor(
    device: str, python: tuple[str, ...], env: tuple[str, ...], no_trials: bool, noise: int | None, as_json: bool
) -> int:
    """Check this machine, every framework and the usual modes; include its output in a bug report.

    --noise runs `single` of a framework that is usable against itself and says which difference a study of as many
    rounds can show here. Exit code 3: something would break a run.
    """
    from dpcompare.cli.waiting import Waiting
    from dpcompare.errors import RequestError, RunFailedError
    from dpcompare.launch.doctor import diagnose
    from dpcompare.launch.findings import Finding

    chosen = interpreters(python)
    named = environments_called(env)
    findings = []
    with Waiting(stderr_console()) as waiting:
        for finding in diagnose(chosen, device=device, trials=not no_trials, environments=named, begins=waiting.begin):
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
        click.echo(f"{pluralize(len(problems), 'problem')}: {', '.join(problems)}")
    else:
        click.echo("nothing found that would break a run")
    return EXIT_NEGATIVE if problems else 0


def _noise(rounds: int, device: str, chosen: dict[str, str]) -> dict[str, object]:
    """An A/A study: the same arm twice per round."""
    from dpcompare.cli.waiting import Waiting
    from dpcompare.experiments.noise import noise_study, run_noise
    from dpcompare.experiments.statistics import Plan
    from dpcompare.experiments.study_runs import Watcher

    study = noise_study(rounds, device, chosen, WORKLOAD_OF_NOISE)
    console = stderr_console()

    class Lines(Watcher):
        def run_begins(self, number, arm, run_dir):  # type: ignore[no-untyped-def]
            waiting.begin(f"round {number} of {rounds}: {arm.name}")
            return lambda event: None

        def run_ended(self, number, arm, result):  # type: ignore[no-untyped-def]
            waiting.end()
            console.print(f"round {number}: {arm.name}: {result.compared_speed or 0:.1f} images/s")

    with Waiting(console) as waiting:
        claim = run_noise(study, Lines())
    assert claim.measured  # `run_noise` raises otherwise
    least = claim.measured.detectable(Plan().level)
    such = "sound runs that differ as much as these" if claim.outcome == "disturbed or too short" else "such runs"
    sentence = (
        f"noise: {claim.sentence} Here a study of {pluralize(rounds, 'round')} of {such} shows a difference of "
        f"{least:.1%} in four of five cases."
    )
    return {"rounds": rounds, "detectable": least, "sentence": sentence}
