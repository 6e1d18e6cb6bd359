"""What is remembered of this machine, in the cache: settings that autotune found, and how long first steps compiled."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from dpcompare._version import __version__, major_minor
from dpcompare.config.run import RunConfig
from dpcompare.config.setting import Changes, names_that_change
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError
from dpcompare.system.cache import cache_dir
from dpcompare.system.json_files import Measured, Rate, read_document, write_document

D = TypeVar("D", bound=BaseModel)


class Settings(BaseModel):
    """How fast settings of the native profile were."""

    model_config = ConfigDict(frozen=True)

    tune: dict[str, str]
    """What was changed of it."""
    images_per_second: Rate
    first_step_seconds: Measured
    """Compiling included, where they compile."""

    def seconds(self, num_images: int) -> float:
        """Seconds of training on this many images."""
        return self.first_step_seconds + num_images / self.images_per_second


class Found(BaseModel):
    """What autotune has kept, one setting after another: the native profile as it is comes first."""

    model_config = ConfigDict(frozen=True)

    kept: tuple[Settings, ...]


class FirstStep(BaseModel):
    """How long the last first step took that compiled."""

    model_config = ConfigDict(frozen=True)

    seconds: Measured


def remember_settings(config: RunConfig, kept: Sequence[Settings]) -> None:
    """For later runs like this one."""
    _remember(Found(kept=tuple(kept)), "autotuned", config)


def remembered_settings(config: RunConfig) -> tuple[Settings, ...]:
    """What autotune has kept for runs like this one, the native profile as it is first; nothing where it never ran."""
    found = _remembered(Found, "autotuned", config)
    return found.kept if found and all(_is_possible(config, each.tune) for each in found.kept) else ()


def _is_possible(config: RunConfig, tune: dict[str, str]) -> bool:
    """Whether a run can have these settings: others may write a cache that is shared."""
    try:
        config.changed(tune=tune)
    except RequestError:
        return False
    return True


def remember_first_step(config: RunConfig, seconds: float) -> None:
    """Remember the seconds of the first step of a run that compiles."""
    _remember(FirstStep(seconds=seconds), "first-steps", config, tuning=config.tuning)


def remembered_first_step(config: RunConfig) -> float | None:
    """Seconds of the last first step of a run like this one."""
    found = _remembered(FirstStep, "first-steps", config, tuning=config.tuning)
    return found.seconds if found else None


def _path(folder: str, config: RunConfig, **more: Any) -> Path:
    """The file of all that decides speed: a cache may be on a disk that several machines share."""
    known = {
        "host": socket.gethostname(),
        "dpcompare": major_minor(__version__),
        "python": config.python,
        **({"variables": config.environment.variables} if config.environment else {}),
        "mode": [config.framework, config.mode, config.topology.devices_per_replica, config.backend],
        "cluster": config.cluster.model_dump(mode="json"),
        "workload": config.workload.model_dump(
            mode="json", include=set(names_that_change(Workload, Changes.STEP_TIME))
        ),
        **more,
    }
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
    return cache_dir() / folder / f"{digest[:32]}.json"


def _remember(document: BaseModel, folder: str, config: RunConfig, **more: Any) -> None:
    path = _path(folder, config, **more)
    with suppress(OSError):  # a disk that is full or not writable: what was measured is in the result all the same
        path.parent.mkdir(parents=True, exist_ok=True)
        write_document(document, path)


def _remembered(kind: type[D], folder: str, config: RunConfig, **more: Any) -> D | None:
    try:
        return read_document(kind, _path(folder, config, **more), kind="remembered", expected="the cache")
    except RequestError:  # never written, or damaged: then it is measured again
        return None
