"""The search for the fastest native settings on this machine: a short run for each value, one setting at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dpcompare.config.run import RunConfig
from dpcompare.config.tuning import TuningOption, tuning_options
from dpcompare.errors import RequestError, RunFailedError
from dpcompare.experiments.study import Arm, Study, Tried, is_study
from dpcompare.launch.remembered import Settings, remember_settings
from dpcompare.launch.run import run
from dpcompare.results.result import RunResult

STEPS, WARMUP_STEPS = 16, 6
LEAST_GAIN = 0.03
"""A setting is changed where that makes two short runs faster by more than this."""


def tuned(study: Study, study_dir: Path, report: Callable[[str], None]) -> Study:
    """The study with its native arms tuned for this machine; one that is resumed keeps the settings found at its start.

    Args:
        study_dir: where the study is, or will be.
        report: called with a line for every setting that was tried.

    Raises:
        RequestError: no arm has the native profile, or the study was started without tuning.
    """
    native = [arm for arm in study.arms if arm.config.workload.profile == "native"]
    if not native:
        raise RequestError(
            "--autotune: received arms of the strict profile only, which has nothing to tune; expected "
            "--profile native, or an arm such as torch:ddp,profile=native"
        )
    if is_study(study_dir):
        tried = Study.load(study_dir).tried
        if not tried:
            raise RequestError(
                f"--autotune: {str(study_dir)!r} holds a study that was started without it; leave it out, or choose "
                "another --out"
            )
    else:
        tried = {arm.name: list(_tries(arm, study_dir, report)) for arm in native if arm.ablation_of is None}
        for arm in native:
            if arm.name in tried and not arm.config.tune:
                remember_settings(arm.config, list(_kept(tried[arm.name])))
    best = {name: [one for one in made if one.kept][-1].tune for name, made in tried.items()}
    arms = tuple(_with(arm, best.get(arm.ablation_of or arm.name)) for arm in study.arms)
    return study.changed(arms=arms, tried=tried)


def _kept(tried: Sequence[Tried]) -> Iterator[Settings]:
    for one in tried:
        if one.kept and one.images_per_second and one.first_step_seconds is not None:
            yield Settings(
                tune=one.tune, images_per_second=one.images_per_second, first_step_seconds=one.first_step_seconds
            )


def _with(arm: Arm, tune: dict[str, str] | None) -> Arm:
    if tune is None:
        return arm
    return arm.changed(config=arm.config.changed(tune=tune, autotuned=True))


def _tries(arm: Arm, study_dir: Path, report: Callable[[str], None]) -> Iterator[Tried]:
    """The native profile as it is, then every other value of each setting together with the best so far."""
    for name, setting in _open_settings(arm.config).items():
        if setting.changes_precision:
            value = arm.config.tuning[name]
            report(
                f"autotune: {arm.name}: {name}={value} is left as it is, since it changes the precision and not only "
                f"the speed; --tune {name}=VALUE sets it for all arms"
            )
    best, best_speed = dict(arm.config.tune), 0.0
    for change in [{}, *_changes(arm.config)]:
        tune = best | change
        made = _short_run(arm.config, tune, study_dir, report)
        speed = made.compared_speed if made else None
        least = best_speed * (1 + LEAST_GAIN)
        if change and speed is not None and speed > least:  # a single short run may be lucky
            made = _short_run(arm.config, tune, study_dir, report)
            again = made.compared_speed if made else None
            speed = None if again is None else min(speed, again)
        kept = not change or (speed is not None and speed > least)
        what = ", ".join(f"{name}={value}" for name, value in change.items()) or "native profile"
        figure = "failed" if speed is None else f"{speed:.1f} images/s"
        report(f"autotune: {arm.name}: {what}: {figure}{', kept' if kept and change else ''}")
        if kept:
            best, best_speed = tune, speed or 0.0
        first_step_seconds = made.first_step_seconds if made else None  # what compiles has been compiled once by then
        yield Tried(tune=tune, images_per_second=speed, first_step_seconds=first_step_seconds, kept=kept)


def _open_settings(config: RunConfig) -> dict[str, TuningOption]:
    """Those that the user did not choose."""
    known = tuning_options(config.framework, config.mode, config.cluster.device_type, config.workload)
    return {name: setting for name, setting in known.items() if name not in config.tune}


def _changes(config: RunConfig) -> Iterator[dict[str, str]]:
    """Each setting that is tried, with each of its values but the current one."""
    for name, setting in _open_settings(config).items():
        if not setting.changes_precision:
            values = setting.values_on(config.cluster.device_type)
            yield from ({name: value} for value in values if value != config.tuning[name])


def _short_run(
    config: RunConfig, tune: dict[str, str], study_dir: Path, report: Callable[[str], None]
) -> RunResult | None:
    """The result of a short run; None where it fails."""
    workload = config.workload.changed(epochs=None, steps=STEPS, warmup_steps=WARMUP_STEPS)
    changes = {"tune": tune, "workload": workload, "profile_steps": None, "checkpoint_every": None}
    changes |= {"max_restarts": 0, "late_step": False}
    study_dir.parent.mkdir(parents=True, exist_ok=True)
    # Next to the study, since nodes that are machines share that disk with this one.
    with tempfile.TemporaryDirectory(prefix=".autotune-", dir=study_dir.parent) as folder:
        try:
            short = config.changed(**changes)
            return run(short, Path(folder) / "run", report=report)
        except RunFailedError:
            return None
        except RequestError as error:
            if tune == config.tune:  # nothing was changed, so the arm itself is refused
                raise
            report(f"autotune: refused: {error}")
            return None
