"""The settings that `compare --autotune` found on this machine, taken by a run with the native profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dpcompare.config.run import RunConfig


def as_remembered(config: RunConfig) -> RunConfig:
    """With what autotune found on this machine for a run like this, as far as that pays within its steps."""
    from dpcompare.config.run import RunConfig
    from dpcompare.launch.inputs import num_training_images
    from dpcompare.launch.remembered import remembered_settings

    workload = config.workload
    if workload.profile != "native" or config.tune or not (kept := remembered_settings(config)):
        return config
    num_images = workload.total_steps(num_training_images(config)) * workload.global_batch_size
    best, fastest, untuned = min(kept, key=lambda each: each.seconds(num_images)), kept[-1], kept[0]
    if best.tune:
        click.echo(
            f"native: {_in_words(best.tune)}, which autotune found on this machine: {best.images_per_second:.1f} "
            f"images/s instead of {untuned.images_per_second:.1f}; --tune NAME=VALUE chooses others",
            err=True,
        )
    if best is not fastest:
        click.echo(
            f"native: not {_in_words(fastest.tune)}: {fastest.images_per_second:.1f} images/s on this machine, but its "
            f"first step takes {fastest.first_step_seconds:.0f} s, more than a run of this length gains",
            err=True,
        )
    return RunConfig(**dict(config) | {"tune": best.tune, "autotuned": True})


def _in_words(tune: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in tune.items())
