"""The plan of `dpcompare verify`: which modes train the same workload side by side."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from dpcompare.backends.availability import require_compiler
from dpcompare.config.modes import MODES
from dpcompare.config.optimizers import optimizers_for
from dpcompare.config.run import lacks_local_batchnorm
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError, did_you_mean
from dpcompare.experiments.contenders import (
    VARIANTS,
    Contender,
    Group,
    has_local_batchnorm,
    one_device,
    synchronizes,
    usable_contenders,
    variants,
)
from dpcompare.experiments.crossed_groups import crossed_groups
from dpcompare.experiments.verify_workloads import BATCH, verified_workload
from dpcompare.models.architectures import may_have_batchnorm, model_of
from dpcompare.system.devices import installed_gpus, visible_gpus
from dpcompare.system.python_environment import is_custom
from dpcompare.system.type_names import FieldValue


def plan_groups(
    frameworks: Sequence[str],
    modes: Sequence[str],
    *,
    model: str,
    replicas: Sequence[int],
    precisions: Sequence[str],
    quick: bool,
    device: str = "cpu",
    against: Literal["cpu"] | None = None,
    asked: dict[str, FieldValue] | None = None,
    seldom: Collection[tuple[str, str]] = (),
    least: int = 2,
) -> list[Group]:
    """What to run. Quick: `model` on one device only and few steps; tiny models on several replicas.

    Regularization is checked where differences show, in float64, with Adam: `model` on one device, toy-bn elsewhere.
    What else a workload can have is spread over the groups of small models, since it takes no group of its own, and,
    unless quick, crossed in groups of small models in float64 (`crossed_groups`), which show nothing of a custom one.

    Args:
        device: as for `verify`.
        against: where each contender runs once more. On one replica, modes of several take part then: what they start
            and compute on one GPU is compared with what they do on the CPU.
        asked: fields of a workload, which all groups take.
        seldom: (framework, mode) of what trains a big model in one group for each number of replicas, in the last
            precision with its first optimizer; if there is any, another way to run a mode (VARIANTS) does so too.
            Small models are trained by all.
        least: contenders that a group must have; 1 where each is then run in several environments.

    Raises:
        RequestError: see `check_request`.
    """
    asked = asked or {}
    accumulate = asked.get("accumulate", 1)
    check_request(modes, replicas, accumulate)
    groups: list[Group] = []
    for precision in precisions:
        for num_replicas in replicas:
            usable = usable_contenders(frameworks, modes, num_replicas, alone=against is not None)
            if contenders := tuple(replace(contender, accumulate=accumulate) for contender in usable):
                of_precision = _groups(
                    contenders, model, num_replicas, precision, quick=quick, device=device, asked=asked
                )
                groups += _thinned(list(of_precision), seldom, is_last=precision == precisions[-1])
        if precision == "float64" or not quick:
            accumulation = _accumulation(frameworks, modes, replicas, precision, asked, quick=quick)
            groups += [accumulation] if len(accumulation.contenders) > 1 else []
        if precision == "float64" and not quick and not is_custom(model):
            groups += crossed_groups(frameworks, modes, replicas, device=device, asked=asked)
    groups = [_able(group) for group in groups]
    groups = groups if against is None else [with_each_on(against, group) for group in groups]
    groups = [on_one_gpu(group) for group in groups] if device == "auto" and has_one_gpu() else groups
    return [group for group in groups if len(group.to_run) >= least]


def _thinned(groups: list[Group], seldom: Collection[tuple[str, str]], *, is_last: bool) -> Iterator[Group]:
    """The groups of one precision and number of replicas, those of a big model without what trains it seldom."""
    for number, group in enumerate(groups):
        if not seldom or not model_of(group.workload.model).is_big or (is_last and number == 0):
            yield group
            continue
        often = tuple(
            each
            for each in group.contenders
            if (each.framework, each.mode) not in seldom and each.launcher is None and each.stages == 1
        )
        yield replace(group, contenders=often)


def _able(group: Group) -> Group:
    """The group without modes that cannot have the local BatchNorm of its workload."""
    if group.workload.batchnorm == "sync":
        return group
    able = tuple(each for each in group.contenders if has_local_batchnorm(each, group.workload.model))
    return replace(group, contenders=able)


def with_each_on(device: Literal["cpu"], group: Group) -> Group:
    """The group with each contender once more, on another type of device."""
    elsewhere = (replace(contender, device=device) for contender in group.contenders)
    return replace(group, contenders=(*group.contenders, *elsewhere))


def has_one_gpu() -> bool:
    """Whether replicas of which each has a GPU to itself cannot be had here, and one of several can."""
    return len(visible_gpus(installed_gpus())) == 1


def on_one_gpu(group: Group) -> Group:
    """The group where there is one GPU: several replicas share it or, in modes that cannot, are on the CPU."""

    def placed(contender: Contender) -> Contender:
        if contender.device is not None or contender.num_nodes * contender.devices_per_node == 1:
            return contender
        shares = MODES[contender.framework, contender.mode].shares_gpu and contender.stages == 1
        return replace(contender, device="shared gpu" if shares else "cpu")

    contenders = dict.fromkeys(map(placed, group.contenders))  # what the CPU took may have been there already
    return replace(
        group, contenders=tuple(contenders), baseline=None if group.baseline is None else placed(group.baseline)
    )


def lacking_batchnorm(
    frameworks: Sequence[str], modes: Sequence[str], model: str, replicas: Sequence[int], asked: dict[str, FieldValue]
) -> dict[tuple[str, str], str]:
    """(framework, mode) of what cannot have the local BatchNorm of a model -> that, and what to do about it."""
    if asked.get("batchnorm") == "sync":
        return {}
    return {
        key: f"{' '.join(key)}: on several devices it cannot train {model} with local BatchNorm; add --batchnorm sync"
        for key, row in MODES.items()
        if key[0] in frameworks and key[1] in modes and lacks_local_batchnorm(row, max(replicas), model)
    }


def not_compared(
    groups: Sequence[Group],
    frameworks: Sequence[str],
    modes: Sequence[str],
    explained: Collection[tuple[str, str]] = (),
) -> list[str]:
    """The modes and variants that were asked for and are compared with no other one, with what to do about it.

    Args:
        groups: that are compared.
        frameworks: asked for.
        modes: and variants, asked for.
        explained: (framework, mode) of what something else is said of.
    """
    compared = {
        contender.compared_as
        for group in groups
        if group.kind == "modes"
        and len({(each.compared_as, each.device, each.python) for each in group.contenders}) > 1
        for contender in group.contenders  # of a baseline, only losses are compared
    }
    return [
        f"{framework} {name}: no other mode that was asked for can be compared with it at these numbers of replicas; "
        "add a mode to --modes, or a number to --replicas"
        for framework, name, variant in variants()
        if framework in frameworks
        and name in modes
        and (framework, name) not in explained
        and (framework, *variant.compared_as) not in compared
    ]


def check_request(modes: Sequence[str], replicas: Sequence[int], accumulate: int = 1) -> None:
    """Refuse what cannot be verified.

    Raises:
        RequestError: an unknown mode, one that cannot be verified, or a number of replicas or of their micro-batches
            that does not divide BATCH.
    """
    known = [*dict.fromkeys(mode for _, mode in MODES), *VARIANTS]
    if unknown := [mode for mode in modes if mode not in known]:
        raise RequestError(
            f"unknown mode {unknown[0]!r}; expected some of {', '.join(known)}.{did_you_mean(unknown[0], known)}"
        )
    if not replicas:
        raise RequestError("--replicas: received none, expected numbers such as 1,2,4")
    divisors = [count for count in range(1, BATCH // 2 + 1) if BATCH % (2 * count) == 0]
    if accumulate not in divisors:
        raise RequestError(
            f"--accumulate: received {accumulate}, but the batch of {BATCH} images must divide into micro-batches with "
            f"at least 2 each; expected one of {', '.join(map(str, divisors))}"
        )
    possible = [count for count in divisors if count * accumulate in divisors]
    if impossible := [count for count in replicas if count not in possible]:
        raise RequestError(
            f"--replicas: received {', '.join(map(str, impossible))}, but the batch of {BATCH} images must divide "
            "among the replicas and their micro-batches with at least 2 each; expected some of "
            f"{', '.join(map(str, possible))}"
        )
    reasons = dict.fromkeys(
        f"{mode}: {row.unverifiable}" for (_, mode), row in MODES.items() if mode in modes and row.unverifiable
    )
    if reasons:
        raise RequestError(
            f"--modes: received what cannot be verified: {'; '.join(reasons)}; expected modes without these"
        )


BIG_MODEL_REPLICAS = {"quick": 1, "full": 2}
"""The most replicas with which a big model is trained."""


def _groups(
    contenders: tuple[Contender, ...],
    model: str,
    num_replicas: int,
    precision: str,
    *,
    quick: bool,
    device: str,
    asked: dict[str, FieldValue],
) -> Iterator[Group]:
    """What the modes train with this many replicas."""
    few = num_replicas <= BIG_MODEL_REPLICAS["quick" if quick else "full"]
    trained = model if few or not model_of(model).is_big else "toy-bn"
    size = "tiny" if not model_of(trained).is_big else "big, quick" if quick else "big"
    optimizers = optimizers_for(size, precision)
    if quick and num_replicas > 1:
        optimizers = optimizers[:1]  # the group with synchronized BatchNorm has Adam

    def of_replicas(able: tuple[Contender, ...], workload: Workload) -> Group:
        """With one device in the place of the replicas where that has their losses to the last digits."""
        is_one_batch = workload.batchnorm == "sync" or not may_have_batchnorm(workload.model)
        compares = is_one_batch and precision == "float64" and len(able) > 1
        baseline = one_device(able[0], workload, num_replicas) if compares else None
        return Group(workload=workload, contenders=able, baseline=baseline)

    for optimizer in optimizers:
        yield of_replicas(contenders, verified_workload(trained, optimizer, precision, quick=quick, asked=asked))
    if precision != "float64":
        return
    if num_replicas > 1:
        widened = {"regularization": "shared", "batchnorm": "sync"} | asked
        able = tuple(contender for contender in contenders if "batchnorm" in asked or synchronizes(contender, device))
        yield of_replicas(able, verified_workload("toy-bn", "adam", precision, quick=quick, asked=widened))
        return
    small = "toy-bn" if model_of(model).is_big else model
    if not model_of(small).drops:
        return
    widened = {"regularization": "shared"} | asked
    singles = tuple(contender for contender in contenders if contender.mode == "single")
    if model_of(model).is_big and not quick:
        yield Group(
            workload=verified_workload(model, "adam", precision, quick=quick, asked=widened), contenders=contenders
        )
    elif len(singles) < len(contenders):
        yield Group(
            workload=verified_workload(small, "adam", precision, quick=quick, asked=widened), contenders=contenders
        )
    if singles:
        native = verified_workload(small, "adam", precision, quick=quick, asked={"profile": "native"} | widened)
        tune = _compiled_here() if native.profile == "native" else {}  # unless another profile was asked for
        compiled = tuple(replace(one, tune=tune if one.framework == "torch" else {}) for one in singles)
        resumed = tuple(replace(contender, resumed=True) for contender in compiled)
        yield Group(workload=native, contenders=(*compiled, *resumed))


def _compiled_here() -> dict[str, str]:
    """Settings of torch in the native group, so that what is compiled is proved too, where there is a C++ compiler."""
    compiled = {"compilation": "torch.compile"}
    try:
        require_compiler(compiled)
    except RequestError:
        return {}
    return compiled


def _accumulation(
    frameworks: Sequence[str],
    modes: Sequence[str],
    replicas: Sequence[int],
    precision: str,
    asked: dict[str, FieldValue],
    *,
    quick: bool,
) -> Group:
    """One batch, the same in 2 micro-batches, and on 2 replicas in 2 each, with a model without BatchNorm.

    Quick: one mode with the whole batch, and in micro-batches those on 2 replicas, where there are any.
    """
    asked = {name: value for name, value in asked.items() if name not in ("accumulate", "batchnorm")}
    workload = verified_workload("mlp", "sgd", precision, quick=False, asked=asked)
    singles = usable_contenders(frameworks, modes, 1)
    accumulating = [one for one in singles if "accumulate" not in MODES[one.framework, one.mode].supported_values]
    several = usable_contenders(frameworks, modes, 2) if 2 in replicas else ()
    whole = singles[:1] if quick else singles
    in_parts = tuple(
        replace(one, accumulate=2) for one in (several if quick and several else (*accumulating, *several))
    )
    return Group(workload=workload, contenders=(*whole, *in_parts), kind="accumulation")
