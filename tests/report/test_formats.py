"""The formats of a report: the same digits in each, names that break out of none, and conditions on figures."""

import csv
import io
import json
import re

import pytest

from dpcompare.report.formats import as_json, as_markdown, escaped
from dpcompare.report.records import as_csv
from tests.support.arms import FAST, SLOW, compared, runs


def test_every_format_shows_the_same_digits():
    shown = compared(runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW))
    sentence = shown.claims[0].sentence
    assert sentence in as_markdown(shown)
    content = json.loads(as_json(shown))
    assert content["claims"][0]["sentence"] == sentence
    rows = list(csv.DictReader(io.StringIO(as_csv(shown))))
    assert [float(row["images_per_second"]) for row in rows] == FAST + SLOW
    assert [float(row["steady_images_per_second"]) for row in rows] == FAST + SLOW
    assert "| torch ddp 2x1 | 2 nodes x 1 CPU device | 6 | 130.0 | 0.7 |" in as_markdown(shown)


def test_names_cannot_break_out_of_markdown_or_csv():
    arm = runs("torch", "ddp", FAST)
    arm.name = "=cmd()|<script>alert(1)</script>\x1b[31m`"
    shown = compared(arm, runs("tensorflow", "multiworker", SLOW))
    text = as_markdown(shown)
    assert "\x1b" not in text
    assert "<script" not in re.sub(r"\\<", "", text)
    assert next(csv.DictReader(io.StringIO(as_csv(shown))))["arm"].startswith("'=cmd()")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://evil.example", "https\\://evil.example"),
        ("see WWW.evil.example", "see WWW\\.evil.example"),
        ("~~struck~~", "\\~\\~struck\\~\\~"),
        ("$x$", "\\$x\\$"),
        ("torch:ddp,link=1gbit 2x1", "torch:ddp,link=1gbit 2x1"),
    ],
)
def test_github_finds_nothing_to_format_either(text, expected):
    assert escaped(text) == expected


@pytest.mark.parametrize("name", ["=1+1", "＝1+1", " =1+1", "+1", "-1", "＠a"])
def test_no_text_begins_a_formula_of_a_spreadsheet(name):
    arm = runs("torch", "ddp", FAST)
    arm.name = name
    rows = csv.DictReader(io.StringIO(as_csv(compared(arm))))
    assert {row["arm"] for row in rows} == {f"'{name}"}
