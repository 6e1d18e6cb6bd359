"""The table of all figures: the same in CSV and Parquet, and as the docs say."""

import csv
import html
import io
import re
import sys
from pathlib import Path

import pytest

from docs.site.reference import reference
from dpcompare.errors import RequestError
from dpcompare.experiments.analysis import analyse
from dpcompare.experiments.collection import Collection
from dpcompare.experiments.figures import FIGURES, Figure
from dpcompare.report.formats import COLUMNS
from dpcompare.report.records import FIELDS, as_csv, as_parquet, records
from dpcompare.results.result import PeakMemory
from tests.support.arms import FAST, SLOW, compared, runs, single, stalled
from tests.support.learning import EARLY, NEVER, SECONDS, ddp, evaluated

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def shown():
    """One device and two, six rounds; round 2 has failed, round 3 has stalled."""
    memory = PeakMemory(max_process=2 * 2**30, total=3 * 2**30)
    several = stalled(runs("torch", "ddp", FAST, peak_memory_bytes=memory, first_step_seconds=2.5), 3)
    several.runs[1] = None
    several.failures = ["round 2: killed by signal 9"]
    several.without_sync = runs("torch", "ddp", [1.25 * speed for speed in FAST]).runs
    return compared(single(SLOW), several)


def test_a_record_has_every_figure_of_its_run(shown):
    found = {(each["arm"], each["round"]): each for each in records(shown)}
    assert len(found) == 12
    first = found["torch ddp 2x1", 1]
    expected = {
        "status": "completed",
        "failure": None,
        "warnings": "",
        "images_per_second": 130.0,
        "step_p95_ms": pytest.approx(3200 / 130),
        "communication_ms": pytest.approx(3200 / 130 * 0.2),
        "first_step_seconds": 2.5,
        "memory_bytes": 3 * 2**30,
        "largest_process_memory_bytes": 2 * 2**30,
        "gpu_memory_bytes": None,
        "last_loss": 2.0,
        "evaluation_loss": 1.0,
        "accuracy": 0.5,
        "steps_trained": 45,
        "arm_scaling": "strong",
        "arm_efficiency": pytest.approx(0.65, abs=0.01),
    }
    assert {name: first[name] for name in expected} == expected
    assert found["torch ddp 2x1", 3]["warnings"] == "STALLED"
    assert found["torch single 1x1", 1]["arm_efficiency"] is None


def test_a_record_says_when_its_run_reached_the_target():
    found = records(analyse(Collection(arms=[evaluated(ddp(target=0.7), [EARLY] * 7 + [NEVER], SECONDS)], repeats=8)))
    assert [each["seed"] for each in found] == [*range(1, 9)]
    assert [each["steps_to_target"] for each in found] == [30] * 7 + [None]
    assert found[1]["seconds_to_target"] == pytest.approx(30 * 0.11)
    mean = sum(each["accuracy"] for each in found) / 8
    assert found[0]["arm_accuracy_mean"] == found[7]["arm_accuracy_mean"] == pytest.approx(mean)
    assert found[0]["arm_accuracy_deviation"] > 0


def test_a_run_that_does_not_count_has_a_record_without_figures(shown):
    (failed,) = [each for each in records(shown) if each["status"] == "failed"]
    assert (failed["arm"], failed["round"], failed["failure"]) == ("torch ddp 2x1", 2, "killed by signal 9")
    assert {failed[name] for name in FIELDS if name.endswith(("_ms", "_seconds", "_bytes", "loss", "accuracy"))} == {
        None
    }


def test_the_median_of_the_records_is_the_figure_of_the_arm(shown):
    speeds = [each["step_ms"] for each in records(shown) if each["arm"] == "torch single 1x1"]
    assert shown.arms[0].step_ms == sorted(speeds)[2] / 2 + sorted(speeds)[3] / 2


def test_parquet_is_the_table_of_the_csv(shown):
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra parquet")
    read = parquet.read_table(io.BytesIO(as_parquet(shown)))
    assert read.column_names == list(FIELDS)
    assert read.to_pylist() == records(shown)
    kinds = {str: "string", int: "int64", float: "double", bool: "bool"}
    assert {field.name: str(field.type) for field in read.schema} == {
        name: kinds[field.kind] for name, field in FIELDS.items()
    }
    assert read.schema.field("step_p95_ms").metadata == {b"description": b"95th percentile of the steps"}
    as_text = [{name: _as_in_csv(value) for name, value in each.items()} for each in read.to_pylist()]
    assert list(csv.DictReader(io.StringIO(as_csv(shown)))) == as_text


def _as_in_csv(value):
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def test_parquet_without_its_library_names_the_extra(shown, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RequestError, match=r"--parquet needs pyarrow, which is not installed.*'dpcompare\[parquet\]'"):
        as_parquet(shown)


def test_the_reference_lists_the_columns():
    section = reference().partition("## Columns of CSV and Parquet\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| <code>(\w+)</code> \| (.+) \|$", section, re.MULTILINE)
    shown = [(name, html.unescape(re.sub("</?code>", "`", text))) for name, text in listed]
    assert shown == [(name, field.explanation) for name, field in FIELDS.items()]


def test_the_docs_group_all_columns_in_their_order():
    page = (DOCS / "exports.md").read_text().partition("## A table of all figures\n")[2].partition("\n## ")[0]
    columns, grouped = list(FIELDS), []
    for cell in re.findall(r"^\| (`.+?`) \|", page, re.MULTILINE):
        named = re.findall(r"`(\w+)`", cell)
        grouped += columns[columns.index(named[0]) : columns.index(named[-1]) + 1] if "` to `" in cell else named
    assert grouped == columns


def test_no_figure_of_the_report_is_without_a_field():
    """Those that are rows of FIGURES are in both; another one that is added to the report fails here."""
    others = {
        "arm": "arm", "topology": "nodes", "rounds": "round", "jitter": "arm_jitter_images_per_second",
        "accuracy over seeds": "arm_accuracy_mean", "evaluation loss over seeds": "arm_evaluation_loss_mean",
        "to target (s)": "seconds_to_target", "to target (steps)": "steps_to_target",
        "to target (images)": "images_to_target", "to target (J)": "joules_to_target",
        "to target ($)": "arm_dollars_to_target",
        "$ per million images": "arm_dollars_per_million_images", "efficiency": "arm_efficiency",
    }  # fmt: skip
    of_table = {row.column.title for row in FIGURES.values() if row.column}
    assert set(COLUMNS) == set(others) | of_table
    assert set(others.values()) | {name for name, row in FIGURES.items() if row.per_run} <= set(FIELDS)


def test_a_figure_without_a_unit_is_refused():
    with pytest.raises(TypeError, match="figure 'what it is': expected a unit"):
        Figure("", "what it is")
