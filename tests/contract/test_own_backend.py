"""A backend of a user's own, `package.module:CLASS`, in run, compare, report and verify."""

import json
import sys
from pathlib import Path

import pytest

from dpcompare.backends import _own_backend, load_backend
from dpcompare.config.cluster import Cluster
from dpcompare.config.placement import Placement
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError
from tests.support.arms import FAST, SLOW, compared, runs
from tests.support.command import invoke, start
from tests.support.constancy import changed_rounds
from tests.support.studies import counted_runs

OWN = """
import torch
from dpcompare.backends import load_backend

class AsItIs(load_backend("torch", "single")):
    pass

class Squared(load_backend("torch", "single")):
    def row_losses(self, logits, labels, *, training):
        return (logits - torch.nn.functional.one_hot(labels, logits.shape[1])).square().sum(1)

number = 3
"""
DATA = ("--dataset", "synthetic-mini", "--image-size", "32")
TRAINING = ("--model", "toy-cnn", *DATA, "--steps", "4", "--device", "cpu")
ONE_DEVICE = Cluster.partition(1, 1, device="cpu")


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of backends in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "backends_of_mine.py").write_text(OWN)
    yield "backends_of_mine"
    sys.modules.pop("backends_of_mine", None)


def test_a_mode_is_no_name_of_a_backend():
    with pytest.raises(RequestError, match=r"backend: received 'ddp', expected a class of your own as package\.module"):
        RunConfig(framework="torch", mode="single", cluster=ONE_DEVICE, backend="ddp")


@pytest.mark.parametrize(
    ("command", "expected"),
    [(["run"], "torch:ddp --backend mine:Fast"), (["compare"], "torch:ddp,backend=mine:Fast")],
)
def test_a_backend_in_the_place_of_a_mode_is_explained(command, expected):
    refused = invoke(*command, "mine:Fast", "--device", "cpu")
    assert refused.code == 2
    assert "'mine' is not a framework; expected one of torch, tensorflow, jax" in refused.stderr
    assert expected in refused.stderr


def test_own_code_is_not_found_where_ssh_starts_processes():
    with pytest.raises(RequestError, match="ssh: received with a custom model and backend, found from the current"):
        RunConfig(
            framework="torch",
            mode="ddp",
            backend="mine:Fast",
            workload=Workload(model="mine:net"),
            cluster=Cluster.of_machines(2, 1, device_type="cpu", num_cores=1),
            placement=Placement(engine="hosts", hosts=("a", "b"), ssh=True),
        )


def test_a_backend_that_changed_between_rounds_is_no_arm():
    arm, other = runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW)
    for numbers, digest in (((1, 2, 3), "a" * 64), ((4, 5, 6), "b" * 64)):
        changed_rounds(arm, numbers, settings={"backend_modules": {"mine.py": digest}})
    shown = compared(arm, other)
    assert shown.claims[0].outcome == "NOT COMPARABLE"
    (row,) = [row for row in shown.settings if row.setting == "versions within an arm"]
    changed = "the file mine.py sha256 aaaaaaaaaaaa in rounds 1 to 3, sha256 bbbbbbbbbbbb in rounds 4 to 6"
    assert row.values[0] == changed


@pytest.mark.torch
@pytest.mark.slow
def test_only_subclasses_of_backend_are_backends(mine):
    assert load_backend("torch", "single", f"{mine}:AsItIs").__name__ == "AsItIs"
    wrong = {"number": "is of type int", "torch": "is of type module", "Absent": "has no attribute"}
    for name, expected in wrong.items():
        with pytest.raises(RequestError, match=expected):
            load_backend("torch", "single", f"{mine}:{name}")
    with pytest.raises(RequestError, match=f"'{mine}:AsItIs' is for torch; expected one for jax, or a run of torch"):
        _own_backend(f"{mine}:AsItIs", "jax")
    with pytest.raises(
        RequestError, match="'collections:OrderedDict' is a class that is not a backend; expected a subclass"
    ):
        load_backend("torch", "single", "collections:OrderedDict")


@pytest.mark.torch
@pytest.mark.process
@pytest.mark.slow
def test_a_backend_that_is_none_is_refused_before_the_run(mine, tmp_path):
    process = start("run", "torch:single", "--backend", f"{mine}:number", *TRAINING, "--run-dir", str(tmp_path / "run"))
    said = process.communicate()[1]
    assert process.returncode == 2
    assert "is of type int; expected a subclass of dpcompare.backends.base.Backend" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.usefixtures("warm")
def test_own_backends_are_arms_and_judged_by_what_they_compute(mine, tmp_path):
    arms = ("torch:single", f"torch:single,backend={mine}:AsItIs", f"torch:single,backend={mine}:Squared")
    done = invoke("compare", *arms, *TRAINING, "--out", tmp_path / "study")
    assert done.code == 0, done.stderr
    assert f"All but torch single 1x1 backend={mine}:Squared are comparable." in done.stdout
    reasons = invoke("report", str(tmp_path / "study"), "--json").json["reasons"]
    assert any(reason.startswith("first loss: ") for reason in reasons), reasons
    assert not any("backend" in reason.partition(":")[0] for reason in reasons), reasons
    (run,) = (run for run in counted_runs(tmp_path / "study") if "AsItIs" in run.name)
    settings = json.loads((run / "result.json").read_text())["settings"]
    assert list(settings["backend_modules"]) == ["backends_of_mine.py"]
    assert f"torch single 1x1 backend={mine}:AsItIs" in invoke("report", str(run)).stdout
    like = invoke("verify", "--like", run, "--json")
    assert like.code == 0, like.stderr
    assert f"torch single by {mine}:AsItIs" in like.stdout
    file = Path("backends_of_mine.py")
    file.write_text(file.read_text() + "# changed\n")
    refused = invoke("verify", "--like", run)
    assert f"--like: the file of the backend {mine}:AsItIs has changed since the run" in refused.stderr
    more = invoke("compare", "--resume", tmp_path / "study", "--repeats", "2")
    assert f"a changed backends_of_mine.py of the backend {mine}:AsItIs" in more.stderr
    assert (refused.code, more.code) == (2, 2)
