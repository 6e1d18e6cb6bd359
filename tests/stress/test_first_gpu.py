"""The checks of a first GPU, tried on the CPU: what they keep, and what they say of what failed or no longer fits."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.command import invoke

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
TINY = ["--device", "cpu", "--model", "mlp", "--image-size", "8", "--batch", "16", "--steps", "10", "--jobs", "2"]


def first_gpu(*arguments, where=ROOT, **environment):
    """The script, as one types it; it keeps what it finds in `out`."""
    command = [sys.executable, "-m", "stress.first_gpu", *TINY, "--out", str(Path("out").absolute()), *arguments]
    return subprocess.run(command, cwd=where, capture_output=True, text=True, env=os.environ | environment)


def lines_of(part):
    """Check -> its line."""
    lines = [json.loads(line) for line in Path(f"out/{part}.jsonl").read_text().splitlines()]
    return {line["check"]: line for line in lines if "check" in line}


@pytest.fixture
def copy_without_git(tmp_path):
    """What the script needs of a checkout, elsewhere."""
    for name in ("dpcompare", "benchmarks", "stress"):
        shutil.copytree(ROOT / name, tmp_path / "copy" / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "copy"


@pytest.mark.torch
@pytest.mark.slow
def test_figures_of_a_first_gpu_are_kept_and_opened_elsewhere(copy_without_git, tmp_path):
    """In a copy without git."""
    done = first_gpu("figures", "--only", "strict", "--only", "each-step", "--only", "trace", where=copy_without_git)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = lines_of("figures")
    assert {name: line["status"] for name, line in lines.items()} == dict.fromkeys(
        ("strict", "each-step", "trace"), "ok"
    )
    assert lines["strict"]["figures"]["images/s"] > 0
    assert lines["each-step"]["figures"]["windows / each step"] > 0
    assert lines["trace"]["figures"]["spans"] > 0
    assert json.loads(Path("out/figures.jsonl").read_text().splitlines()[0])["begins"]["commit"] == "unknown"
    assert "| strict | ok | torch, float32 without TF32: images/s" in done.stdout
    shutil.unpack_archive("out/first-gpu-figures.tar.gz", tmp_path / "elsewhere")
    shutil.rmtree("out")
    runs = tmp_path / "elsewhere" / "first-gpu-figures" / "runs"
    reported = invoke("report", str(runs / "strict"), str(runs / "bfloat16"), "--full")
    assert reported.code == 0, reported.stderr
    assert "images/s" in reported.stdout


@pytest.mark.torch
@pytest.mark.slow
def test_a_first_gpu_that_fails_is_told_with_what_failed():
    """A run that failed is not repeated for the checks that look at it."""
    checks = ("bfloat16", "ddp", "several")  # which all look at the run of the first one
    done = first_gpu("figures", *(part for name in checks for part in ("--only", name)), "--model", "no-such-model")
    assert done.returncode == 3
    lines = lines_of("figures")
    assert {line["status"] for line in lines.values()} == {"failed"}
    assert all("no-such-model" in line["why"] for line in lines.values())
    assert Path("out/logs/bfloat16.log").read_text().count("$ ") == 1
    assert "| ddp | failed |" in done.stdout


def test_what_no_longer_fits_into_the_time_is_left_out_and_said():
    done = first_gpu("smoke", "--seconds", "20", "--only", "machine", "--only", "model-jax", "--only", "model-torch")
    assert done.returncode == 0, done.stderr[-2000:]
    lines = lines_of("smoke")
    assert lines["machine"]["status"] == "ok"
    assert {lines[name]["status"] for name in ("model-jax", "model-torch")} == {"left out"}
    assert lines["model-jax"]["why"].startswith("time: ")
    refused = first_gpu("smoke", "--only", "nonsense")
    assert refused.returncode == 2
    assert "--only: received nonsense, expected some of machine, model-jax" in refused.stderr


@pytest.mark.torch
@pytest.mark.slow
def test_a_killed_first_gpu_leaves_the_lines_of_what_it_did():
    command = [sys.executable, "-m", "stress.first_gpu", "figures", "--out", str(Path("out").absolute()), *TINY]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    lines = Path("out/figures.jsonl")
    while not (lines.exists() and '"ceilings"' in lines.read_text()):
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert {name: line["status"] for name, line in lines_of("figures").items()} == {"machine": "ok", "ceilings": "ok"}


@pytest.mark.slow
def test_the_commit_of_a_copy_is_what_it_was_given(copy_without_git):
    def said(**environment):
        command = [sys.executable, "-c", "from benchmarks.evidence import commit; print(commit())"]
        done = subprocess.run(
            command, cwd=copy_without_git, capture_output=True, text=True, env=os.environ | environment
        )
        return done.stdout.strip()

    assert said() == "unknown"
    (copy_without_git / ".commit").write_text("1234567\n")
    assert said() == "1234567"
    assert said(DPCOMPARE_COMMIT="abcdef0") == "abcdef0"
