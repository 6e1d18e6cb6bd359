"""A placement: who starts the node processes, and where."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, model_validator

from dpcompare.config.engines import ENGINES
from dpcompare.config.setting import CLUSTERS, Changes, Option, setting, settings_of
from dpcompare.config.validation import Config, one_of, raise_problems


class Placement(Config):
    """Who starts the node processes, and where; see `dpcompare.launch.engines`."""

    engine: Annotated[str, AfterValidator(one_of("engine", ENGINES))] = setting(
        "local",
        changes=Changes.STEP_TIME,
        option=Option(
            CLUSTERS,
            resumable=True,
            help="local: simulated nodes of this machine. namespaces: each with a network of its own. hosts, slurm: "
            "nodes that are machines; kubernetes: only with `plan`.",
        ),
    )
    hosts: tuple[str, ...] = setting(
        (),
        changes=Changes.STEP_TIME,
        option=Option(
            CLUSTERS,
            metavar="A,B,...",
            resumable=True,
            help="With --engine hosts: one host per node, in the order of the ranks.",
        ),
    )
    ssh: bool = setting(
        False,
        changes=Changes.NOTHING,
        option=Option(
            CLUSTERS, resumable=True, help="With --engine hosts: start their commands by ssh instead of printing them."
        ),
    )
    partition: str | None = setting(
        None,
        changes=Changes.STEP_TIME,
        option=Option(CLUSTERS, default="Slurm's", resumable=True, help="With --engine slurm: its partition."),
    )
    time: str | None = setting(
        None,
        changes=Changes.NOTHING,
        option=Option(
            CLUSTERS, metavar="LIMIT", resumable=True, help="With --engine slurm: the time limit, as sbatch takes it."
        ),
    )
    account: str | None = setting(
        None,
        changes=Changes.NOTHING,
        option=Option(CLUSTERS, resumable=True, help="With --engine slurm: the account to charge."),
    )
    gres: str | None = setting(
        None,
        pattern=r"^gpu(:[\w.-]+)?$",
        changes=Changes.STEP_TIME,
        option=Option(
            CLUSTERS,
            resumable=True,
            help="With --engine slurm: GPUs are asked for as --gres=GRES:COUNT, such as gpu:a100, not by "
            "--gpus-per-node.",
        ),
    )
    sbatch: tuple[str, ...] = setting(
        (),
        changes=Changes.STEP_TIME,
        option=Option(
            CLUSTERS,
            metavar="OPTION",
            resumable=True,
            help="With --engine slurm: one more option of sbatch, such as --qos=high.",
        ),
    )
    image: str | None = setting(
        None,
        changes=Changes.STEP_TIME,
        option=Option(CLUSTERS, resumable=True, help="With --engine kubernetes: the container image of all pods."),
    )
    volume_claim: str | None = setting(
        None,
        changes=Changes.NOTHING,
        option=Option(
            CLUSTERS, resumable=True, help="With --engine kubernetes: the claim of a volume that all pods can write."
        ),
    )
    link: str | None = setting(
        None,
        changes=Changes.STEP_TIME,
        option=Option(
            CLUSTERS,
            metavar="RATE",
            default="no limit",
            resumable=True,
            help="With --engine namespaces: rate of each node's link, such as 1gbit.",
        ),
    )

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


PLACEMENT_SETTINGS = settings_of(Placement)


def link_bytes_per_second(text: str) -> float | None:
    """Of a rate that `tc` can limit a link to, in a unit that is allowed here; None: it is no such rate."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg])bit", text, re.ASCII)
    bits = float(found[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[found[2]] if found else 0.0
    return bits / 8 if 1e3 <= bits <= 1e12 else None
