"""What Keras's own `fit` costs in each framework, against dpcompare's loop with the framework's own layers.

    python -m benchmarks.keras_costs [--model efficientnet-b2 ...] [--framework torch ...] [--rounds 6]
                                     [--write [FOLDER]]

On the CPU, with one device and, where Keras has a data parallelism, with two. In every round each trains once, in an
order that alternates, the same batches from the same weights; their losses show that they train the same. Each model
takes half an hour or more on two cores, and gets its own result file.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.evidence import Keeper, extremes, number, spread, table, text
from benchmarks.in_turns import in_turns
from dpcompare import Cluster, RunConfig, Workload
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.results.result import RunResult
from dpcompare.system.terminal_text import pluralize

MODELS = ("efficientnet-b2", "resnet50", "vit-s16")
WORKLOAD = {
    **{"image_size": 64, "dataset": "synthetic-mini", "batchnorm": "sync"},
    **{"steps": 9, "warmup_steps": 3, "global_batch_size": 16},
}
IN_WORDS = (
    f"{WORKLOAD['image_size']} px, global batch {WORKLOAD['global_batch_size']}, BatchNorm, if any, synchronized, Adam"
)
COLUMNS = [
    *text("compared with"),
    number("devices", "d"),
    number("its images/s", ".1f"),
    number("keras-fit, images/s", ".1f"),
    number("keras-fit / it", ".2f"),
    number("losses apart by", ".1e"),
]
OWN = (("torch", 1, "single"), ("tensorflow", 1, "single"), ("jax", 1, "single"))
OF_SEVERAL = (("tensorflow", 2, "mirrored"), ("jax", 2, "jit"))
"""Framework, devices, and the mode that `keras-fit` is compared with."""


def config_of(framework: str, devices: int, mode: str, model: str) -> RunConfig:
    cluster = Cluster.partition(1, devices, device="cpu")
    return RunConfig(framework=framework, mode=mode, workload=Workload(model=model, **WORKLOAD), cluster=cluster)


def apart(one: Sequence[RunResult], other: Sequence[RunResult]) -> float:
    """The largest difference of a loss in any round, relative to it."""
    losses = [np.array([each.train_loss for each in results]) for results in (one, other)]
    return float(np.abs(losses[1] / losses[0] - 1).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=list(MODELS))
    parser.add_argument("--framework", nargs="+", choices=list(FRAMEWORKS), default=list(FRAMEWORKS))
    parser.add_argument("--rounds", type=int, default=6)
    keeper = Keeper(parser, "benchmarks.keras_costs")
    arguments = parser.parse_args()
    pairs = {  # all of them first: an unknown model is refused before hours of others
        model: [
            (
                f"{framework} {mode}",
                devices,
                [config_of(framework, devices, name, model) for name in (mode, "keras-fit")],
            )
            for framework, devices, mode in (*OWN, *OF_SEVERAL)
            if framework in arguments.framework
        ]
        for model in arguments.model
    }
    for model, compared in pairs.items():
        began, rows, ratios = time.monotonic(), [], []
        for name, devices, configs in compared:
            own, fit = in_turns(configs, arguments.rounds)
            speeds = [[result.images_per_second for result in results] for results in (own, fit)]
            of_rounds = spread([second / first for first, second in zip(*speeds, strict=True)])
            ratios.append(of_rounds)
            rows.append((name, devices, spread(speeds[0]), spread(speeds[1]), of_rounds, apart(own, fit)))
        is_whole = set(arguments.framework) == set(FRAMEWORKS)
        keeper.keep(
            arguments.write,
            f"keras-costs-{model}",
            "measured" if is_whole else "open",
            sentences=[f"{model}, {IN_WORDS}, {pluralize(arguments.rounds, 'round')}."],
            tables=[table(COLUMNS, rows)],
            figures=extremes("ratio", [ratio[0] for ratio in ratios if ratio is not None], ".2f"),
            seconds=time.monotonic() - began,
        )


if __name__ == "__main__":
    main()
