"""The fairness sheet of runs that compute the same: it must say nothing, whatever mode, precision and replicas.

    python -m stress.check_sheet [--only efficientnet-b0]

Trains each workload with several modes on 1 to 4 replicas, puts all pairs through the sheet, and prints which rows
differed and how much of its tolerance each figure took. Exit code 3 where one differed by more. About 50 short runs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

from dpcompare import Cluster, RunConfig, RunResult, Workload, run
from dpcompare.experiments.agreement import NOT_KNOWN, TOLERANCES
from dpcompare.experiments.fairness import compare
from dpcompare.experiments.fairness_checks import CHECKS
from dpcompare.launch.inputs import prepare_inputs

TINY = {"dataset": "synthetic-mini", "global_batch_size": 16, "warmup_steps": 1}
SGD = {"optimizer": "sgd", "learning_rate": 0.01, "augment": ("flip", "brightness", "contrast")}
WORKLOADS = [
    *(
        {"model": "toy-bn", "steps": 6, "precision": precision, **SGD}
        for precision in ("float32", "bfloat16", "float64")
    ),
    {"model": "toy-bn", "steps": 12, "precision": "bfloat16", "regularization": "shared"},
    {"model": "mlp", "steps": 12, "precision": "float32", "regularization": "shared"},
    {"model": "efficientnet-b0", "steps": 6, "precision": "bfloat16"},
]
"""The workloads by their fields; Adam if nothing else is said. The fifth step is the last of an epoch, and not full."""

ARMS = [
    *((framework, "single", 1, 1) for framework in ("torch", "tensorflow")),
    ("torch", "dp", 1, 2), ("torch", "ddp", 2, 1), ("torch", "ddp", 2, 2),
    ("tensorflow", "mirrored", 1, 2), ("tensorflow", "multiworker", 2, 1), ("tensorflow", "mirrored", 1, 4),
]  # fmt: skip
"""Framework, mode, nodes and devices per node."""

MAY_DIFFER = ("replicas", "batch per replica", "devices", "emulation")
"""Settings of what the pairs are about."""


def trained(workload: Workload, folder: Path) -> Iterator[RunResult]:
    """The results of all arms."""
    for framework, mode, nodes, devices in ARMS:
        cluster = Cluster.partition(nodes, devices, device="cpu")
        config = RunConfig(framework=framework, mode=mode, workload=workload, cluster=cluster)
        yield run(prepare_inputs(config), folder / f"{framework}-{mode}-{nodes}x{devices}")
        print(".", end="", flush=True, file=sys.stderr)


def parts_of_tolerance(results: Sequence[RunResult]) -> dict[str, float]:
    """Setting -> the largest difference of two results with as many replicas, as a part of what is tolerated."""
    precision = results[0].precision
    largest: dict[str, float] = {}
    for name, tolerances in TOLERANCES.items():
        for one, other in combinations(results, 2):
            if one.num_replicas != other.num_replicas or precision not in tolerances:
                continue
            figures = [
                value if isinstance(value := CHECKS[name].read(each), list) else [value] for each in (one, other)
            ]
            if NOT_KNOWN in (figures[0][0], figures[1][0]):
                continue
            least = 0.0 if name.endswith("norm") else 1.0
            part = max(abs(a - b) / max(least, abs(a), abs(b)) for a, b in zip(*figures, strict=True))
            largest[name] = max(largest.get(name, 0.0), part / tolerances[precision])
    return largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted({str(fields["model"]) for fields in WORKLOADS}), help="this model")
    only = parser.parse_args().only
    print(
        f"| workload | pairs | rows that differed | {' | '.join(TOLERANCES)} |\n|---|--:|---|{'--:|' * len(TOLERANCES)}"
    )
    false_alarms = 0
    for fields in [each for each in WORKLOADS if only in (None, each["model"])]:
        workload = Workload(**TINY | fields)
        with tempfile.TemporaryDirectory(prefix="dpcompare-sheet-") as folder:
            results = list(trained(workload, Path(folder)))
        print(file=sys.stderr)
        pairs = list(combinations(results, 2))
        spoke = Counter(row.setting for pair in pairs for row in compare(pair, subject=MAY_DIFFER).rows if row.reason)
        false_alarms += sum(spoke.values())
        largest = parts_of_tolerance(results)
        parts = " | ".join(f"{largest[name]:.1e}" if name in largest else "-" for name in TOLERANCES)
        named = ", ".join(f"{setting} {count}" for setting, count in spoke.items()) or "none"
        described = f"{workload.model}, {workload.optimizer}, {workload.precision}, {workload.regularization}"
        print(f"| {described} | {len(pairs)} | {named} | {parts} |", flush=True)
    sys.exit(3 if false_alarms else 0)


if __name__ == "__main__":
    main()
