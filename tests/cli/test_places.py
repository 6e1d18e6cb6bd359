"""Commands where no home, no current directory, no network or no address space is."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import invoke

REPOSITORY = Path(__file__).parents[2]
RUN = "run torch:single --model mlp --image-size 8 --steps 8 --device cpu"


def shell(script, **environment):
    """What a script of sh prints and its exit code, with `dpcompare` in it."""
    command = f'dpcompare() {{ {shlex.quote(sys.executable)} -m dpcompare "$@"; }}\n'
    environ = os.environ | {"PYTHONPATH": str(REPOSITORY)} | environment
    done = subprocess.run(["sh", "-c", command + script], env=environ, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def without_home(monkeypatch):
    """A user whom the system does not know, as in a container that runs under any number."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "DPCOMPARE_CACHE_DIR", "DPCOMPARE_ENVIRONMENTS_DIR"):
        monkeypatch.delenv(name, raising=False)

    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)  # environments are in that of a virtual one


@pytest.mark.usefixtures("without_home")
def test_without_a_home_the_cache_is_to_be_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = invoke(*RUN.split())
    assert refused.code == 2
    assert "this user has no home directory (HOME is not set)" in refused.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.torch
def test_a_home_that_nobody_knows_is_named(tmp_path):
    done = shell(f"cd {tmp_path}; dpcompare {RUN}", DPCOMPARE_CACHE_DIR="~nobody0/x")
    assert done.returncode == 2
    assert "received '~nobody0/x', whose home directory is not known" in done.stderr


@pytest.mark.process
def test_a_current_directory_that_was_removed_is_told(tmp_path):
    done = shell(f"mkdir {tmp_path}/x; cd {tmp_path}/x; rmdir {tmp_path}/x; dpcompare {RUN} --run-dir {tmp_path}/run")
    assert done.returncode == 2
    assert "the current directory was removed; change to one that exists" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", [[*RUN.split(), "--run-dir"], ["report"], ["watch"]])
def test_a_name_that_is_too_long_is_refused(command):
    refused = invoke(*command, "n" * 300)
    assert refused.code == 2
    assert "Traceback" not in refused.stderr


@pytest.mark.process
def test_a_loopback_that_is_down_is_told_before_anything_starts(tmp_path):
    made = subprocess.run(["unshare", "--user", "--map-root-user", "--net", "true"], capture_output=True)
    if made.returncode:
        pytest.skip("no network namespaces here")
    script = "from dpcompare.system.ports import free_ports; free_ports(1)"
    argv = ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(REPOSITORY)})
    assert "RequestError: processes cannot reach each other at 127.0.0.1" in done.stderr


@pytest.mark.process
def test_plots_under_a_limit_of_address_space_are_refused(tmp_path):
    script = "import resource; resource.setrlimit(resource.RLIMIT_AS, (20 << 30, 20 << 30))\n"
    script += "from dpcompare.report.charts import load_altair; load_altair()"
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(REPOSITORY)})
    assert "RequestError: drawing plots needs 96 GiB of address space, and a limit allows 20.0 GiB" in done.stderr
