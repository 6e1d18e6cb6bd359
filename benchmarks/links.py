"""The throughput of two nodes over slower links: both frameworks, as hosts in network namespaces. Needs root.

    python -m benchmarks.links [--link free 10gbit 1gbit 100mbit] [--rounds 3] [--write [FOLDER]]

In every round each mode trains once per link, and once without gradient sync, in random order. Communication is the
difference of a step with and without gradient sync, in the same round. The floor is what a link needs for the gradients
in float32 alone: of two nodes each sends as many bytes as all gradients have (in a ring of n nodes, 2 (n - 1) / n of
them).
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median

from benchmarks.evidence import Keeper, Table, extremes, number, spread, table, text
from dpcompare import Cluster, RunConfig, Workload, run
from dpcompare.config.placement import Placement
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.models.architectures import MODELS
from dpcompare.models.state import is_statistic

MODES = (("torch", "ddp"), ("tensorflow", "multiworker"))
FREE = "free"
BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
NO_SYNC = "no gradient sync"

Steps = dict[tuple[str, str], list[float]]
"""(what is trained, link) -> seconds of a median step, per round."""


def trained(config: RunConfig, link: str) -> float:
    """Seconds of the median step of one run."""
    placement = Placement(engine="namespaces", link=None if link in (FREE, NO_SYNC) else link)
    changes = {"placement": placement, "sync_gradients": link != NO_SYNC}
    with tempfile.TemporaryDirectory(prefix="dpcompare-links-") as folder:
        result = run(config.model_copy(update=changes), Path(folder) / "run")
    assert result.step_seconds is not None
    return result.step_seconds.typical


def on_two_nodes(framework: str, mode: str, workload: Workload) -> RunConfig:
    """A run whose inputs are prepared."""
    cluster = Cluster.partition(2, 1, device="cpu")
    return prepare_inputs(RunConfig(framework=framework, mode=mode, workload=workload, cluster=cluster))


def measured(configs: Mapping[str, RunConfig], links: Sequence[str], rounds: int, generator: random.Random) -> Steps:
    """Each config once per link, and once without gradient sync, in random order in every round."""
    steps: Steps = defaultdict(list)
    for round_number in range(1, rounds + 1):
        each = [(name, link) for name in configs for link in (*links, NO_SYNC)]
        for name, link in generator.sample(each, len(each)):
            steps[name, link].append(trained(configs[name], link))
            print(f"round {round_number}: {name}, {link}: {steps[name, link][-1]:.3f} s per step", file=sys.stderr)
    return steps


def floor_seconds(workload: Workload, link: str) -> float:
    """What the link needs for the gradients, or 0 where it has no limit."""
    return 0.0 if link == FREE else gradient_bytes(workload) * 8 / (float(link[:-4]) * BITS[link[-4:]])


def gradient_bytes(workload: Workload) -> int:
    """Of all gradients, in float32."""
    shapes = MODELS[workload.model].shapes(workload.image_size, 10)
    return 4 * sum(math.prod(shape) for name, shape in shapes.items() if not is_statistic(name))


def fractions(steps: Steps, name: str, link: str) -> list[float]:
    """What part of a step is communication, in each round."""
    pairs = zip(steps[name, link], steps[name, NO_SYNC], strict=True)
    return [(with_it - without) / with_it for with_it, without in pairs]


def table_of(workload: Workload, steps: Steps, links: Sequence[str]) -> Table:
    columns = [
        *text("mode", "link"),
        number("images/s", ".1f"),
        number("s per step", ".2f"),
        number("communication, s", ".2f"),
        number("fraction of the step", ".0%"),
        number("floor, s", ".2f"),
    ]
    rows = []
    for name, link in product((f"{framework} {mode}" for framework, mode in MODES), links):
        pairs = list(zip(steps[name, link], steps[name, NO_SYNC], strict=True))
        rows.append(
            (
                name,
                link,
                spread([workload.global_batch_size / with_it for with_it, _ in pairs]),
                spread([with_it for with_it, _ in pairs]),
                spread([with_it - without for with_it, without in pairs]),
                spread(fractions(steps, name, link)),
                floor_seconds(workload, link),
            )
        )
    return table(columns, rows)


def figures_of(steps: Steps, links: Sequence[str]) -> dict[str, str]:
    """The fractions of the links, of each mode."""
    figures: dict[str, str] = {}
    for framework, mode in MODES:
        medians = [median(fractions(steps, f"{framework} {mode}", link)) for link in links]
        figures |= extremes(f"{framework}_{mode}_communication", medians, ".0%")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--link", nargs="+", default=[FREE, "10gbit", "1gbit", "100mbit"])
    parser.add_argument("--model", default="efficientnet-b2")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warmup-steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the order in a round")
    keeper = Keeper(parser, "benchmarks.links")
    arguments = parser.parse_args()
    workload = Workload(
        model=arguments.model,
        image_size=arguments.image_size,
        dataset="synthetic",
        steps=arguments.steps,
        warmup_steps=arguments.warmup_steps,
    )
    configs = {f"{framework} {mode}": on_two_nodes(framework, mode, workload) for framework, mode in MODES}
    steps = measured(configs, arguments.link, arguments.rounds, random.Random(arguments.seed))
    keeper.keep(
        arguments.write,
        "links",
        "open" if arguments.link != parser.get_default("link") else "measured",
        sentences=[f"{arguments.rounds} rounds."],
        tables=[table_of(workload, steps, arguments.link)],
        figures=figures_of(steps, arguments.link),
    )


if __name__ == "__main__":
    main()
