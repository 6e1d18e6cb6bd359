"""The commands that the README and docs/start.md print are run by one user, who has smaller defaults than ours."""

import re
import shlex
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpcompare.results.result import RunResult
from dpcompare.results.run_dir import checkpoint_paths
from tests.support.command import invoke, start

ROOT = Path(__file__).parents[2]

SHORT = {
    "MODEL": "mlp",
    "DATASET": "synthetic-mini",
    "IMAGE_SIZE": "16",
    "GLOBAL_BATCH_SIZE": "8",
    "WARMUP_STEPS": "1",
}
"""What this user has in DPCOMPARE_MODEL and so on, for what a command leaves open."""

LEFT_OUT = {
    "dpcompare compare": "minutes; tests/cli/test_compare.py compares every mode with a tiny model",
    "dpcompare doctor": "a minute; tests/launch/test_doctor.py tries runs as it does",
    "dpcompare verify --quick": "minutes; tests/experiments/test_verify.py runs its groups",
    "dpcompare verify --quick --frameworks torch,jax": "minutes; tests/experiments/test_verify.py runs its groups",
    "dpcompare setup --device gpu": "gigabytes; tests/launch/test_setup.py has a machine for it",
    "dpcompare report /shared/runs/one": "there is no job whose run it could show",
}

WRITTEN = {
    "dpcompare data prepare photos/ photos-96 --image-size 96": "photos-96/manifest.json",
    "dpcompare report studies/modes --html report.html": "report.html",
    "dpcompare report studies/modes --plots figures --plot-width 3.3": "figures",
}


def printed():
    """The commands of each page's blocks, then those between backticks, each once; not those cut short with dots."""
    lines = []
    for page in ("docs/start.md", "README.md"):  # where the run that was interrupted is continued first
        text = (ROOT / page).read_text()
        lines += [line for block in re.findall(r"```[a-z]*\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
        lines += re.findall(r"`(dpcompare \w+ [^`\n]+)`", text)
    typed = (re.split(r"\s+#|\s+\|", line)[0].strip() for line in lines if line.startswith("dpcompare "))
    return [command for command in dict.fromkeys(typed) if "..." not in command]


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    """A directory with photographs, a run that was interrupted and a study of one round, on a machine without Slurm."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slurm.conf").touch()  # where there is none, sinfo looks for one for a minute
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # where there are GPUs, set-up would download gigabytes
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    for name, value in SHORT.items():
        monkeypatch.setenv(f"DPCOMPARE_{name}", value)
    pixels = np.random.default_rng(7)
    for split, count in (("train", 8), ("validation", 4)):
        for kind in ("shirt", "shoe"):
            folder = tmp_path / "photos" / split / kind
            folder.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(pixels.integers(0, 256, (120, 110, 3), np.uint8)).save(folder / f"{number}.png")

    study = ["--arm", "torch:ddp", "--nodes", "2", "--ablate", "--steps", "6", "--out", "studies/modes"]
    done = invoke("compare", *study)
    assert done.code == 0, done.stderr

    run_dir = tmp_path / "runs" / "a"
    arguments = ["torch:ddp", "--nodes", "2", "--steps", "800", "--checkpoint-every", "5"]
    process = start("run", *arguments, "--run-dir", run_dir)
    deadline = time.monotonic() + 120
    while not checkpoint_paths(run_dir) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert checkpoint_paths(run_dir)
    process.send_signal(signal.SIGINT)
    assert process.wait(600) == 130, process.communicate()
    assert RunResult.load(run_dir).status == "interrupted"


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.usefixtures("warm", "at_home")
def test_commands_that_are_printed_do_what_they_say():
    commands = printed()
    assert set(LEFT_OUT) | set(WRITTEN) <= set(commands)
    failed = {}
    for command in commands:
        if command in LEFT_OUT:
            continue
        steps = {} if "--epochs" in command else {"DPCOMPARE_STEPS": "6"}  # not both
        # Of many runs, of which tests/cli/test_compare.py and test_explain.py make some; one study is continued here.
        is_long = "explain" in command or (" compare " in command and "--resume" not in command)
        planned = ["--dry-run"] if is_long else []
        done = invoke(*shlex.split(command)[1:], *planned, **steps)
        if "--engine slurm" in command and " run " in command:
            as_said = done.code == 2 and "sinfo" in done.stderr  # what is missing here is named
        else:
            as_said = done.code == 0 and Path(WRITTEN.get(command, ".")).exists()
        if not as_said:
            failed[command] = (done.code, done.stdout[-500:], done.stderr[-1500:])
    assert failed == {}
    assert RunResult.load(Path("runs/a")).status == "completed"
