"""The pictures of the docs are those that their script draws, and show the processes that modes have."""

from xml.etree import ElementTree

import pytest

from docs.site.diagrams import PICTURES, pictures
from docs.site.exchanges import EXCHANGES
from dpcompare.config.modes import MODES


@pytest.mark.parametrize("name", pictures())
def test_pictures_are_those_that_the_script_draws(name):
    svg = (PICTURES / name).read_text()
    assert svg == pictures()[name], "run `python -m docs.site.diagrams`"
    assert ElementTree.fromstring(svg).find("{http://www.w3.org/2000/svg}title").text


@pytest.mark.parametrize("mode", EXCHANGES)
def test_pictures_show_the_processes_that_a_mode_has(mode):
    (row,) = [row for (_, name), row in MODES.items() if name == mode]
    nodes = EXCHANGES[mode].nodes
    assert row.multi_node == (len(nodes) > 1)
    if row.process_per == "node":
        assert all(len(node.processes) == 1 for node in nodes)
    else:
        assert all(len(process.devices) == 1 for node in nodes for process in node.processes)
