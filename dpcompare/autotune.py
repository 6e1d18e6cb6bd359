"""Finds the settings of the native profile that are fastest on this machine: a short run for each, one setting after the other."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from dpcompare.config import RunConfig
from dpcompare.documents import write_document
from dpcompare.errors import RequestError, RunFailedError
from dpcompare.runner import run
from dpcompare.study import Arm, Study, is_study
from dpcompare.tuning import settings_of

AUTOTUNE_FILE = "autotune.json"
STEPS, WARMUP_STEPS = 16, 6
LEAST_GAIN = 0.03
"""A setting is changed where that makes a short run faster by more than this, about the noise of so few steps."""


class Tried(BaseModel):
    """One short run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tune: dict[str, str]
    """What was changed of the native profile."""
    images_per_second: float | None
    """None where it failed."""
    kept: bool


class Autotuning(BaseModel):
    """autotune.json: what was tried for each arm."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arms: dict[str, list[Tried]]


def tuned(study: Study, study_dir: Path, tell: Callable[[str], None]) -> tuple[Study, Autotuning | None]:
    """The study with its native arms tuned for this machine; one that goes on keeps what was found when it began.

    Args:
        study_dir: where the study is, or will be.
        tell: called with a line for every short run.

    Raises:
        RequestError: no arm has the native profile.
    """
    native = [arm for arm in study.arms if arm.config.workload.profile == "native"]
    if not native:
        raise RequestError(
            "--autotune: received arms of the strict profile only, which has nothing to tune; expected --profile native, or an "
            "arm such as torch:ddp,profile=native"
        )
    if is_study(study_dir):
        known = {arm.name: arm.config.tune for arm in Study.load(study_dir).arms}
        return _with(study, known), None
    tried = {arm.name: list(_tries(arm, tell)) for arm in native if arm.ablation_of is None}
    best = {name: [one for one in made if one.kept][-1].tune for name, made in tried.items()}
    best |= {arm.name: best[arm.ablation_of] for arm in native if arm.ablation_of is not None}
    return _with(study, best), Autotuning(arms=tried)


def save(autotuning: Autotuning, study_dir: Path) -> None:
    write_document(autotuning, study_dir / AUTOTUNE_FILE)


def _with(study: Study, tunes: dict[str, dict[str, str]]) -> Study:
    arms = tuple(
        arm.model_copy(update={"config": arm.config.model_copy(update={"tune": tunes.get(arm.name, arm.config.tune)})})
        for arm in study.arms
    )
    return study.model_copy(update={"arms": arms})


def _tries(arm: Arm, tell: Callable[[str], None]) -> Iterator[Tried]:
    """The native profile as it is, then every other value of each setting beside the best so far."""
    config = arm.config
    best, best_speed = dict(config.tune), 0.0
    candidates = [{}, *({name: value} for name, value in _others(config))]
    for change in candidates:
        tune = best | change
        speed = _speed(config.model_copy(update={"tune": tune}))
        kept = not change or (speed is not None and speed > best_speed * (1 + LEAST_GAIN))
        what = ", ".join(f"{name}={value}" for name, value in change.items()) or "native profile"
        tell(
            f"autotune: {arm.name}: {what}: {f'{speed:.1f} images/s' if speed else 'failed'}{', kept' if kept else ''}"
        )
        if kept:
            best, best_speed = tune, speed or 0.0
        yield Tried(tune=tune, images_per_second=speed, kept=kept)


def _others(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Every setting of the arm's mode with each value that it does not have."""
    for name, setting in settings_of(config.framework, config.mode).items():
        if name == "tf32":  # arithmetic, not speed alone
            continue
        yield from ((name, value) for value in setting.values if value != config.tuning[name])


def _speed(config: RunConfig) -> float | None:
    """Images per second of a short run; None where it fails."""
    workload = config.workload.model_copy(update={"epochs": None, "steps": STEPS, "warmup_steps": WARMUP_STEPS})
    short = config.model_copy(update={"workload": workload, "profile_steps": None, "checkpoint_every": None})
    with tempfile.TemporaryDirectory(prefix="dpcompare-autotune-") as folder:
        try:
            return run(short, Path(folder) / "run").images_per_second
        except RunFailedError:
            return None
