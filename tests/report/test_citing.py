"""What a paper is given: the methods of this study, and an entry that agrees with CITATION.cff."""

import dataclasses
import re
from pathlib import Path

import dpcompare
from dpcompare.experiments.cost import priced
from dpcompare.report.citing import AUTHOR, TITLE, YEAR, as_citation
from tests.support.arms import FAST, SLOW, compared, runs

CFF = (Path(__file__).parents[2] / "CITATION.cff").read_text()


def test_the_entry_is_that_of_the_repository():
    assert f'title: "{TITLE}"\n' in CFF
    assert re.findall("name: (.*)", CFF) == [AUTHOR]
    assert f"date-released: {YEAR}-" in CFF
    entry = as_citation(compared(runs("torch", "ddp", FAST))).split("\n\n")[1]
    assert entry.startswith("@software{dpcompare,\n")
    assert f"version = {{{re.search('^version: (.*)', CFF, re.MULTILINE)[1]}}}," in entry
    assert entry.count("{") == entry.count("}")


def test_the_version_is_the_one_that_measured():
    measured = [run.model_copy(update={"dpcompare_version": "0.1.7"}) for run in runs("torch", "ddp", FAST).runs]
    arm = dataclasses.replace(runs("torch", "ddp", FAST), runs=measured)
    cited = as_citation(compared(arm))
    assert "was trained with dpcompare 0.1.7 (" in cited
    assert "version = {0.1.7}," in cited


def test_the_paragraph_has_what_one_needs_to_repeat_it():
    shown = compared(runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW))
    paragraph = as_citation(priced(shown, 2.5)).split("\n\n")[0]
    for part in (
        f"2 arms were compared with dpcompare {dpcompare.__version__} (",
        "): torch ddp 2x1 (6 rounds) and tensorflow multiworker 2x1 (6 rounds).",
        shown.measured,
        "with a probability of at most 5%.",
        f"Fairness sheet of all arms: {shown.summary}.",
        "$2.5 per device-hour",
        "Versions: ",
    ):
        assert part in paragraph
    assert "sixth" not in paragraph  # rounds are trimmed from 12 on


def test_only_what_was_run_is_said_to_be_compared():
    missing = runs("torch", "fsdp", [None] * 6)
    cut_off = runs("tensorflow", "multiworker", [*SLOW[:4], None, None])
    paragraph = as_citation(compared(runs("torch", "ddp", FAST), cut_off, missing))
    assert "2 arms were compared" in paragraph
    assert "tensorflow multiworker 2x1 (4 rounds)" in paragraph
    assert "fsdp" not in paragraph
    assert "Rounds of the study are missing." in paragraph


def test_arms_that_are_not_alike_are_not_said_to_be():
    shown = compared(runs("torch", "ddp", FAST), runs("torch", "ddp", SLOW, precision="bfloat16"))
    paragraph = as_citation(shown)
    assert "Fairness sheet of all arms: COMPARABLE" not in paragraph
    assert f"The arms differ in what must be equal for a comparison of all of them: {shown.reasons[0]}" in paragraph
