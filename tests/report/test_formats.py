"""The formats of a report: the same digits in each, names that break out of none, and conditions on figures."""

import csv
import io
import json
import re

import pytest

from dpcompare.errors import RequestError
from dpcompare.report.conditions import parse_condition
from dpcompare.report.formats import as_json, as_markdown, escaped
from dpcompare.report.records import as_csv
from tests.support.arms import FAST, SLOW, compared, renamed, runs


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


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("ratio<0.97", False),
        ("ratio>1.2", True),
        ("images_per_second<120", True),
        ("steady_images_per_second<1", False),
        ("steady_images_per_second>1", True),
        ("accuracy<0.4", False),
        ("efficiency<0.5", True),  # there is none, which is not a success
    ],
)
def test_conditions_on_figures(condition, holds):
    shown = compared(runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW))
    assert bool(list(parse_condition(condition).where_it_holds(shown))) == holds


@pytest.mark.parametrize("text", ["ratio", "speed<3", "ratio<fast", "ratio=1", "ratio<nan"])
def test_conditions_that_are_none_are_refused(text):
    with pytest.raises(RequestError, match=r"--fail-if: received .* expected FIGURE<NUMBER"):
        parse_condition(text)


def test_a_failed_arm_meets_every_condition():
    failed = renamed("third", runs("torch", "ddp", [None] * 6))
    failed.failures = ["round 1: killed"]
    shown = compared(runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW), failed)
    assert list(parse_condition("images_per_second<50").where_it_holds(shown)) == [
        "images_per_second<50 cannot be judged for third"
    ]


def test_an_arm_that_lacks_the_figure_meets_its_conditions():
    """Such as the speed of runs that ended at their target within the warm-up."""
    lacking = renamed("third", runs("torch", "ddp", FAST))
    lacking.runs = [run.model_copy(update={"images_per_second": None}) for run in lacking.runs]
    shown = compared(runs("torch", "ddp", FAST), lacking)
    assert list(parse_condition("images_per_second<50").where_it_holds(shown)) == [
        "images_per_second<50 cannot be judged for third"
    ]
    assert list(parse_condition("accuracy<0.1").where_it_holds(shown)) == []


def test_noise_meets_no_condition():
    noisy = [speed * (1 + 0.1 * (-1) ** number) for number, speed in enumerate(SLOW)]
    shown = compared(runs("torch", "ddp", noisy), runs("tensorflow", "multiworker", [105.0] * 6))
    assert shown.claims[0].outcome == "no difference shown"
    assert shown.claims[0].ratio < 0.97
    assert list(parse_condition("ratio<0.97").where_it_holds(shown)) == []


def test_an_arm_that_was_not_run_cannot_be_judged():
    missing = renamed("third", runs("torch", "ddp", [None] * 6))
    shown = compared(runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW), missing)
    assert "accuracy<0.1 cannot be judged for third" in parse_condition("accuracy<0.1").where_it_holds(shown)


def test_where_there_is_nothing_to_judge_a_condition_says_so():
    shown = compared(runs("torch", "ddp", FAST), runs("torch", "ddp", SLOW, precision="bfloat16"))
    (line,) = parse_condition("ratio<0.97").where_it_holds(shown)
    assert line == "ratio<0.97 cannot be judged: there is no ratio here"
