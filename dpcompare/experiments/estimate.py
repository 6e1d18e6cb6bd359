"""How long the runs of a study will still take: from those that have ended, or by a rough guess."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.run import RunConfig
from dpcompare.experiments.study import Arm, Study
from dpcompare.launch.inputs import num_training_images
from dpcompare.models.architectures import model_of
from dpcompare.results.result import RunResult


def estimate_seconds(study: Study, ended: Sequence[tuple[Arm, int, RunResult | None]]) -> tuple[float, str]:
    """How long the missing runs will take, and what the estimate is based on.

    Args:
        study: what is to be run.
        ended: (arm, round, result) of what has ended, as from `results`; a failed arm is not run again.
    """
    known: dict[str, list[float]] = {}
    made: set[tuple[str, int]] = set()
    failed: set[str] = set()
    for arm, number, result in ended:
        if result is None:
            continue
        made.add((arm.name, number))
        if result.status == "completed":
            known.setdefault(arm.name, []).append(result.wall_seconds)
        else:
            failed.add(arm.name)
    total = 0.0
    for arm in study.arms:
        left = sum((arm.name, number) not in made for number in range(1, study.repeats + 1))
        if left and arm.name not in failed:
            seconds = known.get(arm.name)
            total += left * (float(np.median(seconds)) if seconds else _guess_seconds(arm.config))
    everything_known = all(arm.name in known or arm.name in failed for arm in study.arms)
    return total, "from earlier rounds" if everything_known else "a rough guess until every arm has run once"


# Images per second and core of EfficientNet-B2 at 64 px in float32, from 2 CPU cores.
_IMAGES_PER_CORE_SECOND = 50.0
# Of a GPU only guessed: some 300 images/s at 260 px, and kernels that are chosen or compiled first.
_GPU_START_SECONDS = 60.0
_IMAGES_PER_GPU_SECOND = 300.0 * (260 / 64) ** 2


def _guess_seconds(config: RunConfig) -> float:
    workload = config.workload
    num_steps = workload.steps or workload.total_steps(num_training_images(config))
    if config.cluster.device_type == "gpu":
        start, per_second = _GPU_START_SECONDS, _IMAGES_PER_GPU_SECOND * config.topology.num_replicas
    else:
        start = FRAMEWORKS[config.framework].cpu_start_seconds
        per_second = _IMAGES_PER_CORE_SECOND * sum(node.num_cores for node in config.cluster.nodes)
    size = (workload.image_size / 64) ** 2 if model_of(workload.model).is_big else 0.05
    slower = 8.0 if workload.precision == "float64" else 1.0
    images = num_steps * workload.global_batch_size
    return start + images * size * slower / per_second
