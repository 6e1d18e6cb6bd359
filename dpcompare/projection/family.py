"""The settings that change how long a step takes: arms that differ in no others are one family, and fit one model."""

from __future__ import annotations

from typing import Any

from dpcompare.config.run import RunConfig

NOT_OF_A_STEP = frozenset({
    "cluster", "placement",  # what a projection changes
    "sync_gradients", "inputs",  # runs without exchange belong to their arm; files are where they are
    "launcher", "isolate", "python", "start_timeout", "progress_timeout", "max_restarts",  # starting and restarting
    "autotuned",  # where `tune` came from
    "checkpoint_every", "keep_checkpoints", "resume",  # between steps
    "evaluate_every", "target_accuracy", "stop_at_target", "keep_predictions", "on_nan",  # between steps, or the end
})  # fmt: skip
"""Fields of a RunConfig."""
NOT_OF_A_STEP_OF_WORKLOADS = frozenset({
    "global_batch_size",  # what a projection changes
    "epochs", "steps", "warmup_steps",  # how many steps are made and measured
    "learning_rate", "schedule", "lr_warmup_steps", "scale_lr", "weights", "seed", "batchnorm_momentum",  # values
    "batchnorm_recompute",  # in evaluations
    "skip_corrupt", "follow_links",  # before training
})  # fmt: skip
"""Fields of a Workload."""


def settings_of_a_step(config: RunConfig) -> dict[str, Any]:
    """Name -> value of all that changes how long a step takes, but for the cluster, its links and the batch."""
    found = config.model_dump(mode="json", exclude=set(NOT_OF_A_STEP | {"workload"}))
    found |= config.workload.model_dump(mode="json", exclude=set(NOT_OF_A_STEP_OF_WORKLOADS))
    return found | {"device_type": config.cluster.device_type}


def differing_settings(one: RunConfig, other: RunConfig) -> list[str]:
    """In which of them two runs differ; empty: they are of one family."""
    mine, theirs = settings_of_a_step(one), settings_of_a_step(other)
    return [name for name in mine if mine[name] != theirs[name]]
