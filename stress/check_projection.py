"""Do predictions meet what is measured after them? Links and numbers of nodes that nothing was fitted to. Needs root.

    sudo python -m stress.check_projection --out DIR                            # all of it, some hours on two cores
    sudo python -m stress.check_projection --out DIR --stop-before-measuring    # to keep a block's predictions first
    sudo python -m stress.check_projection --out DIR --write docs/projection.md # goes on where it was

`--write` writes the predictions too, where it stops before measuring: commit them before the next block's replace them.

The constants of each mode are fitted on 2 nodes, with an unlimited link and with 100mbit. These runs, and those without
exchange for each number of nodes, are made in rounds of random order, so that a change of the machine's speed meets
both. Then cells are predicted, and added to DIR/predictions.json. Only then are they measured, in rounds of
random order in which all runs that the predictions were made from are made again (latencies are not measured again).
Modes that compute alike make up a block, which is predicted and measured before the next one: the less time lies
between, the less the machine's speed changes. `--stop-before-measuring` stops when a block has been predicted; the same
command again measures it, and stops when the next one has been.
Two cores cannot compute for four nodes at the speed of two, so the run without exchange at the same number of nodes is
an input, and only the exchange is predicted. A cell is valid where that run differs by at most 10% before and after.
Exit code 3 unless 12 cells are valid, each within 15%, and their median within 5%. What the model gives with the
computing and the constants that were measured in the rounds of the cells is shown beside, and decides nothing: it is
not known before. No cell has a delay: tc's netem is not in every kernel.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any

from pydantic import TypeAdapter

from benchmarks.collectives import SIZES, latency_per_step, measured
from benchmarks.sections import commit, typed, write_section
from dpcompare import Cluster, RunConfig, Workload, prepare_inputs, run
from dpcompare.config.modes import MODES
from dpcompare.config.placement import Placement
from dpcompare.models.gradients import Gradients
from dpcompare.projection.calibration import Fitted, MeasuredCell, fit
from dpcompare.projection.cluster import interconnect_of_run
from dpcompare.projection.collectives import Interconnect
from dpcompare.projection.exchange import Exchange
from dpcompare.projection.link import Latency, tcp_link
from dpcompare.projection.measured import NO_LIMIT
from dpcompare.projection.recorded_exchange import exchange_of
from dpcompare.projection.slowest import slowest_of_each_step
from dpcompare.results.timing import measured_seconds

GRADIENTS: TypeAdapter[Gradients | None] = TypeAdapter(Gradients | None)
NO_SYNC = "none"
FREE = "free"
FITTED_ON = (FREE, "100mbit")
FITTED_NODES = 2
MOST_DIFFERENT = 0.10
LARGEST_ERROR, LARGEST_MEDIAN_ERROR = 0.15, 0.05
LEAST_CELLS = 12
WITHOUT_EXCHANGE = 2
"""Runs without exchange in each round, before as after: one of them differs from the next by 10% and more."""
Cell = tuple[str, int, str]
"""Mode, number of nodes, link."""
COMPUTES_AS = {"torch:fsdp": "torch:ddp"}
"""Modes whose exchange cannot be left out -> the mode that computes the same."""


class Campaign:
    """The runs, predictions and figures of one directory; what is there is not made again."""

    def __init__(self, folder: Path, workload: Workload, batch: int, rounds: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.rounds = folder, rounds
        self.predictions = folder / "predictions.json"
        self._workload, self._batch = workload, batch
        self._log = folder / "runs.jsonl"
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        self.made = {
            (row["stage"], row["mode"], row["nodes"], row["link"], row["round"]): row for row in map(json.loads, lines)
        }

    def config(self, mode: str, nodes: int) -> RunConfig:
        framework, name = mode.split(":")
        workload = self._workload.model_copy(update={"global_batch_size": self._batch * nodes})
        cluster = Cluster.partition(nodes, 1, device="cpu")
        return RunConfig(framework=framework, mode=name, workload=workload, cluster=cluster)

    def run(self, stage: str, mode: str, nodes: int, link: str, number: int) -> dict[str, Any]:
        """One run and what is kept of it."""
        key = (stage, mode, nodes, link, number)
        if key not in self.made:
            config = prepare_inputs(self.config(mode, nodes))
            placement = Placement(engine="namespaces", link=None if link in (FREE, NO_SYNC) else link)
            config = config.model_copy(update={"placement": placement, "sync_gradients": link != NO_SYNC})
            with tempfile.TemporaryDirectory(prefix="dpcompare-projection-") as folder:
                result = run(config, Path(folder) / "run")
                processes = measured_seconds(config, Path(folder) / "run")
            assert result.step_seconds is not None
            row = {
                "stage": stage, "mode": mode, "nodes": nodes, "link": link, "round": number,
                "seconds": result.step_seconds.median if config.sync_gradients else slowest_of_each_step(processes),
                "typical_seconds": mean(median(seconds) for seconds in processes),
                "disturbed_by": result.disturbed_by,
                "cores": result.settings["cores"],
                "gradients": GRADIENTS.dump_python(result.gradients, mode="json"),
            }  # fmt: skip
            self.made[key] = row
            with self._log.open("a") as log:
                log.write(json.dumps(row) + "\n")
            print(f"{stage}: {mode}, {nodes} nodes, {link}, round {number}: {row['seconds']:.3f} s", file=sys.stderr)
        return self.made[key]

    def predicted_blocks(self) -> list[dict[str, Any]]:
        """Of each block that has been predicted: by which commit, with which constants, and its cells."""
        return list(json.loads(self.predictions.read_text())) if self.predictions.exists() else []

    def predictions_of(self, cells: Sequence[Cell]) -> list[dict[str, Any]] | None:
        """Those of a block; None where it has not been predicted."""
        for document in self.predicted_blocks():
            if [(row["mode"], row["nodes"], row["link"]) for row in document["cells"]] == list(cells):
                return list(document["cells"])
        return None

    def rows(self, stage: str, mode: str, nodes: int, link: str) -> list[dict[str, Any]]:
        """Of all rounds that were made."""
        return [row for key, row in self.made.items() if key[:4] == (stage, mode, nodes, link)]

    def median(self, stage: str, mode: str, nodes: int, link: str, figure: str = "seconds") -> float:
        """Over the rounds."""
        return median(row[figure] for row in self.rows(stage, mode, nodes, link))


def without_exchange(mode: str) -> str:
    """The mode that makes the run without exchange."""
    return COMPUTES_AS.get(mode, mode)


def collective_of(mode: str) -> str:
    """What carries its gradients between CPUs."""
    return MODES[tuple(mode.split(":"))].collective["cpu"]


def interconnect(campaign: Campaign, mode: str, nodes: int, link: str, latency: float) -> Interconnect:
    """Simulated nodes, linked by tc, which share the cores of this machine."""
    seconds = Latency(low=latency, typical=latency, high=latency)
    return interconnect_of_run(
        campaign.config(mode, nodes),
        collective=collective_of(mode),
        between=replace(NO_LIMIT, latency=seconds) if link == FREE else tcp_link(link, seconds),
        within=NO_LIMIT,
        cores=campaign.rows("before", without_exchange(mode), FITTED_NODES, NO_SYNC)[0]["cores"],
    )


def exchange(campaign: Campaign, mode: str) -> Exchange:
    """In which messages the mode exchanges its gradients, as its runs recorded it."""
    config = prepare_inputs(campaign.config(mode, FITTED_NODES))
    with_it, without = (
        GRADIENTS.validate_python(campaign.rows("before", name, FITTED_NODES, link)[0]["gradients"])
        for name, link in ((mode, FREE), (without_exchange(mode), NO_SYNC))
    )
    return exchange_of(config, [each for each in (with_it, without) if each], without)


def inputs(cells: Sequence[Cell]) -> list[Cell]:
    """The runs of a round from which these cells are predicted."""
    modes = list(dict.fromkeys(mode for mode, _, _ in cells))
    places = product(
        dict.fromkeys(map(without_exchange, modes)), sorted({FITTED_NODES, *(nodes for _, nodes, _ in cells)})
    )
    computing = [(mode, nodes, NO_SYNC) for mode, nodes in places] * WITHOUT_EXCHANGE
    return computing + [(mode, FITTED_NODES, link) for mode, link in product(modes, FITTED_ON)]


def blocks(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells by what their runs without exchange are."""
    computing = dict.fromkeys(without_exchange(mode) for mode, _, _ in cells)
    return [[cell for cell in cells if without_exchange(cell[0]) == mode] for mode in computing]


def make_round(campaign: Campaign, number: int, planned: Sequence[tuple[str, Cell]], seed: int) -> None:
    """The runs of a round, by stage, in random order; those planned several times have rounds of their own."""
    again = Counter[tuple[str, Cell]]()
    for stage, cell in random.Random(seed).sample(planned, len(planned)):
        campaign.run(stage, *cell, number + again[stage, cell] * campaign.rounds)
        again[stage, cell] += 1


def fitted(campaign: Campaign, stage: str, modes: Sequence[str], latencies: dict[str, float]) -> dict[str, Fitted]:
    """The constants of each mode, from the runs of a stage."""
    found = {}
    for mode in modes:
        computing_seconds = campaign.median(stage, without_exchange(mode), FITTED_NODES, NO_SYNC)
        latency = latencies[f"{mode} {FITTED_NODES}"]
        cells = [
            MeasuredCell(
                exchange=exchange(campaign, mode),
                computing_seconds=computing_seconds,
                seconds=campaign.median(stage, mode, FITTED_NODES, link),
                interconnect=interconnect(campaign, mode, FITTED_NODES, link, latency),
            )
            for link in FITTED_ON
        ]
        found[mode] = fit(cells)
        print(f"{stage}, {mode}: {found[mode]}", file=sys.stderr)
    return found


def variants(cell: MeasuredCell, constants: Fitted, typical_seconds: float) -> Iterator[tuple[str, float]]:
    """What the model predicts, and what it would without one of its terms."""
    links = cell.interconnect
    instant = replace(links.between, latency=Latency(low=0.0, typical=0.0, high=0.0))
    one_ring = replace(links, nodes=FITTED_NODES, contention=links.contention)
    yield "the model", cell.predicted(constants)
    yield "without overlap", replace(cell, exchange=cell.exchange.without_overlap()).predicted(constants)
    yield "without the slowest process", replace(cell, computing_seconds=typical_seconds).predicted(constants)
    yield "without latency", replace(cell, interconnect=replace(links, between=instant)).predicted(constants)
    yield "without copying", cell.predicted(replace(constants, copying=0.0))
    yield "without headers", cell.predicted(replace(constants, payload=1.0))
    yield "without the ring's factor", replace(cell, interconnect=one_ring).predicted(constants)
    yield "without exchange", cell.computing_seconds


def cell_to_predict(campaign: Campaign, place: Cell, stage: str, latencies: dict[str, float]) -> MeasuredCell:
    """A cell that need not be measured yet, with the computing of a stage."""
    mode, nodes, link = place
    computing = campaign.median(stage, without_exchange(mode), nodes, NO_SYNC)
    return MeasuredCell(
        exchange=exchange(campaign, mode),
        computing_seconds=computing,
        seconds=computing,
        interconnect=interconnect(campaign, mode, nodes, link, latencies[f"{mode} {nodes}"]),
    )


def predicted(campaign: Campaign, cells: Sequence[Cell], latencies: dict[str, float]) -> list[dict[str, Any]]:
    """A prediction for every cell, each with the runs without exchange that it was made from; written to the disk."""
    if (known := campaign.predictions_of(cells)) is not None:
        return known
    for number in range(1, campaign.rounds + 1):
        make_round(campaign, number, [("before", cell) for cell in inputs(cells)], seed=number)
    constants = fitted(campaign, "before", list(dict.fromkeys(mode for mode, _, _ in cells)), latencies)
    rows = []
    for mode, nodes, link in cells:
        typical = campaign.median("before", without_exchange(mode), nodes, NO_SYNC, "typical_seconds")
        cell = cell_to_predict(campaign, (mode, nodes, link), "before", latencies)
        rows.append(
            {
                "mode": mode, "nodes": nodes, "link": link, "computing_seconds": cell.computing_seconds,
                "predicted": dict(variants(cell, constants[mode], typical)),
            }
        )  # fmt: skip
    document = {"commit": commit(), "constants": {mode: vars(each) for mode, each in constants.items()}, "cells": rows}
    campaign.predictions.write_text(json.dumps([*campaign.predicted_blocks(), document], indent=2) + "\n")
    return rows


def measure(campaign: Campaign, cells: Sequence[Cell]) -> None:
    """Every cell in every round, in random order, and among them again all that they were predicted from."""
    for number in range(1, campaign.rounds + 1):
        planned = [("measured", cell) for cell in cells] + [("after", cell) for cell in inputs(cells)]
        make_round(campaign, number, planned, seed=100 + number)


def of_their_rounds(campaign: Campaign, cells: Sequence[Cell], latencies: dict[str, float]) -> list[float]:
    """What the model would have predicted of each cell, had the runs among the cells been known."""
    constants = fitted(campaign, "after", list(dict.fromkeys(mode for mode, _, _ in cells)), latencies)
    return [cell_to_predict(campaign, cell, "after", latencies).predicted(constants[cell[0]]) for cell in cells]


def judged(
    campaign: Campaign, predictions: Sequence[dict[str, Any]], as_measured_after: Sequence[float]
) -> tuple[list[str], bool]:
    """The tables, and whether predictions are as near as they are to be."""
    rows, valid, errors_beside = [], [], []
    for cell, beside in zip(predictions, as_measured_after, strict=True):
        place = (cell["mode"], cell["nodes"], cell["link"])
        seconds = campaign.median("measured", *place)
        after = campaign.median("after", without_exchange(cell["mode"]), cell["nodes"], NO_SYNC)
        drift = after / cell["computing_seconds"] - 1
        error = cell["predicted"]["the model"] / seconds - 1
        is_valid = abs(drift) <= MOST_DIFFERENT
        valid += [(cell, seconds)] if is_valid else []
        errors_beside.append(beside / seconds - 1)
        rows.append(
            f"| {' | '.join(map(str, place))} | {cell['computing_seconds']:.3f}, {after:.3f} | "
            f"{cell['predicted']['the model']:.3f} | {seconds:.3f} | {error:+.1%} | {'yes' if is_valid else 'no'} | "
            f"{errors_beside[-1]:+.1%} |"
        )

    def errors(variant: str) -> list[float]:
        return [abs(cell["predicted"][variant] / seconds - 1) for cell, seconds in valid]

    disturbed = sum(bool(row.get("disturbed_by")) for row in campaign.made.values())
    summary = [f"{len(valid)} of {len(rows)} cells are valid"]
    summary += [f"others took cores of {disturbed} of {len(campaign.made)} runs"] if disturbed else []
    passed = len(valid) >= LEAST_CELLS
    lines = [
        "| mode | nodes | link | s without exchange, before and after | predicted s | measured s | error | valid "
        "| error with what was measured after |",
        "|---|--:|---|--:|--:|--:|--:|---|--:|",
        *rows,
    ]
    if valid:
        found = errors("the model")
        passed = passed and max(found) <= LARGEST_ERROR and median(found) <= LARGEST_MEDIAN_ERROR
        summary.append(f"median error {median(found):.1%}, largest {max(found):.1%}")
        lines += ["", "| on the valid cells | median error | largest error |", "|---|--:|--:|"]
        lines += [
            f"| {name} | {median(errors(name)):.1%} | {max(errors(name)):.1%} |" for name in valid[0][0]["predicted"]
        ]
    of_all = [abs(error) for error in errors_beside]
    summary.append(f"with what was measured after, over all cells {median(of_all):.1%} and {max(of_all):.1%}")
    verdict = "PASSED" if passed else "FAILED"
    return [f"{verdict}: {', '.join(summary)}.", "", *lines], passed


def not_measured(predictions: Sequence[dict[str, Any]]) -> list[str]:
    """The table of what is predicted of cells that nobody has measured yet."""
    return [
        "These predictions were made before any of the cells was measured.",
        "",
        "| mode | nodes | link | s without exchange | predicted s |",
        "|---|--:|---|--:|--:|",
        *(
            f"| {cell['mode']} | {cell['nodes']} | {cell['link']} | {cell['computing_seconds']:.3f} | "
            f"{cell['predicted']['the model']:.3f} |"
            for cell in predictions
        ),
    ]


def predicted_and_measured(
    campaign: Campaign, cells: Sequence[Cell], latencies: dict[str, float], stop_before_measuring: bool
) -> tuple[list[str], bool]:
    """Block by block; the table of the one that it stops in, or those of all cells and whether they passed."""
    predictions = []
    for block in blocks(cells):
        is_new = campaign.predictions_of(block) is None
        of_block = predicted(campaign, block, latencies)
        if stop_before_measuring and is_new:
            return not_measured(of_block), True
        measure(campaign, block)
        predictions += of_block
    in_order = [cell for block in blocks(cells) for cell in block]
    return judged(campaign, predictions, of_their_rounds(campaign, in_order, latencies))


def latencies_of(campaign: Campaign, modes: Sequence[str], counts: Sequence[int]) -> dict[str, float]:
    """Seconds per step of the ring of each mode's collective, measured once per number of nodes."""
    path = campaign.folder / "latencies.json"
    if path.exists():
        return dict(json.loads(path.read_text()))
    collectives = {mode: collective_of(mode) for mode in modes}
    of_collective = {
        (name, count): latency_per_step(measured(name, count, FREE, SIZES[:1]), count)
        for name, count in product(dict.fromkeys(collectives.values()), counts)
    }
    found = {f"{mode} {count}": of_collective[collectives[mode], count] for mode, count in product(modes, counts)}
    path.write_text(json.dumps(found, indent=2) + "\n")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where runs, predictions and figures are kept")
    parser.add_argument("--mode", nargs="+", default=["torch:ddp", "tensorflow:multiworker", "torch:fsdp"])
    parser.add_argument("--nodes", nargs="+", type=int, default=[2, 3, 4])
    parser.add_argument("--link", nargs="+", default=["1gbit", "300mbit", "100mbit"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="efficientnet-b0")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16, help="per node")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--stop-before-measuring", action="store_true")
    parser.add_argument("--write", type=Path, metavar="FILE", help="a Markdown file whose section gets the tables")
    arguments = parser.parse_args()
    workload = Workload(
        model=arguments.model,
        image_size=arguments.image_size,
        dataset="synthetic",
        steps=arguments.steps,
        warmup_steps=4,
    )
    campaign = Campaign(arguments.out, workload, arguments.batch, arguments.rounds)
    cells = [
        (mode, nodes, link)
        for mode, nodes, link in product(arguments.mode, arguments.nodes, arguments.link)
        if not (nodes == FITTED_NODES and link in FITTED_ON)
    ]
    latencies = latencies_of(campaign, arguments.mode, sorted({FITTED_NODES, *arguments.nodes}))
    lines, passed = predicted_and_measured(campaign, cells, latencies, arguments.stop_before_measuring)
    lines = [f"{typed('stress.check_projection')} at {commit()}, {arguments.rounds} rounds:", "", *lines]
    print("\n".join(lines))
    if arguments.write:
        write_section(arguments.write, "validation", lines)
    return 0 if passed else 3


if __name__ == "__main__":
    sys.exit(main())
