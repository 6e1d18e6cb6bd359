"""What has changed here since the last rounds of a study that is continued: versions of packages, and the machine."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from functools import cache
from pathlib import Path

from dpcompare.backends.availability import installed_versions
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.modes import MODES
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.experiments.constancy import Facts, machine_of
from dpcompare.experiments.study import Study, is_study
from dpcompare.experiments.study_runs import results
from dpcompare.results.result import NodeRecord, RunResult
from dpcompare.system.machine import this_machine
from dpcompare.system.terminal_text import joined
from dpcompare.system.user_modules import changed_modules

INSTALLERS = frozenset({"pip", "setuptools", "uv", "wheel"})
"""Packages that no run uses."""
ALSO_RECORDED = ("numpy", "pillow", "keras", "flax", "equinox")
"""Packages whose versions results have, if they were imported, in addition to those of the framework and the mode."""


def changes_since(study: Study, study_dir: Path, *, retry_failed: bool = False) -> list[str]:
    """What is not as it was when the last rounds were made, with the arms of which that is so.

    Only what can be known before anything starts: where an engine chooses other machines, nothing is.

    Args:
        study: as it is to be run.
        study_dir: of the study, which may be new.
        retry_failed: whether failed runs are repeated.

    Raises:
        RequestError: an interpreter of the study cannot be used.
    """
    if not is_study(study_dir):
        return []
    ended = results(study, study_dir)
    if not study.adding and not any(
        result is None or (retry_failed and result.status == "failed") for _, _, result in ended
    ):
        return []  # nothing will run
    arms: dict[str, list[str]] = {}
    ask = cache(installed_versions)
    last = {arm.name: (arm, result) for arm, _, result in ended if result and result.status == "completed"}
    for arm, result in last.values():
        if arm.config.placement.row.simulated:
            for change in (
                *_changed_versions(arm.config, result, ask),
                *_changed_backend(arm.config, result),
                *_changed_machine(result),
            ):
                arms.setdefault(change, []).append(arm.name)
    return [f"{change} ({joined(names)})" for change, names in arms.items()]


def refuse(changes: list[str]) -> None:
    """Refuse to add rounds to a study of which something has changed.

    Raises:
        RequestError: something has.
    """
    if changes:
        raise RequestError(
            f"the study cannot go on as it was: received {'; '.join(changes)}; expected the versions and the machine "
            "of its last rounds, since the rounds of an arm are taken together. Use that environment and machine, "
            "start a new study with another --out, or continue with --accept-changed: its arms are then NOT COMPARABLE"
        )


def _changed_versions(config: RunConfig, result: RunResult, ask: Callable[..., Facts]) -> list[str]:
    """Those of the packages that can be looked up without importing any: of an environment with a name, of all."""
    packages = (*FRAMEWORKS[config.framework].packages, *MODES[config.framework, config.mode].packages, *ALSO_RECORDED)
    named = {name: version for name, version in result.packages.items() if name not in INSTALLERS}
    recorded = named | {name: version for name, version in result.versions.items() if name in {"python", *packages}}
    now = ask(config.framework, tuple(name for name in recorded if name != "python"), config.python)
    return _differences(recorded, {name: now.get(name, "none") for name in recorded}, are_same=_is_same_version)


def _changed_backend(config: RunConfig, result: RunResult) -> list[str]:
    """Those of the files of a user's backend that are no longer what they were."""
    recorded = result.settings.get("backend_modules") or {}
    changed = changed_modules(config.backend, recorded) if config.backend else []
    return [f"a changed {file} of the backend {config.backend}" for file in changed]


def _is_same_version(recorded: str, installed: str) -> bool:
    """Whether they are, where only one of them says for which device it was built: `2.14.1+cu130` and `2.14.1`.

    A package and its metadata may write a pre-release differently: `2.21.0-rc0` and `2.21.0rc0`.
    """
    recorded, installed = (
        re.sub(r"[-_.]?(a|b|rc|dev)[-_.]?(?=\d)", r"\1", version) for version in (recorded, installed)
    )
    if "+" in recorded and "+" in installed:
        return recorded == installed
    return recorded.partition("+")[0] == installed.partition("+")[0]


def _changed_machine(result: RunResult) -> list[str]:
    machine = this_machine()
    here = NodeRecord(node_rank=0, host=socket.gethostname(), device_names=[], versions={}, machine=machine)
    then = result.nodes[0] if result.nodes else None
    if then is None:
        return []
    is_same_boot = then.machine and then.machine.boot_id and then.machine.boot_id == machine.boot_id
    # Each container has a name of its own, on the same machine.
    now = machine_of(here) | ({"host": then.host} if is_same_boot else {})
    return _differences(machine_of(then), now)


def _differences(
    then: Facts, now: Facts, *, are_same: Callable[[str, str], bool] = lambda then, now: then == now
) -> list[str]:
    """A sentence for each that is known of both and not the same."""
    return [
        f"{name} {now[name]}, which was {value}"
        for name, value in then.items()
        if name in now and not are_same(value, now[name])
    ]
