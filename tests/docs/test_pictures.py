"""The pictures of the docs are those that their script draws, and show the processes that modes have."""

import re
from xml.etree import ElementTree

from docs.site.diagrams import PICTURES, pictures
from docs.site.exchanges import EXCHANGES
from dpcompare.config.modes import MODES


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


def test_pictures_are_small_and_fetch_nothing():
    for path in PICTURES.iterdir():
        assert path.stat().st_size < 200_000, path  # every clone carries them
        if path.suffix == ".svg":
            svg = path.read_text()
            assert "@import" not in svg, path
            assert not re.search(r"(href|src)=|url\(['\"]?(?!#)", svg), path
