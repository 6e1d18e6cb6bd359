"""A study and its directory: several arms, trained once per round in a new random order, so that drift cancels."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from dpcompare._version import __version__, major_minor
from dpcompare.backends.other_variables import make_key
from dpcompare.config.run import RunConfig
from dpcompare.config.setting import Config
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError
from dpcompare.experiments import STUDY_FILE
from dpcompare.experiments.accuracy_statistics import DEFAULT_MARGIN
from dpcompare.experiments.statistics import ROUNDS_FOR_CLAIM
from dpcompare.launch.initial_weights import with_seed
from dpcompare.launch.setup import usual_interpreter
from dpcompare.system.cache import LOCK_FILE, exclusive_lock
from dpcompare.system.files import reject_links
from dpcompare.system.json_files import read_document, write_document

LONGEST_FOLDER = 80
RUNS_DIR = "runs"

LATE_STEP_ROUND = 1
"""The round after which another framework makes the last steps of every run again, if nothing else is asked for."""


class Arm(Config):
    """One of the run configs that a study compares, trained once per round."""

    name: str
    """The name that people read, such as `torch ddp 2x1` (nodes x devices per node); unique in its study."""
    config: RunConfig
    ablation_of: str | None = None
    """Name of the arm that this one repeats without gradient sync, to measure what the sync costs."""

    @property
    def folder(self) -> str:
        """The name of its run directory: readable, of bounded length, and unique to the name of the arm."""
        readable = re.sub(r"[^A-Za-z0-9.=]+", "-", self.name)
        is_readable = readable.replace("-", " ") == self.name and not readable.startswith(".")
        if is_readable and len(readable) <= LONGEST_FOLDER:
            return readable
        return f"{readable[:LONGEST_FOLDER]}-{hashlib.sha256(self.name.encode()).hexdigest()[:8]}"


def ablated(arm: Arm) -> Arm | None:
    """The same arm without gradient sync; None where there is none to leave out."""
    config = arm.config
    if config.topology.num_replicas == 1 or not config.mode_row.gradient_sync_separable:
        return None
    without = config.changed(sync_gradients=False)
    return Arm(name=f"{arm.name} without gradient sync", config=without, ablation_of=arm.name)


MOST_ARMS = 1_000
MOST_ROUNDS = 10_000
"""More than anybody waits for; the report of a damaged study.json must not count to a number without meaning."""


class Tried(BaseModel):
    """A short run that measures how fast some settings are; see `dpcompare.experiments.autotune`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tune: dict[str, str]
    """What was changed of the native profile."""
    images_per_second: float | None
    """None where it failed."""
    first_step_seconds: float | None = None
    kept: bool


class Study(Config):
    """study.json: everything that decides what is run, and in which order."""

    dpcompare_version: str = __version__
    arms: tuple[Arm, ...] = Field(min_length=1, max_length=MOST_ARMS)
    repeats: int = Field(ge=1, le=MOST_ROUNDS)
    """Rounds; every arm runs once in each."""
    order_seed: int = Field(default=0, ge=0)
    subject: tuple[str, ...] = ()
    """Settings of the fairness sheet that the study is about, which may therefore differ."""
    pair: tuple[str, str] | None = None
    """Names of the two arms that the study is to judge, named before its first round: all others are exploratory."""
    vary_seed: bool = False
    """Whether each round has a seed of its own, the same for all arms: what they learn can then be compared."""
    margin: float = Field(default=DEFAULT_MARGIN, gt=0, lt=100, allow_inf_nan=False)
    """Points of accuracy within which two arms count as equally accurate; chosen before the first round."""
    tried: dict[str, list[Tried]] = Field(default_factory=dict)
    """Arm -> the short runs that found its settings, where it was autotuned."""
    allowed_loss: float | None = Field(default=None, gt=0, lt=1, allow_inf_nan=False)
    """Of a gate: the largest loss of speed of the first arm against the second that passes, as a part of the second's
    speed; chosen before the first round. None of any other study."""
    looks: tuple[int, ...] = ()
    """Rounds that it had, each time when its claims could be read and more were added: every such look makes those that
    follow stricter."""
    commands: tuple[str, ...] = ()
    """The command that it was begun with, then each that has continued it: the fields above may be edited."""
    adding: bool = False
    """Whether rounds are being added until intervals are narrow enough; nothing is claimed meanwhile."""
    stopped_by: str | None = None
    """Why no more rounds were added, where they are added until intervals are narrow enough."""

    @model_validator(mode="after")
    def _check(self) -> Study:
        names = [arm.name for arm in self.arms]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"arms need names of their own, received {', '.join(twice)} more than once")
        if self.allowed_loss is not None and (len(names) != 2 or any(arm.ablation_of for arm in self.arms)):
            raise ValueError(f"a gate has two arms with all parts of their steps, received {', '.join(names)}")
        if self.pair is not None and (set(self.pair) - set(names) or self.pair[0] == self.pair[1]):
            raise ValueError(f"pair: received {', '.join(self.pair)}, expected two of the arms {', '.join(names)}")
        return self

    def extended(self, repeats: int) -> Study:
        """The same study with more rounds, after its claims could be read, where it had enough for any."""
        looks = (*self.looks, self.repeats) if self.repeats >= ROUNDS_FOR_CLAIM else self.looks
        return self.changed(repeats=repeats, looks=looks)

    @property
    def rounds(self) -> range:
        """Their numbers, from 1."""
        return range(1, self.repeats + 1)

    def order(self, number: int) -> list[Arm]:
        """The arms of a round (from 1), in the order in which they run."""
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.order_seed, number])))
        return [self.arms[index] for index in generator.permutation(len(self.arms))]

    def config_of(self, number: int, arm: Arm) -> RunConfig:
        """The run of an arm in a round: with `vary_seed` under the seed of that round, with its initial weights.

        Unless that is asked for, its late step is repeated in the first round alone: rounds repeat one training.
        """
        config = arm.config
        if config.late_step is None and number == LATE_STEP_ROUND:
            config = config.changed(late_step=True)
        return with_seed(config, self.workload_of(number, arm).seed) if self.vary_seed else config

    def workload_of(self, number: int, arm: Arm) -> Workload:
        """What an arm trains in a round."""
        workload = arm.config.workload
        return workload.changed(seed=workload.seed + number) if self.vary_seed else workload

    def interpreter_of(self, framework: str) -> str:
        """That of its arms in a framework; if there is none, the usual one."""
        of_arms = (arm.config for arm in self.arms if arm.config.framework == framework)
        own = (config.python for config in of_arms if config.environment is None)
        return next(own, None) or usual_interpreter(framework)

    def run_dir(self, study_dir: Path, number: int, arm: Arm) -> Path:
        return study_dir / RUNS_DIR / f"round-{number:02d}" / arm.folder

    def save(self, study_dir: Path) -> None:
        write_document(self, study_dir / STUDY_FILE)

    @classmethod
    def load(cls, study_dir: Path) -> Study:
        """Read STUDY_DIR/study.json.

        Raises:
            RequestError: it is not there, or is not a study.
        """
        return read_document(cls, study_dir / STUDY_FILE, kind="a study", expected="the directory of a study")


def is_study(path: Path) -> bool:
    return (path / STUDY_FILE).is_file()


def refuse_other_files(study_dir: Path) -> None:
    """Raises RequestError where a directory holds anything but a study."""
    if not study_dir.exists() or is_study(study_dir):
        return
    if not study_dir.is_dir() or any(path.name != LOCK_FILE for path in study_dir.iterdir()):
        raise RequestError(f"study directory {str(study_dir)!r} holds other files; choose another --out")


def open_study(study: Study, study_dir: Path) -> Study:
    """Start a study in a new directory, or resume the one that is there.

    A resumed study may have more rounds than before; nothing else may differ, its pair neither: one that is named when
    rounds have been seen was not named beforehand.

    Raises:
        RequestError: the directory holds other files, or another study.
    """
    refuse_other_files(study_dir)
    if is_study(study_dir):
        there = Study.load(study_dir)
        _require_same(there, study, study_dir)
        study = _continued(there, study)
    try:
        study_dir.mkdir(parents=True, exist_ok=True)
        make_key(study_dir)
        study.save(study_dir)
    except OSError as error:
        raise RequestError(
            f"study directory {str(study_dir)!r} cannot be written ({error.strerror}); choose another --out"
        ) from None
    return study


_MAY_BE_OTHERS = frozenset({
    "dpcompare_version", "repeats", "subject", "tried", "looks", "commands", "adding", "stopped_by",
})  # fmt: skip
"""Fields in which what is asked for may differ from the study that is there."""


def _require_same(there: Study, asked: Study, study_dir: Path) -> None:
    """Refuse to continue a study as another one."""
    differing = [
        name
        for name in Study.model_fields
        if name not in _MAY_BE_OTHERS and getattr(there, name) != getattr(asked, name)
    ]
    if major_minor(there.dpcompare_version) != major_minor(asked.dpcompare_version):
        differing.append(f"dpcompare version ({there.dpcompare_version})")
    if differing:
        changed = _changed_arms(there, asked)
        which = f" ({'; '.join(changed)})" if changed else ""
        raise RequestError(
            f"{str(study_dir)!r} holds another study, which differs in its {', '.join(differing)}{which}; "
            "ask for the same arms, options and version to continue it, or choose another --out"
        )


def _continued(there: Study, asked: Study) -> Study:
    """A study with the rounds that it has and those that are asked for."""
    # An end to adding rounds that did not wait for narrow intervals may have come from what they showed.
    is_longer = asked.repeats > there.repeats or (there.adding and not asked.adding)
    continued = there.extended(max(there.repeats, asked.repeats)) if is_longer else there
    return asked.changed(
        repeats=continued.repeats,
        looks=continued.looks,
        commands=(*there.commands, *(command for command in asked.commands if command not in there.commands)),
        adding=there.adding and asked.adding,
        # More rounds than there were are not those that an earlier limit ended.
        stopped_by=there.stopped_by if asked.repeats <= there.repeats else None,
        subject=tuple(dict.fromkeys((*there.subject, *asked.subject))),
    )


def _changed_arms(there: Study, asked: Study) -> list[str]:
    """The arms of a study that are not asked for as they are there, with the fields that differ."""
    configs = {arm.name: arm.config.model_dump() for arm in asked.arms}
    changed = []
    for arm in there.arms:
        if arm not in asked.arms:
            fields = ", ".join(_differing_fields(arm.config.model_dump(), configs.get(arm.name, {})))
            changed.append(f"{arm.name}: {fields}" if fields and arm.name in configs else arm.name)
    return changed


def _differing_fields(there: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[str]:
    for name, value in there.items():
        other = asked.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            yield from _differing_fields(value, other)
        elif value != other:
            is_short = not isinstance(value, (dict, tuple))
            yield f"{name} {other} instead of {value}" if is_short else name


@contextmanager
def hold(study_dir: Path) -> Iterator[None]:
    """Hold a directory, created if need be, while its study is opened and its runs are made.

    Raises:
        RequestError: another process holds it, it holds other files, or it cannot be written.
    """
    refuse_other_files(study_dir)
    reject_links(study_dir, "the study")
    with ExitStack() as held:
        try:
            study_dir.mkdir(parents=True, exist_ok=True)
            held.enter_context(
                exclusive_lock(
                    study_dir,
                    f"the study {str(study_dir)!r} is being run by another process; wait for it, follow it with "
                    f"`dpcompare watch {study_dir}`, or choose another --out",
                )
            )
        except OSError as error:
            raise RequestError(
                f"study directory {str(study_dir)!r} cannot be written ({error.strerror}); choose another --out"
            ) from None
        yield


def is_by_model(configs: Iterable[RunConfig], subject: Container[str]) -> bool:
    """Whether arms are compared model by model: there are several, with several arms of one, and none is the subject.

    Args:
        configs: of all arms.
        subject: what their study is about.
    """
    counts = Counter(config.workload.model for config in configs)
    return len(counts) > 1 and max(counts.values()) > 1 and "model" not in subject
