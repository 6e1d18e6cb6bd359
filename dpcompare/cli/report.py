"""`dpcompare report`: results of runs side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpcompare.cli.output import print_json, stdout_console

if TYPE_CHECKING:
    from dpcompare.fairness import Sheet
    from dpcompare.result import RunResult

MIB = 1024 * 1024


@click.command()
@click.argument("run_dirs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN_DIR...")
@click.option("--subject", multiple=True, metavar="KNOB", help="A knob that the comparison is about, so it may differ.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object.")
def report(run_dirs: tuple[Path, ...], subject: tuple[str, ...], as_json: bool) -> None:
    """Print the results of runs in one table, with the fairness sheet of comparing them."""
    from dpcompare import fairness
    from dpcompare.result import RunResult

    results = [RunResult.load(run_dir) for run_dir in run_dirs]
    try:
        sheet = fairness.compare(results, subject=subject)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--subject") from None
    if as_json:
        runs = zip(run_dirs, results, strict=True)
        print_json(
            {
                "runs": [{"run_dir": str(d), **r.model_dump(mode="json")} for d, r in runs],
                "fairness": {
                    "verdict": sheet.verdict,
                    "reasons": sheet.reasons,
                    "knobs": [dataclasses.asdict(row) for row in sheet.rows],
                },
            }
        )
    else:
        print_table(results)
        if len(results) > 1:
            print_sheet(results, sheet)


def _figure(value: float | None, form: str = "{:.1f}") -> str:
    """A figure, or a dash where nothing finite was measured."""
    return "-" if value is None else form.format(value)


_COLUMNS: dict[str, Callable[[RunResult], str]] = {
    "framework": lambda r: r.framework,
    "mode": lambda r: r.mode + (" (emulated)" if r.emulated else ""),
    "nodes x devices": lambda r: f"{r.num_nodes}x{r.num_replicas // r.num_nodes} {r.device_type}",
    "exchange": lambda r: r.collective or "-",
    "status": lambda r: r.status,
    "images/s": lambda r: _figure(r.images_per_second),
    "median ms/step": lambda r: _figure(r.step_seconds.median * 1000 if r.step_seconds else None),
    "MAD ms": lambda r: _figure(r.step_seconds.mad * 1000 if r.step_seconds else None),
    "first step s": lambda r: _figure(r.time_to_first_step_seconds),
    "memory MiB": lambda r: _figure(r.peak_memory_bytes.total / MIB if r.peak_memory_bytes else None, "{:,.0f}"),
    "first loss": lambda r: _figure(r.train_loss[0] if r.train_loss else None, "{:.5f}"),
    "last loss": lambda r: _figure(r.train_loss[-1] if r.train_loss else None, "{:.4f}"),
    "accuracy": lambda r: _figure(r.evaluations[-1].accuracy if r.evaluations else None, "{:.3f}"),
    "sample order": lambda r: (r.sample_order_sha256 or "-")[:8],
}


def print_table(results: Sequence[RunResult]) -> None:
    """One row per run; images/s is global, over the measured steps, by the slowest process."""
    from rich.table import Table

    table = Table()
    for column in _COLUMNS:
        numeric = column not in ("framework", "mode", "nodes x devices", "exchange", "status", "sample order")
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for result in results:
        table.add_row(*(cell(result) for cell in _COLUMNS.values()))
    stdout_console().print(table)


def print_sheet(results: Sequence[RunResult], sheet: Sheet) -> None:
    """The knobs that differ, then the verdict and its reasons."""
    from rich.table import Table

    table = Table(title="fairness sheet: the knobs that differ")
    table.add_column("knob")
    for result in results:
        table.add_column(f"{result.framework} {result.mode}", overflow="fold")
    table.add_column("")
    for row in sheet.rows:
        if not row.equal:
            table.add_row(row.knob, *map(str, row.values), "NOT COMPARABLE" if row.reason else "what is compared")
    console = stdout_console()
    console.print(table)
    console.print(sheet.summary, soft_wrap=True)
    for reason in sheet.reasons:
        console.print(f"- {reason}", soft_wrap=True)


def print_summary(result: RunResult, run_dir: Path) -> None:
    """One run, a line per figure."""
    from rich.table import Table

    emulated = " (emulated: not the framework's own code for this mode)" if result.emulated else ""
    topology = f"{result.num_nodes} nodes x {result.num_replicas // result.num_nodes} {result.device_type} devices"
    rows = {
        "mode": f"{result.framework} {result.mode}{emulated}, exchange: {result.collective}",
        "devices": f"{topology}, {result.num_processes} processes, {result.num_replicas} replicas",
        "workload": f"{result.model} on {result.dataset}, {result.image_size} px, global batch "
        f"{result.global_batch_size}, {result.precision}, profile {result.profile}",
        "speed": f"{_figure(result.images_per_second)} images/s over {result.measured_steps} measured steps",
    }
    if result.step_seconds:
        step = result.step_seconds
        rows["step"] = f"median {step.median * 1000:.1f} ms, MAD {step.mad * 1000:.1f}, p95 {step.p95 * 1000:.1f}"
    if result.time_to_first_step_seconds is not None:
        rows["time"] = (
            f"{result.time_to_first_step_seconds:.1f} s to the first step, {result.wall_seconds:.1f} s in all"
        )
    if result.peak_memory_bytes:
        peak = result.peak_memory_bytes
        rows["memory"] = f"{peak.total / MIB:,.0f} MiB, largest process {peak.max_process / MIB:,.0f} MiB"
    if result.train_loss:
        first, last = (_figure(result.train_loss[step], "{:.4f}") for step in (0, -1))
        rows["train loss"] = f"{first} -> {last}"
    for evaluation in result.evaluations:
        rows[f"epoch {evaluation.epoch}"] = (
            f"accuracy {evaluation.accuracy:.4f}, loss {_figure(evaluation.loss, '{:.4f}')}, {evaluation.count} samples"
        )
    if result.skipped_images:
        rows["skipped"] = f"{result.skipped_images} images that cannot be decoded"
    rows["result"] = str(run_dir / "result.json")
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    stdout_console().print(table)
