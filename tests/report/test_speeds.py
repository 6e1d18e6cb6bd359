"""The speed of an arm: one figure in headline, tables, bars and rounds, and the mean with stalls in its own column."""

import json
import re

import numpy as np
import pytest

from dpcompare.cli.report import print_summary
from dpcompare.experiments.statistics import mean_speed
from dpcompare.report.formats import as_json, as_markdown
from dpcompare.report.page import as_html
from dpcompare.report.plots import make_plots
from dpcompare.report.text import as_text, figure_lines
from tests.support.arms import compared, runs, stalled
from tests.support.plots import drawn_values
from tests.support.results import result

# Median, mean and geometric mean of these differ; so do the ratios of all three.
DRIFTING = [100.0, 150.0, 110.0, 200.0, 90.0, 160.0]
FASTER = [131.0, 194.0, 143.0, 263.0, 117.0, 209.0]


@pytest.fixture
def shown():
    """A study whose every round has a stall in both arms: their means are 22.0."""
    arms = [runs("torch", "ddp", FASTER), runs("tensorflow", "multiworker", DRIFTING)]
    return compared(*(stall_everywhere(arm) for arm in arms))


def stall_everywhere(arm):
    for number in range(1, len(arm.runs) + 1):
        stalled(arm, number)
    return arm


def cells_of_markdown(comparison):
    lines = [line.strip("| ").split(" | ") for line in as_markdown(comparison).splitlines() if line.startswith("|")]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def cells_of_page(page):
    """Per row of each table: title of the column -> cell."""

    def texts(row):
        return [re.sub("<.*?>", "", cell) for cell in re.findall(r"<t[hd]\b.*?>(.*?)</t[hd]>", row)]

    found = []
    for table in re.findall("<table.*?</table>", page, re.DOTALL):
        heads, *rows = map(texts, re.findall(r"<tr\b.*?</tr>", table, re.DOTALL))
        found += [dict(zip(heads, row, strict=True)) for row in rows]
    return found


@pytest.mark.seconds
def test_headline_tables_bars_and_rounds_have_one_figure(shown):
    plots = {plot.name: drawn_values(plot) for plot in make_plots(shown)}
    bars = {row["arm"]: row["images/s"] for row in plots["speed"]}
    in_markdown = {row["arm"]: row["images/s"] for row in cells_of_markdown(shown)}
    on_page = {row["arm"]: row["images/s"] for row in cells_of_page(as_html(shown)) if "topology" in row}
    for arm, speeds in (("torch ddp 2x1", FASTER), ("tensorflow multiworker 2x1", DRIFTING)):
        speed = f"{np.exp(np.log(speeds).mean()):.1f}"
        assert re.search(rf"^  {arm} +{speed} ", as_text(shown, 100), re.MULTILINE)
        assert in_markdown[arm] == on_page[arm] == f"{bars[arm]:.1f}" == speed
        drawn = [row["images/s"] for row in plots["rounds"] if row["arm"] == arm]
        assert drawn == speeds
        assert f"{mean_speed(drawn).value:.1f}" == speed
    ratio = bars["torch ddp 2x1"] / bars["tensorflow multiworker 2x1"]
    assert ratio == pytest.approx(shown.claims[0].ratio)
    assert shown.headline.startswith(f"torch ddp 2x1 is {ratio:.3f} times as fast as tensorflow multiworker 2x1")


@pytest.mark.seconds
def test_rounds_of_one_ratio_are_parallel_lines(shown):
    (rounds,) = (plot for plot in make_plots(shown) if plot.name == "rounds")
    assert {layer["encoding"]["x"]["scale"]["type"] for layer in rounds.chart.to_dict()["layer"]} == {"log"}


@pytest.mark.seconds
def test_a_mean_with_stalls_stands_in_the_column_of_that_name(shown):
    mean = "22.0"
    page = as_html(shown)
    for rows in (cells_of_markdown(shown), cells_of_page(page)):
        assert {title for row in rows for title, cell in row.items() if cell == mean} == {"with stalls"}
    words = re.sub("<(table|svg|style|script).*?</\\1>", "", page, flags=re.DOTALL)
    assert mean not in words + as_text(shown, 110)
    titles, *lines = [re.split("  +", line) for line in figure_lines(shown, 1000)]
    assert {titles[number] for line in lines for number, cell in enumerate(line) if cell == mean} == {"with stalls"}
    assert not [row for plot in make_plots(shown) for row in drawn_values(plot) if mean in map(str, row.values())]


def test_the_names_of_both_figures_keep_their_meanings(shown):
    arm = json.loads(as_json(shown))["arms"][0]
    assert [arm["images_per_second"], arm["rounds_shown"][0]["images_per_second"]] == pytest.approx([22, 22])
    assert arm["rounds_shown"][0]["steady_images_per_second"] == FASTER[0]
    assert arm["steady_images_per_second"] == pytest.approx(np.exp(np.log(FASTER).mean()))
    assert arm["jitter"] > 0  # of means it would be 0


def test_a_release_without_steady_speed_has_its_mean_in_both():
    shown = compared(runs("torch", "ddp", [100.0]), repeats=1)
    (row,) = cells_of_markdown(shown)
    assert [row["images/s"], row["with stalls"]] == ["100.0", "100.0"]


@pytest.mark.parametrize(
    ("mean", "said"),
    [
        (22.0, "steady 130.0 images/s over 40 measured steps, with stalls 22.0; "),
        (130.04, "steady 130.0 images/s over 40 measured steps; "),
    ],
)
def test_a_run_says_its_steady_speed_first(tmp_path, capsys, monkeypatch, mean, said):
    monkeypatch.setenv("COLUMNS", "200")
    print_summary(result(images_per_second=mean, steady_images_per_second=130.0), tmp_path)
    assert said in capsys.readouterr().out
