"""Covering arrays: few rows in which every pair of values occurs."""

from itertools import combinations, product

import pytest

from dpcompare.experiments.pairwise import covering_rows

OPTIONS = {"size": ("s", "m", "l"), "colour": ("red", "blue"), "shape": ("cube", "ball", "ring"), "new": ("no", "yes")}


def pairs_of(row):
    return {frozenset(pair) for pair in combinations(row.items(), 2)}


def expected_pairs(is_legal):
    """Those of all rows that are legal, by trying every one."""
    rows = [dict(zip(OPTIONS, values, strict=True)) for values in product(*OPTIONS.values())]
    return set().union(*(pairs_of(row) for row in rows if is_legal(row)))


def anything(row):
    return True


def no_small_ring(row):
    return not (row.get("size") == "s" and row.get("shape") == "ring")


def no_red_ball_or_cube(row):
    """Rings alone can be red, and none of these is small, so that nothing small is red."""
    return no_small_ring(row) and not (row.get("colour") == "red" and row.get("shape") in ("cube", "ball"))


@pytest.mark.parametrize("is_legal", [anything, no_small_ring, no_red_ball_or_cube])
def test_every_pair_that_some_legal_row_has_occurs(is_legal):
    rows = covering_rows(OPTIONS, is_legal)
    assert all(is_legal(row) and list(row) == list(OPTIONS) for row in rows)
    assert set().union(*map(pairs_of, rows)) == expected_pairs(is_legal)


def test_nothing_small_is_red_where_only_rings_are():
    rows = covering_rows(OPTIONS, no_red_ball_or_cube)
    assert {row["size"] for row in rows if row["colour"] == "red"} == {"m", "l"}


def test_far_fewer_rows_than_there_are_combinations():
    assert 9 <= len(covering_rows(OPTIONS, anything)) <= 10  # 3 x 3 pairs of size and shape; 36 combinations
    many = {str(number): ("a", "b") for number in range(12)}
    assert len(covering_rows(many, anything)) <= 10  # of 4096


def test_an_option_without_values_leaves_no_row():
    assert covering_rows({**OPTIONS, "price": ()}, anything) == []
