"""Result files and the pages that show them: refused by name if they were changed, and never out of date."""

import argparse
import json
import re
from datetime import date

import pytest

import dpcompare
from benchmarks import evidence
from benchmarks.evidence import Keeper, Result, ResultFileError, all_results, load, number, table, text, write
from docs.site.evidence import QUOTE, SECTION, filled, pages

RESULT = Result(
    name="kills",
    command="python -m stress.kills --all",
    commit="1234567",
    is_changed=False,
    date=date(2026, 11, 28),
    version=dpcompare.__version__,
    machine="a CPU, 2 cores",
    versions={"Python": "3.11.7", "torch": "2.14.1"},
    status="passed",
    sentences=("Ten kills.",),
    tables=(
        table([*text("mode"), number("images/s", ".1f"), number("kills", ",")], [("ddp", (2.0, 1.5, 2.25), 1000)]),
        table([*text("mode", "why")], [("dp", None), ("a|b", "")], title="The others:"),
    ),
    figures={"kills": 10},
)


def changed(path, **fields):
    """The file with other fields, as an editor would leave it; None: without the field."""
    now = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({key: value for key, value in now.items() if value is not None}))
    return path


def test_a_result_is_read_as_it_was_written(tmp_path):
    assert load(write(tmp_path, RESULT)) == RESULT
    assert [path.name for path in tmp_path.iterdir()] == ["kills.json"]


def test_a_result_is_shown_with_its_origin():
    assert RESULT.markdown == [
        "`python -m stress.kills --all` on 2026-11-28 at commit 1234567, version "
        f"{dpcompare.__version__}: passed. a CPU, 2 cores; Python 3.11.7, torch 2.14.1.",
        "",
        "Ten kills.",
        "",
        "| mode | images/s | kills |",
        "|---|--:|--:|",
        "| ddp | 2.0 (1.5 to 2.2) | 1,000 |",
        "",
        "The others:",
        "",
        "| mode | why |",
        "|---|---|",
        "| dp | - |",
        "| a/b |  |",
    ]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"status": "failed"}, "received text that does not have its sha256"),
        ({"sha256": "0" * 64}, "received text that does not have its sha256"),
        ({"machine": None}, "machine: Field required"),
        ({"sha256": None}, "is no result file"),
        ({"status": "fine"}, "status: Input should be"),
        ({"rows": []}, "rows: Extra inputs are not permitted"),
        ({"version": None}, "version: Field required"),
    ],
)
def test_a_file_that_was_changed_is_refused_by_name(tmp_path, fields, why):
    path = changed(write(tmp_path, RESULT), **fields)
    with pytest.raises(ResultFileError, match=r"kills\.json: ") as refused:
        all_results(tmp_path)
    assert why in str(refused.value)
    assert "again" in str(refused.value)
    path.write_text("{")
    with pytest.raises(ResultFileError, match="is no result file"):
        load(path)


def test_a_file_of_another_name_is_refused(tmp_path):
    moved = write(tmp_path, RESULT).rename(tmp_path / "deaths.json")
    with pytest.raises(ResultFileError, match="received the name kills, expected deaths"):
        load(moved)


def test_a_row_has_as_many_cells_as_there_are_columns():
    with pytest.raises(ValueError, match=r"received a row of 1 cells .*expected 2"):
        table(text("mode", "why"), [("dp",)])


def test_a_page_gets_its_tables_and_quotes():
    page = "before\n<!-- kills -->\nold\n<!-- end of kills -->\nof <!-- =kills.kills -->9<!-- = --> kills\n"
    page += "at <!-- =kills[ddp; images/s] -->9<!-- = -->, because <!-- =kills[a/b; why] -->9<!-- = -->\n"
    now = filled(page, {"kills": RESULT})
    assert "old" not in now
    assert "Ten kills." in now
    assert "of <!-- =kills.kills -->10<!-- = --> kills" in now
    assert (
        "at <!-- =kills[ddp; images/s] -->2.0 (1.5 to 2.2)<!-- = -->, because <!-- =kills[a/b; why] --><!-- = -->"
        in now
    )
    assert filled(now, {"kills": RESULT}) == now


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ("<!-- deaths -->\n<!-- end of deaths -->", "deaths: a page shows it"),
        ("<!-- =deaths.kills --><!-- = -->", "deaths: a page shows it"),
        ("<!-- =kills.deaths --><!-- = -->", "kills: a page quotes deaths; the file has kills"),
        (
            "<!-- =kills[fsdp; images/s] --><!-- = -->",
            "kills: a page quotes the cell fsdp; images/s, and the file has 0",
        ),
        ("<!-- =kills[ddp; joules] --><!-- = -->", "kills: a page quotes the cell ddp; joules, and the file has 0"),
        ("<!-- =kills[mode] --><!-- = -->", "kills: a page quotes the cell mode, and the file has 3"),
    ],
)
def test_a_page_that_shows_what_is_not_there_is_refused(page, why):
    with pytest.raises(ResultFileError, match=why):
        filled(page, {"kills": RESULT})


def test_a_script_keeps_what_it_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DPCOMPARE_COMMIT", "7654321 (changed)")
    monkeypatch.setattr("sys.argv", ["kills.py", "--write", "results of today", "--out=/machine/out"])
    parser = argparse.ArgumentParser()
    keeper = Keeper(parser, "stress.kills")
    kept = keeper.keep(tmp_path, "Kills", "open", tables=RESULT.tables, figures={"kills": 10})
    assert capsys.readouterr().out.splitlines() == kept.markdown
    assert load(tmp_path / "kills.json") == kept
    assert (kept.command, kept.commit, kept.is_changed) == (
        "python -m stress.kills --write 'results of today' --out=out",
        "7654321",
        True,
    )
    assert "Python" in kept.versions
    assert kept.machine
    assert parser.parse_args([]).write is None
    assert parser.parse_args(["--write"]).write == evidence.RESULTS


def test_pages_are_up_to_date_and_show_every_result():
    results = all_results()
    texts = {page: page.read_text() for page in pages()}
    old = [page.name for page, was in texts.items() if filled(was, results) != was]
    assert not old, f"{', '.join(old)}: run `python -m docs.site.evidence`"
    shown = {found["name"] for was in texts.values() for found in SECTION.finditer(was)}
    assert set(results) <= shown
    texts = {page: re.sub("`[^`]*`", "", was) for page, was in texts.items()}  # without the marks that are explained
    broken = {page.name for page, was in texts.items() if len(QUOTE.findall(was)) != was.count("<!-- =") / 2}
    broken |= {page.name for page, was in texts.items() if len(SECTION.findall(was)) != was.count("<!-- end of ")}
    assert not broken, "marks without their other half"


@pytest.mark.parametrize("result", all_results().values(), ids=lambda result: result.name)
def test_no_result_is_older_than_a_minor_version(result):
    """A table of two versions ago says nothing about what users have: its script is run again, or the table goes."""
    now, then = (tuple(map(int, version.split(".")[:2])) for version in (dpcompare.__version__, result.version))
    assert now[0] == then[0], f"{result.name}: {result.version}; run `{result.command}` again"
    assert now[1] - then[1] <= 1, f"{result.name}: {result.version}; run `{result.command}` again"
