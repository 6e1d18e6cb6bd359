"""When others have disturbed a run, by what was taken of the cores."""

import pytest

from dpcompare.results.clock import MachineLoad
from dpcompare.results.result import NodeRecord
from dpcompare.system.cores import CoresUsed
from tests.support.results import result


def load(run, others, *, stolen=0.0, cores=2, planned=None, seconds=10.0, throttles=None):
    """Cores that were taken, by two processes of the run and by others."""
    used = CoresUsed(
        seconds=seconds,
        cores=cores,
        own_seconds=run / 2 * seconds,
        busy_seconds=(run + others) * seconds,
        stolen_seconds=stolen * seconds,
        waiting_seconds=0.3 * seconds,
        heat_throttles=throttles,
    )
    return MachineLoad.of([used, used], planned_cores=planned or cores)


def test_what_others_took_is_all_but_what_the_run_did():
    found = load(1.5, 0.4)
    assert (found.run_cores, found.other_cores) == (pytest.approx(1.5), pytest.approx(0.4))
    assert found.waiting_fraction == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (load(0.6, 1.4), "other processes took 1.4 of 2 cores while this run was measured"),
        (
            load(1.2, 0.1, stolen=0.7),
            "the host of this virtual machine took 0.7 of 2 cores while this run was measured",
        ),
        (
            load(1.0, 0.5, stolen=0.5),
            "other processes took 0.5 and the host of this virtual machine took 0.5 of 2 cores while this run was "
            "measured",
        ),
        (load(4.0, 58.0, cores=64, planned=8), "other processes took 58.0 of 64 cores while this run was measured"),
    ],
)
def test_a_run_that_lacked_cores_says_who_took_them(found, sentence):
    assert found.disturbance == sentence


@pytest.mark.parametrize(
    "found",
    [
        load(1.9, 0.05),
        load(1.0, 0.5),  # half a core was idle
        load(0.9, 0.9, planned=1),  # there was a core for each
        load(8.0, 50.0, cores=64, planned=8),
        load(0.2, 1.4, seconds=0.3),  # the counters are too coarse to say so
        load(3.0, 0.0),  # more than was read in all, by the rounding of short times
    ],
)
def test_a_run_that_had_its_cores_says_nothing(found):
    assert found.disturbance is None


def test_a_disturbed_run_names_its_node_and_its_hot_cores():
    nodes = [
        NodeRecord(node_rank=rank, host=f"h{rank}", device_names=[], versions={}, load=each)
        for rank, each in enumerate((load(1.9, 0.0), load(0.6, 1.4, throttles=3)))
    ]
    warnings = result(nodes=nodes).warnings
    assert [(warning.kind, warning.sentence) for warning in warnings] == [
        ("DISTURBED", "node 1: other processes took 1.4 of 2 cores while this run was measured"),
        ("SLOWED DOWN", "node 1: cores were throttled 3 times for heat"),
    ]
