"""What Keras's own `fit` costs in each framework, against dpcompare's loop with the framework's own layers.

    python -m benchmarks.keras_costs [--model efficientnet-b2 ...] [--framework torch ...] [--rounds 6] [--same]
                                     [--write [FOLDER]]

On the CPU, with one device and, where Keras has a data parallelism, with two. In every round each trains once, in an
order that alternates, the same batches from the same weights. Each model takes half an hour or more on two cores, and
gets its own result file. --same measures no time: it compares the losses of a few steps in float64, since in float32
rounding grows with the steps, and another framework repeats Keras's last steps.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

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
    **{"steps": 8, "warmup_steps": 2, "global_batch_size": 16, "precision": "float32"},
}
IN_FLOAT64 = WORKLOAD | {
    **{"image_size": 32, "steps": 4, "warmup_steps": 0, "global_batch_size": 8, "precision": "float64"},
}
"""Few and small images, since XLA trains Keras's EfficientNet-B2 in float64 on 0.1 images/s of 64 px."""
COLUMNS = [
    *text("compared with"),
    number("devices", "d"),
    number("its images/s", ".1f"),
    number("keras-fit, images/s", ".1f"),
    number("keras-fit / it", ".2f"),
    number("losses apart by", ".1e"),
]
COLUMNS_OF_SAME = [
    *text("compared with"),
    number("devices", "d"),
    *(number(f"losses of step {step} apart by", ".1e") for step in (1, 2, 4)),
    number("late step, part of its tolerance", ".1e"),
]
"""A late step compares losses, updates, optimizer state and running statistics with those of another framework."""
OWN = (("torch", 1, "single"), ("tensorflow", 1, "single"), ("jax", 1, "single"))
OF_SEVERAL = (("tensorflow", 2, "mirrored"), ("jax", 2, "jit"))
"""Framework, devices, and the mode that `keras-fit` is compared with."""


def config_of(framework: str, devices: int, mode: str, workload: Workload, is_timed: bool) -> RunConfig:
    cluster = Cluster.partition(1, devices, device="cpu")
    if is_timed and framework == "jax" and mode != "keras-fit":
        # As Keras computes them: the ratio is to show what Keras costs, and not XLA's convolutions.
        kernels = {"workload": workload.changed(profile="native"), "tune": {"convolutions": "kernel"}}
        return RunConfig(framework=framework, mode=mode, cluster=cluster, **kernels)
    late_step = not is_timed and mode == "keras-fit"
    return RunConfig(framework=framework, mode=mode, workload=workload, cluster=cluster, late_step=late_step)


def in_words(model: str, options: Mapping[str, Any], rounds: int) -> str:
    of_model = f"{model}, {options['image_size']} px, global batch {options['global_batch_size']}"
    return f"{of_model}, synchronized BatchNorm (if any), Adam, {options['precision']}, {pluralize(rounds, 'round')}."


def apart(one: Sequence[RunResult], other: Sequence[RunResult]) -> np.ndarray:
    """The largest difference of each step's loss in any round, relative to it."""
    losses = [np.array([each.train_loss for each in results]) for results in (one, other)]
    return np.abs(losses[1] / losses[0] - 1).max(0)


def part_of_tolerance(result: RunResult) -> float:
    """What the late step of a run found; not a number where it was left out."""
    found = result.late_step and result.late_step.part_of_tolerance
    return math.nan if found is None else found


Pairs = Sequence[tuple[str, int, Sequence[RunConfig]]]
"""Framework and mode, devices, and the runs of that mode and of `keras-fit`."""


def costs(pairs: Pairs, rounds: int) -> dict[str, Any]:
    """What a result file holds of how fast they are, in so many rounds."""
    rows, ratios = [], []
    for name, devices, configs in pairs:
        own, fit = in_turns(configs, rounds)
        speeds = [[result.images_per_second for result in results] for results in (own, fit)]
        of_rounds = spread([second / first for first, second in zip(*speeds, strict=True)])
        ratios.append(of_rounds)
        rows.append((name, devices, spread(speeds[0]), spread(speeds[1]), of_rounds, apart(own, fit).max()))
    figures = extremes("ratio", [ratio[0] for ratio in ratios if ratio is not None], ".2f")
    return {"tables": [table(COLUMNS, rows)], "figures": figures}


def same(pairs: Pairs, rounds: int) -> dict[str, Any]:
    """What a result file holds of whether they train the same."""
    rows = []
    for name, devices, configs in pairs:
        own, fit = in_turns(configs, rounds)
        first, second, _, last = apart(own, fit)
        rows.append((name, devices, first, second, last, float(np.max(list(map(part_of_tolerance, fit))))))
    return {"tables": [table(COLUMNS_OF_SAME, rows)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=list(MODELS))
    parser.add_argument("--framework", nargs="+", choices=list(FRAMEWORKS), default=list(FRAMEWORKS))
    parser.add_argument("--rounds", type=int, help="default: 6, or 1 with --same")
    parser.add_argument("--same", action="store_true")
    keeper = Keeper(parser, "benchmarks.keras_costs")
    arguments = parser.parse_args()
    kind, found_of, options = ("same", same, IN_FLOAT64) if arguments.same else ("costs", costs, WORKLOAD)
    rounds = arguments.rounds or (1 if arguments.same else 6)
    of_models = {  # all of them first: an unknown model is refused before hours of others
        model: [
            (
                f"{framework} {mode}",
                devices,
                [
                    config_of(framework, devices, name, Workload(model=model, **options), not arguments.same)
                    for name in (mode, "keras-fit")
                ],
            )
            for framework, devices, mode in (*OWN, *OF_SEVERAL)
            if framework in arguments.framework
        ]
        for model in arguments.model
    }
    for model, pairs in of_models.items():
        began = time.monotonic()
        found = found_of(pairs, rounds)
        keeper.keep(
            arguments.write,
            f"keras-{kind}-{model}",
            "measured" if set(arguments.framework) == set(FRAMEWORKS) else "open",
            sentences=[in_words(model, options, rounds)],
            seconds=time.monotonic() - began,
            **found,
        )


if __name__ == "__main__":
    main()
