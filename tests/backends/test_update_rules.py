"""The rules around an update: the numbers of each step are those of the formulas in their sources."""

import numpy as np
import pytest

from dpcompare.backends.update_rules import UpdateRules, decays


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.9999])
def test_the_mean_weighs_steps_by_age_not_the_initial_weights(decay):
    rules = UpdateRules(weight_average=decay)
    weights = np.random.default_rng(0).normal(size=50)
    mean = 1e9  # whatever was there before the first step
    for step, value in enumerate(weights, start=1):
        mean += rules.ema_weight(step) * (value - mean)
        ages = decay ** np.arange(step - 1, -1, -1)
        assert mean == pytest.approx(np.average(weights[:step], weights=ages), rel=1e-6, abs=1e-6)


def test_decay_follows_the_learning_rate_and_leaves_biases_alone():
    assert UpdateRules(weight_decay=0.05).decay_factor(0.1) == 1 - 0.05 * 0.1
    assert UpdateRules().decay_factor(0.1) == 1
    assert [decays(dimensions) for dimensions in (1, 2, 4)] == [False, True, True]


def test_a_step_has_no_more_constants_than_its_rules_need():
    assert UpdateRules(clip_norm=1.0).step_constants(1, 0.1) == []
    assert UpdateRules(weight_decay=0.5).step_constants(3, 0.1) == [0.95, 1.0]
