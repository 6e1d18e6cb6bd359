"""Do predictions meet what is measured after them? Links and numbers of nodes that nothing was fitted to. Needs root.

    sudo python -m stress.check_projection --out DIR                            # all of it, over an hour on two cores
    sudo python -m stress.check_projection --out DIR --stop-before-measuring    # to keep a round's predictions first
    sudo python -m stress.check_projection --out DIR [--write [FOLDER]]         # goes on where it was

Two cores cannot compute for four nodes at the speed of two, so the run without exchange at the same number of nodes is
an input, and only the exchange is predicted. Other inputs are runs of each mode on 2 nodes, with an unlimited link and
with 100mbit, to which its constants are fitted. The latency of the smallest all-reduce is measured once, at the start.

A machine that others use changes its speed within minutes, so a study is made of short rounds: the inputs are measured,
in random order; from these alone the cells are predicted, and added to DIR/predictions.json; then the cells are
measured, in random order; then the inputs again, from which the next round is predicted. Modes that compute alike make
up a block, whose rounds all come before those of the next one. `--stop-before-measuring` stops when a round has been
predicted, and `--write` then writes the predictions of that round, to be committed; the same command again measures
it, and stops when the next one has been predicted.

A cell is valid in a round where its run without exchange, measured before and after the cells, differs by at most 10%.
It is valid where it is so in more than half of all rounds; its error is then the median of the signed errors in these
rounds, else in all. Exit code 3 unless 12 cells are valid, each within 15%, and their median within 5%. What the model
gives with the inputs that were measured after the cells is shown too, and decides nothing: it is not known before.
No cell has a delay: tc's netem is not in every kernel.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any

from pydantic import TypeAdapter

from benchmarks.collectives import SIZES, latency_per_step, measured
from benchmarks.evidence import Keeper, Status, Table, commit, number, table, text
from dpcompare import Cluster, RunConfig, Workload, run
from dpcompare.config.modes import MODES
from dpcompare.config.placement import Placement
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.models.state import Gradients
from dpcompare.projection.calibration import Fitted, MeasuredCell, exchange_of, fit, interconnect_of_run
from dpcompare.projection.exchange import Exchange
from dpcompare.projection.link import Interconnect, Latency, tcp_link
from dpcompare.projection.measured import NO_LIMIT
from dpcompare.projection.step import slowest_of_each_step
from dpcompare.results.timing import measured_seconds
from dpcompare.system.terminal_text import pluralize
from stress.judged_predictions import (
    MODEL,
    Cell,
    JudgedRound,
    figures_of,
    is_valid,
    judged,
    table_of_cells,
    table_of_variants,
)

GRADIENTS: TypeAdapter[Gradients | None] = TypeAdapter(Gradients | None)
NO_SYNC = "none"
FREE = "free"
FITTED_ON = (FREE, "100mbit")
FITTED_NODES = 2
WITHOUT_EXCHANGE = 2
"""Runs without exchange in each round: one of them differs from the next by 10% and more."""
TIMES_AS_MANY_STEPS = 4
"""Where no link is limited: these steps are shorter, and a run is to see the machine for as long as another one."""
COMPUTES_AS = {"torch:fsdp": "torch:ddp"}
"""Modes whose exchange cannot be left out -> the mode that computes the same."""


class Campaign:
    """The runs, predictions and figures of one directory; what is there is not repeated."""

    def __init__(self, folder: Path, workload: Workload, batch: int, rounds: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.rounds = folder, rounds
        self.predictions = folder / "predictions.json"
        self._workload, self._batch = workload, batch
        self._log = folder / "runs.jsonl"
        rows = [json.loads(line) for line in self._log.read_text().splitlines()] if self._log.exists() else []
        if not all("repetition" in row for row in rows):
            raise SystemExit(f"--out: {folder} holds a study of an older version; expected another directory")
        self.made = {(row["round"], row["mode"], row["nodes"], row["link"], row["repetition"]): row for row in rows}

    def config(self, mode: str, nodes: int) -> RunConfig:
        framework, name = mode.split(":")
        workload = self._workload.model_copy(update={"global_batch_size": self._batch * nodes})
        cluster = Cluster.partition(nodes, 1, device="cpu")
        return RunConfig(framework=framework, mode=name, workload=workload, cluster=cluster)

    def run(self, number: int, mode: str, nodes: int, link: str, repetition: int) -> dict[str, Any]:
        """One run of a round and what is kept of it."""
        key = (number, mode, nodes, link, repetition)
        if key not in self.made:
            config = prepare_inputs(self.config(mode, nodes))
            is_limited = link not in (FREE, NO_SYNC)
            placement = Placement(engine="namespaces", link=link if is_limited else None)
            steps = self._workload.steps * (1 if is_limited else TIMES_AS_MANY_STEPS)
            workload = config.workload.model_copy(update={"steps": steps})
            changes = {"workload": workload, "placement": placement, "sync_gradients": link != NO_SYNC}
            config = config.model_copy(update=changes)
            with tempfile.TemporaryDirectory(prefix="dpcompare-projection-") as folder:
                result = run(config, Path(folder) / "run")
                processes = measured_seconds(config, Path(folder) / "run")
            assert result.step_seconds is not None
            row = {
                "round": number, "mode": mode, "nodes": nodes, "link": link, "repetition": repetition,
                "seconds": result.step_seconds.typical if config.sync_gradients else slowest_of_each_step(processes),
                "typical_seconds": mean(median(seconds) for seconds in processes),
                "disturbed_by": result.disturbed_by,
                "cores": result.settings["cores"],
                "gradients": GRADIENTS.dump_python(result.gradients, mode="json"),
            }  # fmt: skip
            self.made[key] = row
            with self._log.open("a") as log:
                log.write(json.dumps(row) + "\n")
            print(f"round {number}: {mode}, {nodes} nodes, {link}: {row['seconds']:.3f} s", file=sys.stderr)
        return self.made[key]

    def make(self, number: int, planned: Sequence[Cell], seed: int) -> None:
        """These runs of a round, each as often as it is planned, in random order."""
        for cell, repetition in random.Random(seed).sample(planned_with_repetitions(planned), len(planned)):
            self.run(number, *cell, repetition)

    def predicted_rounds(self) -> list[dict[str, Any]]:
        """The rounds that have been predicted: which, by which commit, with which constants, and their cells."""
        return list(json.loads(self.predictions.read_text())) if self.predictions.exists() else []

    def predictions_of(self, cells: Sequence[Cell], number: int) -> list[dict[str, Any]] | None:
        """Those of a block in a round; None where it has not been predicted."""
        for document in self.predicted_rounds():
            places = [(row["mode"], row["nodes"], row["link"]) for row in document["cells"]]
            if document["round"] == number and places == list(cells):
                return list(document["cells"])
        return None

    def rows(self, number: int, mode: str, nodes: int, link: str) -> list[dict[str, Any]]:
        """The rows of a round."""
        return [row for key, row in self.made.items() if key[:4] == (number, mode, nodes, link)]

    def median(self, number: int, mode: str, nodes: int, link: str, figure: str = "seconds") -> float:
        """Over the runs of a round."""
        return median(row[figure] for row in self.rows(number, mode, nodes, link))

    def computing(self, number: int, mode: str, nodes: int, figure: str = "seconds") -> float:
        """A figure of the run without exchange."""
        return self.median(number, without_exchange(mode), nodes, NO_SYNC, figure)


def planned_with_repetitions(planned: Sequence[Cell]) -> list[tuple[Cell, int]]:
    """Each with how often it came before."""
    return [(cell, planned[:index].count(cell)) for index, cell in enumerate(planned)]


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
        cores=campaign.rows(1, without_exchange(mode), FITTED_NODES, NO_SYNC)[0]["cores"],
    )


def exchange(campaign: Campaign, mode: str) -> Exchange:
    """In which messages the mode exchanges its gradients, as its runs of the first round recorded it."""
    config = prepare_inputs(campaign.config(mode, FITTED_NODES))
    with_it, without = (
        GRADIENTS.validate_python(campaign.rows(1, name, FITTED_NODES, link)[0]["gradients"])
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


def fitted(campaign: Campaign, number: int, modes: Sequence[str], latencies: dict[str, float]) -> dict[str, Fitted]:
    """The constants of each mode, from the inputs of a round."""
    found = {}
    for mode in modes:
        latency = latencies[f"{mode} {FITTED_NODES}"]
        cells = [
            MeasuredCell(
                exchange=exchange(campaign, mode),
                computing_seconds=campaign.computing(number, mode, FITTED_NODES),
                seconds=campaign.median(number, mode, FITTED_NODES, link),
                interconnect=interconnect(campaign, mode, FITTED_NODES, link, latency),
            )
            for link in FITTED_ON
        ]
        found[mode] = fit(cells)
        print(f"round {number}, {mode}: {found[mode]}", file=sys.stderr)
    return found


def variants(cell: MeasuredCell, constants: Fitted, typical_seconds: float) -> Iterator[tuple[str, float]]:
    """What the model predicts, and what it would without one of its terms."""
    links = cell.interconnect
    instant = replace(links.between, latency=Latency(low=0.0, typical=0.0, high=0.0))
    one_ring = replace(links, nodes=FITTED_NODES, contention=links.contention)
    yield MODEL, cell.predicted(constants)
    yield "without overlap", replace(cell, exchange=cell.exchange.without_overlap()).predicted(constants)
    yield "without the slowest process", replace(cell, computing_seconds=typical_seconds).predicted(constants)
    yield "without latency", replace(cell, interconnect=replace(links, between=instant)).predicted(constants)
    yield "without copying", cell.predicted(replace(constants, copying=0.0))
    in_pairs = replace(links, pair_gathers=1.0)
    yield "without the slower gathers of pairs", replace(cell, interconnect=in_pairs).predicted(constants)
    yield "without headers", cell.predicted(replace(constants, payload=1.0))
    yield "without the ring's factor", replace(cell, interconnect=one_ring).predicted(constants)
    yield "without exchange", cell.computing_seconds


def cell_to_predict(campaign: Campaign, place: Cell, number: int, latencies: dict[str, float]) -> MeasuredCell:
    """A cell that need not be measured yet, with the computing that is an input of a round."""
    mode, nodes, link = place
    computing = campaign.computing(number, mode, nodes)
    return MeasuredCell(
        exchange=exchange(campaign, mode),
        computing_seconds=computing,
        seconds=computing,
        interconnect=interconnect(campaign, mode, nodes, link, latencies[f"{mode} {nodes}"]),
    )


def predicted(
    campaign: Campaign, cells: Sequence[Cell], number: int, latencies: dict[str, float]
) -> list[dict[str, Any]]:
    """A prediction for every cell of a block, from the inputs of a round alone; written to the disk."""
    if (known := campaign.predictions_of(cells, number)) is not None:
        return known
    if measured_before := [cell for cell in cells if campaign.rows(number, *cell)]:
        raise SystemExit(
            f"--out: {campaign.folder} has measured {measured_before[0]} in round {number}, which can no longer be "
            "predicted; expected the modes, nodes and links that the study was begun with, or another directory"
        )
    campaign.make(number, inputs(cells), seed=number)
    constants = fitted(campaign, number, list(dict.fromkeys(mode for mode, _, _ in cells)), latencies)
    rows = []
    for place in cells:
        mode, nodes, link = place
        typical = campaign.computing(number, mode, nodes, "typical_seconds")
        cell = cell_to_predict(campaign, place, number, latencies)
        rows.append(
            {
                "mode": mode, "nodes": nodes, "link": link, "computing_seconds": cell.computing_seconds,
                "predicted": dict(variants(cell, constants[mode], typical)),
            }
        )  # fmt: skip
    document = {
        "round": number,
        "commit": commit(),
        "constants": {mode: vars(each) for mode, each in constants.items()},
        "cells": rows,
    }
    campaign.predictions.write_text(json.dumps([*campaign.predicted_rounds(), document], indent=2) + "\n")
    return rows


def rounds_of(campaign: Campaign, cells: Sequence[Cell], latencies: dict[str, float]) -> dict[Cell, list[JudgedRound]]:
    """The rounds of a block, all of which have been measured."""
    found: dict[Cell, list[JudgedRound]] = {cell: [] for cell in cells}
    modes = list(dict.fromkeys(mode for mode, _, _ in cells))
    for index in range(1, campaign.rounds + 1):
        constants = fitted(campaign, index + 1, modes, latencies)
        for cell, row in zip(cells, predicted(campaign, cells, index, latencies), strict=True):
            again = cell_to_predict(campaign, cell, index + 1, latencies)
            found[cell].append(
                JudgedRound(
                    predicted=row["predicted"],
                    as_measured_after=again.predicted(constants[cell[0]]),
                    seconds=campaign.median(index, *cell),
                    computing=(row["computing_seconds"], again.computing_seconds),
                )
            )
    return found


def not_measured(predictions: Sequence[dict[str, Any]], of_round: int) -> Table:
    """The table of what is predicted of cells that are not measured yet in this round."""
    columns = [
        *text("mode"),
        number("nodes"),
        *text("link"),
        number("s without exchange", ".3f"),
        number("predicted s", ".3f"),
    ]
    rows = [
        (cell["mode"], cell["nodes"], cell["link"], cell["computing_seconds"], cell["predicted"][MODEL])
        for cell in predictions
    ]
    title = f"Round {of_round}: these predictions were made before any of the cells was measured in this round."
    return table(columns, rows, title)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a call has found."""

    status: Status
    """Open: it has stopped before a round was measured."""
    tables: list[Table]
    figures: dict[str, str | int]


def outcome_of(found: dict[Cell, list[JudgedRound]], disturbed: str) -> Outcome:
    """Of all cells.

    Args:
        disturbed: what is to be said of runs that others disturbed.
    """
    verdict, passed = judged(found, disturbed)
    tables = [table_of_cells(found, verdict)]
    tables += [table_of_variants(found)] if any(map(is_valid, found.values())) else []
    return Outcome(status="passed" if passed else "failed", tables=tables, figures=figures_of(found))


def predicted_and_measured(
    campaign: Campaign, cells: Sequence[Cell], latencies: dict[str, float], stop_before_measuring: bool
) -> Outcome:
    """Block by block, round by round; the predictions of the round that it stops in, or what came of all."""
    found: dict[Cell, list[JudgedRound]] = {}
    for block in blocks(cells):
        for index in range(1, campaign.rounds + 1):
            is_new = campaign.predictions_of(block, index) is None
            of_round = predicted(campaign, block, index, latencies)
            if stop_before_measuring and is_new:
                return Outcome(status="open", tables=[not_measured(of_round, index)], figures=figures_of({}))
            campaign.make(index, block, seed=100 + index)
        campaign.make(campaign.rounds + 1, inputs(block), seed=campaign.rounds + 1)
        found |= rounds_of(campaign, block, latencies)
    disturbed = sum(bool(row.get("disturbed_by")) for row in campaign.made.values())
    told = f"others took cores of {disturbed} of {len(campaign.made)} runs" if disturbed else ""
    return outcome_of(found, told)


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
    parser.add_argument("--link", nargs="+", default=["1gbit", "300mbit"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="efficientnet-b0")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16, help="per node")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--stop-before-measuring", action="store_true")
    keeper = Keeper(parser, "stress.check_projection")
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
    outcome = predicted_and_measured(campaign, cells, latencies, arguments.stop_before_measuring)
    is_whole = arguments.rounds >= parser.get_default("rounds") and all(
        len(getattr(arguments, name)) >= len(parser.get_default(name)) for name in ("mode", "nodes", "link")
    )
    keeper.keep(
        arguments.write,
        "-".join(["projection", *arguments.link]),
        outcome.status if is_whole or outcome.status == "failed" else "open",
        sentences=[f"{pluralize(arguments.rounds, 'round')}."],
        tables=outcome.tables,
        figures=outcome.figures,
    )
    return 3 if outcome.status == "failed" else 0


if __name__ == "__main__":
    sys.exit(main())
