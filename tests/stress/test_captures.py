"""What a real terminal shows: no line wider than it, and no word broken."""

import pytest

from dpcompare.config.modes import MODES
from stress.captures import in_terminal


@pytest.mark.process
@pytest.mark.parametrize("width", [80, 100])
def test_the_modes_fit_a_terminal(width):
    text = in_terminal(["modes"], width)
    assert max(map(len, text.splitlines())) <= width
    words = text.split()
    for row in MODES.values():
        assert set(row.summary.split()) <= set(words)
