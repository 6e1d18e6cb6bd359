"""The settings that change how long a step takes: arms that differ in no others are one family, and fit one model."""

from __future__ import annotations

from typing import Any

from dpcompare.config.run import RunConfig
from dpcompare.config.setting import Changes, names_that_change
from dpcompare.config.workload import Workload

PROJECTED = frozenset({"cluster", "placement", "global_batch_size"})
"""Fields that change how long a step takes, and that a projection changes."""
_KEPT_ELSEWHERE = frozenset({"workload", "sync_gradients"})
"""The workload's fields count one by one; runs without exchange belong to their arm."""


def settings_of_a_step(config: RunConfig) -> dict[str, Any]:
    """Name -> value of all that changes how long a step takes, but for what a projection changes."""
    left_out = PROJECTED | _KEPT_ELSEWHERE
    of_run = names_that_change(type(config), Changes.STEP_TIME) - left_out
    of_workload = names_that_change(Workload, Changes.STEP_TIME) - left_out
    found = config.model_dump(mode="json", include=set(of_run))
    found |= config.workload.model_dump(mode="json", include=set(of_workload))
    return found | {"device_type": config.cluster.device_type}


def differing_settings(one: RunConfig, other: RunConfig) -> list[str]:
    """In which of them two runs differ; empty: they are of one family."""
    mine, theirs = settings_of_a_step(one), settings_of_a_step(other)
    return [name for name in mine if mine[name] != theirs[name]]
