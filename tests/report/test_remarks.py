"""Remarks on runs: a cell per arm and round with a letter per kind, in words, and in three lines of a short report."""

import re
from typing import get_args

import pytest

from dpcompare.report.page import as_html
from dpcompare.report.remarks import MARKS, MOST_REMARKS, all_remarks, remarks_of, short_remarks
from dpcompare.results.clock import RunWarning, RunWarningKind
from tests.support.arms import FAST, SLOW, compared, runs

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def shown():
    ddp, other = runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW)
    ddp.repeated = ["round 2: DISTURBED: others took 1 of 2 cores"]
    other.runs[2] = None
    other.failures = [f"round 3: {HOSTILE}"]
    found = compared(ddp, other)
    row = found.arms[0]
    warnings = [RunWarning(kind=kind, sentence=f"round 2: {kind}") for kind in ("STALLED", "DISTURBED", "STALLED")]
    row = row.model_copy(update={"warnings": warnings, "outliers": ["in 3 of 6 rounds: a few samples"]})
    return found.model_copy(update={"arms": [row, found.arms[1]]})


def test_every_kind_has_a_letter_of_its_own():
    assert set(get_args(RunWarningKind)) < set(MARKS)
    assert len({letter for letter, _ in MARKS.values()}) == len(MARKS)


def test_each_remark_stands_at_its_arm_and_round(shown):
    remarks = remarks_of(shown)
    assert remarks.rounds == [1, 2, 3, 4, 5, 6, None]
    assert [each.kind for each in remarks.at("torch ddp 2x1", 2)] == ["DISTURBED", "STALLED", "REPEATED"]
    assert remarks.at("torch ddp 2x1", 1) == []
    assert [each.kind for each in remarks.at("torch ddp 2x1", None)] == ["OUTLIERS"]
    assert [each.kind for each in remarks.at("tensorflow multiworker 2x1", 3)] == ["FAILED"]
    assert remarks.kinds == ["FAILED", "DISTURBED", "STALLED", "REPEATED", "OUTLIERS"]


@pytest.mark.seconds
def test_the_page_has_the_grid_and_folds_the_words(shown):
    section = re.search('<section aria-labelledby="remarks">.*?</section>', as_html(shown), re.DOTALL)[0]
    assert section.count('<span class="dot" role="img"') == 4
    assert section.count('<span class="dot failed" role="img"') == 1
    assert HOSTILE not in section
    assert re.findall("<details( open)?>", section) == [" open", ""]  # failures, and the others
    assert "FAILED <strong>tensorflow multiworker 2x1</strong>: round 3: &lt;script&gt;" in section


@pytest.mark.seconds
@pytest.mark.slow
def test_claims_follow_the_figures_and_definitions_are_last(shown):
    headings = re.findall('<h2 id="(.*?)">', as_html(shown))
    assert headings[:4] == ["speed", "figures", "claims", "remarks"]
    assert headings[-1] == "definitions"


@pytest.mark.seconds
@pytest.mark.slow
def test_without_remarks_there_is_no_grid():
    assert 'id="remarks"' not in as_html(compared(runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW)))


KINDS = ("CLOCK", "STALLED", "NOT WARM", "DISTURBED")


def remarked(*kinds, times=1):
    shown = compared(runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW))
    warnings = [
        RunWarning(kind=kind, sentence=f"round {number}: {'because of others ' * 9}")
        for kind in kinds
        for number in range(1, times + 1)
    ]
    arms = [arm.model_copy(update={"warnings": warnings}) for arm in shown.arms]
    return shown.model_copy(update={"arms": arms})


def test_one_remark_of_a_kind_is_told_and_several_are_counted():
    one = remarked("STALLED").model_copy(update={"arms": remarked("STALLED").arms[:1]})
    assert short_remarks(one, None) == all_remarks(one)
    (line,) = short_remarks(remarked("STALLED", times=6), None)
    assert line.startswith("STALLED 12 times, such as torch ddp 2x1: round 1: because of")
    assert len(all_remarks(remarked("STALLED", times=6))) == 12


@pytest.mark.parametrize("width", [40, 80, 120])
def test_kinds_beyond_the_third_are_counted(width):
    lines = short_remarks(remarked(*KINDS, times=3), width)
    assert [line.split()[0] for line in lines[:-1]] == ["CLOCK", "DISTURBED", "STALLED"]
    assert len(lines) == MOST_REMARKS + 1
    assert lines[-1] == "6 more remarks (NOT WARM 6), see --full"
    assert all(len(line) <= width and line.endswith(" ...") for line in lines[:-1])
    assert short_remarks(remarked(), width) == []
