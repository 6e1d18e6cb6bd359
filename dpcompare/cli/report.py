"""`dpcompare report`: studies and runs side by side."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpcompare.cli import completion
from dpcompare.cli.next_commands import steps_after_report
from dpcompare.cli.option_values import NumberWithin
from dpcompare.cli.output import (
    EXIT_NEGATIVE,
    directory_option,
    json_file,
    plot_options,
    print_lines,
    print_sentence,
    stdout_console,
    writable,
    write,
    write_plots,
)
from dpcompare.system.terminal_text import pluralize

if TYPE_CHECKING:
    from dpcompare.experiments.comparison import Comparison
    from dpcompare.results.computed import Evaluation
    from dpcompare.results.result import RunResult, StepSeconds


@click.command()
@click.argument(
    "paths",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
    metavar="STUDY_DIR|RUN_DIR...",
    shell_complete=completion.runs_and_studies,
)
@click.option(
    "--subject",
    multiple=True,
    metavar="SETTING",
    help="What the comparison is about, so that it may differ: an option of the arms, such as batch, or a row "
    "of the fairness sheet.",
)
@click.option("--html", metavar="FILE", help="Write one self-contained page.")
@click.option("--markdown", metavar="FILE", help="A table and all sentences; - is stdout.")
@click.option("--csv", metavar="FILE", help="A table of all figures, one line per run; - is stdout.")
@click.option("--parquet", metavar="FILE", help="The same table; - is stdout.")
@click.option("--cite", metavar="FILE", help="For a paper: a paragraph on the methods, and BibTeX; - is stdout.")
@click.option("--junit", metavar="FILE", help="Arms and conditions as tests, for CI systems; - is stdout.")
@json_file
@plot_options
@directory_option("--tensorboard", "Config, losses, seconds and figures of every run, for TensorBoard.")
@directory_option("--mlflow", "The same in MLflow's database in DIR, or on the server of a URI.", "DIR|URI")
@directory_option("--wandb", "The same as offline runs of Weights & Biases, for `wandb sync`.")
@click.option("--full", is_flag=True, help="All figures, every pair, and the fairness sheet.")
@click.option(
    "--fail-if",
    multiple=True,
    metavar="CONDITION",
    help='End with exit code 3 where this holds: such as "ratio<0.97", or unstable.',
)
@click.option(
    "--price", type=NumberWithin(0, 1e6), metavar="DOLLARS", help="Price of a device per hour, for columns of cost."
)
def report(
    paths: tuple[Path, ...],
    subject: tuple[str, ...],
    html: str | None,
    markdown: str | None,
    csv: str | None,
    parquet: str | None,
    cite: str | None,
    junit: str | None,
    as_json: str | None,
    plots: str | None,
    plot_width: float | None,
    plot_text: float | None,
    tensorboard: str | None,
    mlflow: str | None,
    wandb: str | None,
    full: bool,
    fail_if: tuple[str, ...],
    price: float | None,
) -> int:
    """Show studies and runs: what may be claimed, all figures, and the fairness sheet.

    --fail-if compares a figure with a number: efficiency, or a figure of any arm by its name in JSON, such as accuracy,
    steady_images_per_second (the column images/s), memory_bytes, joules_per_image, seconds_to_target or
    dollars_per_million_images. ratio is that of any pair of which one is shown to be faster, the arm that stands first
    in the study over the other; "torch ddp 1x2 / tensorflow mirrored 1x2 < 0.97" is about one pair, either way round.
    A condition also holds where a figure is missing that should be there. --fail-if unstable holds where a run was not
    steady, or its clock contradicts that of its launcher.
    """
    from dpcompare.experiments.analysis import analyse
    from dpcompare.experiments.collection import collect
    from dpcompare.experiments.cost import priced
    from dpcompare.report import citing, conditions, formats, page, records
    from dpcompare.report.junit import as_junit
    from dpcompare.report.plots import make_plots
    from dpcompare.report.trackers import tracked_runs, write_to_mlflow, write_to_tensorboard, write_to_wandb

    asked = [conditions.parse_condition(text) for text in fail_if]
    collection = collect(paths, subject)
    comparison = analyse(collection)
    if price is not None:
        comparison = priced(comparison, price)
    judged = {condition.text: list(condition.where_it_holds(comparison)) for condition in asked}
    for target, render in (
        (html, page.as_html),
        (markdown, formats.as_markdown),
        (csv, records.as_csv),
        (parquet, records.as_parquet),
        (as_json, formats.as_json),
        (cite, citing.as_citation),
        (junit, partial(as_junit, conditions=judged)),
    ):
        if target is not None:
            write(target, render(comparison))
    write_plots(plots, partial(make_plots, comparison), plot_width, plot_text)
    for target, track in ((tensorboard, write_to_tensorboard), (mlflow, write_to_mlflow), (wandb, write_to_wandb)):
        if target is not None:
            with writable(target):
                track(tracked_runs(collection, comparison), target)
    files = (html, markdown, csv, parquet, as_json, cite, junit, plots, tensorboard, mlflow, wandb)
    if all(file is None for file in files):
        print_comparison(comparison, full=full)
        for line in [] if full else steps_after_report(comparison, paths):
            click.echo(line, err=True)
    for line in chain.from_iterable(judged.values()):
        click.echo(f"--fail-if: {line}", err=True)
    return EXIT_NEGATIVE if any(judged.values()) else 0


def _not_in_headline(comparison: Comparison) -> int:
    """How many pairs show a difference in addition to that of the headline, which names one for each model."""
    decided = [claim for claim in comparison.claims if claim.outcome in ("faster", "slower")]
    models = {name: group.model for group in comparison.groups for name in group.arms}
    return len(decided) - len({models.get(claim.first) for claim in decided})


def print_comparison(comparison: Comparison, *, full: bool = False) -> None:
    """What a terminal has room for: the headline, and a line per arm. In full all figures, pairs and settings."""
    from dpcompare.report.remarks import all_remarks, short_remarks
    from dpcompare.report.text import as_text, headline_lines

    width = stdout_console().width
    print_lines(as_text(comparison, width).removesuffix("\n"), bold=headline_lines(comparison, width))
    if full:
        _print_figures(comparison)
    elif (others := _not_in_headline(comparison)) > 0:
        click.echo(f"{pluralize(others, 'more pair')} show{'s' if others == 1 else ''} a difference (--full).")
    learned = [comparison.learning.headline, comparison.learning.varied] if comparison.learning else []
    stopped = f"Rounds were added until {comparison.stopped_by}." if comparison.stopped_by else None
    for sentence in filter(
        None, (*learned, *comparison.target_sentences, *comparison.not_judged, stopped, comparison.unchecked)
    ):
        print_sentence(sentence)
    for row in comparison.arms:
        for failure in row.all_failures:
            print_sentence(f"FAILED {row.name}: {failure}")
    cut_at = width if sys.stdout.isatty() else None
    for remark in all_remarks(comparison) if full else short_remarks(comparison, cut_at):
        print_sentence(remark)
    if full:
        print_sheet(comparison)


def _print_figures(comparison: Comparison) -> None:
    """Every figure of every arm, and a sentence per pair."""
    from dpcompare.report.text import figure_lines

    for machine in comparison.machines:
        print_sentence(f"machine: {machine}", indent=2)
    if len(comparison.arms) > 1:
        print_sentence(f"all arms together: {comparison.summary}")
    for line in figure_lines(comparison, stdout_console().width):
        click.echo(line)
    click.echo()
    for made in sorted(comparison.claims, key=lambda made: made.outcome == "NOT COMPARABLE"):  # those come last
        print_sentence(f"- {made.sentence}", indent=2)
    for learned in comparison.learning.claims if comparison.learning else ():
        print_sentence(f"- {learned.sentence}", indent=2)
    for agreement in comparison.predictions.agreements if comparison.predictions else ():
        print_sentence(f"- {agreement.sentence}", indent=2)
    for row in comparison.arms:
        if row.scaling:
            print_sentence(f"- {row.scaling.sentence}", indent=2)
    if comparison.agreement:
        print_sentence(comparison.agreement)


def print_sheet(comparison: Comparison) -> None:
    """The settings that differ, with the arms that have each value, then the reasons."""
    from dpcompare.report.text import arms_by_value

    if len(comparison.arms) < 2:
        return
    click.echo("fairness sheet: the settings that differ")
    for row in comparison.settings:
        if not row.equal:
            print_sentence(f"- {row.setting}: {row.verdict}", indent=2)
            for value, names in arms_by_value(row, comparison).items():
                print_sentence(f"    {value}: {', '.join(names)}", indent=8)
    for reason in comparison.reasons:
        print_sentence(f"- {reason}", indent=2)
    for line in (*comparison.layers, *comparison.environments):
        print_sentence(line, indent=2)


MOST_EVALUATIONS = 10
"""The evaluations of one run that its summary has lines for."""


def _shown_evaluations(evaluations: Sequence[Evaluation]) -> Sequence[Evaluation]:
    """All of them where they are few; else the first, the best, the last, and others at even distances."""
    last = len(evaluations) - 1
    if last < MOST_EVALUATIONS:
        return evaluations
    best = max(range(len(evaluations)), key=lambda number: evaluations[number].accuracy)
    even = (round(last * part / (MOST_EVALUATIONS - 2)) for part in range(MOST_EVALUATIONS - 1))
    return [evaluations[number] for number in sorted({best, *even})]


def _evaluation_rows(result: RunResult) -> dict[str, str]:
    from dpcompare.report.formats import figure

    shown = _shown_evaluations(result.evaluations)
    rows = {
        f"after step {evaluation.step}": f"epoch {evaluation.epoch}: accuracy {evaluation.accuracy:.4f}, "
        f"loss {figure(evaluation.loss, '{:.4f}')}, {pluralize(evaluation.count, 'sample')}"
        for evaluation in shown
    }
    if len(shown) < len(result.evaluations):
        rows["evaluations"] = (
            f"{len(shown)} of {len(result.evaluations)}, with the first, the best and the last; all are in result.json"
        )
    if result.outlier:
        rows["outliers"] = result.outlier
    if result.target_accuracy is not None:
        cost, target = result.cost_of_target, f"accuracy {result.target_accuracy:g}"
        taken = "seconds not known, since the run was resumed"
        if cost and cost.seconds is not None:
            taken = f"{figure(cost.seconds)} s of training"
        if cost and cost.joules is not None:
            taken += f", {figure(cost.joules, '{:.0f}')} J"
        rows["target"] = (
            f"{target} after {pluralize(cost.step, 'step')}, {pluralize(cost.images, 'image')}, {taken}"
            if cost
            else f"{target} was not reached"
        )
    if result.late_step and not result.late_step.problem:  # which is among the warnings
        rows["late step"] = result.late_step.in_words
    return rows


def _speed_row(result: RunResult) -> str:
    """The steady speed, and the mean where its digits differ."""
    from dpcompare.report.formats import figure

    steady, mean = figure(result.compared_speed), figure(result.images_per_second)
    with_stalls = "" if steady == mean else f", with stalls {mean}"
    return (
        f"steady {steady} images/s over {pluralize(result.measured_steps, 'measured step')}{with_stalls}; "
        f"{figure(result.between_steps_fraction, '{:.1%}')} of the time is between steps"
    )


def _step_row(step: StepSeconds) -> str:
    if step.median is None or step.mad is None or step.p95 is None:
        return f"mean {step.mean * 1000:.1f} ms; steps were timed in windows (--steps-per-window 1 times each)"
    return f"median {step.median * 1000:.1f} ms, MAD {step.mad * 1000:.1f}, p95 {step.p95 * 1000:.1f}"


def print_summary(result: RunResult, run_dir: Path) -> None:
    """One run, a line per figure."""
    from rich.table import Table

    from dpcompare.config.cluster import topology_in_words
    from dpcompare.experiments.figures import MIB
    from dpcompare.report.formats import figure

    emulated = " (emulated: not the framework's own code for this mode)" if result.emulated else ""
    topology = topology_in_words(result.num_nodes, result.devices_per_node, result.device_type)
    rows = {
        "mode": f"{result.framework} {result.mode}{emulated}, collective: {result.collective}",
        "devices": f"{topology}, {pluralize(result.num_processes, 'process')}, "
        f"{pluralize(result.num_replicas, 'replica')}",
        "workload": f"{result.model} on {result.dataset}, {result.image_size} px, global batch "
        f"{result.global_batch_size}, {result.precision}, profile {result.profile}",
        "speed": "not measured: no step came after the warm-up",
    }
    if result.compared_speed is not None:
        rows["speed"] = _speed_row(result)
    if result.step_seconds:
        rows["step"] = _step_row(result.step_seconds)
    rows |= {warning.kind: warning.sentence for warning in result.warnings if warning.kind != "SLOWED DOWN"}
    if result.time_to_first_step_seconds is not None:
        rows["time"] = (
            f"{result.time_to_first_step_seconds:.1f} s to the end of the first step, which took "
            f"{figure(result.first_step_seconds)} s; {figure(result.wall_seconds)} s in all"
        )
    if result.achieved_flops and result.achieved_bandwidth:
        share = result.model_flops_utilization
        mfu = "" if share is None else f" (MFU {share:.1%} of {result.peak_source})"
        rows["used"] = (
            f"{result.achieved_flops / 1e9:,.0f} GFLOP/s{mfu} and {result.achieved_bandwidth / 1e9:,.0f} GB/s of each "
            "device at least, by the shapes of the model"
        )
    if result.peak_memory_bytes:
        peak = result.peak_memory_bytes
        rows["memory"] = f"{peak.total / MIB:,.0f} MiB, largest process {peak.max_process / MIB:,.0f} MiB"
    if result.gpus:
        rows["GPUs"] = "; ".join(sorted({gpu.unread or f"{gpu.name}, {gpu.settings}" for gpu in result.gpus}))
    if result.slowdowns:
        rows["slowed down"] = "; ".join(result.slowdowns)
    if result.train_loss:
        first, last = (figure(result.train_loss[step], "{:.4f}") for step in (0, -1))
        rows["train loss"] = f"{first} -> {last}"
    rows |= _evaluation_rows(result)
    if result.skipped_images:
        rows["skipped"] = f"{pluralize(result.skipped_images, 'image')} that cannot be decoded"
    for package, versions in result.differing_versions.items():
        rows[f"{package} differs"] = ", ".join(f"node {rank}: {version}" for rank, version in enumerate(versions))
    rows["result"] = str(run_dir / "result.json")
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    stdout_console().print(table)
