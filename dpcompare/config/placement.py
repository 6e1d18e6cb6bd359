"""A placement: who starts the node processes, and where."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from dpcompare.config.engines import ENGINES
from dpcompare.config.validation import Config, one_of, raise_problems


class Placement(Config):
    """Who starts the node processes, and where; see `dpcompare.launch.engines`."""

    engine: Annotated[str, AfterValidator(one_of("engine", ENGINES))] = "local"
    hosts: tuple[str, ...] = ()
    """hosts: one per node, in the order of the ranks."""
    ssh: bool = False
    """hosts: whether to start their part by ssh instead of printing its command."""
    partition: str | None = None
    time: str | None = None
    account: str | None = None
    gres: str | None = Field(default=None, pattern=r"^gpu(:[\w.-]+)?$")
    """slurm: how GPUs are asked for where a cluster refuses --gpus-per-node, such as gpu or gpu:a100."""
    sbatch: tuple[str, ...] = ()
    """slurm: more options of sbatch, each with its value, such as --qos=high."""
    image: str | None = None
    """kubernetes: the container image of all pods."""
    volume_claim: str | None = None
    """kubernetes: the claim of a volume that all pods can write."""
    link: str | None = None
    """namespaces: the bandwidth of each node's link, such as 1gbit per second; None: unlimited."""

    @model_validator(mode="after")
    def _check(self) -> Placement:
        problems = []
        of_slurm = {name: getattr(self, name) for name in ("partition", "time", "account", "gres", "sbatch")}
        given = [name for name, value in of_slurm.items() if value]
        if given and self.engine != "slurm":
            problems.append(f"{', '.join(given)}: received with engine {self.engine}; expected engine slurm")
        if (self.hosts or self.ssh) and self.engine != "hosts":
            problems.append(f"hosts: received with engine {self.engine}; expected engine hosts")
        if self.link is not None and link_bytes_per_second(self.link) is None:
            problems.append(
                f"link: received {self.link!r}; expected a rate in kbit, mbit or gbit per second, such as 1gbit, from "
                "1kbit to 1000gbit"
            )
        if self.link and self.engine != "namespaces":
            problems.append(f"link: received with engine {self.engine}; expected engine namespaces")
        of_kubernetes = {"image": self.image, "volume_claim": self.volume_claim}
        if self.engine == "kubernetes":
            problems += [
                f"{name}: received none; expected one with engine kubernetes"
                for name, value in of_kubernetes.items()
                if not value
            ]
        elif given := [name for name, value in of_kubernetes.items() if value]:
            problems.append(f"{', '.join(given)}: received with engine {self.engine}; expected engine kubernetes")
        if self.engine == "hosts" and not self.hosts:
            problems.append("hosts: received none; expected one per node, such as --hosts a,b")
        if len(set(self.hosts)) != len(self.hosts):
            problems.append(f"hosts: received {', '.join(self.hosts)}; expected each once")
        raise_problems(problems)
        return self


def link_bytes_per_second(text: str) -> float | None:
    """Of a rate that `tc` can limit a link to, in a unit that is allowed here; None: it is no such rate."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg])bit", text, re.ASCII)
    bits = float(found[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[found[2]] if found else 0.0
    return bits / 8 if 1e3 <= bits <= 1e12 else None
