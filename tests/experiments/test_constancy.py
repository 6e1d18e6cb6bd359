"""The rounds of an arm have one set of versions and one machine, or the arm is not compared."""

import pytest

from dpcompare.config.placement import Placement
from dpcompare.experiments.analysis import analyse
from dpcompare.experiments.collection import collect
from dpcompare.experiments.constancy import rounds_in_words
from dpcompare.experiments.resumed import _is_same_version
from dpcompare.experiments.study import Study
from tests.support import studies
from tests.support.arms import FAST, SLOW, compared, runs, single
from tests.support.command import invoke
from tests.support.constancy import changed_rounds, on
from tests.support.results import result

OLD, NEW = {"torch": "2.13.0", "numpy": "2.4.6"}, {"torch": "2.14.1", "numpy": "2.4.6"}
VERSIONS, MACHINE = "versions within an arm", "machine within an arm"


def study(**of_all):
    """Arms of two frameworks, each on one machine."""
    fields = {"nodes": on("here")} | of_all
    return runs("torch", "ddp", FAST, **fields), runs("tensorflow", "multiworker", SLOW, **fields)


def rows(shown):
    return {row.setting: row for row in shown.settings}


def test_an_upgrade_between_rounds_is_named_with_its_rounds():
    arm, other = study(nodes=[], versions=NEW)
    shown = compared(changed_rounds(arm, (1, 2, 3), versions=OLD), other)
    assert shown.claims[0].sentence.endswith(f"NOT COMPARABLE. Settings that differ: {VERSIONS}.")
    assert rows(shown)[VERSIONS].values == [
        "torch 2.13.0 in rounds 1 to 3, 2.14.1 in rounds 4 to 6",
        "the same in all rounds",
    ]
    assert shown.reasons == [
        "versions within an arm: torch ddp 2x1 had torch 2.13.0 in rounds 1 to 3, 2.14.1 in rounds 4 to 6; measure all "
        "rounds of an arm with the same versions: start a new study after an upgrade"
    ]


def test_an_upgrade_between_rounds_leaves_no_speed_up():
    one, two = single(SLOW, versions=NEW), runs("torch", "ddp", FAST, versions=NEW)
    assert compared(one, two).arms[1].scaling is not None
    for arm in (one, two):  # both alike, as where an environment was upgraded between two calls
        changed_rounds(arm, (1, 2, 3), versions=OLD)
    shown = compared(one, two)
    assert (shown.arms[1].scaling, shown.claims[0].outcome) == (None, "NOT COMPARABLE")
    assert shown.headline.startswith("NOT COMPARABLE")


def test_a_copied_study_with_an_upgrade_in_it_is_not_compared(tmp_path):
    asked = Study(arms=tuple(studies.arm(name=name, mode="ddp", nodes=2) for name in "ab"), repeats=6)
    asked.save(tmp_path)
    for number in asked.rounds:
        for each, speeds in zip(asked.arms, (FAST, SLOW), strict=True):
            folder = asked.run_dir(tmp_path, number, each)
            folder.mkdir(parents=True)
            nodes = on("here", versions=NEW)
            result("torch", "ddp", images_per_second=speeds[number - 1], versions=NEW, nodes=nodes).save(folder)
    assert analyse(collect([tmp_path])).claims[0].outcome == "faster"
    for number in (1, 2, 3):
        file = asked.run_dir(tmp_path, number, asked.arms[0]) / "result.json"
        file.write_text(file.read_text().replace("2.14.1", "2.13.0"))
    shown = analyse(collect([tmp_path]))
    assert (shown.claims[0].outcome, shown.verdict) == ("NOT COMPARABLE", "NOT COMPARABLE")
    assert "versions within an arm: a had torch 2.13.0 in rounds 1 to 3, 2.14.1 in rounds 4 to 6" in shown.reasons[0]
    assert "2.13.0 in rounds 1 to 3" in invoke("report", tmp_path, "--full").stdout


def test_an_upgrade_of_one_node_is_found():
    arm, other = study(nodes=on("here", "here", versions=NEW))
    nodes = [*on("here", versions=NEW), on("here", "here", versions=OLD)[1]]
    shown = compared(changed_rounds(arm, (6,), nodes=nodes), other)
    assert rows(shown)[VERSIONS].values[0] == "torch 2.14.1 in rounds 1 to 5, 2.13.0 and 2.14.1 in round 6"


def test_versions_of_other_frameworks_and_patches_are_no_reason():
    arm, other = study()
    changed_rounds(arm, (1,), versions={"torch": "2", "dpcompare": "0.2.0"})
    changed_rounds(arm, (2,), versions={"torch": "2", "dpcompare": "0.2.1"})
    shown = compared(arm, other)
    assert (shown.verdict, rows(shown)[VERSIONS].verdict) == ("COMPARABLE", "expected to differ")
    assert rows(shown)[VERSIONS].equal


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (on("there"), "host here in rounds 1 to 3, there in rounds 4 to 6"),
        (on("here", cpu_model="Xeon"), "CPU model AMD EPYC 7763 in rounds 1 to 3, Xeon in rounds 4 to 6"),
        (on("here", kernel="Linux 6.2"), "kernel Linux 6.1.0-18 in rounds 1 to 3, Linux 6.2 in rounds 4 to 6"),
        (
            on("here", operating_system="Debian 13"),
            "operating system Debian 12 in rounds 1 to 3, Debian 13 in rounds 4 to 6",
        ),
    ],
)
def test_another_machine_in_half_of_the_rounds_is_named(nodes, said):
    arm, other = study()
    shown = compared(changed_rounds(arm, (4, 5, 6), nodes=nodes), other)
    assert shown.verdict == "NOT COMPARABLE"
    assert rows(shown)[MACHINE].values == [said, "the same in all rounds"]
    assert f"{MACHINE}: torch ddp 2x1 had {said}; " in shown.reasons[0]


def test_arms_that_changed_together_are_named_together():
    shown = compared(*(changed_rounds(arm, (5, 6), nodes=on("there")) for arm in study()))
    assert (
        "torch ddp 2x1 and tensorflow multiworker 2x1 had host here in rounds 1 to 4, there in rounds 5 and 6"
    ) in shown.reasons[0]


def test_a_pair_without_the_changed_arm_is_still_compared():
    changed = changed_rounds(runs("torch", "fabric", FAST, nodes=on("here")), (1,), nodes=on("there"))
    outcomes = {frozenset((made.first, made.second)): made.outcome for made in compared(changed, *study()).claims}
    assert outcomes[frozenset(("torch ddp 2x1", "tensorflow multiworker 2x1"))] == "faster"
    assert sorted(outcomes.values()) == ["NOT COMPARABLE", "NOT COMPARABLE", "faster"]


def test_containers_of_one_machine_are_one_host():
    arm, other = study(nodes=on("container-a", boot_id="b1"))
    assert compared(changed_rounds(arm, (3,), nodes=on("container-b", boot_id="b1")), other).verdict == "COMPARABLE"
    assert compared(changed_rounds(arm, (3,), nodes=on("other", boot_id="b2")), other).verdict == "NOT COMPARABLE"


def test_a_scheduler_may_choose_other_hosts_of_one_kind():
    arms = study()
    for arm in arms:
        arm.config = arm.config.model_copy(update={"placement": Placement(engine="slurm")})
    elsewhere = [changed_rounds(arm, (2, 4), nodes=on("n7", "n8")) for arm in arms]
    assert compared(*elsewhere).verdict == "COMPARABLE"
    shown = compared(changed_rounds(arms[0], (6,), nodes=on("n7", "n9", cpu_model="Xeon")), arms[1])
    assert rows(shown)[MACHINE].values[0] == "CPU model AMD EPYC 7763 in rounds 1 to 5, Xeon in round 6"


def test_results_of_older_releases_are_judged_by_what_they_have():
    arm, other = study()
    without = [node.model_copy(update={"machine": None}) for node in on("here")]
    assert compared(changed_rounds(arm, (1, 2), nodes=without, versions={}), other).verdict == "COMPARABLE"
    elsewhere = [node.model_copy(update={"host": "there"}) for node in without]
    assert compared(changed_rounds(arm, (3,), nodes=elsewhere), other).verdict == "NOT COMPARABLE"


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([2], "round 2"),
        ([1, 2, 3], "rounds 1 to 3"),
        ([5, 6], "rounds 5 and 6"),
        ([7, 1, 2, 5, 6], "rounds 1, 2 and 5 to 7"),
        ([1, 3, 4, 5, 9], "rounds 1, 3 to 5 and 9"),
    ],
)
def test_rounds_are_said_in_few_words(numbers, words):
    assert rounds_in_words(numbers) == words


@pytest.mark.parametrize(
    ("recorded", "installed", "is_same"),
    [
        ("2.14.1+cu130", "2.14.1", True),
        ("2.14.1+cu130", "2.14.1+cpu", False),
        ("2.21.0-rc0", "2.21.0rc0", True),
        ("2.22.0-dev20261101", "2.22.0.dev20261101", True),
        ("2.21.0-rc0", "2.21.0rc1", False),
        ("2.13.0", "2.14.0", False),
    ],
)
def test_a_version_may_be_written_in_two_ways(recorded, installed, is_same):
    assert _is_same_version(recorded, installed) == is_same
