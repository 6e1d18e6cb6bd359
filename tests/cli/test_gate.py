"""`dpcompare gate`: what it runs, what it refuses, its exit codes and the files for CI systems."""

import re
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

import dpcompare as dp
from dpcompare.cli.gate import _baseline
from dpcompare.experiments.gate import LOOKS, gate_study
from dpcompare.experiments.next_steps import command_of_gate
from dpcompare.experiments.study import Arm, Study
from tests.support.command import invoke
from tests.support.results import result

TINY = ("--model", "mlp", "--dataset", "synthetic-mini", "--image-size", "8", "--device", "cpu")
QUIET = ("--env", "quiet=TORCH_X=0")


@pytest.mark.parametrize(
    ("arm", "baseline", "expected"),
    [
        ("torch:ddp", "env=good", "torch:ddp,env=good"),
        ("torch:ddp,env=new,precision=bfloat16", "env=good", "torch:ddp,precision=bfloat16,env=good"),
        ("torch:ddp,env=new", "torch:ddp", "torch:ddp"),
        ("torch:ddp", "torch:fsdp,env=good", "torch:fsdp,env=good"),
        (
            "torch:ddp,devices-per-node=2,lr=0.1",
            "devices_per_node=1,learning_rate=1",
            "torch:ddp,devices_per_node=1,learning_rate=1",
        ),
    ],
)
def test_a_baseline_is_the_arm_with_other_options_or_another_arm(arm, baseline, expected):
    assert _baseline(arm, baseline) == expected


@pytest.mark.torch
def test_a_gate_is_planned_until_its_first_look():
    done = invoke("gate", "torch:ddp", "--baseline", "env=quiet", *QUIET, "--nodes", "2", *TINY, "--dry-run", "--json")
    assert done.code == 0, done.stderr
    assert [each["round"] for each in done.json["runs"]] == [n for n in range(1, 7) for _ in range(2)]
    assert {each["arm"] for each in done.json["runs"]} == {"torch ddp 2x1", "torch ddp 2x1 env=quiet"}


@pytest.mark.torch
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("torch:single",), "Missing option '--baseline'"),
        (("torch:single", "--baseline", "env=none"), "there is no environment called 'none'"),
        (("torch:single", "--baseline", "torch:single"), "received the arm torch single 1x1 twice"),
        (("torch:single", "--baseline", "env=quiet", *QUIET, "--allow", "2"), "--allow: received '2', expected a perc"),
        (("torch:single", "--baseline", "env=quiet", *QUIET, "--allow", "0%"), "--allow: received '0%', expected a pe"),
        (
            ("torch:single", "--baseline", "env=quiet", *QUIET, "--budget", "soon"),
            "--budget: received 'soon', expected",
        ),
        (
            ("torch:single", "--baseline", "torch:fsdp"),
            "received torch fsdp 2x1 on 2 devices, and torch single 1x1 on 1",
        ),
        (("torch:single", "--baseline", "good", *QUIET), "--baseline: received 'good', expected FRAMEWORK:MODE"),
        (("torch:single", "--baseline", "torch:ddp,nodes=1,devices_per_node=1", *QUIET), "'quiet', which nothing uses"),
    ],
)
def test_what_no_gate_can_say_is_refused_before_it_starts(arguments, says, tmp_path):
    refused = invoke("gate", *arguments, *TINY, "--out", tmp_path / "out")
    assert refused.code == 2, refused.stdout
    assert says in re.sub(r"\s+", " ", refused.stderr)
    assert not (tmp_path / "out").exists()


@pytest.mark.torch
def test_files_that_could_not_be_written_are_refused_first(tmp_path):
    arguments = ("torch:single", "--baseline", "env=quiet", *QUIET, *TINY, "--out", tmp_path / "out")
    refused = invoke("gate", *arguments, "--junit", tmp_path / "missing" / "gate.xml")
    assert (refused.code, "expected one in a directory that can be written to" in refused.stderr) == (2, True)
    refused = invoke("gate", *arguments, "--junit", "-", "--json")
    assert (refused.code, "received several for stdout; expected one at most" in refused.stderr) == (2, True)


def test_pages_and_help_name_the_rounds_of_the_looks():
    *first, last = map(str, LOOKS)
    rounds = f"{', '.join(first)} and {last}"
    assert f"after {rounds} of them" in " ".join(invoke("gate", "--help").stdout.split())
    page = Path(__file__).parents[2] / "docs" / "how-to" / "gate_in_ci.md"
    assert f"after {rounds} rounds" in page.read_text()


def test_the_command_of_a_gate_is_made_of_quoted_words(tmp_path):
    config = result().config
    study = gate_study(Arm(name="new", config=config), Arm(name="old", config=config), 0.02)
    typed = "dpcompare gate torch:single --baseline 'env=a; curl x | sh' --retry-failed"
    assert command_of_gate(study.changed(commands=(typed,)), tmp_path) == (
        f"dpcompare gate torch:single --baseline 'env=a; curl x | sh' --out {tmp_path}"
    )
    other = f"dpcompare gate ARM --baseline BASELINE --out {tmp_path}"
    for foreign in (("curl x | sh",), (), ("dpcompare gate 'half",)):
        assert command_of_gate(study.changed(commands=foreign), tmp_path) == other


def test_a_gate_is_continued_by_its_own_command_alone(tmp_path):
    config = result().config
    gate_study(Arm(name="new", config=config), Arm(name="old", config=config), 0.02).save(tmp_path)
    refused = invoke("compare", "--resume", tmp_path)
    assert refused.code == 2
    assert "is a gate; to continue it, repeat its own command: dpcompare gate ARM --baseline" in refused.stderr
    assert "the same `dpcompare gate` command continues it" in " ".join(
        invoke("watch", tmp_path, "--once").stdout.split()
    )


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_gate_of_runs_that_are_too_short_is_undecided(tmp_path):
    """From Python, and from the command line, which shows the same gate again and writes its files."""
    workload = dp.Workload(model="mlp", dataset="synthetic-mini", image_size=8, steps=6, warmup_steps=1)
    quiet = dp.Arm("torch:single", env="quiet")
    made = dp.gate(dp.Arm("torch:single"), quiet, workload, env=[QUIET[1]], device="cpu", late_step=False)
    assert made.report().gate.outcome == "undecided"
    with pytest.raises(dp.RequestError, match=r"is a gate; to continue it, repeat its dp.gate\(...\) with this out"):
        made.resume()
    out = made.path
    steps = ("--steps", "6", "--warmup-steps", "1", "--no-late-step")
    command = ("gate", "torch:single", "--baseline", "env=quiet", *QUIET, *TINY, *steps, "--out", out)
    done = invoke(*command, "--junit", tmp_path / "junit.xml", "--markdown", tmp_path / "summary.md")
    assert done.code == 4, done.stderr
    assert "UNDECIDED whether torch single 1x1 is slower than torch single 1x1 env=quiet by more than 2%: TOO" in (
        re.sub(r"\s+", " ", done.stdout)
    )
    study = Study.load(out)
    assert (study.repeats, study.looks, study.allowed_loss) == (6, (), 0.02)  # more rounds would be too short, too
    suite = Xml.parse(tmp_path / "junit.xml").getroot().find("testsuite")
    (gate,) = (case for case in suite if case.get("classname") == "dpcompare.conditions")
    assert gate.get("name") == "torch single 1x1 keeps the speed of torch single 1x1 env=quiet within 2%"
    assert "TOO SHORT in 6" in gate.find("failure").get("message")
    assert "UNDECIDED whether torch single 1x1" in (tmp_path / "summary.md").read_text()
    # The same command shows it again, and a report does too; another margin would be chosen after the fact.
    again = invoke(*command, "--json")
    assert (again.code, again.json["gate"]["outcome"]) == (4, "undecided")
    assert invoke("report", out, "--json").json["gate"] == again.json["gate"]
    assert made.report().gate.model_dump(mode="json") == again.json["gate"]
    made.report().save("again.xml")
    assert Path("again.xml").read_text() == (tmp_path / "junit.xml").read_text()
    other = invoke(*command, "--allow", "50%")
    assert other.code == 2
    assert "holds another study, which differs in its allowed_loss" in other.stderr
