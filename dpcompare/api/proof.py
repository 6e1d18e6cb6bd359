"""Proofs and explanations from Python: do the modes compute the same, and what bounds a run?"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dpcompare.api.command_line import read_by
from dpcompare.api.studies import Arm
from dpcompare.config.workload import Workload
from dpcompare.experiments.verify import Check
from dpcompare.projection.difference import Difference
from dpcompare.projection.explanation import Explanation

__all__ = ["Check", "Verification", "explain", "explain_difference", "verify"]


@dataclass(frozen=True)
class Verification:
    """What `verify` has found."""

    checks: list[Check]
    """Each with `name`, `pair`, `measured`, `tolerance` and `passed`."""
    not_compared: list[str]
    """Modes that were asked for and had no other to be compared with, with what to do about it."""

    @property
    def passed(self) -> bool:
        """Whether something was compared, and all of it agreed."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def failed(self) -> list[Check]:
        """The checks that did not pass."""
        return [check for check in self.checks if not check.passed]

    def __str__(self) -> str:
        lines = [f"{sum(check.passed for check in self.checks)} of {len(self.checks)} checks passed"]
        lines += [f"FAILED {check.name}: {check.pair}" for check in self.failed]
        return "\n".join([*lines, *(f"not compared: {line}" for line in self.not_compared)])


def verify(
    *,
    like: str | Path | None = None,
    frameworks: Sequence[str] | None = None,
    modes: Sequence[str] | None = None,
    model: str | None = None,
    replicas: Sequence[int] | None = None,
    precision: Sequence[str] | str | None = None,
    quick: bool = False,
    device: str | None = None,
    against: Literal["cpu"] | None = None,
    python: Mapping[str, str] | None = None,
    **options: Any,
) -> Verification:
    """Run modes on the same work and compare what they compute, array by array, as `dpcompare verify` does.

    Args:
        like: verify what this run trained, by its mode, by another framework's and by one device.
        frameworks: of `torch`, `tensorflow` and `jax`; default: torch and TensorFlow.
        modes: of these frameworks; default: all that most people use.
        model: default: `efficientnet-b2`.
        replicas: numbers of replicas to compare at.
        precision: `float32`, `float64` or both.
        quick: the model on one device only and few steps; tiny models elsewhere.
        device: `cpu` or `auto`.
        against: `cpu`: also run each on the CPU, and compare what the GPUs compute with that.
        python: framework -> interpreter of the environment that holds it.
        options: further options of `dpcompare verify`, by their names with underscores.

    Raises:
        RequestError: something cannot be verified; nothing was started.
        KeyboardInterrupt: it was interrupted; all processes have ended.
    """
    from dpcompare.cli.verify import make_checks
    from dpcompare.cli.verify import verify as command
    from dpcompare.cli.verify_plan import plan_asked_for

    asked = options | {
        "like": like,
        "frameworks": frameworks,
        "modes": modes,
        "model": model,
        "replicas": replicas,
        "precision": precision,
        "quick": quick,
        "device": device,
        "against": against,
        "python": python,
    }
    checks: list[Check] = []
    with read_by(command, (), None, asked) as context:
        plan = plan_asked_for(context, **context.params)
        try:
            make_checks(plan, against, checks)
        except KeyboardInterrupt:
            print(f"interrupted; until then {Verification(checks, plan.left_out)}", file=sys.stderr)
            raise
    return Verification(checks, plan.left_out)


def explain(
    arm_or_run: str | Path | Arm,
    workload: Workload | None = None,
    *,
    rounds: int = 6,
    nodes: int | None = None,
    devices_per_node: int | None = None,
    device: str | None = None,
    out: str | Path | None = None,
    python: Mapping[str, str] | None = None,
    **options: Any,
) -> Explanation:
    """Measure what bounds a run, by leaving out one part of its step after the other, as `dpcompare explain` does.

    Args:
        arm_or_run: an arm such as `"torch:ddp"`, or the directory of a completed run.
        workload: what the arm trains; default: `Workload()`.
        rounds: how often each variant is trained; a claim needs 6.
        nodes: that the arm has.
        devices_per_node: that each of them has.
        device: `auto`, `cpu` or `gpu`.
        out: directory of the runs; default: below `studies/`. The same call with the same `out` continues.
        python: framework -> interpreter of the environment that holds it.
        options: further options of `dpcompare explain`, by their names with underscores.

    Raises:
        RequestError: it cannot be explained; nothing was started.
        KeyboardInterrupt: it was interrupted; what was measured is kept.
    """
    from dpcompare.cli.explain import explain as command
    from dpcompare.cli.explain import explanation_asked_for

    asked = options | {
        "repeats": rounds,
        "nodes": nodes,
        "devices_per_node": devices_per_node,
        "device": device,
        "out": out,
        "python": python,
    }
    with read_by(command, [str(arm_or_run)], workload, asked) as context:
        return explanation_asked_for(context, **context.params)


def explain_difference(
    first: str | Path | Arm,
    second: str | Path | Arm,
    workload: Workload | None = None,
    *,
    rounds: int = 6,
    out: str | Path | None = None,
    **options: Any,
) -> Difference:
    """Measure which parts of a step make the difference between two runs, as `dpcompare explain A B` does.

    Args:
        first: an arm such as `"torch:ddp,env=old"`, or the directory of a completed run.
        second: another one.
        workload: what the arms train; default: `Workload()`.
        rounds: how often each variant of both is trained; a claim needs 6.
        out: directory of the runs; default: below `studies/`. The same call with the same `out` continues.
        options: further options of `dpcompare explain`, by their names with underscores, such as `nodes`.

    Raises:
        RequestError: it cannot be explained; nothing was started.
        KeyboardInterrupt: it was interrupted; what was measured is kept.
    """
    from dpcompare.cli.explain import difference_asked_for
    from dpcompare.cli.explain import explain as command

    with read_by(command, [str(first), str(second)], workload, options | {"repeats": rounds, "out": out}) as context:
        return difference_asked_for(context, **context.params)
