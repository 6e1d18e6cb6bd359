"""The table of faults of measurement: that its rows can be planted, and how they are judged."""

import pytest

from dpcompare.results.observed import Observed
from stress.injection import injected
from stress.measured_faults import FAULTS, SINGLE, Fault, judged, names, sentences, table_of
from tests.support.results import result

SEEN = Observed(threads=2, threads_asked=2, cores_at_start="0-1", cores_at_end="0-1", niceness=0)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_measurement_compiles_and_says_what_leads(name):
    fault = FAULTS[name]
    compile(injected(fault.inject or "pass"), name, "exec")
    assert bool(fault.inject) != bool(fault.environment)
    assert all(fault.leads)
    assert all(word == word.lower() for word in fault.leads)


def test_there_are_forty_faults_of_measurement():
    assert len(FAULTS) >= 40


def test_a_row_of_the_sheet_names_a_fault_and_leads_to_it():
    healthy = result("torch", "single", observed=[SEEN])
    fewer = result("torch", "single", observed=[SEEN.model_copy(update={"threads": 1})])
    assert names(healthy, healthy) == []
    row = judged("one thread", Fault(arm=SINGLE, leads=("threads",)), healthy, fewer)
    assert [line.partition(":")[0] for line in row["named"]] == ["threads"]
    assert row["leads"]
    assert not judged("one thread", Fault(leads=("clock",)), healthy, fewer)["leads"]


def test_what_is_not_named_is_listed():
    rows = [
        {"name": "a", "arm": "torch single", "speed": 2.0, "cpu": None, "named": ["CLOCK: x"], "leads": True},
        {"name": "b", "arm": "torch single", "speed": 1.0, "cpu": 1.5, "named": [], "leads": False},
    ]
    rows = [row | {"healthy": False} for row in rows] + [rows[1] | {"name": "healthy run 1", "healthy": True}]
    assert list(sentences(rows)) == [
        "1 of 2 faults are named, and the names lead to the cause of 1. Of 1 healthy runs 0 are named.",
        "Not named: b.",
    ]
    assert [row[4:] for row in table_of(rows).rows] == [("CLOCK", "yes"), (None, "no"), (None, None)]
