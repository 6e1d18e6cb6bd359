"""Rows of options in which every pair of values of two options occurs: covering arrays of strength 2."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product

Row = dict[str, str]
"""Option -> its value."""
Pair = frozenset[tuple[str, str]]
"""Two options, each with a value."""


def covering_rows(options: Mapping[str, Sequence[str]], is_legal: Callable[[Mapping[str, str]], bool]) -> list[Row]:
    """Few rows in which every pair of values occurs that some legal row has; the same ones for the same options.

    Greedy: of the rows that begin with the first pair that is missing, one for each rotation of the other options,
    the one with the most missing pairs is taken.

    Args:
        options: option -> its values; one that has none leaves no row.
        is_legal: whether these values go together; also asked of some of the options alone, of which it must say yes
            if it does of a row that has them.
    """
    if not all(options.values()):
        return []
    missing = dict.fromkeys(_pairs_of(options))
    rows: list[Row] = []
    while missing:
        first = dict(sorted(next(iter(missing)), key=lambda chosen: list(options).index(chosen[0])))
        others = [name for name in options if name not in first]
        orders = [others[start:] + others[:start] for start in range(max(1, len(others)))]
        started = (_completed(first, order, options, is_legal, missing) for order in orders)
        complete = [row for row in started if row is not None]
        if not complete:  # no legal row has it
            del missing[frozenset(first.items())]
            continue
        best = max(complete, key=lambda row: sum(pair in missing for pair in _pairs_in(row)))
        for pair in _pairs_in(best):
            missing.pop(pair, None)
        rows.append({name: best[name] for name in options})
    return rows


def _completed(
    row: Row,
    order: Sequence[str],
    options: Mapping[str, Sequence[str]],
    is_legal: Callable[[Mapping[str, str]], bool],
    missing: Mapping[Pair, None],
) -> Row | None:
    """The row with a value for each option of `order`; None where that is not legal. Values that lead nowhere are
    taken back."""
    if not is_legal(row):
        return None
    if not order:
        return row
    name, *later = order

    def num_new(value: str) -> int:
        return sum(frozenset(((name, value), chosen)) in missing for chosen in row.items())

    for value in sorted(options[name], key=num_new, reverse=True):
        if (complete := _completed({**row, name: value}, later, options, is_legal, missing)) is not None:
            return complete
    return None


def _pairs_of(options: Mapping[str, Sequence[str]]) -> Iterator[Pair]:
    for one, other in combinations(options, 2):
        for values in product(options[one], options[other]):
            yield frozenset(zip((one, other), values, strict=True))


def _pairs_in(row: Row) -> Iterator[Pair]:
    return map(frozenset, combinations(row.items(), 2))
