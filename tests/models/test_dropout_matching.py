"""Dropout of a custom model in two frameworks: which layers correspond, what differs, and what cannot be shared."""

import numpy as np
import pytest

from dpcompare.errors import RequestError
from dpcompare.models.dropout_matching import drop_settings, drops_of, matched_drops, randomness, unlike_dropout
from dpcompare.models.layer_matching import Layer
from dpcompare.models.spec import Drop, shape_of_draws

BOTH = ("torch", "tensorflow")


def dropping(*drops, names=("drop0", "drop1", "drop2")):
    """Layers with a rate and draws for an image, by default of features of (8, 4, 4)."""
    settings = [drop_settings(rate, draws, *(shape or [(8, 4, 4)])) for rate, draws, *shape in drops]
    return [Layer(name=name, settings=each) for name, each in zip(names, settings, strict=False)]


def unlike(first, second):
    """The lines of what two models drop otherwise, where the draws are shared."""
    return list(unlike_dropout(first, second, BOTH, shared=True))


@pytest.mark.parametrize(
    ("first", "second", "lines"),
    [
        ([(0.5, 64), (0.0, 8)], [(0.5, 64)], []),
        (
            [(0.5, 64)],
            [(0.25, 64)],
            ["drop0: rate of dropout 0.5 in torch, 0.25 in tensorflow; give both the same"],
        ),
        (
            [(0.5, 8)],
            [(0.5, 128)],
            [
                "drop0: draws for an image 8 in torch, 128 in tensorflow; nn.Dropout is Dropout in Keras, "
                "nn.Dropout2d is SpatialDropout2D"
            ],
        ),
        (
            [(0.5, 128)],
            [(0.5, 128, (4, 8, 4))],
            [
                "drop0: features of an image, the channels of feature maps first: (8, 4, 4) in torch, (4, 8, 4) in "
                "tensorflow; drop features of the same shape in both"
            ],
        ),
        (
            [(0.5, 8), (0.5, 8)],
            [],
            ["layers that drop features: drop0, drop1 in torch, none in tensorflow; expected the same ones in both"],
        ),
    ],
)
def test_shared_drops_must_be_the_same_ones(first, second, lines):
    assert unlike(dropping(*first), dropping(*second)) == lines


def test_drops_correspond_by_names_or_else_by_order():
    reference = dropping((0.5, 8), (0.25, 8))
    assert matched_drops(reference, dropping((0.5, 8), (0.25, 8), names="ab")) == {"a": "drop0", "b": "drop1"}
    listed_otherwise = dropping((0.25, 8), (0.5, 8), names=("drop1", "drop0"))
    assert matched_drops(reference, listed_otherwise) == {"drop1": "drop1", "drop0": "drop0"}
    assert unlike(reference, listed_otherwise) == []
    assert unlike(reference, dropping((0.25, 8), (0.5, 8), names="ab")) != []


def test_drops_are_those_of_the_layers_that_drop():
    assert drops_of("net:model", "torch", dropping((0.5, 64), (0.0, 8), (0.1, 1))) == (
        Drop(name="drop0", kind="dropout", rate=0.5, features=64),
        Drop(name="drop2", kind="stochastic depth", rate=0.1, features=1),
    )


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ([], "in torch it has no layer that drops features"),
        (dropping((1.0, 8)), r"drop0 drops all features \(rate 1\); expected a rate below 1"),
        (dropping((0.5, 0)), "drop0 drops features neither one by one nor by whole channels nor all together"),
        (
            [Layer(name="drop", settings=drop_settings(0.5, 8, (8,), calls=2))],
            "drop is called more than once; expected a",
        ),
        (
            dropping((0.5, 8), (0.5, 8), names=("drop", "drop")),
            "drop is called more than once; expected a layer for each",
        ),
        (dropping((0.5, 10**6)), r"it drops 1,000,000 features of an image one by one; expected at most 100,000"),
        (
            [*dropping((0.5, 8)), *randomness(iter([np.zeros(2), np.ones(2)]))],
            "it draws random numbers in training, outside its layers of dropout; expected nn.Dropout",
        ),
    ],
)
def test_drops_that_cannot_be_shared_are_refused(found, says):
    with pytest.raises(RequestError, match=says):
        drops_of("net:model", "torch", found)


def test_draws_are_laid_out_by_channel_image_or_feature():
    assert [shape_of_draws(draws, (8, 4, 4)) for draws in (1, 8, 128)] == [(1, 1, 1), (8, 1, 1), (8, 4, 4)]
    assert shape_of_draws(64, (64,)) == (64,)


def test_names_that_contradict_the_order_of_drops_are_refused():
    lines = unlike(dropping((0.5, 8), (0.5, 8), names="ab"), dropping((0.5, 8), (0.5, 8), names="bc"))
    assert lines == [
        "b in tensorflow stands where a is in torch, which has another b; give corresponding layers of dropout the "
        "same names"
    ]


def test_what_is_random_in_one_of_four_passes_is_seen():
    passes = [np.zeros(32), np.zeros(32), np.zeros(32), np.eye(32)[0]]
    assert list(randomness(iter(passes)))
    assert not list(randomness(iter(passes[:3] * 2)))


@pytest.mark.parametrize(("features", "kept"), [((4, 1, 1), (4,)), ((4, 2, 1), (4, 2)), ((1,), (1,))])
def test_axes_of_one_are_no_other_features(features, kept):
    assert drop_settings(0.5, 4, features)["features"] == kept
