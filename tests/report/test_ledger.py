"""The ledger: what it keeps of studies, what it says of several, and what it refuses."""

import json
from datetime import UTC, datetime

import pytest

from dpcompare.errors import RequestError
from dpcompare.experiments.analysis import analyse
from dpcompare.experiments.collection import Collection
from dpcompare.report.ledger import LEDGER_FILE, NO_CLAIM, add, as_text, entries_of, make_plots, read
from tests.support.arms import FAST, SLOW, renamed, single
from tests.support.command import invoke


def entries(folder, day, version="2.14.1", speeds=(FAST, SLOW)):
    """The lines of a study of two arms that was measured on a day of November."""
    began = datetime(2026, 11, day, 12, tzinfo=UTC)
    changes = {"started_at": began, "versions": {"torch": version, "python": "3.11"}}
    names = ("torch single 1x1", "torch single 1x1 env=old")
    arms = [renamed(name, single(of_arm, **changes)) for name, of_arm in zip(names, speeds, strict=True)]
    collection = Collection(arms=arms, repeats=6)
    return entries_of(collection, analyse(collection), folder / f"study-{day}")


def test_studies_are_shown_over_days_and_no_two_days_are_claimed(tmp_path):
    ledger = tmp_path / "new" / "ledger"
    assert add(ledger, entries(tmp_path, 20, "2.15.0"))
    assert add(ledger, entries(tmp_path, 3))
    there = read(ledger)
    many = [there[0].model_copy(update={"figures": {"steady_images_per_second": 14171.3}})]
    assert "14,171\n" in as_text(many, "steady_images_per_second", 200)
    assert [(entry.day.day, entry.version) for entry in there] == [
        *[(3, "torch 2.14.1")] * 2,
        *[(20, "torch 2.15.0")] * 2,
    ]
    assert there[0].figures["steady_images_per_second"] == pytest.approx(130, rel=0.01)
    text = as_text(there, "steady_images_per_second", 200)
    assert f"2 studies, 4 arms. {NO_CLAIM}" in " ".join(text.split())
    assert " ".join(text.split()).count("torch single 1x1 is 1.300 times as fast as torch single 1x1 env=old") == 2
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("2026-11")] == ["130", "100"] * 2


def test_a_study_is_there_once_as_it_is_now(tmp_path):
    assert add(tmp_path, entries(tmp_path, 3))
    assert not add(tmp_path, entries(tmp_path, 3))
    assert not add(tmp_path, [entry.model_copy(update={"study_dir": "/moved"}) for entry in entries(tmp_path, 3)])
    longer = entries(tmp_path, 3, speeds=([*FAST, 131.0], [*SLOW, 100.0]))
    assert add(tmp_path, longer)
    assert [entry.rounds for entry in read(tmp_path)] == [7, 7]
    assert len((tmp_path / LEDGER_FILE).read_text().splitlines()) == 4  # what it was before is kept


def test_lines_that_cannot_be_read_are_named(tmp_path):
    add(tmp_path, entries(tmp_path, 3))
    file = tmp_path / LEDGER_FILE
    good = file.read_text()
    file.write_text(good + good.splitlines()[0][:40] + "\n")
    with pytest.raises(RequestError, match=r"line 3 of .*ledger.jsonl' cannot be read \(Invalid JSON"):
        read(tmp_path)
    document = json.loads(good.splitlines()[0])
    file.write_text(json.dumps(document | {"rounds": "many"}) + "\n")
    with pytest.raises(RequestError, match=r"line 1 .* cannot be read \(rounds: .*; delete it and add its study again"):
        read(tmp_path)
    with pytest.raises(RequestError, match=r"is no ledger: ledger\.jsonl is missing; make one with: dpcompare ledger"):
        read(tmp_path / "elsewhere")


def test_a_table_has_one_kind_of_hardware_whatever_its_kernel(tmp_path):
    first, second = entries(tmp_path, 3), entries(tmp_path, 20)
    newer = [entry.model_copy(update={"machine": f"{entry.machine}, another kernel"}) for entry in second]
    assert as_text([*first, *newer], "accuracy", 200).count("day ") == 1
    on_gpus = [entry.model_copy(update={"hardware": "a CPU, NVIDIA H200"}) for entry in second]
    assert as_text([*first, *on_gpus], "accuracy", 200).count("day ") == 2
    older = [entry.model_copy(update={"hardware": ""}) for entry in newer]
    assert (
        as_text([*older, *[each.model_copy(update={"hardware": ""}) for each in first]], "accuracy", 200).count("day ")
        == 2
    )


@pytest.mark.seconds
def test_versions_are_in_the_order_of_their_numbers(tmp_path):
    there = [
        line
        for day, version in ((3, "2.10.0"), (4, "2.8.0"), (5, "2.15.0"))
        for line in entries(tmp_path, day, version)
    ]
    _, over_versions = make_plots(there, "steady_images_per_second")
    line, _ = over_versions.chart.to_dict()["layer"]
    assert line["encoding"]["x"]["sort"] == ["torch 2.8.0", "torch 2.10.0", "torch 2.15.0"]


@pytest.mark.seconds
def test_plots_join_only_what_was_measured_side_by_side(tmp_path):
    there = [*entries(tmp_path, 3), *entries(tmp_path, 20, "2.15.0")]
    plots = make_plots(there, "steady_images_per_second")
    assert [plot.name for plot in plots] == [
        "steady_images_per_second-1-over-days",
        "steady_images_per_second-1-over-versions",
    ]
    line, points = plots[0].chart.to_dict()["layer"]
    assert line["encoding"]["detail"]["field"] == "study"
    assert points["encoding"]["color"]["scale"]["domain"] == ["torch single 1x1", "torch single 1x1 env=old"]
    with pytest.raises(RequestError, match="--figure: received 'gpu_memory_bytes', which no arm of this ledger has"):
        make_plots(there, "gpu_memory_bytes")


def test_the_commands_refuse_what_is_no_study_and_no_figure(tmp_path):
    (tmp_path / "other").mkdir()
    refused = invoke("ledger", "add", tmp_path / "ledger", tmp_path / "other")
    assert (refused.code, (tmp_path / "ledger").exists()) == (2, False)
    assert "expected the directory of a study, as `dpcompare compare` makes it" in refused.stderr
    add(tmp_path, entries(tmp_path, 3))
    refused = invoke("ledger", "show", tmp_path, "--figure", "accuracies")
    assert refused.code == 2
    assert "--figure: received 'accuracies', expected one of steady_images_per_second, " in refused.stderr
    assert "accuracy" in refused.stderr.rpartition(".")[0]
    assert len(invoke("ledger", "show", tmp_path, "--json").json) == 2
    assert "2026-11-03" in invoke("ledger", "show", tmp_path, "--figure", "accuracy").stdout
