"""What part of a step the exchange of gradients takes, by model and link: why the model decides whether a mode scales.

    python -m benchmarks.exchange_by_model [--model resnet50 ...] [--link 10gbit 1gbit] [--rounds 3] [--write [FOLDER]]

Two nodes, as hosts in network namespaces, so it needs root. In every round each model trains once per link, and once
without gradient sync, in random order. The runs are made as in `benchmarks.links`.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from itertools import product
from statistics import median

from benchmarks.evidence import Keeper, Table, extremes, number, spread, table, text
from benchmarks.links import NO_SYNC, Steps, floor_seconds, fractions, gradient_bytes, measured, on_two_nodes
from dpcompare import Workload
from dpcompare.models.costs import training_flops

MODELS = ("efficientnet-b2", "vit-s16", "resnet50", "vgg16")
WORKLOAD = {"image_size": 64, "dataset": "synthetic", "steps": 9, "warmup_steps": 3}


def table_of(workloads: Sequence[Workload], steps: Steps, links: Sequence[str]) -> Table:
    columns = [
        *text("model", "link"),
        number("MB of gradients", ".1f"),
        number("GFLOP per image", ".2f"),
        number("s per step", ".2f"),
        number("exchange, s", ".2f"),
        number("fraction of the step", ".0%"),
        number("floor, s", ".2f"),
    ]
    rows = []
    for workload, link in product(workloads, links):
        pairs = list(zip(steps[workload.model, link], steps[workload.model, NO_SYNC], strict=True))
        flops = training_flops(workload.model, workload.image_size, 10)
        assert flops is not None
        rows.append(
            (
                workload.model,
                link,
                gradient_bytes(workload) / 1e6,
                flops / 1e9,
                spread([with_it for with_it, _ in pairs]),
                spread([with_it - without for with_it, without in pairs]),
                spread(fractions(steps, workload.model, link)),
                floor_seconds(workload, link),
            )
        )
    return table(columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=list(MODELS))
    parser.add_argument("--link", nargs="+", default=["10gbit", "1gbit"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the order in a round")
    keeper = Keeper(parser, "benchmarks.exchange_by_model")
    arguments = parser.parse_args()
    workloads = [Workload(model=model, **WORKLOAD) for model in arguments.model]
    configs = {workload.model: on_two_nodes("torch", "ddp", workload) for workload in workloads}
    steps = measured(configs, arguments.link, arguments.rounds, random.Random(arguments.seed))
    slowest = [median(fractions(steps, workload.model, arguments.link[-1])) for workload in workloads]
    size, batch = workloads[0].image_size, workloads[0].global_batch_size
    is_whole = (arguments.model, arguments.link) == (parser.get_default("model"), parser.get_default("link"))
    keeper.keep(
        arguments.write,
        "exchange-by-model",
        "measured" if is_whole else "open",
        sentences=[f"torch ddp, {size} px, global batch {batch}, {arguments.rounds} rounds."],
        tables=[table_of(workloads, steps, arguments.link)],
        figures=extremes("fraction", slowest, ".0%"),
    )


if __name__ == "__main__":
    main()
