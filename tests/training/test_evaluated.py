"""The model that is evaluated, made by a backend that needs no framework, and given back as it was."""

from types import SimpleNamespace

import numpy as np
import pytest

from dpcompare.config.workload import Workload
from dpcompare.models.state import TrainingState
from dpcompare.training.evaluated import evaluated_model

MOMENTUM = 0.9
TRAINED = TrainingState(
    model={"conv.weight": np.ones(2), "bn.running_mean": np.full(2, 7.0), "bn.running_var": np.full(2, 9.0)},
    optimizer={"momentum.conv.weight": np.zeros(2), "average.conv.weight": np.full(2, 0.5)},
    step=3,
)


class Statistics:
    """A backend that keeps the state it was given; each batch is the mean and the variance that it has."""

    def __init__(self, **workload):
        self.workload = Workload(model="toy-bn", batchnorm_momentum=MOMENTUM, **workload)
        self.held, self.calls = TRAINED, []

    def state(self):
        self.calls.append("state")
        return self.held

    def load_state(self, state):
        self.calls.append("load_state")
        self.held = state

    def prefetch_to_device(self, batch_loaders):
        return iter(batch_loaders)

    def logits(self, batch, *, training):
        assert training
        self.weights_of_statistics = self.held.model["conv.weight"]
        moved = {
            name: MOMENTUM * self.held.model[name] + (1 - MOMENTUM) * value
            for name, value in zip(("bn.running_mean", "bn.running_var"), batch, strict=True)
        }
        self.held = TrainingState(model=self.held.model | moved, optimizer=self.held.optimizer, step=self.held.step)


def entered(backend, batches=()):
    """The model inside; afterwards it must be that which is trained."""
    alive = SimpleNamespace(calls=0)

    def tell():
        alive.calls += 1

    with evaluated_model(backend, lambda: batches, tell):
        inside = backend.held.model
    assert backend.held is TRAINED
    assert alive.calls == len(batches)
    return inside


def test_without_any_rule_nothing_is_asked_of_a_backend():
    backend = Statistics()
    assert entered(backend) is TRAINED.model
    assert backend.calls == []


def test_the_average_replaces_weights_and_statistics_stay():
    model = entered(Statistics(weight_average=0.9))
    assert np.array_equal(model["conv.weight"], [0.5, 0.5])
    assert np.array_equal(model["bn.running_mean"], [7.0, 7.0])


@pytest.mark.parametrize("num_batches", [1, 4])
def test_recomputed_statistics_are_of_the_batches_alone(num_batches):
    batches = [(np.array([step, 1.0]), np.array([2.0, step + 1])) for step in range(num_batches)]
    backend = Statistics(weight_average=0.9, batchnorm_recompute=num_batches)
    model = entered(backend, batches)
    newest_counts_most = MOMENTUM ** np.arange(num_batches - 1, -1, -1)
    for name, values in zip(("bn.running_mean", "bn.running_var"), zip(*batches, strict=True), strict=True):
        assert model[name] == pytest.approx(np.average(values, axis=0, weights=newest_counts_most))
    assert np.array_equal(backend.weights_of_statistics, [0.5, 0.5])


def test_a_model_without_batchnorm_has_nothing_to_recompute(monkeypatch):
    backend = Statistics(batchnorm_recompute=3)
    without = TrainingState(model={"fc.weight": np.ones(2)}, optimizer={}, step=1)
    monkeypatch.setattr(backend, "held", without)
    with evaluated_model(backend, lambda: pytest.fail("no batch is read"), lambda: None):
        assert backend.held.model == without.model
