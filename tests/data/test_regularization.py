"""What dropout and stochastic depth drop: a function of (seed, step, sample, layer) and of nothing else."""

import numpy as np
import pytest

from dpcompare.data.augmentation import Regularization
from dpcompare.models.architectures import MODELS
from dpcompare.models.spec import Drop, columns

DROPS = (
    Drop(name="blocks.0.1.drop_path", kind="stochastic depth", rate=0.1),
    Drop(name="dropout", kind="dropout", rate=0.25, features=6),
)

# Of seed 1, step 2, samples 3 and 4: 1 is kept.
PINNED = [[1, 0, 1, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1, 1]]


def drop_masks(seed=0, step=0, indices=range(2000), drops=DROPS):
    return Regularization(drops, seed=seed)(step=step, indices=np.array(indices))


def test_a_sample_loses_the_same_in_any_batch():
    whole = drop_masks()
    assert np.array_equal(drop_masks(indices=[1999, 3, 42]), whole[[1999, 3, 42]])


def test_every_step_and_seed_drops_something_else():
    kept = drop_masks() > 0
    for other in (drop_masks(step=1), drop_masks(seed=1), drop_masks(seed=2**63 - 1), drop_masks(seed=2**63 - 2)):
        assert 0.5 < (kept == (other > 0)).mean() < 0.9


def test_features_are_dropped_at_their_rate_and_others_scaled():
    drawn = drop_masks()
    for name, own in columns(DROPS).items():
        (drop,) = [drop for drop in DROPS if drop.name == name]
        assert drawn[:, own].shape == (2000, drop.features)
        assert set(np.unique(drawn[:, own])) == {0, 1 / (1 - drop.rate)}
        dropped = (drawn[:, own] == 0).mean(axis=0)
        assert np.abs(dropped - drop.rate).max() < 4 * np.sqrt(drop.rate * (1 - drop.rate) / 2000)


def test_samples_and_features_are_independent():
    correlation = np.corrcoef((drop_masks() > 0).T)
    assert np.abs(correlation - np.eye(7)).max() < 4 / np.sqrt(2000)
    neighbours = np.corrcoef(drop_masks()[:-1, 0], drop_masks()[1:, 0])[0, 1]
    assert abs(neighbours) < 4 / np.sqrt(2000)


def test_the_draws_of_a_release_are_those_of_the_next():
    assert (drop_masks(seed=1, step=2, indices=[3, 4]) > 0).astype(int).tolist() == PINNED


def test_no_samples_have_no_drop_masks():
    assert drop_masks(indices=np.array([], np.int64)).shape == (0, 7)


def test_the_layers_of_efficientnet_b2():
    drops = MODELS["efficientnet-b2"].drops
    assert [drop.name for drop in drops][:3] == ["blocks.0.1.drop_path", "blocks.1.1.drop_path", "blocks.1.2.drop_path"]
    assert len(drops) == 17
    assert drops[0].rate == pytest.approx(0.2 * 1 / 23)
    assert drops[-2].rate == pytest.approx(0.2 * 22 / 23)
    assert (drops[-1].rate, drops[-1].features) == (0.3, 1408)
    own = columns(drops)
    assert own["dropout"] == slice(16, 1424)
