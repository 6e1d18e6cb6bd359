"""The tables of numeric faults and of healthy pairs: that their rows can be planted and trained, and are judged."""

import math
from types import SimpleNamespace

import pytest

from dpcompare.config.modes import MODES
from stress.injection import injected
from stress.planted import counts, effect, faults_of, is_let_through, sentences
from stress.planted_faults import FAULTS
from stress.planted_pairs import PAIRS
from stress.planted_row import CHECKPOINT_EVERY, TINY
from tests.support.results import result


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_compiles_and_can_be_trained(name):
    fault = FAULTS[name]
    compile(injected(fault.inject), name, "exec")
    assert (fault.place.framework, fault.place.mode) in MODES
    assert fault.place.config(fault.workload, resumed=fault.resumed, late_step=True).late_step
    assert fault.leads
    assert all(fault.leads)


@pytest.mark.parametrize("name", PAIRS)
def test_healthy_runs_can_be_trained_by_several_modes(name):
    odd = PAIRS[name]
    one, *others = (place.config(odd.workload, resumed=odd.resumed) for place in odd.places)
    assert others
    for other in others:
        assert one.workload == other.workload
        assert (one.framework, one.mode) != (other.framework, other.mode)
        assert one.topology.num_replicas == other.topology.num_replicas


def test_the_tables_are_large_and_each_name_is_one_row():
    assert len(FAULTS) >= 60
    assert len(PAIRS) >= 20
    assert not FAULTS.keys() & PAIRS.keys()
    assert len({f"{fault.inject} {fault.place} {fault.workload}" for fault in FAULTS.values()}) == len(FAULTS)


def test_every_framework_and_several_replicas_have_faults():
    places = [fault.place for fault in FAULTS.values()]
    for framework in ("torch", "tensorflow", "jax"):
        assert sum(place.framework == framework for place in places) >= 15
        assert any(place.framework == framework and place.mode != "single" for place in places)


def test_a_resumed_run_has_steps_left():
    assert CHECKPOINT_EVERY < TINY["steps"] < 2 * CHECKPOINT_EVERY + 10


@pytest.fixture
def fault(tmp_path):
    """A fault of the table, installed in a folder."""
    chosen = next(iter(FAULTS.values()))
    chosen.install(tmp_path)
    return chosen, tmp_path


def test_a_fault_is_planted_by_a_sitecustomize_module(fault):
    chosen, folder = fault
    source = (folder / "sitecustomize.py").read_text()
    assert f"'dpcompare.{chosen.module}'" in source
    assert "def inject(module):" in source


@pytest.mark.parametrize(("losses", "expected"), [([2.0, 1.0], 0.0), ([2.0, 1.5], 0.5 / 1.5), ([2.0, None], math.inf)])
def test_an_effect_is_the_largest_difference(losses, expected):
    same = SimpleNamespace(train_loss=[2.0, 1.0], evaluations=[SimpleNamespace(loss=None, accuracy=0.5)])
    other = SimpleNamespace(train_loss=losses, evaluations=same.evaluations)
    assert effect(same, other) == pytest.approx(expected)


def test_no_effect_is_not_counted_and_silence_is_let_through():
    rows = [
        {"name": "a", "place": "torch single", "precision": "float32", "effect": 0.0},
        {"name": "b", "place": "torch single", "precision": "float32", "effect": 1.0}
        | {"sheet": [], "like": [], "verify": [], "first": None, "leads": []},
        {"name": "c", "place": "torch single", "precision": "float32", "effect": 1.0}
        | {"sheet": ["first loss: "], "like": [], "verify": [], "first": "first loss: ", "leads": [True]},
        {"name": "d", "place": "both", "healthy": True, "sheet": ["first loss: "], "like": []}
        | {"pairs": 3, "proved": 2},
    ]
    assert [is_let_through(row) for row in rows] == [False, True, False, False]
    found = counts(rows)
    assert (found["named"], found["faults"], found["without_effect"], found["alarms"]) == (1, 2, 1, 1)
    said = "\n".join(sentences(rows))
    assert "1 of 2 faults are named (sheet 1, like 0, verify 0); 1 had no effect." in said
    assert "LET THROUGH: b" in said
    assert "3 pairs on the sheet and 2 runs of `verify --like`, of 1 odd settings; 1 settings raised an alarm" in said
    assert [row[0] for row in faults_of(rows).rows] == ["a", "b", "c"]


def test_rows_of_speed_alone_name_no_fault():
    from stress.planted import on_sheet

    slow = result("tensorflow", "multiworker", clock_problem="half of its seconds are missing")
    assert on_sheet([result(), slow]) == []
    assert on_sheet([result(), result("tensorflow", "multiworker", train_loss=[3.0] * 45)]) != []
