"""The series of one process."""

import pytest

from dpcompare.results.series import ProcessSeries
from tests.support.events import ready, trained


def test_events_add_up_to_one_entry_per_step():
    series = ProcessSeries([ready(first_step=4), trained([8.0], step=5, time=7.0), trained([4.0, 2.0], step=7)])
    assert series.losses == [8.0, 4.0, 2.0]
    assert series.global_counts == [8, 8, 8]
    assert (series.first_step, series.num_steps, series.first_step_at) == (4, 7, 7.0)


@pytest.mark.parametrize(("steps_together", "seconds"), [(True, 0.1), (False, 0.102)])
def test_time_before_a_step_is_part_of_it_where_asynchronous(steps_together, seconds):
    series = ProcessSeries([trained([1.0, 1.0, 1.0], step=3)], steps_together=steps_together)
    assert series.durations(slice(1, 3)) == pytest.approx([seconds, seconds])


@pytest.mark.parametrize(("joules", "has_energy"), [([2.0, 2.0], True), ([2.0], False), (None, False)])
def test_energy_counts_where_every_step_has_it(joules, has_energy):
    assert ProcessSeries([trained([1.0, 1.0], step=2, joules=joules)]).has_energy == has_energy
