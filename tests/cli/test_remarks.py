"""The remarks of a short report: at most three lines, and the others counted."""

import pytest

from dpcompare.cli.remarks import MOST_REMARKS, all_remarks, short_remarks
from dpcompare.results.clock import RunWarning
from tests.support.arms import FAST, SLOW, compared, runs

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
    assert [line.split()[0] for line in lines[:-1]] == ["CLOCK", "STALLED", "NOT"]
    assert len(lines) == MOST_REMARKS + 1
    assert lines[-1] == "6 more remarks (DISTURBED 6), see --full"
    assert all(len(line) <= width and line.endswith(" ...") for line in lines[:-1])
    assert short_remarks(remarked(), width) == []
