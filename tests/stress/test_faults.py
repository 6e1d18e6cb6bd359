"""Faults that need a disk or a memory of their own; stress/faults.py has the others."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stress.injection import write_sitecustomize
from tests.support.command import dpcompare

RUN = [
    *("run", "--framework", "torch", "--mode", "single", "--device", "cpu", "--model", "mlp", "--image-size", "8"),
    *("--dataset", "synthetic-mini", "--global-batch-size", "16", "--warmup-steps", "0"),
]


@pytest.mark.torch
@pytest.mark.root
def test_a_run_goes_on_and_keeps_checkpoints_on_a_full_disk(tmp_path):
    command = f"{sys.executable} -m dpcompare"
    script = f"""
        mount -t tmpfs -o size=8m none {tmp_path} || exit 77
        head -c 2m /dev/zero > {tmp_path}/filler
        {command} {" ".join(RUN)} --steps 1000000 --checkpoint-every 1 --keep-checkpoints 1000 --run-dir {tmp_path}/run
        echo "exit code $?"
        ls {tmp_path}/run/checkpoints
        rm {tmp_path}/filler
        {command} run --resume {tmp_path}/run --steps 8 --checkpoint-every 8
        echo "exit code $?"
    """
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=300)
    if done.returncode == 77:
        pytest.skip("no file system may be mounted here")
    assert re.findall(r"exit code (\d)", done.stdout) == ["1", "0"], done.stderr
    assert "No space left on device" in done.stderr
    checkpoints = re.findall(r"step-(\d+)\.safetensors", done.stdout)
    assert len(checkpoints) > 2
    assert ".tmp" not in done.stdout
    assert f"after step {int(max(checkpoints))} of 8" in done.stderr


HOG = """
def inject(module):
    rate = module.learning_rate
    def hog(workload, step, num_steps):
        if step == 3:
            module.hoard = b"x" * (16 << 30)
        return rate(workload, step, num_steps)
    module.learning_rate = hog
"""


@pytest.fixture
def little_memory():
    """A control group of 3 GiB; yields the file that takes a process into it."""
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(root) / f"dpcompare-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit).write_text(str(3 << 30))
        except OSError:
            if group.is_dir():
                group.rmdir()
            continue
        yield group / "cgroup.procs"
        group.rmdir()
        return
    pytest.skip("no control group with a limit of memory may be made here")


@pytest.mark.torch
@pytest.mark.root
def test_a_process_killed_for_want_of_memory_is_told(tmp_path, little_memory):
    write_sitecustomize(tmp_path / "fault", "dpcompare.training.loop", HOG)
    done = subprocess.run(
        [sys.executable, "-m", "dpcompare", *RUN, "--steps", "100", "--run-dir", tmp_path / "run"],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "fault")},
        capture_output=True,
        text=True,
        timeout=600,
        preexec_fn=lambda: little_memory.write_text(str(os.getpid())),
    )
    assert done.returncode == 1
    assert "memory ran out: the kernel has just killed a process" in done.stderr


@pytest.mark.torch
def test_a_run_directory_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    refused = dpcompare(*RUN, "--steps", "3", "--run-dir", tmp_path / "file" / "run")
    assert refused.code == 2
    assert "cannot be written" in refused.stderr
