"""Verdicts in colour and the headline in bold, if a terminal shows them and NO_COLOR is not set."""

import os
import re
import sys

import pytest

from dpcompare.cli.emphasis import emphasised
from stress.terminal import on_terminal
from tests.support.command import invoke
from tests.support.learning import ddp, multiworker, saved

BOLD = "\x1b[1m"


def styles(text, word):
    return {str(span.style) for span in text.spans if text.plain[span.start : span.end] == word}


@pytest.mark.parametrize(
    ("line", "word", "style"),
    [
        ("a and b are NOT COMPARABLE.", "NOT COMPARABLE", "bold red"),
        ("COMPARABLE (of 9 settings)", "COMPARABLE", "green"),
        ("a is 1.250 times as fast as b", "1.250 times as fast", "green"),
        ("No comparable pair shows a difference in speed", "No comparable pair shows a difference", "yellow"),
        ("DISTURBED 3 times", "DISTURBED", "yellow"),
    ],
)
def test_a_verdict_has_its_colour(line, word, style):
    assert styles(emphasised(line), word) == {style}


def test_what_is_not_comparable_is_not_green():
    assert not any("green" in str(span.style) for span in emphasised("NOT COMPARABLE").spans)


def test_a_part_is_bold():
    text = emphasised("above\nthe headline\nbelow", bold="the headline")
    assert styles(text, "the headline") == {"bold"}


@pytest.mark.process
@pytest.mark.slow
def test_a_terminal_shows_colours_unless_it_is_told_not_to(tmp_path):
    folder = saved(tmp_path, ddp(), multiworker())
    command = [sys.executable, "-m", "dpcompare", "report", folder]
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    shown = {
        name: on_terminal(command, 80, environment=plain | {"TERM": "xterm"} | more)
        for name, more in {"as it is": {}, "without colours": {"NO_COLOR": "1"}, "dumb": {"TERM": "dumb"}}.items()
    }
    colours = {name: set(re.findall(r"\x1b\[([\d;]*)m", text)) - {"0", "1"} for name, text in shown.items()}
    assert colours["as it is"]
    assert all(1 <= int(part) <= 37 for style in colours["as it is"] for part in style.split(";"))  # the sixteen
    assert colours["without colours"] == set()
    assert "\x1b" not in shown["dumb"]
    assert BOLD in shown["as it is"]
    assert "\x1b" not in invoke("report", folder).stdout
