"""`dpcompare gate`: whether an arm is slower than a baseline by more than is allowed, in as few rounds as show it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpcompare.cli.build_arms import ENVIRONMENT, arm_request, arms_on_one_topology, completed_arms, option_of
from dpcompare.cli.compare import accept_or_refuse, ended_runs, prepared, print_plan
from dpcompare.cli.next_commands import steps_after_study
from dpcompare.cli.option_table import add_options, option, rows_of, separated
from dpcompare.cli.option_values import parse_percentage, parse_seconds, refuse_other_names
from dpcompare.cli.options import AS_TYPED, ROWS_OF_ARMS, GroupedCommand, RunOptions
from dpcompare.cli.output import EXIT_NEGATIVE, EXIT_UNDECIDED, if_anybody_reads, print_json, write
from dpcompare.errors import RequestError, RunFailedError
from dpcompare.system.terminal_text import hint, pluralize
from dpcompare.system.type_names import FieldValue

if TYPE_CHECKING:
    from dpcompare.experiments.claim_rows import GateOutcome, GateRow
    from dpcompare.experiments.study import Arm, Study


EXIT_CODES: dict[GateOutcome, int] = {"not slower": 0, "slower": EXIT_NEGATIVE, "undecided": EXIT_UNDECIDED}


@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """A gate's own options, as they were given; `RunOptions` has those of its runs."""

    arm: str
    baseline: str = option(
        required=True,
        metavar="OPTION=VALUE|ARM",
        help="What the arm is compared with: itself in another environment, env=good, or another arm.",
    )
    allow: str = option(
        default="2%", show_default=True, metavar="PERCENT", help="The largest loss of steady speed that passes."
    )
    budget: str = option(
        default="30m",
        show_default=True,
        metavar="TIME",
        help="Start no round after this time, such as 90s, 30m or 2h.",
    )
    out: Path | None = option(
        type=click.Path(path_type=Path), help="Directory of the study.  [default: below studies/]"
    )
    junit: str | None = option(metavar="FILE", help="Both arms and the gate as tests, for CI systems; - is stdout.")
    markdown: str | None = option(metavar="FILE", help="A table and all sentences, for a job's summary; - is stdout.")
    subject: tuple[str, ...] = option(
        multiple=True,
        metavar="SETTING",
        help="What may differ between both, other than environments: an option, such as profile, or a row of "
        "the fairness sheet.",
    )
    retry_failed: bool = option(is_flag=True, help="In a gate that is continued, run the failed runs again.")
    accept_changed: bool = option(
        is_flag=True,
        help="Continue a gate although versions or the machine have changed; its arms are then NOT COMPARABLE.",
    )
    dry_run: bool = option(is_flag=True, help="List the runs before the first look, and start nothing.")
    as_json: bool = option(flags=("--json",), is_flag=True, help="Print the comparison as one JSON object.")

    @property
    def allowed(self) -> float:
        """The largest loss of speed that passes, as a fraction of the baseline's."""
        return parse_percentage(self.allow, "--allow")

    @property
    def budget_seconds(self) -> float:
        return parse_seconds(self.budget)


@click.command(cls=GroupedCommand)
@click.argument("arm", shell_complete=completed_arms)
@add_options(rows_of(GateOptions))
@add_options(ROWS_OF_ARMS, from_environment=True)
@click.pass_context
def gate(context: click.Context, /, **values: FieldValue) -> int:
    """Say whether an arm is slower than a baseline by more than is allowed.

    Both are trained in the same rounds, and after 6, 8, 11, 15, 20, 27, 36 and 48 of them the gate ends if it can tell.
    Exit codes: 0 not slower than allowed, 3 slower, 4 undecided: time or rounds ran out, most rounds were disturbed or
    too short, or the arms are not comparable. Repeat the command with the same --out to continue.

    \b
    dpcompare gate torch:ddp --baseline env=good --nodes 2 --model toy-cnn --image-size 32 --steps 1000
    dpcompare gate torch:ddp,env=new --baseline torch:ddp --allow 5% --budget 1h --junit gate.xml
    """
    from dpcompare.experiments.gate import LOOKS

    study, out, options = gate_asked_for(context, values)
    if options.dry_run:
        print_plan(study.changed(repeats=LOOKS[0]), out, as_json=options.as_json)
        return 0
    try:
        make_rounds(study, out, options)
    except RunFailedError:
        if any(result.status == "completed" for result in ended_runs(out)):  # of both arms, what there is
            _show(out, options.junit, options.markdown, as_json=False)
        raise
    row = _show(out, options.junit, options.markdown, as_json=options.as_json)
    return EXIT_CODES[row.outcome]


def gate_asked_for(context: click.Context, values: Mapping[str, FieldValue]) -> tuple[Study, Path, GateOptions]:
    """The study that the options of the command ask for, its directory, and the gate's own options.

    Raises:
        RequestError: the options are wrong, or the directory holds other files.
    """
    from dpcompare.experiments.fairness import checks_named
    from dpcompare.experiments.gate import gate_study
    from dpcompare.experiments.study import refuse_other_files

    options, of_runs = separated(GateOptions, values)
    allowed, _ = options.allowed, options.budget_seconds  # a wrong one is refused before anything else
    _refuse_targets(options.junit, options.markdown, as_json=options.as_json)
    candidate, against = _arms(options.arm, options.baseline, RunOptions.of(of_runs))
    out = options.out or Path("studies") / f"{datetime.now():%Y%m%d-%H%M%S-%f}-gate"
    refuse_other_files(out)
    command = hint("gate", *context.meta[AS_TYPED])
    study = gate_study(candidate, against, allowed)
    return study.changed(commands=(command,), subject=checks_named(options.subject)), out, options


def _refuse_targets(*files: str | None, as_json: bool) -> None:
    """Refuse before a long gate what could not be written after it."""
    if (as_json, *(file == "-" for file in files)).count(True) > 1:
        raise RequestError("--junit, --markdown and --json: received several for stdout; expected one at most")
    for file in files:
        if file not in (None, "-") and not os.access(Path(str(file)).absolute().parent, os.W_OK):
            raise RequestError(f"received the file {file!r}; expected one in a directory that can be written to")


def _arms(text: str, baseline: str, options: RunOptions) -> tuple[Arm, Arm]:
    """The arm that is judged, and the one that it is compared with.

    Raises:
        RequestError: one of them cannot run here, or a gate says nothing of the two.
    """
    requests = [
        arm_request(text, options, named_by="ARM"),
        arm_request(_baseline(text, baseline), options, named_by="--baseline"),
    ]
    used = {request.environment for request in requests}
    refuse_other_names(options.env, used, f"a baseline with it, {ENVIRONMENT}=NAME")
    arms = arms_on_one_topology(requests, options)
    candidate, against = arms
    counts = [len(each.config.cluster.nodes) * each.config.cluster.devices_per_node for each in arms]
    if counts[0] != counts[1]:
        raise RequestError(
            f"--baseline: received {against.name} on {pluralize(counts[1], 'device')}, and {candidate.name} on "
            f"{counts[0]}; expected the same number, since more devices are meant to be faster. `dpcompare compare` "
            "shows how efficient they are"
        )
    return candidate, against


def _baseline(text: str, baseline: str) -> str:
    """The arm that the baseline is: a whole one, or the candidate with some of its options changed."""
    changes = baseline.split(",")
    if "=" not in changes[0]:
        return baseline
    head, *own = text.split(",")
    changed = set(map(_option_name, changes))
    return ",".join([head, *(change for change in own if _option_name(change) not in changed), baseline])


def _option_name(change: str) -> str:
    return option_of(change.partition("=")[0].strip().replace("_", "-"))


def make_rounds(study: Study, out: Path, options: GateOptions) -> None:
    """Make the rounds that the gate needs.

    Raises:
        RequestError: versions or the machine are not those of its last rounds, and that was not accepted.
        RunFailedError: a run failed, or something else stopped the gate in the middle.
    """
    from dpcompare.cli.progress import StudyProgress
    from dpcompare.experiments.gate import LOOKS
    from dpcompare.experiments.gate_runs import is_decided, run_gate
    from dpcompare.experiments.next_steps import command_of_gate
    from dpcompare.experiments.study import Study, hold, is_study, open_study
    from dpcompare.experiments.study_runs import set_failed_aside

    repeats = Study.load(out).repeats if is_study(out) else study.repeats
    if not is_decided(out):
        continued = study.changed(repeats=repeats)
        accept_or_refuse(continued, out, retry_failed=options.retry_failed, accepts=options.accept_changed)
    study = prepared(study)
    to_continue = f"to continue: {command_of_gate(study, out)}"
    try:
        with hold(out):
            study = open_study(study, out)
            if options.retry_failed:
                set_failed_aside(study, out)
            with StudyProgress(study.changed(repeats=max(study.repeats, LOOKS[0])), out) as progress:
                try:
                    run_gate(study, out, progress, budget_seconds=options.budget_seconds)
                except RunFailedError as error:
                    raise RunFailedError(f"{error}\n{to_continue} --retry-failed", str(out)) from None
                except (RequestError, OSError) as error:  # in the middle, so the request is not wrong: a full disk
                    raise RunFailedError(
                        f"the gate has stopped: {error}\nThe runs that are done are kept; {to_continue}", str(out)
                    ) from None
    except KeyboardInterrupt:
        click.echo(f"interrupted; {to_continue}", err=True)
        raise


def _show(out: Path, junit: str | None, markdown: str | None, *, as_json: bool) -> GateRow:
    """Print what the gate says, then write its files: one that cannot be written does not change the answer."""
    from dpcompare.cli.report import print_comparison
    from dpcompare.experiments.analysis import analyse
    from dpcompare.experiments.collection import collect
    from dpcompare.report import formats
    from dpcompare.report.junit import as_junit

    comparison = analyse(collect([out]))
    row = comparison.gate
    assert row is not None
    with if_anybody_reads():
        if as_json:
            print_json(comparison.model_dump(mode="json"))
        elif "-" not in (junit, markdown):
            print_comparison(comparison)
    for target, render in ((junit, as_junit), (markdown, formats.as_markdown)):
        if target is None:
            continue
        try:
            with if_anybody_reads():
                write(target, render(comparison))
        except RequestError as error:
            click.echo(f"error: {error}", err=True)
    for line in [] if as_json else steps_after_study(comparison, out):
        click.echo(line, err=True)
    return row
