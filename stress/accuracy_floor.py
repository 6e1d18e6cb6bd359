"""How far rounding alone moves the accuracy of a run: the run, and twins whose initial weights were disturbed by 1e-7.

    python -m stress.accuracy_floor [--mode torch:single] [--twins 4] [--model NAME] [--image-size 64]
                                    [--dataset NAME] [--steps N]

Prints the accuracy of each and the largest difference, on the CPU; modes of several devices have two. Arms of a study
that are closer to each other than that have not trained differently.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from dpcompare import Cluster, RunConfig, Workload, run
from dpcompare.config.modes import MODES
from dpcompare.experiments.verify_runs import FLOOR_PERTURBATION, disturbed
from dpcompare.launch.inputs import prepare_inputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", default="torch:single")
    parser.add_argument("--twins", type=int, default=4)
    parser.add_argument("--model", default="efficientnet-b2")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--steps", type=int, help="default: one epoch")
    arguments = parser.parse_args()
    workload = Workload(
        model=arguments.model, image_size=arguments.image_size, dataset=arguments.dataset, steps=arguments.steps
    )
    framework, mode = arguments.mode.split(":")
    row = MODES[framework, mode]
    nodes, devices = (2, 1) if row.multi_node else (1, 2) if row.multi_device else (1, 1)
    cluster = Cluster.partition(nodes, devices, device="cpu")
    config = prepare_inputs(RunConfig(framework=framework, mode=mode, workload=workload, cluster=cluster))
    accuracies = []
    with tempfile.TemporaryDirectory(prefix="dpcompare-floor-") as temporary:
        folder = Path(temporary)
        for seed in range(arguments.twins + 1):
            config_of = disturbed(config, folder, seed, FLOOR_PERTURBATION["float32"]) if seed else config
            last = run(config_of, folder / f"run-{seed}").evaluations[-1]
            accuracies.append(last.accuracy)
            name = f"twin {seed}" if seed else "the run"
            print(f"{name}: accuracy {last.accuracy:.4f}, loss {last.loss}", flush=True)
    print(f"{last.count} samples; largest difference {max(accuracies) - min(accuracies):.2%}")


if __name__ == "__main__":
    main()
