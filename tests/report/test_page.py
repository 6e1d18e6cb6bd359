"""The HTML report in a real browser: complete, offline, sortable, readable in the dark and on a phone."""

import math
import re
import shutil
from itertools import combinations

import pytest
from markupsafe import escape

from dpcompare import Cluster, RunConfig, Workload
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.report.charts import COLOURS, SHADES, Paper, as_svg, write_files
from dpcompare.report.page import _inline, as_html
from dpcompare.report.plots import make_plots
from dpcompare.results.result import PeakMemory
from tests.support.arms import FAST, SLOW, compared, runs, single
from tests.support.plots import drawn_values

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = 'evil"><img src=x onerror=alert(1)><script>alert(2)</script>\x1b[31m'


@pytest.fixture(scope="module")
def comparison():
    memory = PeakMemory(max_process=2**29, total=2**30)
    ddp = runs(
        "torch",
        "ddp",
        FAST,
        mean_ms=[50.0] * 6,
        host_overhead_seconds=0.002,
        peak_memory_bytes=memory,
        train_loss=[2.0, 2.0, *(1.98 - 0.01 * step for step in range(43))],
    )
    ddp.without_sync = runs("torch", "ddp", FAST, mean_ms=[40.0] * 6).runs
    arms = [single(SLOW), ddp, runs("tensorflow", "multiworker", SLOW, dataset=HOSTILE)]
    arms[2].name = f"tensorflow multiworker 2x1 {HOSTILE}"
    return compared(*arms)


@pytest.mark.seconds
def test_every_plot_has_as_many_series_as_there_is_to_show(comparison):
    series = {plot.name: drawn_values(plot) for plot in make_plots(comparison)}
    assert set(series) == {"speed", "rounds", "ratios", "scaling", "breakdown", "losses", "loss-differences", "memory"}
    assert {row["MiB"] for row in series["memory"]} == {1024.0}
    assert len(series["rounds"]) == 18
    assert len({row["round"] for row in series["rounds"]}) == 6
    assert len({row["arm"] for row in series["losses"]}) == 3
    assert len({row["arm"] for row in series["loss-differences"]}) == 2
    assert {row["part"] for row in series["breakdown"]} == {"waiting for data", "communication", "computing", "other"}
    assert len(series["ratios"]) == 1  # one of three pairs has equal replicas


@pytest.mark.seconds
@pytest.mark.slow
def test_a_sweep_over_micro_batches_is_a_line_per_pipeline():
    def pipelined(micro_batches, speed, schedule=None, batch=32):
        found = runs("torch", "ddp", [speed])
        found.name = f"pipeline {micro_batches} {schedule} {batch}"
        found.config = RunConfig(
            framework="torch",
            mode="pipeline",
            stages=2,
            pipeline_schedule=schedule,
            workload=Workload(accumulate=micro_batches, global_batch_size=batch),
            cluster=Cluster.partition(1, 2, device="cpu", num_cores=2),
        )
        return found

    arms = [pipelined(1, 80.0), pipelined(2, 100.0), pipelined(4, 90.0), pipelined(4, 95.0, "1f1b"), single([120.0])]
    arms.append(pipelined(4, 70.0, batch=64))
    plots = make_plots(compared(*arms))
    assert all(as_svg(plot, 400) for plot in plots)
    series = {plot.name: drawn_values(plot) for plot in plots}
    points = {(row["arm"], row["micro-batches"]): row["images/s"] for row in series["micro-batches"] if "text" in row}
    assert points == pytest.approx(
        {
            ("1 x 2 stages, gpipe", 1): 80.0,
            ("1 x 2 stages, gpipe", 2): 100.0,
            ("1 x 2 stages, gpipe", 4): 90.0,
            ("1 x 2 stages, 1f1b", 4): 95.0,
            ("1 x 2 stages, gpipe, pipeline 4 None 64", 4): 70.0,
        }
    )
    assert "micro-batches" not in {plot.name for plot in make_plots(compared(arms[0], arms[4]))}


@pytest.mark.seconds
def test_files_for_papers_have_ink(comparison, tmp_path):
    from PIL import Image

    write_files(make_plots(comparison), tmp_path, Paper(width_inches=3.3, text_points=8))
    assert {path.suffix for path in tmp_path.iterdir()} == {".pdf", ".png", ".svg"}
    for path in tmp_path.glob("*.png"):
        image = Image.open(path)
        darkest, lightest = image.convert("L").getextrema()
        assert (darkest < 100, lightest) == (True, 255), path
        assert image.width == pytest.approx(3.3 * 300, abs=4)
    for path in tmp_path.glob("*.svg"):
        assert float(re.search(r'width="([\d.]+)pt"', path.read_text())[1]) == pytest.approx(3.3 * 72, abs=1)
    for path in tmp_path.glob("*.pdf"):
        box = re.search(rb"MediaBox \[0 0 ([\d.]+)", path.read_bytes())
        assert float(box[1]) == pytest.approx(3.3 * 72, abs=1)


@pytest.mark.seconds
def test_the_page_names_nothing_outside_itself(comparison):
    page = as_html(comparison)
    assert "default-src 'none'" in page
    assert not re.search(r'(src|href)="?(https?:)?//', page)
    assert "@import" not in page
    assert "<img" not in page
    assert "\x1b" not in page
    assert page.count("<script>") == 1
    assert len(page) < 500_000
    for made in comparison.claims:
        assert str(escape(made.sentence)) in page


@pytest.fixture
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium here (Debian's package is called chromium)")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra dev)")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def file(comparison, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(as_html(comparison))
    return path


@pytest.fixture
def open_page(browser, file):
    """Opens the page; fails where it says or asks for anything."""
    contexts, said, asked = [], [], []

    def open_it(**options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert said == []
    assert set(asked) == {file.as_uri()}


@pytest.mark.process
@pytest.mark.slow
def test_every_plot_is_drawn_and_named(open_page):
    page = open_page()
    assert page.locator("figure svg.column[role=graphics-document][aria-label]").count() == 8
    assert page.locator("#plot-rounds .column [role=graphics-symbol][aria-roledescription=point]").count() == 18
    assert page.locator("h1").inner_text().startswith("torch ddp 2x1 is 1.")


@pytest.mark.process
@pytest.mark.slow
def test_a_table_is_sorted_by_mouse_and_keyboard(open_page):
    page = open_page()
    figures = page.get_by_role("region", name="Main figures")
    speeds = figures.locator("tbody tr td:nth-child(2)")
    figures.get_by_role("button", name="images/s").click()
    assert speeds.all_inner_texts() == ["100.0", "100.0", "130.0"]
    figures.get_by_role("button", name="images/s").focus()
    page.keyboard.press("Enter")
    assert speeds.all_inner_texts() == ["130.0", "100.0", "100.0"]
    assert page.locator("th[aria-sort=descending]").count() == 1


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_what_one_came_for_is_not_cut(open_page, width):
    page = open_page(viewport={"width": width, "height": 900})
    figures = page.get_by_role("region", name="Main figures")
    titles = ["arm", "images/s", "vs 1 device", "sync", "accuracy", "memory"]
    assert figures.locator("thead th").all_inner_texts() == titles
    if width == 1280:
        assert figures.evaluate("each => each.scrollWidth <= each.clientWidth")


@pytest.mark.process
@pytest.mark.slow
def test_the_contents_lead_to_every_part(open_page):
    page = open_page()
    links = page.locator("nav a").evaluate_all("all => all.map(each => each.getAttribute('href'))")
    assert [f"#{name}" for name in page.locator("main h2[id]").evaluate_all("all => all.map(each => each.id)")] == links
    assert {"#figures", "#claims", "#rounds", "#fairness"} < set(links)
    assert links[-1] == "#definitions"


@pytest.mark.process
@pytest.mark.slow
def test_the_value_of_a_mark_is_shown_under_the_pointer(open_page):
    page = open_page()
    page.locator("#plot-rounds .column [role=graphics-symbol][aria-roledescription=point]").nth(7).hover()
    assert "torch ddp 2x1, round 2" in page.locator("#tip").inner_text()


@pytest.mark.process
@pytest.mark.slow
def test_a_point_leads_to_its_run(open_page):
    page = open_page()
    rows = page.get_by_role("region", name="Runs and their directories").locator("tr.current")
    page.locator("#plot-rounds .column [role=graphics-symbol][aria-roledescription=point]").nth(7).click()
    assert rows.count() == 1
    assert rows.is_visible()
    assert rows.inner_text().split("\t")[:2] == ["torch ddp 2x1", "2"]
    page.locator("#plot-rounds .column").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert rows.inner_text().split("\t")[:2] == ["torch single 1x1", "1"]


@pytest.mark.process
@pytest.mark.slow
def test_an_arm_can_be_left_out(open_page):
    page = open_page()
    marks = page.locator("figure svg.column [role=graphics-symbol]:visible")
    rows = page.get_by_role("region", name="Main figures").locator("tbody tr:visible")
    before = marks.evaluate_all("all => all.map(each => each.getAttribute('aria-label'))")
    page.get_by_role("checkbox", name="torch ddp 2x1", exact=True).uncheck()
    page.locator("#plot-rounds .column").focus()
    for key in ("ArrowRight",) * 8:  # beyond the six rounds of the first arm are those of the second, which is off
        page.keyboard.press(key)
    assert "tensorflow multiworker" in page.locator("#tip").inner_text()
    page.keyboard.press("Escape")
    left = marks.evaluate_all("all => all.map(each => each.getAttribute('aria-label'))")
    # What is said of a pair, or of its interval, stays.
    assert {label for label in left if label.startswith("torch ddp 2x1")} == {
        label for label in before if label.startswith("torch ddp 2x1 is ")
    }
    assert len([label for label in before if label.startswith("torch single")]) == len(
        [label for label in left if label.startswith("torch single")]
    )
    assert rows.count() == 2
    page.get_by_role("checkbox", name="torch ddp 2x1", exact=True).check()
    assert marks.count() == len(before)
    assert rows.count() == 3


SIDES_OF_TEXTS = """svg => [...svg.querySelectorAll("text")].map(text => {
  const box = text.getBoundingClientRect()
  return [box.left, box.right, text.textContent]
})"""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "shown", "hidden"),
    [(1280, "column", "phone"), (900, "column", "phone"), (768, "phone", "column"), (390, "phone", "column")],
)
def test_plots_fill_the_page_and_stay_legible(open_page, width, shown, hidden):
    page = open_page(viewport={"width": width, "height": 900})
    assert page.locator(f"figure svg.{shown}:visible").count() == 8
    assert page.locator(f"figure svg.{hidden}:visible").count() == 0
    column = page.locator("main").evaluate(
        "each => Math.min(each.clientWidth - 32, each.querySelector('.phone').checkVisibility() ? 34 * 16 : 1e4)"
    )
    for svg in page.locator(f"figure svg.{shown}").all():
        assert svg.bounding_box()["width"] == pytest.approx(column, abs=2)
        scale = column / float(svg.get_attribute("viewBox").split()[2])
        assert 11 < 13 * scale < 20
        box = svg.bounding_box()
        for left, right, words in svg.evaluate(SIDES_OF_TEXTS):
            assert box["x"] - 1 <= left <= right <= box["x"] + box["width"] + 1, words


@pytest.mark.seconds
@pytest.mark.slow
def test_the_page_of_a_running_study_loads_itself_again(comparison):
    running, ended = as_html(comparison, reloads=True), as_html(comparison)
    assert '<noscript><meta http-equiv="refresh" content="10"></noscript>' in running
    assert '<input type="checkbox" id="reloads" data-seconds="10" checked>' in running
    assert "refresh" not in ended
    assert 'id="reloads"' not in ended


@pytest.mark.process
@pytest.mark.slow
def test_the_values_of_a_curve_are_shown_under_the_pointer(open_page):
    page = open_page()
    # By force: where curves lie over each other, the uppermost answers.
    page.locator("#plot-losses .column [role=graphics-symbol][aria-roledescription=point]").nth(4).hover(force=True)
    assert re.search(r", step \d+: loss [\d.]+$", page.locator("#tip").inner_text())


@pytest.mark.process
@pytest.mark.slow
def test_every_value_can_be_reached_by_keyboard(open_page):
    page = open_page()
    page.locator("#plot-rounds .column").focus()
    tip = page.locator("#tip")
    for key, number in (
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("End", 6),
        ("ArrowRight", 6),
        ("Home", 1),
    ):
        page.keyboard.press(key)
        assert f"round {number}, ran as" in tip.inner_text()
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    stops = []
    for _ in range(40):
        page.keyboard.press("Tab")
        stops.append(page.evaluate("document.activeElement.closest('figure')?.id"))
    assert {"plot-ratios", "plot-scaling", "plot-breakdown", "plot-losses", "plot-memory"} <= set(stops)


@pytest.mark.process
@pytest.mark.slow
def test_on_paper_nothing_is_folded(open_page):
    page = open_page()
    state = "[...document.querySelectorAll('details')].map(each => each.open)"
    before = page.evaluate(state)
    assert not all(before)
    page.evaluate(f"addEventListener('beforeprint', () => {{ window.printed = {state} }})")
    page.pdf()
    assert all(page.evaluate("window.printed"))
    assert page.evaluate(state) == before


@pytest.mark.process
@pytest.mark.slow
def test_on_paper_no_column_is_cut(open_page):
    page = open_page(viewport={"width": 718, "height": 1000})  # A4 between margins of a centimetre, at 96 per inch
    page.emulate_media(media="print")
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.evaluate("Math.max(...[...document.querySelectorAll('table')].map(each => each.scrollWidth))") <= 718


@pytest.mark.seconds
def test_an_arm_has_one_colour_in_all_plots(comparison):
    colours = {}
    for plot in make_plots(comparison):
        spec = plot.chart.to_dict()
        for layer in [spec, *spec.get("layer", [])]:
            scale = layer.get("encoding", {}).get("color", {}).get("scale", {})
            if set(scale.get("domain", [])) <= {row.name for row in comparison.arms}:
                for arm, colour in zip(scale.get("domain", []), scale.get("range", []), strict=True):
                    colours.setdefault(arm, set()).add(colour)
    assert {arm: len(found) for arm, found in colours.items()} == {row.name: 1 for row in comparison.arms}


def lab(colour):
    """Lightness and the two axes of colour (CIE 1976) of an sRGB colour, for D65."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.9505, 1.0, 1.089)
    x, y, z = (
        (sum(a * b for a, b in zip(row, linear, strict=True)) / of_white) ** (1 / 3)
        for row, of_white in zip(to_xyz, white, strict=True)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def test_colours_of_arms_can_be_told_apart():
    """Two of them are blue: the first mode of the README's study had nearly the colour of the last."""
    apart = [math.dist(lab(first), lab(second)) for first, second in combinations(COLOURS, 2)]
    assert min(apart) > 15
    assert all(45 < lab(colour)[0] < 62 for colour in COLOURS)  # seen on a white page and on a dark one


def test_shades_of_arms_can_be_told_apart():
    assert set(SHADES) == set(FRAMEWORKS)
    for theme, paper in ((0, "#ffffff"), (1, "#16181b")):
        colours = [pair[theme] for pairs in SHADES.values() for pair in pairs]
        assert min(math.dist(lab(first), lab(second)) for first, second in combinations(colours, 2)) > 15
        assert all(abs(lab(colour)[0] - lab(paper)[0]) > 30 for colour in colours)


@pytest.mark.seconds
@pytest.mark.slow
def test_a_hue_is_of_one_framework_and_follows_the_theme(comparison):
    page = as_html(comparison)
    speed = page[page.index('<figure id="plot-speed">') :].split("</svg>")[0]
    assert re.findall(r"var\((--[a-z]+-\d)\)", speed) == ["--torch-0", "--torch-1", "--tensorflow-0"]
    assert all(f"{name}: " in page for name in ("--torch-0", "--torch-1", "--tensorflow-0"))
    assert [text for text in ("100.0", "130.0") if f">{text}</text>" not in speed] == []


@pytest.mark.process
@pytest.mark.slow
def test_a_table_says_where_the_time_goes(open_page):
    page = open_page()
    page.get_by_text("The same as a table, in milliseconds").click()
    row = (
        page.get_by_role("region", name="Where the time goes: a mean step, stalls included")
        .locator("tbody tr")
        .nth(1)
        .inner_text()
        .split("\t")
    )
    assert row == ["torch ddp 2x1", "5.0", "10.0", "35.0", "2.0"]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_keeps_the_rules_of_axe(open_page, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the dev extra")
    page = open_page(color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    broken = axe.Axe().run(page).response["violations"]
    assert [(rule["id"], [node["html"][:200] for node in rule["nodes"]][:3]) for rule in broken] == []


@pytest.mark.process
@pytest.mark.slow
def test_dark_mode_has_light_ink_on_dark_paper(open_page):
    colours = {}
    for scheme in ("light", "dark"):
        page = open_page(color_scheme=scheme)
        colours[scheme] = [
            page.evaluate(f"getComputedStyle(document.querySelector('{where}')).{what}")
            for where, what in (("body", "backgroundColor"), ("body", "color"), ("figure svg text", "fill"))
        ]
    brightness = {
        scheme: [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in found] for scheme, found in colours.items()
    }
    assert brightness["light"][0] > 700 > 200 > max(brightness["light"][1:])
    assert brightness["dark"][0] < 120 < 600 < min(brightness["dark"][1:])


@pytest.mark.process
@pytest.mark.slow
def test_a_phone_needs_no_sideways_scrolling_of_the_page(open_page):
    page = open_page(viewport={"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.process
@pytest.mark.slow
def test_without_scripts_every_figure_is_there(open_page):
    page = open_page(java_script_enabled=False)
    assert "130.0" in page.get_by_role("region", name="Main figures").inner_text()
    page.get_by_text("All figures").click()
    assert "1,024" in page.get_by_role("region", name="All figures").inner_text()
    assert page.locator("figure svg:visible").count() == 8


def test_places_are_in_tenths_and_figures_are_not():
    drawn = _inline(
        '<svg width="9" height="4"><path aria-label="1.2345" d="M1.2345,6.7" x2="0.999"/></svg>', "", "column"
    )
    assert '<path aria-label="1.2345" d="M1.2,6.7" x2="1"/>' in drawn
    circle = 'd="M3.873,0A3.873,3.873,0,1,1,-3.873,0A3.873,3.873,0,1,1,3.873,0"'
    drawn = _inline(
        f'<svg width="9" height="4"><path aria-label="a" {circle} fill="red" stroke-width="2" opacity="1"/></svg>',
        "",
        "x",
    )
    assert '<circle aria-label="a" r="3.9" fill="red"/>' in drawn
    curve = "M0.04,10.06L1.26,9.94L2.5,-3L3,0"
    assert 'd="M0,10.1l1.3,-0.2 1.2,-12.9 0.5,3"' in _inline(
        f'<svg width="9" height="4"><path d="{curve}"/></svg>', "", "x"
    )


def test_the_name_of_a_plot_stays_in_its_attribute():
    drawn = _inline('<svg width="10.5" height="4"><g/></svg>', HOSTILE, "column")
    assert drawn.startswith("<svg xmlns")
    assert "<script>" not in drawn
    assert "\x1b" not in drawn
    assert 'aria-label="evil&#34;&gt;' in drawn
