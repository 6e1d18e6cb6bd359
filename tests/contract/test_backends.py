"""The entry point to the frameworks, and the rule of who may import whom."""

import dataclasses
import subprocess
import sys

import pytest

from dpcompare.backends import load_backend
from dpcompare.backends.availability import missing_packages, require_devices, require_framework, require_mode
from dpcompare.backends.base import Backend, Inspectable
from dpcompare.config.cluster import Cluster
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.modes import MODES
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError
from dpcompare.launch.run import run

CORE_MODULES = [
    "dpcompare",
    "dpcompare.cli",
    "dpcompare.cli.progress",
    "dpcompare.backends.base",
    "dpcompare.training.loop",
    "dpcompare.launch.run",
    "dpcompare.worker",
    "dpcompare.data.prepare",
]
FRAMEWORK_PACKAGES = "{'torch', 'torchvision', 'timm', 'tensorflow', 'keras', 'jax'}"


def imported_frameworks(code):
    """Top-level packages of a framework that a fresh interpreter has loaded after `code`."""
    check = f"import sys\n{code}\nprint(*sorted({FRAMEWORK_PACKAGES} & {{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.process
def test_the_core_loads_no_framework():
    assert imported_frameworks(f"import {', '.join(CORE_MODULES)}") == []


@pytest.mark.process
def test_commands_that_train_nothing_load_no_framework():
    asked = [
        ["--help"],
        ["run", "--help"],
        ["modes", "--json"],
        ["plan", "--json", "--framework", "tensorflow", "--mode", "multiworker", "--nodes", "2"],
        ["plan", "--json", "--framework", "torch", "--mode", "ddp", "--nodes", "2"],
        ["plan", "--json", "--framework", "jax", "--mode", "multiprocess", "--nodes", "2"],
    ]
    code = f"""
import contextlib, io
from dpcompare.cli import main
for arguments in {asked!r}:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            main(arguments)
    except SystemExit as ended:
        assert ended.code == 0, (arguments, ended.code)
"""
    assert imported_frameworks(code) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "others"),
    [
        pytest.param("torch", {"tensorflow", "keras", "timm", "jax"}, marks=pytest.mark.torch),
        pytest.param("tensorflow", {"torch", "torchvision", "timm", "jax"}, marks=pytest.mark.tensorflow),
        pytest.param("jax", {"torch", "torchvision", "timm", "tensorflow", "keras"}, marks=pytest.mark.jax),
    ],
)
def test_the_frameworks_never_load_each_other(framework, others):
    rows = [row for (known, _), row in MODES.items() if known == framework and "keras" not in row.packages]
    modules = {row.target.split(":")[0] for row in rows}  # Keras loads what it computes with
    code = "\n".join(f"import dpcompare.backends.{module}" for module in sorted(modules))
    assert not others & set(imported_frameworks(code))  # timm's models and layers only where they are trained


def test_public_names_are_all_there():
    import dpcompare

    for name in dpcompare.__all__:
        assert getattr(dpcompare, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = dpcompare.nonsense


def test_every_mode_has_a_known_framework_and_says_what_it_is():
    for (framework, _), mode in MODES.items():
        assert framework in FRAMEWORKS
        assert mode.target.startswith(f"{framework}.")
        assert mode.summary
        assert mode.collective if mode.multi_device else not mode.collective


def test_the_order_of_use_names_every_method_of_a_backend():
    methods = {name for name, member in vars(Backend).items() if callable(member) and not name.startswith("_")}
    assert len(methods) == 20
    assert [name for name in methods if f"`{name}`" not in Backend.__doc__] == []
    assert Inspectable.__abstractmethods__ - Backend.__abstractmethods__ == {"activations"}


def test_an_unknown_mode_is_refused_with_a_hint():
    with pytest.raises(RequestError, match="Did you mean 'torch ddp'"):
        load_backend("torch", "ddpp")


def test_pmap_is_answered_with_the_mode_that_took_its_place():
    with pytest.raises(RequestError, match=r"expected one of single, spmd, multiprocess.*Did you mean 'spmd'"):
        RunConfig(framework="jax", mode="pmap", cluster=Cluster.partition(1, 2, device="cpu"))


@pytest.mark.jax
def test_a_version_that_is_too_old_is_refused(monkeypatch):
    require_framework("jax")
    monkeypatch.setattr("dpcompare.backends.availability.version", lambda package: "0.4.38")
    with pytest.raises(RequestError, match=r"jax 0\.4\.38 is installed for .*, expected 0\.8 or newer: .*--upgrade"):
        require_framework("jax")


@pytest.mark.jax
def test_more_devices_than_the_shell_allows_are_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    workload = Workload(model="mlp", dataset="synthetic-mini", image_size=8, steps=2, warmup_steps=0)
    asked = RunConfig(framework="jax", mode="spmd", workload=workload, cluster=Cluster.partition(1, 4, device="cpu"))
    with pytest.raises(RequestError, match="JAX_NUM_CPU_DEVICES is 2, and each process of the run is to have 4"):
        run(asked, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    require_devices("jax", "cpu", 2)
    require_devices("jax", "gpu", 4)
    require_devices("torch", "cpu", 4)


@pytest.mark.torch
def test_a_mode_whose_extra_is_missing_names_it(monkeypatch):
    row = dataclasses.replace(MODES["torch", "fabric"], packages=("no_such_package",))
    monkeypatch.setitem(MODES, ("torch", "fabric"), row)
    with pytest.raises(RequestError, match=r"torch fabric is not usable: no_such_package.*'dpcompare\[torch,fabric\]'"):
        require_mode("torch", "fabric")
    require_mode("torch", "ddp")


@pytest.mark.process
@pytest.mark.parametrize("python", ["/does/not/exist", "/bin/false"])
def test_an_interpreter_that_cannot_be_used_is_named(python):
    with pytest.raises(RequestError, match=f"the interpreter '{python}' for torch cannot be used"):
        missing_packages("torch", python)


@pytest.mark.process
def test_an_old_python_is_refused_in_a_line(tmp_path):
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\necho 'unknown option -P' >&2\necho 'usage: python [option] ...' >&2\nexit 2\n")
    old.chmod(0o755)
    with pytest.raises(RequestError) as refused:
        missing_packages("torch", str(old))
    assert str(refused.value) == (
        f"the interpreter '{old}' for torch cannot be used: unknown option -P; expected the path of a Python 3.11 or "
        "newer, in the environment that holds dpcompare[torch]"
    )


@pytest.mark.process
def test_a_framework_that_is_not_installed_names_its_extra(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty"], check=True)
    python = str(tmp_path / "empty" / "bin" / "python")
    with pytest.raises(RequestError, match=r"dpcompare, torch, timm not installed.*pip install 'dpcompare\[torch\]'"):
        require_framework("torch", python)
