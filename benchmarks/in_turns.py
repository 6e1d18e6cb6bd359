"""Runs that are compared, made in turns: each once in every round, in an order that alternates."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from dpcompare import RunConfig, run
from dpcompare.results.result import RunResult


def in_turns(configs: Sequence[RunConfig], rounds: int) -> list[list[RunResult]]:
    """The results of each run, one of each round."""
    found: list[list[RunResult]] = [[] for _ in configs]
    for number_of_round in range(rounds):
        order = list(enumerate(configs))
        for index, config in reversed(order) if number_of_round % 2 else order:
            with tempfile.TemporaryDirectory(prefix="dpcompare-in-turns-") as folder:
                found[index].append(run(config, Path(folder) / "run"))
    return found
