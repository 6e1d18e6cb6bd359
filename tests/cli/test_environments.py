"""Environments as arms: how they are named and refused, what the sheet says of them, and real runs in a copied one."""

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import dpcompare
from dpcompare._version import __version__
from dpcompare.cli.option_values import NamedEnvironment, named_environments
from dpcompare.config.environment import Environment
from dpcompare.errors import RequestError
from dpcompare.experiments.constancy import ArmRounds
from dpcompare.experiments.environments import change_logs
from dpcompare.experiments.fairness import compare, row_between_arms
from dpcompare.results.observed import OtherVariables
from dpcompare.results.result import RunResult
from tests.support.arms import FAST, compared, runs
from tests.support.command import invoke
from tests.support.results import result

TRAINING = ("--model", "mlp", "--dataset", "synthetic-mini", "--image-size", "8", "--steps", "4", "--device", "cpu")


def test_an_environment_is_an_interpreter_or_variables_or_both(tmp_path):
    assert named_environments(["old=/envs/old/bin/python", "quiet=TORCH_X=0", "quiet=A=b=c", "made"]) == {
        "old": NamedEnvironment(python="/envs/old/bin/python"),
        "quiet": NamedEnvironment(variables={"TORCH_X": "0", "A": "b=c"}),
        "made": NamedEnvironment(),
    }
    both = named_environments(["old=/envs/old/bin/python", "old=TORCH_X=0"])
    assert both == {"old": NamedEnvironment(python="/envs/old/bin/python", variables={"TORCH_X": "0"})}


@pytest.mark.torch
@pytest.mark.parametrize(
    ("env", "arms", "says"),
    [
        (["a,b=/x"], ["torch:single,env=a"], "--env: received 'a,b=/x', expected NAME=PYTHON or NAME=VARIABLE=VALUE"),
        (["old="], ["torch:single,env=old"], "--env: received 'old=', expected NAME=PYTHON"),
        ([], ["torch:single,env=old"], "there is no environment called 'old'; expected --env old=PYTHON or"),
        (
            ["old=X=1"],
            ["torch:single"],
            "--env: received 'old', which nothing uses; expected an arm with it, such as",
        ),
        (["old=/a", "old=/b"], ["torch:single,env=old"], "received the interpreters /a and /b for 'old'; expected one"),
        (["old=A=1", "old=A=2"], ["torch:single,env=old"], "received A twice for 'old', with two values; expected one"),
        (["old=1A=1"], ["torch:single,env=old"], "received 'old=1A=1', expected NAME=VARIABLE=VALUE with a variable"),
        (["a=X=1", "b=X=2"], ["torch:single,env=a,env=b"], "received env twice in 'torch:single,env=a,env=b'"),
        (["old=OMP_NUM_THREADS=1"], ["torch:single,env=old"], "received OMP_NUM_THREADS, which dpcompare sets itself"),
        (["old=TF_CONFIG=1"], ["torch:single,env=old"], "received TF_CONFIG, which dpcompare sets itself"),
        (["old=API_TOKEN=abc"], ["torch:single,env=old"], "received the variable API_TOKEN, which looks like a secret"),
        (
            ["a=X=1", "b=X=1"],
            ["torch:single,env=a", "torch:single,env=b"],
            "env=a and env=b are the same environment (",
        ),
        (
            [f"same={sys.executable}"],
            ["torch:single", "torch:single,env=same"],
            "an arm without env= and env=same are the same environment (",
        ),
    ],
)
def test_environments_that_cannot_be_are_refused_in_a_line(env, arms, says, monkeypatch, tmp_path):
    monkeypatch.setenv("DPCOMPARE_ENVIRONMENTS_DIR", str(tmp_path))
    named = [part for each in env for part in ("--env", each)]
    asked = [part for each in arms for part in ("--arm", each)]
    refused = invoke("compare", *asked, *named, *TRAINING, "--dry-run")
    assert refused.code == 2, refused.stdout
    assert says in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.process
def test_an_interpreter_that_is_gone_is_named():
    refused = invoke("compare", "torch:single", "torch:single,env=gone", "--env", "gone=/no/python", *TRAINING)
    assert refused.code == 2
    assert "the interpreter '/no/python' for torch cannot be used" in refused.stderr


def test_a_run_has_one_environment():
    refused = invoke("run", "torch:single", "--env", "a=X=1", "--env", "b=X=2", *TRAINING)
    assert (refused.code, refused.stdout) == (2, "")
    assert "--env: received a, b; expected one, since a run has one environment" in refused.stderr


@pytest.mark.torch
def test_a_file_of_a_study_has_a_table_of_environments(tmp_path):
    study = tmp_path / "study.toml"
    arms = 'arm = ["torch:single,env=quiet", "torch:single,env=both"]\n'
    study.write_text(
        arms + '[env]\nquiet = {TORCH_X = "0"}\n' + f'both = {{python = "{sys.executable}", TORCH_Y = "1"}}\n'
    )
    done = invoke("compare", study, *TRAINING, "--dry-run")
    assert done.code == 0, done.stderr
    assert "torch single 1x1 env=quiet" in done.stdout
    study.write_text(arms + "[env]\nquiet = {TORCH_X = 0}\n")
    refused = invoke("compare", study, *TRAINING, "--dry-run")
    assert refused.code == 2
    assert "key 'env.quiet': received 0, expected an interpreter such as" in refused.stderr


def ran(environment=None, own_variables=None, **changes):
    made = result("torch", "single", **changes)
    own = environment and {"name": environment, "variables": own_variables or {}}
    return made.model_copy(update={"config": made.config | {"environment": own}})


def reasons(*results):
    return [row.setting for row in compare(results).rows if row.reason]


def unlike(*results):
    arms = [ArmRounds(name="", numbers=[1], runs=[each], on_one_machine=True) for each in results]
    row = row_between_arms(arms)
    assert row.reason == (not row.equal) == bool(row.detail)
    return row.detail


def test_versions_must_be_equal_within_an_environment():
    new, old = ({"versions": {"torch": version, "timm": "1"}} for version in ("2.14.1", "2.13.0"))
    assert unlike(ran(**new), ran(**old)) == "arms of torch ran with torch 2.14.1 and 2.13.0"
    assert unlike(ran(**new), ran("old", **old)) == ""
    assert unlike(ran("old", **old), ran("old", **new)) == "arms of torch in env=old ran with torch 2.13.0 and 2.14.1"
    # A mode may need a package of its own, and another framework has other packages.
    assert unlike(ran(**new), ran(versions={"torch": "2.14.1", "timm": "1", "lightning": "2"})) == ""
    assert unlike(ran(**new), result("tensorflow", "single", versions={"timm": "2"})) == ""


def test_runs_of_two_versions_are_not_comparable():
    new, old = (
        runs("torch", mode, FAST, versions={"torch": each}) for mode, each in (("ddp", "2.14"), ("fsdp", "2.13"))
    )
    shown = compared(new, old)
    assert shown.claims[0].outcome == "NOT COMPARABLE"
    assert any(reason.startswith("versions between arms: arms of torch ran with torch 2.1") for reason in shown.reasons)


def test_variables_of_an_environment_are_what_is_compared():
    digests = {"key": "k", "digests": {"LD_PRELOAD": "1a"}}
    settings = {"environment": {"TORCH_X": "0"}}
    own = ran("quiet", {"TORCH_X": "0", "LD_PRELOAD": "x"}, settings=settings, variables=OtherVariables(**digests))
    usual = ran(variables=OtherVariables(key="k", digests={}))
    assert reasons(usual, own) == []
    # Also one that it overrides.
    both = ran(
        settings={"environment": {"TORCH_X": "1"}}, variables=OtherVariables(key="k", digests={"LD_PRELOAD": "9"})
    )
    assert reasons(both, own) == []
    assert "TORCH_X=0 (1), LD_PRELOAD=x (inherited)" in change_logs([both, own])[0]
    inherited = ran("quiet", settings=settings, variables=OtherVariables(**digests))
    assert reasons(usual, inherited) == ["environment variables", "other environment variables"]


def test_a_change_log_says_what_an_environment_has_otherwise():
    old = ran("old", {"TORCH_X": "0"}, versions={"torch": "2.13.0", "python": "3.11.7"})
    usual = ran(versions={"torch": "2.14.1", "python": "3.11.7", "timm": "1"})
    assert change_logs([old, usual, old, result("jax", "single")]) == [
        "torch in env=old, against the usual one: torch 2.13.0 (2.14.1), TORCH_X=0 (unset), timm none (1)"
    ]
    packages = (
        {"torch": "2.13.0", "h5py": "3", "a": "1"},
        {"torch": "2.14.1", "h5py": "2", "b": "1", "dpcompare": "9"},
    )
    one, two = (
        ran(name, versions={"torch": "2"}, packages=each) for name, each in zip(("x", None), packages, strict=True)
    )
    assert change_logs([one, two]) == [
        "torch in env=x, against the usual one: h5py 3 (2), 3 packages in only one of them"
    ]
    assert change_logs([usual, ran("copy", versions=usual.versions)]) == [
        "torch in env=copy, against the usual one: no recorded difference"
    ]


def test_a_name_stands_in_arms_and_folders():
    assert Environment(name="nccl-2.27_a").name == "nccl-2.27_a"
    for name in ("a b", "", "../x", "a" * 41):
        with pytest.raises(RequestError, match="expected letters, digits"):
            Environment(name=name)


@pytest.fixture
def copied(tmp_path):
    """Another environment with the packages of this one, of which one says that it has another version."""
    folder = tmp_path / "copied"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "copied.pth").write_text(f"import site; site.addsitedir({sysconfig.get_paths()['purelib']!r})\n")
    other = packages / "timm-99.1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: timm\nVersion: 99.1\n")
    return folder / "bin" / "python"


@pytest.mark.process
@pytest.mark.torch
@pytest.mark.slow
def test_arms_run_in_their_environments_and_are_comparable(copied, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPCOMPARE_ENVIRONMENTS_DIR", str(tmp_path / "none"))
    env = ("--env", f"copy={copied}", "--env", "copy=TORCH_SHOWN=1")
    arms = ("torch:single", "torch:single,env=copy")
    done = invoke("compare", *arms, *env, *TRAINING, "--repeats", "1", "--out", "study", "--json")
    assert done.code == 0, done.stderr
    assert done.json["verdict"] == "COMPARABLE"
    (line,) = done.json["environments"]
    assert line == (
        f"torch in env=copy, against the usual one: TORCH_SHOWN=1 (unset), timm 99.1 ({usual_version('timm')})"
    )
    assert f"--env copy={copied} --env copy=TORCH_SHOWN=1" in done.json["next_steps"][0]["command"]
    assert line in invoke("report", "study", "--full").stdout.replace("\n", " ").replace("  ", " ")
    run = RunResult.load(Path("study/runs/round-01/torch-single-1x1-env=copy"))
    assert (run.environment, run.config["python"]) == ("copy", str(copied))
    assert run.settings["environment"]["TORCH_SHOWN"] == "1"
    again = ("compare", "--resume", "study", "--repeats", "2", "--dry-run")
    refused = invoke(*again)
    assert refused.code == 2
    assert "if those of the file are yours, pass them: --env copy=TORCH_SHOWN=1" in refused.stderr
    other = invoke(*again, "--env", f"copy={sys.executable}")
    assert (other.code, f"and --env names {sys.executable}; expected" in other.stderr) == (2, True)
    unset = invoke(*again, "--env", f"copy={copied}")
    assert (unset.code, "pass them: --env copy=TORCH_SHOWN=1" in unset.stderr) == (2, True)
    strange = invoke(*again, *env, "--env", "x=Y=1")
    assert (strange.code, "received 'x', which nothing uses" in strange.stderr) == (2, True)
    assert invoke(*again, *env).code == 0


def usual_version(package):
    from importlib.metadata import version

    return version(package)


@pytest.mark.process
@pytest.mark.torch
def test_an_environment_of_another_dpcompare_is_refused(copied, tmp_path):
    other = next(copied.parents[1].glob("lib/python*/site-packages")) / "dpcompare"
    other.mkdir()
    (other / "__init__.py").touch()
    (other / "_version.py").write_text("__version__ = '0.0.1'\n")
    arms = ("torch:single", "torch:single,env=copy", "--env", f"copy={copied}")
    refused = invoke("compare", *arms, *TRAINING, "--dry-run")
    assert refused.code == 2
    assert f"{copied} has dpcompare 0.0.1, and this is {__version__}; expected the same in every" in refused.stderr

    shutil.copytree(Path(dpcompare.__file__).parent, other, dirs_exist_ok=True)
    assert invoke("compare", *arms, *TRAINING, "--dry-run").code == 0
    (other / "training" / "loop.py").write_text("# of another commit\n")
    refused = invoke("compare", *arms, *TRAINING, "--dry-run")
    assert refused.code == 2
    assert f"{copied} has another dpcompare {__version__} than this one: training/loop.py differs" in refused.stderr


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.usefixtures("first_group")
def test_verify_compares_two_environments(copied, tmp_path):
    """Also where the usual one has no framework."""
    model = (
        "--model",
        "toy-cnn",
        "--modes",
        "single",
        "--replicas",
        "1",
        "--precision",
        "float64",
        "--full",
        "--quick",
    )
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    env = ("--env", f"copy={copied}", "--env", f"here={sys.executable}")
    env += ("--python", f"torch={tmp_path / 'bare' / 'bin' / 'python'}")
    done = invoke("verify", "--frameworks", "torch", *model, *env, "--json")
    assert done.code == 0, done.stderr
    pairs = {check["modes"] for check in json.loads(done.stdout)["checks"]}
    assert any("torch single in env=copy" in pair for pair in pairs)
    assert any("torch single in env=here" in pair for pair in pairs)


@pytest.mark.process
@pytest.mark.torch
def test_verify_needs_the_framework_in_each_environment(copied, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    env = ("--env", f"copy={copied}", "--env", f"bare={tmp_path / 'bare' / 'bin' / 'python'}")
    refused = invoke("verify", "--frameworks", "torch", "--modes", "single", "--replicas", "1", *env)
    assert refused.code == 2
    assert "torch is not usable in env=bare: " in refused.stderr
    assert "no framework is left to verify; expected one that all environments have" in refused.stderr
