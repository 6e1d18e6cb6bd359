"""The difference between two runs, from runs whose steps are made up: its parts add up, and the largest is named."""

import json

import pytest

from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.errors import RunFailedError
from dpcompare.experiments.study import open_study
from dpcompare.experiments.variants import study_of, variants_of
from dpcompare.launch.inputs import prepare_compared
from dpcompare.projection.difference import difference, with_operators
from dpcompare.report.differed import as_markdown, as_text
from dpcompare.results.run_dir import TRACES_DIR
from tests.support.results import result
from tests.support.step_parts import SYNCHRONOUS, constant, write_runs

pytestmark = pytest.mark.seconds

SMALL = Workload(model="mlp", image_size=16, global_batch_size=32, steps=20, warmup_steps=0)


def config(mode="ddp", nodes=2, **changes):
    cluster = Cluster.partition(nodes, 1, device="cpu", num_cores=2)
    return RunConfig(framework="torch", mode=mode, workload=SMALL, cluster=cluster, **changes)


def differed(folder, first, second, *, modes=("ddp", "ddp"), rounds=6, failed=(), busy=()):
    """The difference of two runs whose variants took these seconds per step and process."""
    nodes = [1 if mode == "single" else 2 for mode in modes]
    both = [variants_of(config(*each), name) for each, name in zip(zip(modes, nodes, strict=True), "AB", strict=True)]
    study = study_of(both, rounds)
    configs = prepare_compared([arm.config for arm in study.arms])
    arms = (arm.model_copy(update={"config": made}) for arm, made in zip(study.arms, configs, strict=True))
    study = open_study(study.model_copy(update={"arms": tuple(arms)}), folder)
    both = tuple(each.prepared(study) for each in both)
    for variants, seconds in zip(both, (first, second), strict=True):
        write_runs(study, folder, variants, seconds, failed=failed, busy=busy)
    return difference(study, folder, both)


def slower(**milliseconds):
    """The usual steps, some of them longer by so many milliseconds in all processes."""
    return {
        variant: [[each + milliseconds.get(variant, 0) / 1000 for each in process] for process in processes]
        for variant, processes in SYNCHRONOUS.items()
    }


def parts(found):
    return {row.part: row.milliseconds for row in found.parts}


@pytest.mark.parametrize(
    ("planted", "part"),
    [
        # What is slower in every step that has the part.
        ({"as_it_is": 40, "no_input": 40}, "exchange"),
        ({"as_it_is": 40, "no_exchange": 40}, "input"),
        (dict.fromkeys(("as_it_is", "no_exchange", "no_input", "computing_alone", "larger_batch"), 40), "launching"),
    ],
)
def test_the_part_that_was_planted_makes_the_difference(tmp_path, planted, part):
    found = differed(tmp_path / "study", SYNCHRONOUS, slower(**planted))
    assert parts(found) == pytest.approx({each: 40 if each == part else 0 for each in parts(found)}, abs=1e-6)
    assert sum(parts(found).values()) == pytest.approx(found.step.milliseconds) == 40
    assert found.verdict.startswith("A step of B takes 40 ms longer than one of A (interval +40 to +40): ")
    (row,) = (row for row in found.parts if row.part == part)
    assert f": {row.words} +40 ms (interval +40 to +40)." in found.verdict


def test_parts_add_up_also_where_input_hides_behind_the_exchange(tmp_path):
    hidden = slower(as_it_is=-15)
    found = differed(tmp_path / "study", hidden, SYNCHRONOUS)
    assert sum(row.first_milliseconds for row in found.parts) == pytest.approx(155)
    assert sum(row.second_milliseconds for row in found.parts) == pytest.approx(170)
    assert parts(found)["together"] == pytest.approx(-15)


def test_what_one_run_does_not_show_is_a_part_of_its_own(tmp_path):
    alone = {variant: constant(0.06) for variant in ("as_it_is", "no_input", "larger_batch")}
    found = differed(tmp_path / "study", SYNCHRONOUS, alone, modes=("ddp", "single"))
    assert None in parts(found)
    assert "what cannot be separated" in as_text(found, 100)
    assert sum(parts(found).values()) == pytest.approx(found.step.milliseconds) == -110


def test_equal_runs_show_no_difference(tmp_path):
    found = differed(tmp_path / "study", SYNCHRONOUS, SYNCHRONOUS)
    assert found.verdict.startswith(
        "A step of B is not shown to differ from one of A, +0 ms (interval +0 to +0). No part"
    )
    assert not any(row.is_shown for row in [found.step, *found.parts])


def test_few_or_disturbed_rounds_claim_nothing(tmp_path):
    planted = slower(as_it_is=40, no_input=40)
    few = differed(tmp_path / "few", SYNCHRONOUS, planted, rounds=2)
    assert few.verdict.startswith("FIRST LOOK: 2 of 6 rounds, nothing is claimed. A step of B takes 40 ms longer than")
    assert (few.confidence, few.step.low) == (None, None)
    five = differed(tmp_path / "five", SYNCHRONOUS, planted, rounds=5)
    assert five.confidence is not None
    assert not any(row.is_shown for row in [five.step, *five.parts])
    busy = differed(tmp_path / "busy", SYNCHRONOUS, planted, busy=range(1, 7))
    assert busy.verdict.startswith("Other processes come first: DISTURBED in 72 of 72 runs")
    assert "the part that seems to differ most is exchange (+40 ms). Explain it again when the machine" in busy.verdict
    assert not any(row.is_shown for row in [busy.step, *busy.parts])


def test_a_run_that_never_completed_is_no_difference(tmp_path):
    with pytest.raises(RunFailedError, match="the difference cannot be explained: A failed: out of memory"):
        differed(tmp_path / "study", SYNCHRONOUS, SYNCHRONOUS, failed=["as it is"])


def test_all_formats_show_the_same_digits(tmp_path):
    found = differed(tmp_path / "study", SYNCHRONOUS, slower(as_it_is=40, no_input=40))
    text, markdown = as_text(found, 100), as_markdown(found)
    for row in (*found.parts, found.step):
        for figure in (f"{row.first_milliseconds:.3g}", f"{row.second_milliseconds:.3g}", f"{row.milliseconds:+.3g}"):
            assert figure in text
            assert figure in markdown
    assert max(map(len, text.splitlines())) <= 100
    json.dumps(found.model_dump(mode="json"), allow_nan=False)


def traced(folder, operators, *, framework="torch", **config):
    """A run that has traced two steps, with these operators and their milliseconds."""
    made = result(framework, "single")
    config = made.config | {"profile_steps": (20, 21)} | config
    (folder / TRACES_DIR).mkdir(parents=True)
    made.model_copy(update={"config": config}).save(folder)
    events = [
        {"ph": "X", "name": name, "ts": 1e6 * number, "dur": 1000 * milliseconds, "pid": 1, "tid": 1}
        for number, (name, milliseconds) in enumerate(operators.items())
    ]
    (folder / TRACES_DIR / "process-0.json").write_text(json.dumps({"traceEvents": events}))
    return folder


def test_traced_runs_show_the_operators_that_differ_most(tmp_path):
    found = differed(tmp_path / "study", SYNCHRONOUS, SYNCHRONOUS)
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    traced(first, {"aten::conv2d": 20, "aten::relu": 4, "aten::old": 2})
    traced(second, {"aten::conv2d": 32, "aten::relu": 4.2})
    shown = with_operators(found, [first, second])
    assert [(row.name, pytest.approx(row.milliseconds)) for row in shown.operators] == [
        ("aten::conv2d", 6), ("aten::old", -1), ("aten::relu", 0.1),
    ]  # fmt: skip
    for text in (as_text(shown, 100), as_markdown(shown)):
        assert "aten::conv2d" in text
        assert "Tracing slows steps down, so nothing is claimed." in " ".join(text.split())
    traced(other, {"m/conv:Conv2D": 1}, framework="tensorflow")
    assert "No operators: the operators of two frameworks have no common names." in (
        as_text(with_operators(found, [first, other]), 200)
    )
    (second / TRACES_DIR / "process-0.json").write_text("{")
    assert "No operators: process-0.json is no trace" in as_markdown(with_operators(found, [first, second]))
    (second / TRACES_DIR / "process-0.json").unlink()
    assert with_operators(found, [first, second]) == found
