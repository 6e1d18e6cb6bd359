"""The pictures of the docs are those that their script draws, and show what modes and result files have."""

import re
from xml.etree import ElementTree

import pytest

from benchmarks.evidence import RESULTS, load
from benchmarks.explain_parts import STEP, parts
from benchmarks.step_timeline import spans
from docs.site.diagrams import PICTURES, pictures
from docs.site.exchanges import EXCHANGES
from docs.site.figures import FIGURES, PART_FILLS, Scale, spread_of
from dpcompare.config.modes import MODES
from dpcompare.projection.explanation import WORDS, Explanation, PartRow
from dpcompare.results.timeline import Timeline

PAGES = sorted(PICTURES.parent.rglob("*.md"))


def test_pictures_are_those_that_the_script_draws():
    for name, drawn in pictures().items():
        svg = (PICTURES / name).read_text()
        assert svg == drawn, f"{name}: run `python -m docs.site.diagrams`"
        assert ElementTree.fromstring(svg).find("{http://www.w3.org/2000/svg}title").text


def test_pictures_show_the_processes_that_a_mode_has():
    rows = {mode: row for (_, mode), row in MODES.items()}
    for mode, picture in EXCHANGES.items():
        nodes = picture.nodes
        assert rows[mode].multi_node == (len(nodes) > 1), mode
        if rows[mode].process_per == "node":
            assert all(len(node.processes) == 1 for node in nodes), mode
        else:
            assert all(len(process.devices) == 1 for node in nodes for process in node.processes), mode


def with_other_numbers(result):
    """The result with half as much again for each number in the first row of its table, as text."""
    first, *others = result.tables
    row, *rows = first.rows
    changed = tuple(re.sub(r"\d+\.\d+", lambda number: f"{1.5 * float(number[0])}", str(cell)) for cell in row)
    return result.model_copy(update={"tables": (first.model_copy(update={"rows": (changed, *rows)}), *others)})


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_follows_its_result_file_and_is_on_one_page(name):
    of, draw = FIGURES[name]
    result = load(RESULTS / f"{of}.json")
    assert draw(result) == (PICTURES / name).read_text(), "run `python -m docs.site.diagrams`"
    assert draw(with_other_numbers(result)) != draw(result)
    assert sum(f"pictures/{name})" in page.read_text() for page in PAGES) == 1


@pytest.mark.parametrize("cell", [(2.0, 1.5, 2.25), "2.0 (1.5 to 2.25)", "2.25 / 1.5 / 2.0", "1.5, 2.0 / 2.0, 2.25"])
def test_a_spread_is_read_as_scripts_write_it_and_wrote_it(cell):
    assert spread_of(cell) == (2.0, 1.5, 2.25)


@pytest.mark.parametrize(
    ("most", "ticks"), [(4.0, [0, 1, 2, 3, 4]), (23, [0, 5, 10, 15, 20]), (573.2, [0, 100, 200, 300, 400, 500])]
)
def test_an_axis_has_round_numbers(most, ticks):
    scale = Scale(most=most, start=300, end=100)
    assert list(scale.ticks()) == ticks
    assert (scale.at(0), scale.at(most)) == (300, 100)


def test_a_process_waits_where_it_computes_nothing():
    parts = {
        "exchange": [(5.0, 12.0)],
        "update": [(12.0, 13.0)],
        "backward": [(4.0, 9.0)],
        "forward": [(0.0, 3.0), (13.002, 13.004)],
        "other": [],
    }
    assert list(spans(Timeline(process_rank=0, milliseconds=14.0, parts=parts))) == [
        ("exchange", 5.0, 12.0),
        ("update", 12.0, 13.0),
        ("backward", 4.0, 9.0),
        ("forward", 0.0, 3.0),
        ("waiting", 3.0, 4.0),
        ("waiting", 9.0, 12.0),
        ("waiting", 13.004, 14.0),
    ]


def test_pictures_are_small_and_fetch_nothing():
    for path in PICTURES.iterdir():
        assert path.stat().st_size < 200_000, path  # every clone carries them
        if path.suffix == ".svg":
            svg = path.read_text()
            assert "@import" not in svg, path
            assert not re.search(r"(href|src)=|url\(['\"]?(?!#)", svg), path


def test_the_parts_of_a_step_have_a_fill_and_leave_out_noise():
    fields = {"meaning": "", "low": None, "high": None, "stands_out": False}
    shares = {"input": 0.25, "exchange": 0.5, "waiting": -0.02, "sharing": 0.1}
    found = [
        PartRow(part=part, words=WORDS[part], share=share, milliseconds=80 * share, **fields)
        for part, share in shares.items()
    ]
    explained = Explanation.model_construct(step_milliseconds=80.0, parts=found)
    assert list(parts("torch ddp", explained)) == [
        ("torch ddp", STEP, 80.0, 1.0),
        ("torch ddp", "input", 20.0, 0.25),
        ("torch ddp", "exchange", 40.0, 0.5),
    ]
    assert {*WORDS.values()} - {WORDS["sharing"]} == PART_FILLS.keys()
