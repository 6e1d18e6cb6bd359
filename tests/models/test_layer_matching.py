"""Layers of a custom model in two frameworks: matched by name or order, or refused with what differs."""

import pytest

from dpcompare.errors import RequestError
from dpcompare.models.dropout_matching import unlike_dropout
from dpcompare.models.layer_matching import (
    Layer,
    Source,
    layouts_in_words,
    match,
    require_equal,
    same_padding,
    shapes_of,
    window_settings,
)

BOTH = ("torch", "tensorflow")
CONV = {"weight": (8, 3, 3, 3), "bias": (8,)}
NORM = {"weight": (8,), "bias": (8,), "running_mean": (8,), "running_var": (8,)}
DENSE = {"weight": (10, 8), "bias": (10,)}


def layers(**tensors):
    return [Layer(name=name, tensors=each) for name, each in tensors.items()]


def refusal(first, second):
    with pytest.raises(RequestError) as refused:
        match("net:model", first, second, BOTH)
    return str(refused.value)


def told(first, second):
    """The lines of what two layers do otherwise."""
    one, two = Layer(name="0", tensors=CONV, settings=first), Layer(name="conv", tensors=CONV, settings=second)
    matching = match("net:model", [one], [two], BOTH)
    try:
        require_equal("net:model", matching, [one], [two], BOTH, unlike_dropout([one], [two], BOTH, shared=False))
    except RequestError as error:
        return str(error).splitlines()[1:]
    return []


def test_equal_names_are_matched_in_any_order():
    matching = match("net:model", layers(a=CONV, b=DENSE), layers(b=DENSE, a=CONV), BOTH)
    assert matching.names == {}
    assert [(one.name, two.name) for one, two in matching.pairs] == [("b", "b"), ("a", "a")]


def test_other_names_are_matched_by_order_and_shapes():
    matching = match("net:model", layers(a=CONV, b=NORM, c=DENSE), layers(conv=CONV, norm=NORM, c=DENSE), BOTH)
    assert matching.names == {"conv": "a", "norm": "b", "c": "c"}
    assert list(matching.names) == ["conv", "norm", "c"]


def test_tensors_of_a_library_are_shown_once_for_each_rule():
    conv = {"weight": Source("kernel", (3, 3, 3, 8), (3, 2, 0, 1))}
    found = [
        Layer(name="a", tensors=CONV, sources=conv),
        Layer(name="b", tensors=CONV, sources=conv),
        Layer(name="n", tensors=NORM, sources={"weight": Source("scale", (8,))}),
        Layer(name="square", tensors={"weight": (8, 8)}, sources={"weight": Source("kernel", (8, 8), (1, 0))}),
        Layer(name="plain", tensors=CONV),
    ]
    (line,) = layouts_in_words("net:model", "jax", found)
    assert line.partition(": ")[2].split("; ") == [
        "kernel (3, 3, 3, 8) becomes weight (8, 3, 3, 3) with its axes in the order 3, 2, 0, 1 in a and 1 more",
        "scale becomes weight in n",
        "kernel (8, 8) becomes weight (8, 8) with its axes in the order 1, 0 in square",
    ]
    assert list(layouts_in_words("net:model", "torch", layers(a=CONV))) == []


def test_layers_without_tensors_are_no_part_of_the_order():
    flat = Layer(name="flat", settings={"flattened": None})
    assert match("net:model", [flat, *layers(a=CONV)], layers(conv=CONV), BOTH).names == {"conv": "a"}


def test_the_first_layer_that_does_not_fit_is_named():
    says = refusal(layers(a=CONV, b=DENSE), layers(conv=CONV, dense={"weight": (10, 9), "bias": (10,)}))
    assert "layer 2: 'b' with weight (10, 8), bias (10) in torch, 'dense' with weight (10, 9), bias (10) in" in says
    assert "(a, b) and tensorflow (conv, dense)" in says


def test_a_layer_more_is_named():
    says = refusal(layers(a=CONV), layers(conv=CONV, dense=DENSE))
    assert "layer 2: there is none in torch, 'dense' with weight (10, 8), bias (10) in tensorflow" in says
    assert "'a' with weight (8, 3, 3, 3), bias (8) in torch, 'conv' with weight (8, 3, 3, 3) in tensorflow" in refusal(
        layers(a=CONV), layers(conv={"weight": (8, 3, 3, 3)})
    )


def test_equal_names_of_other_shapes_are_refused():
    says = refusal(layers(a=CONV), layers(a=DENSE))
    assert "'a' with weight (8, 3, 3, 3), bias (8) in torch, 'a' with weight (10, 8), bias (10) in tensorflow" in says


def test_a_name_that_contradicts_the_order_is_refused():
    says = refusal(layers(a=CONV, b=CONV), layers(b=CONV, other=CONV))
    assert "layer 1: it is called 'a' in torch, where 'b' is another one" in says


def test_shapes_have_the_names_of_the_tensors():
    assert shapes_of(layers(a={"weight": (2,)})) == {"a.weight": (2,)}
    assert shapes_of([Layer(name="", tensors={"scale": (2,)})]) == {"scale": (2,)}


def window(sides, padding, stride=2, after=None):
    after = after or [(side + sum(added) - 3) // stride + 1 for side, added in zip(sides, padding, strict=True)]
    return window_settings(
        kernel=(3, 3), stride=(stride, stride), dilation=(1, 1), padding=padding, sides=sides, sides_after=after
    )


EVEN, AFTER, NONE = ((1, 1), (1, 1)), ((0, 1), (0, 1)), ((0, 0), (0, 0))


def test_same_pads_after_the_features_where_the_padding_is_odd():
    assert same_padding((3, 3), (2, 2), (1, 1), (32, 32)) == AFTER
    assert same_padding((3, 3), (1, 1), (1, 1), (32, 32)) == EVEN
    assert same_padding((1, 1), (2, 2), (1, 1), (32, 32)) == NONE


@pytest.mark.parametrize(
    ("first", "second", "line"),
    [
        (
            window((32, 32), EVEN),
            window((32, 32), AFTER),
            "  0 / conv: padding 1 in torch, ((0, 1), (0, 1)) in tensorflow; in Keras write "
            'padding="valid", and ZeroPadding2D(1) before it',
        ),
        (
            window((32, 32), NONE),
            window((32, 32), AFTER),
            '  0 / conv: padding 0 in torch, ((0, 1), (0, 1)) in tensorflow; in Keras write padding="valid"',
        ),
        (
            window((32, 32), EVEN),
            window((33, 33), NONE),
            "  0 / conv: padding 1 in torch, 0 in tensorflow; in Keras write "
            'padding="valid", and ZeroPadding2D(1) before it',
        ),
        (
            {"epsilon": 1e-5, "momentum": 0.9},
            {"epsilon": 1e-3, "momentum": 0.9},
            "  0 / conv: epsilon 1e-05 in torch, 0.001 in tensorflow; in Keras write epsilon=1e-05, or in "
            "torch eps=0.001",
        ),
        (
            {"momentum": 0.9},
            {"momentum": 0.99},
            "  0 / conv: momentum (part kept) 0.9 in torch, 0.99 in tensorflow; in Keras write "
            "momentum=0.9, or in torch momentum=0.01",
        ),
        (window((32, 32), EVEN, 1), window((32, 32), EVEN, 2), "  0 / conv: stride 1 in torch, 2 in tensorflow; in "
            "Keras write strides=1"),
        ({"rate": 0.5}, {"rate": 0.0}, "  0 in torch drops features (rate 0.5), which differ between "
            "frameworks; pass --regularization shared, which draws them once for all frameworks"),
    ],
)  # fmt: skip
def test_what_differs_is_told_with_what_to_write(first, second, line):
    assert told(first, second) == [line]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (window((32, 32), EVEN), window((34, 34), NONE)),  # padded by a layer before it
        (window((33, 33), NONE), window((32, 32), AFTER)),
        (window((32, 32), EVEN), {}),  # not known
        (window((32, 32), EVEN, after=(7, 7)), window((32, 32), AFTER)),  # it does not do what its settings say
        ({"epsilon": 1e-5}, {"epsilon": 1e-5}),
    ],
)
def test_what_may_be_the_same_is_not_refused(first, second):
    assert told(first, second) == []


def test_orders_of_flattening_are_compared_where_both_have_some():
    first, last = (
        Layer(name=name, settings={"flattened": order})
        for name, order in (("1", "channels, rows, columns"), ("flatten", "rows, columns, channels"))
    )
    dense = layers(a=DENSE)
    matching = match("net:model", dense, dense, BOTH)
    require_equal(
        "net:model", matching, [first, *dense], dense, BOTH, unlike_dropout([first, *dense], dense, BOTH, shared=False)
    )
    with pytest.raises(RequestError, match=r"1 / flatten: flattens .*; in Keras write Permute\(\(3, 1, 2\)\) before"):
        require_equal(
            "net:model",
            matching,
            [first, *dense],
            [last, *dense],
            BOTH,
            unlike_dropout([first, *dense], [last, *dense], BOTH, shared=False),
        )
