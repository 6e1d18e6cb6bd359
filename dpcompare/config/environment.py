"""An environment that is an arm's own: its name, and variables of its processes."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

from dpcompare.config.setting import Changes, Config, setting
from dpcompare.system.secrets import is_secret

USUAL = "the usual one"
"""What reports say of an arm without an environment of its own."""


def _name(received: str) -> str:
    if not is_name(received):
        raise ValueError(
            f"env: received the name {received!r}, expected letters, digits and . _ - such as old or nccl-2.27"
        )
    return received


def is_name(text: str) -> bool:
    """Whether a text can be the name of an environment: it stands in those of arms and folders."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", text) is not None


def _variables(received: dict[str, str]) -> dict[str, str]:
    for name, value in received.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"env: received a variable called {name!r}, expected a name such as OMP_WAIT_POLICY")
        if is_secret(name, value):
            raise ValueError(
                f"env: received the variable {name}, which looks like a secret, and the config of a run is readable; "
                "set it for all arms in the shell instead"
            )
    return received


class Environment(Config):
    """What is an arm's own of its environment; `RunConfig.python` is its interpreter."""

    name: Annotated[str, AfterValidator(_name)] = setting(changes=Changes.NOTHING)
    variables: Annotated[dict[str, str], AfterValidator(_variables)] = setting(
        default_factory=dict, changes=Changes.STEP_TIME
    )
    """Set in every process of the run, over what it inherits."""

    def typed(self, python: str) -> list[str]:
        """The values of --env that define it, with its interpreter."""
        return [f"{self.name}={python}", *(f"{self.name}={name}={value}" for name, value in self.variables.items())]
