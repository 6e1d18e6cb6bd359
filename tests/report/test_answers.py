"""The first screen of the page: what a study is about comes first, with the machine, its command and the next one."""

import re

import pytest

from dpcompare.experiments.analysis import analyse
from dpcompare.experiments.collection import collect
from dpcompare.experiments.sentences import time_headline_of
from dpcompare.experiments.study import Study
from dpcompare.report.answers import answers_of
from dpcompare.report.page import as_html, in_code
from tests.support import learning
from tests.support.arms import FAST, SLOW, compared, runs

HOSTILE = 'dpcompare compare --out "><img src=x onerror=alert(1)>\x1b[31m`a`'


def reached(*times, target=0.7):
    return learning.compared(
        *(
            learning.evaluated(made(target=target), [learning.EARLY] * 8, [of * second for second in learning.SECONDS])
            for made, of in zip((learning.ddp, learning.multiworker), times, strict=False)
        )
    )


def test_a_study_of_speed_has_one_answer():
    shown = compared(runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW))
    assert [(each.about, each.sentence) for each in answers_of(shown)] == [("Speed", shown.headline)]


def test_a_study_of_accuracy_is_answered_in_that_order():
    shown = reached(1.0, 2.0)
    answers = answers_of(shown)
    assert [each.about for each in answers] == ["Accuracy", "Time to accuracy", "Speed"]
    assert answers[0].sentence == shown.learning.headline
    assert answers[1].sentence == shown.time_to_accuracy.claims[0].sentence
    assert "2.000 times as fast" in answers[1].sentence
    assert "interval" in answers[1].sentence
    assert answers[2].sentence == shown.headline


def test_of_several_times_the_largest_difference_is_told():
    (claim,) = reached(1.0, 2.0).time_to_accuracy.claims
    others = [claim.model_copy(update={"ratio": ratio, "sentence": f"It is {ratio}."}) for ratio in (0.2, 1.5)]
    said = time_headline_of([], [claim, *others], 0.7)
    assert said == "It is 0.2. It is the largest difference in time to accuracy of 3 comparable pairs."
    none = [made.model_copy(update={"outcome": "no difference shown"}) for made in others]
    assert time_headline_of([], none, 0.7).startswith("No comparable pair shows a difference in time to")
    few = [none[0], none[1].model_copy(update={"outcome": "too few rounds"})]
    assert time_headline_of([], few, 0.7).endswith("1 of 2 pairs is not judged.")


def test_rounds_of_one_training_claim_no_time_to_accuracy():
    needed = [row.to_target for row in reached(1.0, 2.0).arms]
    assert time_headline_of(needed, [], 0.7) == " ".join(row.sentence for row in needed)
    assert time_headline_of([*needed, needed[0]], [], 0.7) == "3 of 3 arms reach an accuracy of 0.7 in every round."


@pytest.mark.seconds
def test_the_first_screen_has_answers_commands_and_the_next_one(tmp_path):
    folder = learning.saved(tmp_path, learning.ddp(), learning.multiworker())
    Study.load(folder).changed(commands=(HOSTILE, "dpcompare compare --resume it")).save(folder)
    page = as_html(analyse(collect([folder])))
    header = re.search("<header>.*?</header>", page, re.DOTALL)[0]
    assert header.index("<h1>torch ddp 2x1") < header.index(">Speed<")
    assert "<dt>Command</dt><dd><code>dpcompare compare --out &#34;&gt;&lt;img" in header
    assert "\x1b" not in header
    assert "<dt>Continued by</dt><dd><code>dpcompare compare --resume it</code>" in header
    assert (
        f"<dt>Next: more rounds</dt><dd><code>dpcompare compare --resume {folder} --repeats 16</code> (about" in header
    )


def test_what_is_not_one_study_has_no_next_command():
    shown = compared(runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW))
    assert (shown.commands, shown.next_steps) == ([], [])


def test_backticks_become_code_and_nothing_else_does():
    assert in_code("use `--vary-seed` <b>`") == "use <code>--vary-seed</code> &lt;b&gt;`"
    assert in_code("a `<script>`\x1b") == "a <code>&lt;script&gt;</code>\\x1b"
