"""The groups of verify that cross options: which pairs of values occur, by whom, and what they cost."""

import os
import subprocess
import sys
from itertools import combinations

import pytest

from dpcompare.config.modes import MODES
from dpcompare.config.optimizers import OPTIMIZERS
from dpcompare.experiments.contenders import known_modes
from dpcompare.experiments.crossed_groups import NEEDS, OPTIONS, crossed_groups
from dpcompare.experiments.verify import verify
from dpcompare.experiments.verify_groups import not_compared, plan_groups
from dpcompare.experiments.verify_runs import config_of
from dpcompare.training.schedule import learning_rate, peak_learning_rate
from stress.injection import injected, write_sitecustomize
from tests.support.contenders import ALL, BOTH

EVERY = ("torch", "tensorflow", "jax")
MODES_OF_EVERY = (*ALL, "fsdp", "spmd", "multiprocess", "jit")


def planned(frameworks=EVERY, modes=MODES_OF_EVERY, replicas=(1, 2, 4), **asked):
    return crossed_groups(frameworks, modes, replicas, device="cpu", asked=asked)


def replicas_of(contender):
    nodes = contender.num_nodes - MODES[contender.framework, contender.mode].nodes_without_replica
    return nodes * contender.devices_per_node // contender.stages


def values_of(group, contender):
    """Option -> its value, read from what is run."""
    fields = group.workload.model_dump() | {"accumulate": contender.accumulate}
    resumes = contender.resumed or any(
        other.resumed and other.compared_as == contender.compared_as for other in group.contenders
    )
    values = {"replicas": str(replicas_of(contender)), "resumed": "yes" if resumes else "no"}
    for option, rows in OPTIONS.items():
        if option not in values:
            (values[option],) = (
                name
                for name, value in rows.items()
                if all(fields[field] == expected for field, expected in value.fields.items())
            )
    return values


ILLEGAL = {frozenset({("BatchNorm", "sync"), ("replicas", "1")}): "one replica has no other to synchronize with"}


def test_a_pair_of_values_is_crossed_or_has_a_reason():
    every = {(option, value) for option, rows in OPTIONS.items() for value in rows}
    pairs = {frozenset({a, b}) for a, b in combinations(every, 2) if a[0] != b[0]}
    for framework in EVERY:
        met = {
            frozenset(pair)
            for group in planned()
            for contender in group.contenders
            if contender.framework == framework
            for pair in combinations(values_of(group, contender).items(), 2)
        }
        assert pairs - met == set(ILLEGAL), framework
    whys = {need.why for need in NEEDS}
    assert set(ILLEGAL.values()) == whys


def values_met(groups):
    """What is compared -> the values of options that it trains with."""
    met = {}
    for group in groups:
        for contender in group.contenders:
            met.setdefault(contender.compared_as, set()).update(values_of(group, contender).items())
    return met


@pytest.mark.parametrize("modes", [MODES_OF_EVERY, known_modes("mlp")])
def test_each_mode_meets_every_value_it_can_have(modes):
    every = {(option, value) for option, rows in OPTIONS.items() for value in rows}
    met = values_met(planned(modes=modes))
    assert {mode for _, mode, _, _ in met} == {name for name in modes if not name.startswith("ddp-")}
    on_one = {("replicas", "2"), ("replicas", "3"), ("BatchNorm", "sync")}
    for (framework, mode, _, in_stages), values in met.items():
        if mode == "parameter-server":  # without accumulation too: it is in few groups
            assert on_one | {("accumulation", "2"), ("accumulation", "3")} <= every - values
        else:
            never = on_one if mode == "single" else set() if in_stages else {("replicas", "1")}
            never |= {("BatchNorm", "local")} if MODES[framework, mode].sees_whole_batch else set()
            assert every - values == never, (framework, mode)


def test_all_contenders_of_a_group_train_the_same():
    for group in planned(modes=known_modes("mlp")):
        assert len({tuple(values_of(group, contender).items()) for contender in group.contenders}) == 1
        assert len({contender.compared_as for contender in group.contenders}) > 1


def test_resumed_groups_stop_within_epoch_and_warm_up():
    resumed = [group for group in planned() if any(contender.resumed for contender in group.contenders)]
    assert {group.checkpoint_every for group in resumed} == {3}
    assert {group.workload.lr_warmup_steps for group in resumed} == {0, 4}
    assert {-(-count // group.workload.global_batch_size) for group in resumed for count in (66, 72)} == {2}


def test_no_first_update_is_lost_in_rounding():
    """A scaled learning rate is the one that is verified elsewhere, of whose warm-up the first step has a quarter."""
    for workload in (group.workload for group in planned()):
        verified = OPTIMIZERS[workload.optimizer].verification.learning_rate
        assert peak_learning_rate(workload) == pytest.approx(verified)
        assert learning_rate(workload, 0, 8) >= verified / 4 * (1 - 1e-9)
        assert workload.clip_norm == {"toy-bn": 0.25, "mlp": 3.5}[workload.model]


def test_a_bare_verify_has_few_more_contenders():
    """Each takes about 15 seconds of a core."""
    groups = planned(BOTH, ALL)
    assert (len(groups), sum(len(group.contenders) for group in groups)) == (13, 42)
    everything = planned()
    assert (len(everything), sum(len(group.contenders) for group in everything)) == (13, 72)


PRINTED = f"""
from dpcompare.experiments.crossed_groups import crossed_groups
print(crossed_groups({EVERY}, {MODES_OF_EVERY}, (1, 2, 4), device="cpu", asked={{}}))
"""


@pytest.mark.process
@pytest.mark.seconds
def test_the_crossed_plan_is_the_same_in_every_process():
    printed = {
        subprocess.run(
            [sys.executable, "-c", PRINTED], env=os.environ | {"PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("1", "2")
    }
    assert printed == {f"{planned()}\n".encode()}


@pytest.mark.parametrize(
    ("model", "precisions", "quick", "is_crossed"),
    [
        ("toy-bn", ["float64"], False, True),
        ("toy-bn", ["float32"], False, False),
        ("toy-bn", ["float32", "float64"], True, False),
        ("mine:model", ["float64"], False, False),
    ],
)
def test_only_a_whole_verify_in_float64_crosses(model, precisions, quick, is_crossed):
    groups = plan_groups(BOTH, ALL, model=model, replicas=[1, 2], precisions=precisions, quick=quick)
    crossed = planned(BOTH, ALL, (1, 2))
    assert [group in groups for group in crossed] == [is_crossed] * len(crossed)


def test_what_is_asked_for_is_crossed_with_the_rest():
    groups = planned(BOTH, ALL, accumulate=4, weight_average=0.5, batchnorm="sync")
    assert {(group.workload.accumulate, group.workload.weight_average) for group in groups} == {(4, 0.5)}
    assert {contender.accumulate for group in groups for contender in group.contenders} == {4}
    assert {group.workload.batchnorm for group in groups} == {"sync"}
    assert {group.workload.model for group in groups if group.contenders[0].mode == "single"} == {"mlp"}
    assert {replicas_of(group.contenders[0]) for group in groups} == {1, 3}  # 36 images are not 8 micro-batches
    assert planned(BOTH, ALL, accumulate=8) == []


@pytest.mark.parametrize(
    ("replicas", "expected"), [((1, 2, 4), {1, 2, 3}), ((1,), {1}), ((2,), {2}), ((4,), set()), ((1, 2), {1, 2})]
)
def test_replicas_lie_between_those_asked_for(replicas, expected):
    groups = planned(BOTH, ALL, replicas)
    assert {replicas_of(contender) for group in groups for contender in group.contenders} == expected


def test_one_framework_alone_is_compared_by_two_modes():
    groups = planned(("torch",), ("single", "dp", "ddp"))
    assert groups
    assert all(len({contender.mode for contender in group.contenders}) == 2 for group in groups)
    assert planned(("torch",), ("single",)) == []
    assert not_compared(groups, ("torch",), ("single", "dp", "ddp"))[0].startswith("torch single")


@pytest.mark.seconds
def test_every_crossed_contender_can_be_run(monkeypatch):
    """Whether or not its framework is installed."""
    monkeypatch.setattr("dpcompare.experiments.verify_runs.require_environment", lambda config: None)
    for group in planned(modes=known_modes("mlp")):
        for contender in group.contenders:
            config = config_of(contender, group.workload, "cpu", {}, group.checkpoint_every)
            assert config.topology.num_replicas == replicas_of(contender)


ALL_VALUES = (0, 1, 3, 8)
"""Of the groups of torch and JAX, those that together have every value of every option."""


def test_four_groups_have_every_value():
    every = {(option, value) for option, rows in OPTIONS.items() for value in rows}
    groups = planned(("torch", "jax"))
    assert len(groups) == 13
    assert set().union(*values_met([groups[number] for number in ALL_VALUES]).values()) == every


@pytest.mark.torch
@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=[] if n in ALL_VALUES else [pytest.mark.long]) for n in range(13)]
)
def test_healthy_modes_pass_in_crossed_groups(number):
    """In the fewest that show all values, to save time; a bare `verify` runs all groups."""
    group = planned(("torch", "jax"))[number]
    checks = list(verify([group]))
    assert [check.name for check in checks if not check.passed] == []
    assert len(checks) >= 14


THIRD_LOST = """
step = module.TorchBackend.train_step
def lossy(self, batches, learning_rate):
    if len(batches) == 3 and self.config.workload.regularization == "shared":
        batches = [*batches[:2], batches[1]]
    return step(self, batches, learning_rate)
module.TorchBackend.train_step = lossy
"""


@pytest.mark.torch
@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_fault_of_two_options_at_once_is_named(tmp_path, monkeypatch):
    write_sitecustomize(tmp_path, "dpcompare.backends.torch.backend", injected(THIRD_LOST))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    (group,) = (
        group
        for group in planned(("torch", "jax"))
        if (group.workload.accumulate, group.workload.regularization) == (3, "shared")
    )
    failed = {check.name: check.pair for check in verify([group]) if not check.passed}
    assert failed["first loss"] == "torch single in 3 micro-batches / jax single in 3 micro-batches"
    assert "evaluation logits" not in failed  # of the initial weights
