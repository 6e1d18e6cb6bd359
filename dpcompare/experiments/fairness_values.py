"""How the fairness checks read their values from a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dpcompare.backends.environment import acting_on
from dpcompare.results.result import RunResult

NOT_KNOWN = "not known"
LATER_STEPS = range(3, 7)


def of_workload(name: str) -> Callable[[RunResult], Any]:
    """A field of the workload."""
    return lambda result: result.config["workload"].get(name)


def of_settings(name: str) -> Callable[[RunResult], Any]:
    return lambda result: result.settings.get(name)


def of_settings_or_none(name: str) -> Callable[[RunResult], Any]:
    """A setting that not every mode has."""
    return lambda result: result.settings.get(name) or "none"


def environment(result: RunResult) -> str:
    variables = acting_on(result.framework, result.settings.get("environment") or {})
    return ", ".join(f"{name}={value}" for name, value in sorted(variables.items())) or "none"


def measured_steps(result: RunResult) -> int | str:
    """Where one rule for all finds how many steps are left out, it may find another number in each run."""
    if of_workload("warmup_steps")(result) == "auto":
        return "all that had settled"
    return until_target(result) or result.measured_steps


def until_target(result: RunResult) -> str | None:
    """How long a run trains that ends at its target, which comes at another step in each; None of others."""
    return f"until an accuracy of {result.target_accuracy:g}" if result.config.get("stop_at_target") else None


def gpu_settings(result: RunResult) -> str | None:
    """What decides how fast the GPUs may run; unknown where one of them could not be asked."""
    if result.device_type != "gpu":
        return "none"
    if not result.gpus or any(gpu.unread for gpu in result.gpus):
        return None
    return "; ".join(sorted({gpu.settings for gpu in result.gpus}))


def gpu_links(result: RunResult) -> str:
    links = {link or "unknown" for gpu in result.gpus for link in gpu.links.values()}
    return "; ".join(sorted(links)) or "none"


def kinds_of_devices(names: Sequence[str]) -> list[str]:
    """Device names without the numbers of simulated ones."""
    return sorted({name.split(":")[0] for name in names})


def loss_of_step(step: int) -> Callable[[RunResult], Any]:
    """The loss of a step, from 1; unknown where it is not finite."""
    return lambda result: result.train_loss[step - 1] if len(result.train_loss) >= step else "no such step"


def computed(name: str) -> Callable[[RunResult], Any]:
    """A figure of what was computed; some modes have none, and results of 0.1.0 neither."""

    def value(result: RunResult) -> Any:
        figure = getattr(result.computed, name, None)
        return NOT_KNOWN if figure is None or figure == {} else figure

    return value


def later_losses(result: RunResult) -> Any:
    """The losses of LATER_STEPS, or of as many of them as there are."""
    losses = result.train_loss[LATER_STEPS.start - 1 : LATER_STEPS.stop - 1]
    return losses or "no such steps"


def evaluation_loss(result: RunResult) -> Any:
    return NOT_KNOWN if not result.evaluations or result.evaluations[-1].loss is None else result.evaluations[-1].loss


def counted(name: str) -> Callable[[RunResult], Any]:
    """A count of what was computed, beside what was asked for where that is another."""

    def value(result: RunResult) -> Any:
        if result.computed is None or (count := getattr(result.computed, name)) is None:
            return NOT_KNOWN
        others = {
            word: number
            for word in ("asked", "claimed")
            if (number := getattr(result.computed, f"{name}_{word}", count)) != count
        }
        return ", ".join([str(count), *(f"{number} {word}" for word, number in others.items())]) if others else count

    return value
