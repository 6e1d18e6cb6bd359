"""What a run says last: its speed and what to type next, which must be what was run, against the other framework."""

import shlex

import pytest

from dpcompare.cli.compare import compare
from dpcompare.cli.run import run
from tests.support.command import invoke
from tests.support.results import result


def said_after(monkeypatch, *arguments, usable=True):
    """The last lines of a run that is not made."""

    def pretend(config, run_dir, **options):
        names = list(config.cluster.devices)
        made = {"framework": config.framework, "mode": config.mode, "device_names": names}
        return result("torch", "single").model_copy(update=made)

    monkeypatch.setattr("dpcompare.launch.run.run", pretend)
    monkeypatch.setattr("dpcompare.backends.availability.is_usable", lambda framework, python: usable)
    done = invoke("run", *arguments, "--device", "cpu", "--run-dir", "runs/one")
    assert done.code == 0, done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize(
    ("arguments", "arms", "devices"),
    [
        (["torch:ddp"], ["torch:ddp", "tensorflow:multiworker"], ["2", "1"]),
        (["torch:dp", "--devices-per-node", "2"], ["torch:dp", "tensorflow:mirrored"], ["1", "2"]),
        (["tensorflow:mirrored", "--devices-per-node", "4"], ["tensorflow:mirrored", "torch:ddp"], ["1", "4"]),
        (["torch:single", "--model", "mlp", "--tune", "compilation=none", "--profile", "native"], None, None),
    ],
)
def test_the_usual_mode_of_the_other_framework_is_proposed(monkeypatch, arguments, arms, devices):
    lines = said_after(monkeypatch, *arguments)
    assert any(line.endswith(": 100.0 images/s") for line in lines)
    commands = [line for line in lines if line.startswith("next: dpcompare compare")]
    if arms is None:  # no setting of the other framework
        assert commands == []
        return
    words = shlex.split(commands[0].removeprefix("next: dpcompare compare").partition("   (")[0])
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert [words[index + 1] for index, word in enumerate(words) if word == "--arm"] == arms
    assert [given["--nodes"], given["--devices-per-node"]] == devices
    assert given["--device"] == "cpu"


def test_what_is_proposed_is_a_study_with_the_given_options(monkeypatch):
    options = ("--model", "mlp", "--image-size", "32", "--lr", "0.5", "--skip-corrupt", "--steps", "12")
    lines = said_after(monkeypatch, "torch:single", *options)
    (command,) = (line for line in lines if line.startswith("next: dpcompare compare"))
    command = command.partition("   (")[0]
    assert command.endswith(
        "--arm torch:single --arm tensorflow:single --device cpu --model mlp --steps 12 "
        "--learning-rate 0.5 --image-size 32 --skip-corrupt"
    )
    words = shlex.split(command)[3:]
    assert compare.make_context("compare", words).params["model"] == "mlp"
    assert lines[-1] == "next: dpcompare report runs/one --html report.html   (a page of this run)"


def test_a_framework_that_is_not_there_is_to_be_set_up(monkeypatch):
    lines = said_after(monkeypatch, "torch:single", usable=False)
    assert "next: dpcompare setup --frameworks tensorflow   (to compare with tensorflow)" in lines


def test_devices_that_nobody_asked_for_are_told(monkeypatch):
    told = "on 2 nodes x 1 CPU device, simulated: ddp on one device would exchange nothing"
    assert any(line.startswith(told) for line in said_after(monkeypatch, "torch:ddp"))
    assert not any(line.startswith("on ") for line in said_after(monkeypatch, "torch:ddp", "--nodes", "2"))


def test_synchronized_batchnorm_of_a_model_without_any_is_told(monkeypatch):
    told = "--batchnorm sync has no effect: {} has no BatchNorm"
    asked = ("torch:ddp", "--nodes", "2", "--image-size", "32", "--batchnorm", "sync", "--model")
    assert told.format("vit-ti16") in said_after(monkeypatch, *asked, "vit-ti16")
    assert told.format("resnet18") not in said_after(monkeypatch, *asked, "resnet18")


def test_every_option_that_is_proposed_is_one_of_a_study():
    shared = {parameter.name for parameter in compare.params}
    from dpcompare.cli.options import OPTIONS

    assert {row.name for row in OPTIONS if row.scope != "run"} <= shared
    assert {parameter.name for parameter in run.params} >= {row.name for row in OPTIONS}
