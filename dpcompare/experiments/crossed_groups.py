"""The groups of `dpcompare verify` that cross the options of a workload, so that every two values occur together.

A new option, or a new value, is a row of OPTIONS; what a value needs is a row of NEEDS.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dpcompare.config.modes import MODES
from dpcompare.config.optimizers import OPTIMIZERS
from dpcompare.experiments.contenders import Contender, Group, has_local_batchnorm, synchronizes, usable_contenders
from dpcompare.experiments.pairwise import Row, covering_rows
from dpcompare.experiments.verify_workloads import verified_workload
from dpcompare.system.type_names import FieldValue
from dpcompare.training.schedule import GOYAL_BATCH_SIZE

BATCH = 36
"""Images per step: both 2 and 3 replicas can have 2 or 3 micro-batches, each with at least 4 images."""
COMMON: dict[str, FieldValue] = {"steps": 8, "global_batch_size": BATCH, "image_size": 35}
"""What all groups train with. An epoch has two steps, so that a run which resumes after step 3 continues in the middle
of an epoch and of a warm-up. The images are small to save time."""
CLIP_NORMS: dict[str, FieldValue] = {"toy-bn": 0.25, "mlp": 3.5}
"""Model -> about the norm of its gradients of such images. A much smaller limit would leave first updates that rounding
of the weights blurs by more than a check of one step allows."""
LARGE_SEED = 2**40 + 3
"""What is left of it in 32 bits is the small seed, which draws something else."""


@dataclass(frozen=True, kw_only=True)
class Value:
    """A value of an option."""

    fields: Mapping[str, FieldValue] = field(default_factory=dict)
    """Of the workload; none where the contenders have it."""
    words: str = ""
    """In what a group is called; empty where its contenders or its workload say it already."""


OPTIONS: dict[str, dict[str, Value]] = {
    "replicas": {"1": Value(), "2": Value(), "3": Value()},
    "accumulation": {str(count): Value(fields={"accumulate": count}) for count in (1, 2, 3)},
    "BatchNorm": {
        "local": Value(fields={"model": "toy-bn", "batchnorm": "local"}),
        "sync": Value(fields={"model": "toy-bn", "batchnorm": "sync"}),
        "none": Value(fields={"model": "mlp"}),
    },
    "optimizer": {name: Value(fields={"optimizer": name}) for name in ("sgd", "adam")},
    "schedule": {name: Value(fields={"schedule": name}, words=name) for name in ("constant", "cosine")},
    "warm-up": {
        "none": Value(fields={"lr_warmup_steps": 0}),
        "4 steps": Value(fields={"lr_warmup_steps": 4}, words="warm-up"),
    },
    "learning rate": {
        "as it is": Value(fields={"scale_lr": "none"}),
        "scaled": Value(fields={"scale_lr": "linear"}, words="scaled learning rate"),
    },
    "regularization": {name: Value(fields={"regularization": name}) for name in ("off", "shared")},
    "mean of the weights": {
        "on": Value(fields={"weight_average": 0.8}),
        "off": Value(fields={"weight_average": None}, words="no mean of the weights"),
    },
    "profile": {name: Value(fields={"profile": name}) for name in ("strict", "native")},
    "resumed": {"no": Value(), "yes": Value()},
    "seed": {
        "small": Value(fields={"seed": 3}),
        "large": Value(fields={"seed": LARGE_SEED}, words="large seed"),
    },
    "classes": {
        "10": Value(fields={"dataset": "synthetic-mini"}),
        "300": Value(fields={"dataset": "synthetic-many"}, words="300 classes"),
    },
}
"""Option -> value -> what it is."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a value of an option needs of another option."""

    option: str
    value: str
    other: str
    expected: tuple[str, ...]
    """Values of the other option, one of which it must have."""
    why: str

    def is_met(self, row: Mapping[str, str]) -> bool:
        """Whether values of some or all options are not against it."""
        return row.get(self.option) != self.value or row.get(self.other, self.expected[0]) in self.expected


NEEDS = (
    Need(
        option="BatchNorm",
        value="sync",
        other="replicas",
        expected=("2", "3"),
        why="one replica has no other to synchronize with",
    ),
)


def crossed_groups(
    frameworks: Sequence[str],
    modes: Sequence[str],
    replicas: Sequence[int],
    *,
    device: str,
    asked: Mapping[str, FieldValue],
) -> list[Group]:
    """Few groups of small models in float64 in which every pair of values of two options occurs that NEEDS allows.

    Each framework meets every pair, by one of its modes; each mode meets every value of the groups in which it can be,
    which are all values that it can have, but for `parameter-server`. One framework alone has two modes in each group.

    Args:
        frameworks: of which modes are verified.
        modes: and variants that are.
        replicas: numbers that were asked for; those of the option that lie between the least and the most are taken.
        device: as for `verify`.
        asked: fields of a workload, which all groups take; an option has the values that agree with them.
    """
    between = [count for count in OPTIONS["replicas"] if min(replicas) <= int(count) <= max(replicas)]
    options = {name: _agreeing(name, asked) for name in OPTIONS} | {"replicas": between}

    def is_legal(row: Mapping[str, str]) -> bool:
        return all(need.is_met(row) for need in NEEDS) and BATCH % _parts(row, asked) == 0

    rows = covering_rows(options, is_legal)
    able = [_able(row, usable_contenders(frameworks, modes, int(row["replicas"])), device, asked) for row in rows]
    return [_group(row, dealt, asked) for row, dealt in zip(rows, _dealt(rows, able), strict=True) if dealt]


def _agreeing(option: str, asked: Mapping[str, FieldValue]) -> list[str]:
    """The values of an option that agree with what is asked for; the first, whose fields are replaced, if none do."""
    values = OPTIONS[option]
    agreeing = [
        name
        for name, value in values.items()
        if all(asked.get(field, expected) == expected for field, expected in value.fields.items())
    ]
    return agreeing or list(values)[:1]


def _fields(row: Row, asked: Mapping[str, FieldValue]) -> dict[str, FieldValue]:
    """What a workload has with these values."""
    chosen = {name: value for option in row for name, value in OPTIONS[option][row[option]].fields.items()}
    return chosen | dict(asked)


def _parts(row: Mapping[str, str], asked: Mapping[str, FieldValue]) -> int:
    """Micro-batches of a step in all replicas; 1 of an option that has no value yet."""
    return int(row.get("replicas", 1)) * int(asked.get("accumulate", row.get("accumulation", 1)))


def _able(
    row: Row, contenders: Iterable[Contender], device: str, asked: Mapping[str, FieldValue]
) -> tuple[Contender, ...]:
    """The contenders whose modes can train with these values."""
    fields = _fields(row, asked)

    def supports(contender: Contender) -> bool:
        supported = MODES[contender.framework, contender.mode].supported_values
        if not all(fields[name] in values for name, values in supported.items() if name in fields):
            return False
        if fields.get("batchnorm") == "sync":
            return synchronizes(contender, device)
        return has_local_batchnorm(contender, str(fields["model"]))

    return tuple(filter(supports, contenders))


def _dealt(rows: Sequence[Row], able: Sequence[Sequence[Contender]]) -> Iterator[tuple[Contender, ...]]:
    """Which of the contenders that are able take part in each group: none where there are not two modes.

    One of each framework, and two of one alone: the one whose mode meets the most values that it has not met. Then
    as many more as it takes until each mode has met all that it can.
    """
    dealt: list[set[Contender]] = [set() for _ in rows]
    met: dict[tuple[object, ...], set[tuple[str, str]]] = defaultdict(set)

    def num_new(number: int, contender: Contender) -> int:
        return len(rows[number].items() - met[contender.compared_as])

    def deal(number: int, contenders: Iterable[Contender]) -> None:
        contender = max(contenders, key=lambda one: num_new(number, one))
        dealt[number].add(contender)
        met[contender.compared_as] |= rows[number].items()

    comparable = [number for number in range(len(rows)) if len(able[number]) > 1]
    for number in comparable:
        for framework in dict.fromkeys(one.framework for one in able[number]):
            deal(number, [one for one in able[number] if one.framework == framework])
        if len(dealt[number]) == 1:
            deal(number, [one for one in able[number] if one not in dealt[number]])
    left = [(number, one) for number in comparable for one in able[number] if one not in dealt[number]]
    while left and num_new(*(best := max(left, key=lambda place: num_new(*place)))):
        deal(best[0], [best[1]])
        left.remove(best)
    return (tuple(one for one in able[number] if one in dealt[number]) for number in range(len(rows)))


def _group(row: Row, contenders: Sequence[Contender], asked: Mapping[str, FieldValue]) -> Group:
    """The group of a row; each contender once more, resumed, where the row asks for it."""
    fields = _fields(row, asked)
    model, optimizer = str(fields["model"]), str(fields["optimizer"])
    # Scaled to the rate with which it is verified elsewhere: as for CLIP_NORMS, updates must not be small.
    scale = GOYAL_BATCH_SIZE / BATCH if fields["scale_lr"] == "linear" else 1
    rate = OPTIMIZERS[optimizer].verification.learning_rate * scale
    fields = COMMON | {"clip_norm": CLIP_NORMS[model], "learning_rate": rate} | fields
    workload = verified_workload(model, optimizer, "float64", quick=False, asked=fields)
    parts = [replace(contender, accumulate=workload.accumulate) for contender in contenders]
    resumed = [replace(contender, resumed=True) for contender in parts] if row["resumed"] == "yes" else []
    words = (OPTIONS[option][value].words for option, value in row.items())
    return Group(workload=workload, contenders=(*parts, *resumed), crossed=tuple(filter(None, words)))
