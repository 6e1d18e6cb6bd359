"""The end of a training at its target, decided by every process alike."""

import pytest

from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.results.events import Evaluated, EventLog
from dpcompare.results.run_dir import event_path
from dpcompare.training.evaluated import Target


def config(**changes):
    return RunConfig(
        framework="torch",
        mode="ddp",
        workload=Workload(model="mlp", image_size=8),
        cluster=Cluster.partition(2, device="cpu"),
        **{"target_accuracy": 0.5, "stop_at_target": True} | changes,
    )


def evaluated(rank, correct, *, step=10):
    return Evaluated(process_rank=rank, step=step, epoch=1, loss_sum=1.0, correct=correct, count=100)


class Other:
    """The process that evaluates last, while the first one waits for it."""

    def __init__(self, run_dir, event):
        self.log, self.event, self.looks = EventLog(run_dir, 1), event, 0

    def __call__(self):
        self.looks += 1
        if self.looks == 3:
            self.log.append(self.event)


@pytest.mark.parametrize(("correct", "is_reached"), [((20, 80), True), ((90, 9), False)])
def test_the_parts_of_all_processes_decide(tmp_path, correct, is_reached):
    EventLog(tmp_path, 0).append(evaluated(0, correct[0]))
    other = Other(tmp_path, evaluated(1, correct[1]))
    assert Target(config(), tmp_path).is_reached(10, other) == is_reached
    assert other.looks >= 3
    assert Target(config(), tmp_path).is_reached(10, other) == is_reached  # in the other process


def test_each_evaluation_is_judged_by_itself(tmp_path):
    logs = [EventLog(tmp_path, rank) for rank in range(2)]
    target = Target(config(), tmp_path)
    for step, correct, is_reached in ((10, 10, False), (20, 60, True)):
        for rank, log in enumerate(logs):
            log.append(evaluated(rank, correct, step=step))
        assert target.is_reached(step, lambda: None) == is_reached


def test_a_run_that_goes_on_at_its_target_waits_for_nobody(tmp_path):
    assert not Target(config(stop_at_target=False), tmp_path).is_reached(10, lambda: None)


def test_damaged_events_end_the_run(tmp_path):
    for rank in range(2):
        EventLog(tmp_path, rank).append(evaluated(rank, 60))
    path = event_path(tmp_path, 1)
    path.write_text(path.read_text().replace('"correct": 60', '"correct": 61'))
    with pytest.raises(RuntimeError, match="the events of process 1 are damaged"):
        Target(config(), tmp_path).is_reached(10, lambda: None)
