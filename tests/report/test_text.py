"""The comparison on a terminal: every line fits, numbers and words stay whole, and columns go instead."""

import re

import pytest

from dpcompare.experiments.comparison import Group
from dpcompare.experiments.sentences import headline_of, measured_in_words
from dpcompare.report.formats import as_markdown, columns
from dpcompare.report.text import arms_by_value, as_text, figure_lines, headline_lines
from dpcompare.results.result import NodeRecord
from dpcompare.system.machine import Machine
from tests.support.arms import FAST, SLOW, compared, runs, single
from tests.support.results import result

LONG = "tensorflow multiworker 2x1 global_batch_size=64 profile=native augment=flip+contrast"


def study(rounds):
    arms = [
        single(SLOW[:rounds]),
        runs("torch", "ddp", [0.8 * speed for speed in SLOW[:rounds]]),
        runs("torch", "fabric", [0.7 * speed for speed in SLOW[:rounds]], emulated=True),
        runs("tensorflow", "multiworker", FAST[:rounds]),
    ]
    return compared(*arms, repeats=rounds)


def test_arms_stand_below_their_devices_with_their_scaling():
    lines = as_text(study(6), 100).splitlines()
    assert lines[0] == "efficientnet-b2 · digits 64 px · batch 32 · float32 · 2 CPU cores, devices simulated"
    assert lines[0] == as_markdown(study(6)).splitlines()[2]
    titles = [lines.index("1 device"), lines.index("2 devices")]
    one, two = lines[titles[0] + 1], lines[titles[1] + 1]
    assert re.match(r"  torch single 1x1 +100\.0 +- +0\.500  █+", one)
    assert re.match(r"  torch ddp 2x1 +80\.0 +0\.80x +0\.500  █+", two)
    assert len(two.split("█")) < len(one.split("█"))
    assert lines[-1] == "On 2 devices: all but torch fabric 2x1 are comparable."


@pytest.mark.parametrize(
    ("days", "said"),
    [(("2026-11-20", "2026-11-20"), "2026-11-20"), (("2026-11-22", "2026-11-20"), "2026-11-20 to 2026-11-22")],
)
def test_what_was_measured_has_its_days(days, said):
    dated = [result(started_at=f"{day}T09:30:00Z") for day in days]
    assert measured_in_words(dated).endswith(f"devices simulated · {said}")


EPYC = Machine(cpu_model="AMD EPYC", cores=64, kernel="Linux 6.1", is_virtual=False)


@pytest.mark.parametrize(
    ("hosts", "lines"),
    [
        ([("a", EPYC), ("a", EPYC)], [EPYC.in_words]),
        ([("a", EPYC), ("b", EPYC), ("c", None)], [f"a, b: {EPYC.in_words}", "c: machine not known"]),
        ([("a", None)], ["machine not known"]),
        ([], []),
    ],
)
def test_each_machine_has_a_line(hosts, lines):
    nodes = [
        NodeRecord(node_rank=rank, host=host, device_names=["cpu:0"], versions={}, machine=machine)
        for rank, (host, machine) in enumerate(hosts)
    ]
    shown = compared(runs("torch", "ddp", FAST, nodes=nodes))
    assert shown.machines == lines
    assert as_markdown(shown).splitlines()[2 : 4 + 2 * len(lines) : 2][1:] == lines


def test_a_study_of_few_rounds_says_how_many_are_missing():
    assert "FIRST LOOK: 1 of 6 rounds, nothing is ranked yet." in as_text(study(1), 100)


def renamed(names):
    return [LONG if "tensor" in name else name for name in names]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_no_line_exceeds_the_terminal_and_no_figure_is_broken(width):
    shown = study(6)
    long = shown.model_copy(
        update={
            "arms": [*shown.arms[:3], shown.arms[3].model_copy(update={"name": LONG})],
            "groups": [
                Group(
                    num_devices=group.num_devices,
                    arms=renamed(group.arms),
                    comparable=[renamed(names) for names in group.comparable],
                )
                for group in shown.groups
            ],
        }
    )
    for comparison in (shown, long):
        text = as_text(comparison, width)
        assert max(map(len, text.splitlines())) <= max(width, len(max(LONG.split(), key=len)) + 12)
        for speed in ("100.0", "80.0", "70.0", "130.0"):
            assert text.count(f" {speed}") == 1


@pytest.mark.seconds
def test_the_narrower_the_terminal_the_fewer_columns():
    titles = ["accuracy", "vs 1 device", "images/s"]
    shown = {width: [title for title in titles if title in as_text(study(6), width)] for width in (100, 60, 40)}
    assert [len(names) for names in shown.values()] == [3, 2, 1]
    assert shown[40] == ["images/s"]


@pytest.mark.parametrize("width", [40, 80, 100, 160])
def test_all_figures_are_there_at_every_width_and_whole(width):
    shown = study(6)
    lines = list(figure_lines(shown, width))
    assert max(map(len, lines)) <= max(width, len("tensorflow multiworker 2x1  2 nodes x 1 CPU device"))
    text = "\n".join(lines)
    tables = text.split("\n\n")
    assert all(table.startswith("arm ") and len(table.splitlines()) == 5 for table in tables)
    assert all(name in text for name in columns(shown))
    assert len(tables) < {40: 20, 80: 6, 100: 4, 160: 3}[width]


def test_the_arms_that_have_a_value_stand_beside_it():
    shown = study(6)
    (replicas,) = (setting for setting in shown.settings if setting.setting == "replicas")
    assert arms_by_value(replicas, shown) == {
        "1": ["torch single 1x1"],
        "2": ["torch ddp 2x1", "torch fabric 2x1", "tensorflow multiworker 2x1"],
    }


def test_emulated_arms_are_marked():
    shown = study(6)
    emulated = [arm.model_copy(update={"emulated": "fabric" in arm.name}) for arm in shown.arms]
    text = as_text(shown.model_copy(update={"arms": emulated}), 100)
    assert "torch fabric 2x1 *" in text
    assert "* emulated, on the CPU or on a shared GPU, so never ranked." in text


def test_the_topology_in_a_name_is_explained_below_the_headline():
    lines = as_text(study(6), 100).splitlines()
    below = headline_lines(study(6), 100).splitlines()
    assert lines[1 : 2 + len(below)] == [*below, "2x1 is 2 nodes x 1 device, 1x2 is 1 node x 2 devices."]
    assert not any(" is 1 node" in line for line in as_text(compared(single(SLOW)), 100).splitlines())


def test_what_gradient_sync_adds_has_a_column():
    shown = study(6)
    arms = [arm.model_copy(update={"communication_ms": 7.14}) for arm in shown.arms]
    text = as_text(shown.model_copy(update={"arms": arms}), 100)
    assert re.search(r"torch ddp 2x1 +80\.0 +0\.80x +7\.1 ms", text)
    assert "sync" not in as_text(shown, 100)
    alone = [
        arms[1].model_copy(
            update={"scaling": None, "step_parts_ms": {"communication": 7.1, "computing": 32.9, "other": 1}}
        )
    ]
    assert headline_of([], alone, needed=6, is_partial=False) == (
        "One arm alone: torch ddp 2x1. Gradient sync adds 7.1 ms to a mean step, which takes 40.0 ms."
    )
