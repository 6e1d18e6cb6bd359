"""What the fairness sheet reads of a result."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from dpcompare.backends.description import NOT_KNOWN, acting_on
from dpcompare.models.architectures import MODELS, may_have_batchnorm
from dpcompare.models.spec import ARE_DRAWN, DRAWN
from dpcompare.results.result import RunResult

LATER_STEPS = range(3, 7)
"""Steps, from 1, whose losses are compared behind the second."""

Read: TypeAlias = Callable[[RunResult], Any]
"""Reads what is compared of a result."""


def workload_value(name: str) -> Read:
    """A field of the workload."""
    return lambda result: result.config["workload"].get(name)


def origin_of_weights(result: RunResult) -> str:
    """How they are drawn, or that a file has them: which tensors, the checksum of the initial weights says."""
    weights = str(result.config["workload"].get("weights", DRAWN))
    return weights if weights in ARE_DRAWN else "from a file"


def setting_value(name: str) -> Read:
    return lambda result: result.settings.get(name)


def setting_value_or_none(name: str) -> Read:
    """A setting that not every mode has."""
    return lambda result: result.settings.get(name) or "none"


def attention(result: RunResult) -> str:
    """What computed it; results of 0.2.0 do not say that."""
    model = MODELS.get(result.model)
    unsaid = NOT_KNOWN if model is None or model.attention(result.image_size) else "none"
    return str(result.settings.get("attention", unsaid))


def batchnorm_epsilon(result: RunResult) -> Any:
    """None of a model without BatchNorm, whatever its result has of it."""
    return result.settings.get("batchnorm_epsilon") if may_have_batchnorm(result.model) else "none"


def environment(result: RunResult) -> str:
    return in_one_line(acting_on(result.framework, result.settings.get("environment") or {})) or "none"


def in_one_line(variables: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(variables.items()))


def owned_variables(results: Sequence[RunResult]) -> set[str]:
    """The names of variables that the environment of any of these runs sets."""
    return {name for result in results for name in result.own_variables}


def measured_steps(result: RunResult) -> int | str:
    """Where one rule for all finds how many steps are left out, it may find another number in each run."""
    if workload_value("warmup_steps")(result) == "auto":
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


def loss_of_step(step: int) -> Read:
    """The loss of a step, from 1; unknown where it is not finite."""
    return lambda result: result.train_loss[step - 1] if len(result.train_loss) >= step else "no such step"


def computed(name: str) -> Read:
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


def count_value(name: str) -> Read:
    """A count of what was computed, and what was asked for if that differs."""

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


def decisions_of(what: str) -> Read:
    """One checksum of what the host decided for all steps; `none` where the workload has no such decision."""

    def value(result: RunResult) -> str:
        if result.decisions is None:
            return NOT_KNOWN
        digests = result.decisions.digests.get(what)
        return "none" if digests is None else hashlib.sha256(digests.encode()).hexdigest()

    return value


def evaluated_rows(result: RunResult) -> dict[int, str] | str:
    """Step of each evaluation -> the checksum of its samples, labels and pixels."""
    rows = {evaluation.step: evaluation.rows for evaluation in result.evaluations if evaluation.rows is not None}
    return rows or NOT_KNOWN


def in_one_checksum(values: Sequence[Any]) -> list[Any]:
    """Values of which a run has many, as one checksum of all."""
    return [value if value == NOT_KNOWN else hashlib.sha256(repr(value).encode()).hexdigest() for value in values]


def evaluation_accuracy(result: RunResult) -> Any:
    return result.evaluations[-1].accuracy if result.evaluations else NOT_KNOWN


def replicas_compared(result: RunResult) -> str:
    """What was found where the copies of all replicas were compared."""
    computed = result.computed
    if computed is None or not (computed.replicas_compared_after or computed.first_update_norms):
        return NOT_KNOWN
    if not computed.replicas_compared_after:
        return "one copy"
    return computed.replica_difference or "the same"


def late_step(result: RunResult) -> str:
    """Whether another framework confirms the last steps of a run."""
    if result.late_step is None:
        return "not repeated"
    if result.late_step.problem or result.late_step.left_out is not None:
        return result.late_step.in_words
    return f"confirmed by {result.late_step.framework}"
