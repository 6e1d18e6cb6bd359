"""A study is continued with the versions and the machine of its last rounds, or not silently."""

import socket
import sys

import pytest

from dpcompare.experiments.study import Study
from dpcompare.results.result import NodeRecord
from dpcompare.system.machine import this_machine
from tests.support.command import invoke
from tests.support.constancy import on
from tests.support.results import result
from tests.support.studies import arm

NOW = {"python": sys.version.split()[0], "torch": "2.14.1", "numpy": "2.4.6"}


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A study of two arms and two rounds, of which the first was made here; returns what it was continued with."""
    monkeypatch.setattr("dpcompare.experiments.resumed.installed_versions", lambda *asked: NOW)
    monkeypatch.setattr("dpcompare.cli.compare.prepared", lambda study: study)
    conducted = []
    monkeypatch.setattr(
        "dpcompare.cli.compare._conduct", lambda study, out, progress, options: conducted.append(study.repeats)
    )

    def begin(*, repeats=2, **changes):
        study = Study(arms=(arm(name="a"), arm(name="b")), repeats=repeats)
        study.save(tmp_path)
        here = NodeRecord(node_rank=0, host=socket.gethostname(), device_names=[], versions={}, machine=this_machine())
        for each in study.arms:
            folder = study.run_dir(tmp_path, 1, each)
            folder.mkdir(parents=True)
            result("torch", "single", **{"versions": NOW, "nodes": [here]} | changes).save(folder)
        return tmp_path, conducted

    return begin


def test_the_same_environment_goes_on(begun):
    folder, conducted = begun(
        versions=NOW | {"torch": "2.14.1+cu130", "cuda": "13.0"}, packages={"numpy": "2.4.6", "pip": "1.0"}
    )
    done = invoke("compare", "--resume", folder)
    assert (done.code, conducted) == (0, [2]), done.stderr


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"versions": NOW | {"torch": "2.13.0"}}, "torch 2.14.1, which was 2.13.0 (a and b)"),
        ({"versions": NOW | {"torch": "2.13.0+cpu"}}, "torch 2.14.1, which was 2.13.0+cpu (a and b)"),
        ({"packages": {"numpy": "2.4.6", "triton": "3.8.0"}}, "triton none, which was 3.8.0 (a and b)"),
        ({"nodes": on("elsewhere")}, "which was elsewhere (a and b)"),
        ({"nodes": on("elsewhere", cpu_model="Xeon")}, "which was Xeon (a and b)"),
    ],
)
def test_what_has_changed_is_refused_or_accepted(begun, changes, said):
    folder, conducted = begun(**changes)
    refused = invoke("compare", "--resume", folder)
    assert (refused.code, conducted) == (2, [])
    assert "the study cannot go on as it was: received" in refused.stderr
    assert said in refused.stderr
    assert "expected the versions and the machine of its last rounds" in refused.stderr
    assert "or continue with --accept-changed" in refused.stderr
    accepted = invoke("compare", "--resume", folder, "--accept-changed")
    assert (accepted.code, conducted) == (0, [2]), accepted.stderr
    assert said in accepted.stderr


def test_the_command_that_continued_it_is_kept(begun):
    folder, _ = begun()
    assert invoke("compare", "--resume", folder, "--repeats", 3).code == 0
    assert Study.load(folder).commands == (f"dpcompare compare --resume {folder} --repeats 3",)


def test_a_finished_study_is_only_shown(begun):
    folder, _ = begun(repeats=1, nodes=on("elsewhere"))
    assert invoke("compare", "--resume", folder).code == 0
    assert invoke("compare", "--resume", folder, "--repeats", 2).code == 2


def test_results_that_do_not_say_more_are_judged_by_their_host(begun):
    folder, _ = begun(nodes=[node.model_copy(update={"machine": None}) for node in on(socket.gethostname())])
    assert invoke("compare", "--resume", folder).code == 0


@pytest.mark.parametrize("by", ["option", "variable"])
def test_another_interpreter_is_not_ignored(begun, by):
    folder, conducted = begun()
    options = ["--python", "torch=/other/python"] if by == "option" else []
    variables = {} if by == "option" else {"DPCOMPARE_TORCH_PYTHON": "/other/python"}
    refused = invoke("compare", "--resume", folder, *options, **variables)
    assert (refused.code, conducted) == (2, [])
    assert "received the interpreter '/other/python' for torch" in refused.stderr
    assert f"the study uses {sys.executable!r}" in refused.stderr
    assert invoke("compare", "--resume", folder, DPCOMPARE_JAX_PYTHON="/other/python").code == 0
    assert invoke("compare", "--resume", folder, DPCOMPARE_TORCH_PYTHON=sys.executable).code == 0
