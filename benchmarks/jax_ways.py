"""What JAX's two ways cost: a step per replica (`jax.shard_map`) or one of the whole batch (`jax.jit`).

    python -m benchmarks.jax_ways [--model vit-ti16 ...] [--rounds 6] [--write [FOLDER]]

Two devices on the CPU, in one process and in two. In every round each way trains once, in an order that alternates.
What XLA exchanges in a step is counted in the programs that it has compiled.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from benchmarks.evidence import Keeper, extremes, number, spread, table, text
from benchmarks.in_turns import in_turns
from dpcompare import Cluster, RunConfig, Workload, run

MODELS = ("vit-ti16", "resnet18")
WORKLOAD = {
    **{"image_size": 64, "dataset": "synthetic-mini", "batchnorm": "sync"},
    **{"steps": 9, "warmup_steps": 3, "global_batch_size": 32},
}
PLACES = {"one process": (1, 2, "spmd"), "two processes": (2, 1, "multiprocess")}
"""Nodes, devices of each, and the mode whose step is a replica's."""
EXCHANGES = ({}, {"accumulate": 2}, {"precision": "bfloat16"})
"""Of the workload of which exchanges are counted, what differs from that which is timed."""
PROGRAMS = re.compile(r"jit__(train|accumulate|apply)_replica\.cpu_after_optimizations\.txt$")
COLLECTIVE = re.compile(r"= (.*?) (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(?:-start)?\(")
"""The line of XLA's text that has one: the types of its results, and its name."""
BYTES = {"f32": 4, "f64": 8, "bf16": 2, "s32": 4, "pred": 1}


@dataclass(frozen=True)
class Exchange:
    """What a step exchanges."""

    collectives: Counter[str]
    megabytes: float

    @property
    def in_words(self) -> str:
        return ", ".join(f"{count} {name}" for name, count in self.collectives.items()) or "none"


def config_of(mode: str, nodes: int, devices: int, workload: Workload) -> RunConfig:
    cluster = Cluster.partition(nodes, devices, device="cpu")
    return RunConfig(framework="jax", mode=mode, workload=workload, cluster=cluster)


def exchange_of(config: RunConfig) -> Exchange:
    """What XLA has compiled for a step of a run, in an empty cache, so that it compiles."""
    few = config.changed(workload=config.workload.changed(steps=1, warmup_steps=0))
    with tempfile.TemporaryDirectory(prefix="dpcompare-jax-ways-") as name:
        folder = Path(name)
        flags = f"--xla_dump_to={folder / 'xla'} --xla_dump_hlo_as_text"
        with patch.dict(os.environ, XLA_FLAGS=flags, DPCOMPARE_CACHE_DIR=str(folder / "cache")):
            run(few, folder / "run")
        return collectives_in(folder / "xla", few.workload.accumulate)


def collectives_in(folder: Path, micro_batches: int) -> Exchange:
    """The collectives of a step, from the texts of its programs, which two processes may number differently."""
    collectives: Counter[str] = Counter()
    num_bytes = 0
    paths = {found[1]: path for path in folder.iterdir() if (found := PROGRAMS.search(path.name))}
    for program, path in paths.items():
        times = micro_batches if program == "accumulate" else 1
        for types, name in COLLECTIVE.findall(path.read_text()):
            collectives[name] += times
            num_bytes += times * sum(
                BYTES[kind] * math.prod(map(int, filter(None, sides.split(","))))
                for kind, sides in re.findall(r"(\w+)\[([\d,]*)\]", types)
            )
    return Exchange(collectives, num_bytes / 1e6)


def speeds(configs: Sequence[RunConfig], rounds: int) -> list[list[float]]:
    """Images per second of each run, in each round."""
    return [[result.images_per_second for result in results] for results in in_turns(configs, rounds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=6)
    keeper = Keeper(parser, "benchmarks.jax_ways")
    arguments = parser.parse_args()
    exchanges, timed, ratios = [], [], []
    for model in arguments.model:
        workload = Workload(model=model, **WORKLOAD)
        for change in EXCHANGES:
            each = workload.changed(**change)
            for place, (nodes, devices, mode) in PLACES.items():
                for way in (mode, "jit"):
                    found = exchange_of(config_of(way, nodes, devices, each))
                    exchanges.append(
                        (model, place, each.precision, each.accumulate, way, found.in_words, found.megabytes)
                    )
        for place, (nodes, devices, mode) in PLACES.items():
            replicas, whole = speeds(
                [config_of(name, nodes, devices, workload) for name in (mode, "jit")], arguments.rounds
            )
            of_rounds = [second / first for first, second in zip(replicas, whole, strict=True)]
            ratios.append(spread(of_rounds))
            timed.append((model, place, mode, spread(replicas), spread(whole), spread(of_rounds)))
    size, batch = WORKLOAD["image_size"], WORKLOAD["global_batch_size"]
    medians = [ratio[0] for ratio in ratios if ratio is not None]
    keeper.keep(
        arguments.write,
        "jax-ways",
        "measured" if arguments.model == list(MODELS) else "open",
        sentences=[f"Two devices, {size} px, global batch {batch}, synchronized BatchNorm, {arguments.rounds} rounds."],
        tables=[
            table(
                [
                    *text("model", "devices in", "precision"),
                    number("micro-batches", "d"),
                    *text("mode", "collectives of a step"),
                    number("MB", ".2f"),
                ],
                exchanges,
            ),
            table(
                [
                    *text("model", "devices in", "mode of replicas"),
                    number("its images/s", ".1f"),
                    number("jit, images/s", ".1f"),
                    number("jit / it", ".2f"),
                ],
                timed,
            ),
        ],
        figures=extremes("ratio", medians, ".2f"),
    )


if __name__ == "__main__":
    main()
