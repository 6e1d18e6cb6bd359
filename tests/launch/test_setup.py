"""`dpcompare setup`: real environments by the real pip and uv, out of tiny wheels in place of an index."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpcompare._version import __version__
from dpcompare.backends import cuda_wheels
from dpcompare.backends.availability import missing_packages
from dpcompare.cli.option_values import environment_called, interpreters
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.launch import setup
from dpcompare.launch.setup import interpreter_called
from tests.support.command import invoke, start
from tests.support.wheels import write_wheel

EXTRAS = {
    "torch": ["torch>=2.8", "timm", "torchvision"],
    "fabric": [],
    "accelerate": [],
    "keras": ["keras"],
    "tensorflow": ["tensorflow", "keras"],
    "tensorflow-cpu": ["tensorflow-cpu", "keras"],
    "tensorflow-cuda": ["tensorflow", "keras", "nvidia-cudnn-cu12"],
    "jax": ["jax", "jaxlib"],
    "jax-cuda": ["jax", "jaxlib", "jax-cuda12-plugin"],
    "jax-cuda13": ["jax", "jaxlib", "jax-cuda13-plugin"],
}


@pytest.fixture
def environments(tmp_path, monkeypatch):
    """A folder for environments, and an interpreter that has neither framework, however this one is equipped."""
    monkeypatch.setenv("DPCOMPARE_ENVIRONMENTS_DIR", str(tmp_path / "environments"))
    monkeypatch.setattr(
        setup,
        "missing_packages",
        lambda framework, python: [framework] if python == sys.executable else missing_packages(framework, python),
    )
    monkeypatch.setattr(setup.metadata, "distribution", installed_from(None))
    usage = shutil.disk_usage("/")._replace(free=100_000_000_000)  # tiny wheels need none of what the real ones do
    monkeypatch.setattr(setup.shutil, "disk_usage", lambda path: usage)
    return tmp_path / "environments"


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of tiny wheels that is all that pip and uv know; the CUDA wheels of tensorflow are there."""
    folder = tmp_path / "index"
    folder.mkdir()
    write_wheel(folder, "dpcompare", __version__, extras=EXTRAS)
    for name in ("torch", "torchvision", "timm", "tensorflow", "keras", "jax", "jaxlib"):
        write_wheel(folder, name)
    write_wheel(folder, "tensorflow-cpu", modules=["tensorflow"])
    for name in ("nvidia-cudnn-cu12", "jax-cuda12-plugin", "jax-cuda13-plugin"):
        write_wheel(folder, name, modules=[])
    for name in ("PIP_NO_INDEX", "UV_NO_INDEX", "UV_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("pip", "setuptools", "wheel"):  # uv puts them into each environment, from the index
        write_wheel(folder, name)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "uv").symlink_to(Path(sys.executable).with_name("uv"))
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setattr(cuda_wheels, "DRIVER_VERSION", tmp_path / "no driver")
    return folder


def installed_from(origin, record=""):
    """importlib.metadata's `distribution`, where dpcompare was installed from somewhere; None: from an index."""
    files = {"direct_url.json": None if origin is None else json.dumps(origin), "RECORD": record}
    return lambda name: SimpleNamespace(read_text=files.get, requires=REQUIRES)


REQUIRES = ["click>=8.2", "torchvision>=0.23; extra == 'torch'", 'torch>=2.8; extra == "torch"']


@pytest.fixture
def indexes(index, tmp_path, monkeypatch):
    """Two indexes over HTTP, all that pip and uv know: the usual one, and one with builds of torch for CPUs."""
    root = tmp_path / "indexes"
    for wheel in index.glob("*.whl"):
        folder = root / "usual" / wheel.name.split("-")[0].replace("_", "-")
        folder.mkdir(parents=True, exist_ok=True)
        wheel.rename(folder / wheel.name)
    for name in ("torch", "torchvision"):
        (root / "cpu" / name).mkdir(parents=True)
        write_wheel(root / "cpu" / name, name, "98.0+cpu")
    for name in ("PIP_NO_INDEX", "UV_NO_INDEX", "UV_OFFLINE", "PIP_FIND_LINKS", "UV_FIND_LINKS"):
        monkeypatch.delenv(name)

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX"):
        monkeypatch.setenv(name, f"{address}/usual")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    monkeypatch.setenv("DPCOMPARE_TORCH_CPU_INDEX", f"{address}/cpu/")
    yield root
    server.shutdown()
    server.server_close()
    thread.join()


def versions_of(environments, framework):
    """Distribution -> version, in the environment that was made for a framework."""
    program = "import json, importlib.metadata as m; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    done = subprocess.run(
        [environments / framework / "bin" / "python", "-c", program], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("installer", ["uv", pytest.param("pip", marks=pytest.mark.long)])
def test_without_gpus_torch_is_a_build_for_cpus(environments, indexes, monkeypatch, installer):
    if installer == "pip":
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
    done = invoke("setup", "--device", "cpu")
    assert done.code == 0, done.stderr
    assert f"{installer} makes an environment" in done.stderr
    address = os.environ["DPCOMPARE_TORCH_CPU_INDEX"].rstrip("/")
    wanted = f"with torch>=2.8 torchvision>=0.23 from {address}, and dpcompare[torch,fabric,accelerate,keras]"
    assert wanted in done.stderr
    assert "about 0.5 GB to download, 2 GB on disk" in done.stderr
    assert "in all, about 1 GB to download, 4 GB on disk" in done.stderr
    assert "torch/bin/python (made in " in done.stderr
    found = versions_of(environments, "torch")
    assert (found["torch"], found["torchvision"], found["timm"]) == ("98.0+cpu", "98.0+cpu", "99.0")
    assert "tensorflow-cpu" in versions_of(environments, "tensorflow")
    assert invoke("setup", "--device", "cpu").stderr.count(": usable, ") == 2

    # The same folder on a machine with GPUs: builds for CPUs are not what it needs.
    done = invoke("setup", "--frameworks", "torch", "--device", "gpu")
    assert done.code == 0, done.stderr
    assert "the torch 98.0+cpu of " in done.stderr
    assert "was built for CPUs" in done.stderr
    assert versions_of(environments, "torch")["torch"] == "99.0"
    assert "torch: usable" in invoke("setup", "--frameworks", "torch", "--device", "cpu").stderr


@pytest.mark.process
@pytest.mark.slow
def test_an_index_that_fails_is_named_without_its_password(environments, indexes, monkeypatch):
    monkeypatch.setenv("DPCOMPARE_TORCH_CPU_INDEX", "http://me:mine@127.0.0.1:9/cpu")
    failed = invoke("setup", "--frameworks", "torch", "--device", "cpu", "--json")
    assert failed.code == 1
    advice = (
        "http://...@127.0.0.1:9/cpu is the reason, take the usual builds: DPCOMPARE_TORCH_CPU_INDEX= dpcompare setup"
    )
    assert advice in failed.stderr
    assert "me:mine" not in failed.stderr + failed.stdout


def test_an_index_that_cannot_be_reached_is_said(environments, index, monkeypatch):
    monkeypatch.delenv("DPCOMPARE_TORCH_CPU_INDEX")
    torch = FRAMEWORKS["torch"]
    away = replace(torch, cpu_index=replace(torch.cpu_index, url="http://127.0.0.1:9/cpu"))
    monkeypatch.setitem(FRAMEWORKS, "torch", away)
    said = invoke("setup", "--frameworks", "torch", "--device", "cpu", "--dry-run")
    assert said.code == 0
    assert "http://127.0.0.1:9/cpu (builds for CPUs) cannot be reached" in said.stderr
    assert "about 3 GB to download, 7 GB on disk" in said.stderr
    assert ", and dpcompare" not in said.stderr
    monkeypatch.setitem(FRAMEWORKS, "torch", replace(torch, cpu_index=replace(torch.cpu_index, url="nonsense")))
    assert "nonsense (builds for CPUs) cannot be reached" in invoke("setup", "--dry-run", "--device", "cpu").stderr
    monkeypatch.setenv("DPCOMPARE_TORCH_CPU_INDEX", "")
    assert "builds for CPUs" not in invoke("setup", "--dry-run", "--device", "cpu").stderr


@pytest.mark.slow
def test_with_gpus_each_framework_gets_an_environment(environments, index, install_gpus):
    install_gpus()
    done = invoke("setup", "--json")
    assert done.code == 0, done.stderr
    for framework, extras in (("torch", "torch,fabric,accelerate,keras"), ("tensorflow", "tensorflow-cuda")):
        assert f"{framework}: {sys.executable} has no {framework}" in done.stderr
        assert f"{framework}/bin/python, with dpcompare[{extras}]=={__version__}; about" in done.stderr
    expected = {framework: str(environments / framework / "bin" / "python") for framework in ("torch", "tensorflow")}
    assert {need["framework"]: need["python"] for need in done.json["frameworks"]} == expected
    assert all(need["usable"] for need in done.json["frameworks"])
    assert interpreters(()) == expected  # where all other commands look
    assert interpreters([f"torch={sys.executable}"])["torch"] == sys.executable

    made = {path: path.stat().st_mtime_ns for path in environments.glob("*")}
    again = invoke("setup")
    assert again.code == 0
    assert again.stderr.splitlines()[1:] == [f"{name}: usable, {python}" for name, python in expected.items()]
    assert {path: path.stat().st_mtime_ns for path in made} == made


@pytest.mark.slow
def test_jax_gets_the_cuda_of_torch_where_the_driver_runs_it(environments, index, install_gpus, tmp_path):
    install_gpus()
    (tmp_path / "no driver").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Tue Oct 22")
    done = invoke("setup", "--frameworks", "jax")
    assert done.code == 0, done.stderr
    assert f"dpcompare[jax-cuda13,keras]=={__version__}" in done.stderr
    (tmp_path / "no driver").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.10  Tue Oct 22")
    assert interpreters(()) == {"jax": str(environments / "jax" / "bin" / "python")}  # what was made stays known


def test_jax_is_made_where_it_is_asked_for(environments, index, install_gpus):
    install_gpus()
    done = invoke("setup", "--frameworks", "jax")
    assert done.code == 0, done.stderr
    assert f"jax/bin/python, with dpcompare[jax-cuda,keras]=={__version__}; about 3 GB to download" in done.stderr
    assert interpreters(()) == {"jax": str(environments / "jax" / "bin" / "python")}
    listed = invoke("plan", "jax:multiprocess", "--nodes", "2", "--device", "cpu", "--json").json
    assert listed["node_processes"][0]["argv"][0] == str(environments / "jax" / "bin" / "python")


@pytest.mark.process
def test_uv_makes_it_where_it_is_installed(environments, index):
    done = invoke("setup", "--frameworks", "torch", "--device", "cpu")
    assert done.code == 0, done.stderr
    assert "uv makes an environment" in done.stderr
    assert "uv" in (environments / "torch" / "pyvenv.cfg").read_text()
    assert interpreters(()) == {"torch": str(environments / "torch" / "bin" / "python")}


@pytest.mark.slow
def test_pip_makes_it_elsewhere(environments, index, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    done = invoke("setup", "--frameworks", "torch", "--device", "cpu")
    assert done.code == 0, done.stderr
    assert "pip makes an environment" in done.stderr
    assert interpreters(()) == {"torch": str(environments / "torch" / "bin" / "python")}


@pytest.mark.process
@pytest.mark.slow
def test_an_interrupted_set_up_goes_on(environments, index):
    (wheel,) = index.glob("tensorflow_cpu-*.whl")
    wheel.rename(index / "hidden")
    failed = invoke("setup", "--device", "cpu")
    assert failed.code == 1
    assert "uv pip install" in failed.stderr
    assert "run the same command again to continue" in failed.stderr
    assert interpreters(()) == {"torch": str(environments / "torch" / "bin" / "python")}
    torch = (environments / "torch.json").stat().st_mtime_ns

    (index / "hidden").rename(wheel)
    done = invoke("setup", "--device", "cpu")
    assert done.code == 0
    assert "tensorflow: its environment was not finished" in done.stderr
    assert set(interpreters(())) == {"torch", "tensorflow"}
    assert (environments / "torch.json").stat().st_mtime_ns == torch


@pytest.mark.process
@pytest.mark.slow
def test_ctrl_c_ends_the_installer(tmp_path):
    programs, pid = tmp_path / "programs", tmp_path / "pid"
    programs.mkdir()
    (programs / "uv").write_text(f"#!/bin/sh\necho $$ > {pid}.part; mv {pid}.part {pid}; exec sleep 100\n")
    (programs / "uv").chmod(0o755)
    environments = tmp_path / "environments"
    arguments = ("setup", "--frameworks", "tensorflow", "--device", "gpu")  # CUDA's libraries are nowhere here
    empty_disk = tmp_path / "empty_disk"  # the installer writes nothing: the real disk may be as full as it is
    empty_disk.mkdir()
    (empty_disk / "sitecustomize.py").write_text(
        "import shutil\nusage = shutil.disk_usage('/')._replace(free=10**11)\nshutil.disk_usage = lambda path: usage\n"
    )
    process = start(
        *arguments,
        PATH=f"{programs}:{os.environ['PATH']}",
        PYTHONPATH=os.pathsep.join(filter(None, (str(empty_disk), os.environ.get("PYTHONPATH")))),
        DPCOMPARE_ENVIRONMENTS_DIR=str(environments),
    )
    while not pid.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    second = start(*arguments, PATH=f"{programs}:/usr/bin:/bin", DPCOMPARE_ENVIRONMENTS_DIR=str(environments))
    assert "another `dpcompare setup` works in" in second.communicate(timeout=600)[1]
    assert second.returncode == 2
    process.send_signal(signal.SIGINT)
    assert "interrupted" in process.communicate(timeout=600)[1]
    assert process.returncode == 130
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()
    assert json.loads((environments / "tensorflow.json").read_text())["finished"] is False


def test_what_is_not_ours_is_left_alone(environments, index):
    (environments / "torch").mkdir(parents=True)
    (environments / "torch" / "thesis.txt").write_text("years of work")
    refused = invoke("setup", "--frameworks", "torch")
    assert refused.code == 2
    assert "is not an environment that dpcompare made" in refused.stderr
    assert (environments / "torch" / "thesis.txt").read_text() == "years of work"


def test_a_full_disk_is_told_before_anything_is_made(environments, index, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=5_000_000_000)
    monkeypatch.setattr(setup.shutil, "disk_usage", lambda path: usage)
    refused = invoke("setup", "--device", "cpu")
    assert refused.code == 2
    assert "5.0 GB free, expected about 9 GB" in refused.stderr
    assert not environments.exists()


def test_a_dry_run_makes_nothing(environments, index):
    said = invoke("setup", "--dry-run", "--device", "gpu", "--json")
    assert said.code == 0
    assert [need["requirements"] for need in said.json["frameworks"]] == [
        [f"dpcompare[torch,fabric,accelerate,keras]=={__version__}"],
        [f"dpcompare[tensorflow-cuda]=={__version__}"],
    ]
    assert not environments.exists()


@pytest.mark.process
def test_an_interpreter_that_was_named_must_do(environments, index, monkeypatch):
    monkeypatch.setenv("DPCOMPARE_TORCH_PYTHON", "/nowhere/python")
    refused = invoke("setup")
    assert refused.code == 2
    assert "DPCOMPARE_TORCH_PYTHON: received '/nowhere/python'" in refused.stderr


@pytest.mark.slow
def test_an_old_driver_is_told_and_nothing_made_again_for_it(environments, index, install_gpus, tmp_path):
    install_gpus()
    (tmp_path / "no driver").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.10  Tue Oct 22 2026\n")
    write_wheel(index, "nvidia-cuda-runtime-cu12", "12.5.82", modules=[])
    write_wheel(
        index,
        "dpcompare",
        __version__,
        extras=EXTRAS | {"tensorflow-cuda": [*EXTRAS["tensorflow-cuda"], "nvidia-cuda-runtime-cu12"]},
    )
    done = invoke("setup", "--frameworks", "tensorflow")
    assert done.code == 3
    assert "this machine's driver is 470.10" in done.stderr.splitlines()[-1]
    again = invoke("setup", "--frameworks", "tensorflow")
    assert again.code == 3
    assert "makes an environment" not in again.stderr


def test_nothing_is_made_where_the_next_would_lack_the_same(environments, install_gpus, tmp_path, monkeypatch):
    install_gpus()
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.10  Tue Oct 22 2026\n")
    monkeypatch.setattr(cuda_wheels, "DRIVER_VERSION", tmp_path / "version")
    wheels = cuda_wheels.CudaWheels(versions={"nvidia-cuda-runtime": "13.0.48"}, claimed_twice=[], finds_cudnn=False)
    monkeypatch.setattr(setup, "missing_packages", lambda framework, python: [])
    monkeypatch.setattr(setup, "cuda_wheels_of", lambda python: wheels)
    done = invoke("setup", "--frameworks", "torch")
    assert done.code == 3
    assert "driver is 570.10" in done.stderr
    assert "update the driver, or make an environment with wheels for an older CUDA" in done.stderr
    assert not environments.exists()


@pytest.mark.process
@pytest.mark.slow
def test_an_environment_of_another_dpcompare_is_made_again(environments, index, monkeypatch):
    only_torch = ("setup", "--frameworks", "torch", "--device", "cpu")
    assert invoke(*only_torch).code == 0
    shutil.rmtree(environments / "torch")
    assert interpreters(()) == {}
    assert "uv makes an environment" in invoke(*only_torch).stderr
    assert set(interpreters(())) == {"torch"}
    # Reinstalled from the same folder, or from a wheel of the same version.
    monkeypatch.setattr(setup.metadata, "distribution", installed_from(None, record="other files"))
    assert interpreters(()) == {}
    assert "uv makes an environment" in invoke(*only_torch).stderr
    assert set(interpreters(())) == {"torch"}


def test_an_uninstalled_folder_can_be_used_but_not_copied(environments, monkeypatch):
    def absent(name):
        raise setup.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(setup.metadata, "distribution", absent)
    assert interpreters(()) == {}
    refused = invoke("setup", "--device", "cpu")
    assert refused.code == 2
    assert "only its folder is found" in refused.stderr


def test_a_folder_that_cannot_be_made_is_refused(index, environments, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DPCOMPARE_ENVIRONMENTS_DIR", str(tmp_path / "file" / "below"))
    refused = invoke("setup", "--frameworks", "torch", "--device", "cpu")
    assert refused.code == 2
    assert "name another folder with DPCOMPARE_ENVIRONMENTS_DIR" in refused.stderr


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        (None, (f"dpcompare[tensorflow-cpu]=={__version__}",)),
        (
            {"url": "file:///home/me/a%20clone", "dir_info": {"editable": True}},
            ("--editable", "/home/me/a clone[tensorflow-cpu]"),
        ),
        ({"url": "file:///src", "dir_info": {}}, ("dpcompare[tensorflow-cpu] @ file:///src",)),
        (
            {"url": "https://example.org/d.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            ("dpcompare[tensorflow-cpu] @ git+https://example.org/d.git@abc",),
        ),
    ],
)
def test_dpcompare_is_installed_from_where_this_one_came(environments, monkeypatch, origin, requirement):
    monkeypatch.setattr(setup.metadata, "distribution", installed_from(origin))
    (need,) = setup.needs(["tensorflow"], "cpu")
    assert need.requirements == requirement


def test_environments_go_with_the_environment_of_dpcompare(monkeypatch, tmp_path):
    monkeypatch.delenv("DPCOMPARE_ENVIRONMENTS_DIR")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert setup.environments_dir() == tmp_path / ".venv" / "environments"
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert setup.environments_dir() == tmp_path / "data" / "dpcompare" / "environments"


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("installer", ["uv", pytest.param("pip", marks=pytest.mark.long)])
def test_an_environment_with_a_name_has_what_was_asked_for(environments, indexes, monkeypatch, installer):
    if installer == "pip":
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
    write_wheel(indexes / "cpu" / "torch", "torch", "97.0+cpu")
    asked = ("setup", "--env", "old", "torch==97.*", "timm", "--device", "cpu")
    dry = invoke(*asked, "--dry-run")
    assert (dry.code, interpreter_called("old")) == (0, None)
    assert "torch in env=old: it does not exist" in dry.stderr
    done = invoke(*asked)
    assert done.code == 0, done.stderr
    assert versions_of(environments / "named", "old")["torch"] == "97.0+cpu"
    assert interpreter_called("old") == str(environments / "named" / "old" / "bin" / "python")
    assert environment_called("old", ["old=TORCH_X=0"]).python == interpreter_called("old")
    made_at = (environments / "named" / "old.json").stat().st_mtime_ns
    again = invoke(*asked)
    assert (again.code, (environments / "named" / "old.json").stat().st_mtime_ns) == (0, made_at)
    assert "torch in env=old: usable" in again.stderr
    listed = invoke("setup", "--list")
    assert listed.stdout.startswith(f"old: {interpreter_called('old')} (dpcompare[torch,")
    assert invoke("setup", "--list", "--json").json["environments"][0]["usable"]
    assert invoke("setup", "--remove", "old").code == 0
    assert not list((environments / "named").iterdir())


def test_a_named_environment_that_was_interrupted_is_not_used(environments):
    folder = environments / "named"
    (folder / "old" / "bin").mkdir(parents=True)
    (folder / "old" / "bin" / "python").touch()
    record = {"requirements": ["torch==97.*"], "origin": "", "finished": False}
    (folder / "old.json").write_text(json.dumps(record))
    assert interpreter_called("old") is None
    assert "old: unfinished, or made for another dpcompare; make it again" in invoke("setup", "--list").stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["torch==2.13.*"],
            "received torch==2.13.* without --env; expected a name for the environment",
        ),
        (["--env", "a,b", "torch"], "--env: received 'a,b', expected letters, digits and . _ - such as old"),
        (["--env", "old", "numpy"], "--env: received 'old' with no framework; expected one framework in each"),
        (["--env", "old", "torch", "jax"], "--env: received 'old' with torch and jax; expected one framework in each"),
        (["--remove", "old"], "--remove: there is no environment called 'old'; `dpcompare setup --list`"),
        (["--list", "--remove", "old"], "--list and --remove NAME: received with other arguments; expected one"),
    ],
)
def test_wrong_requests_for_named_environments(environments, index, arguments, says):
    refused = invoke("setup", "--device", "cpu", *arguments)
    assert refused.code == 2
    assert says in refused.stderr
