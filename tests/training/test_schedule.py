"""The learning rate of every step."""

import pytest

from dpcompare.config.workload import Workload
from dpcompare.training.schedule import learning_rate


def rates(num_steps=8, **workload):
    chosen = Workload(learning_rate=0.8, **workload)
    return [learning_rate(chosen, step, num_steps) for step in range(num_steps)]


def test_constant():
    assert rates() == [0.8] * 8


def test_cosine_falls_from_the_peak_towards_zero():
    cosine = rates(schedule="cosine")
    assert cosine[0] == 0.8
    assert cosine[4] == pytest.approx(0.4)
    assert cosine[7] == pytest.approx(0.8 * 0.5 * (1 - 0.9238795325112867))
    assert cosine == sorted(cosine, reverse=True)


def test_warmup_rises_linearly_and_then_the_schedule_begins():
    assert rates(lr_warmup_steps=4)[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])
    assert rates(lr_warmup_steps=4, schedule="cosine")[4:6] == pytest.approx([0.8, 0.8 * 0.5 * (1 + 0.5**0.5)])


def test_linear_scaling_counts_from_a_batch_of_256():
    assert rates(scale_lr="linear", global_batch_size=512) == [1.6] * 8
