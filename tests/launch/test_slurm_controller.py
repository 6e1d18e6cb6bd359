"""A Slurm whose controller does not answer, imitated by commands that wait."""

import os
import time

import pytest

from dpcompare.config.cluster import Cluster
from dpcompare.config.placement import Placement
from dpcompare.config.run import RunConfig
from dpcompare.launch.engines import slurm, slurm_job
from dpcompare.launch.rendezvous import Rendezvous
from dpcompare.system.signals import signals_held

pytestmark = pytest.mark.process

CLUSTER = Cluster.of_machines(2, 1, device_type="cpu", num_cores=1)
CONFIG = RunConfig(framework="torch", mode="ddp", cluster=CLUSTER, placement=Placement(engine="slurm"))


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """A folder of Slurm's commands: `sbatch` submits job 7, the others are written by the test."""
    folder = tmp_path / "commands"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    def write(name, script):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    write("sbatch", "cat > /dev/null; echo 7")
    return write


@pytest.mark.slow
def test_the_end_of_a_run_waits_for_no_absent_controller(tmp_path, commands, monkeypatch):
    for name, seconds in (("STATE_SECONDS", 0.2), ("CANCEL_SECONDS", 0.3), ("JOB_POLL_SECONDS", 0.1)):
        monkeypatch.setattr(slurm_job, name, seconds)
    for name in ("scontrol", "scancel"):
        commands(name, "exec sleep 60")
    said, began = [], time.monotonic()
    with slurm.Slurm().started(CONFIG, tmp_path, Rendezvous.open(tmp_path, 2), said.append) as poll_exit:
        assert [poll_exit() for _ in range(20)] == [None] * 20
        assert time.monotonic() - began < 5
    assert time.monotonic() - began < 10
    assert said[-1] == "Slurm job 7 was cancelled and is still UNKNOWN; look after it with squeue"


def test_another_ctrl_c_does_not_keep_a_job_from_being_cancelled(tmp_path, commands, monkeypatch):
    for name, seconds in (("CANCEL_SECONDS", 0.3), ("JOB_POLL_SECONDS", 0.1)):
        monkeypatch.setattr(slurm_job, name, seconds)
    second = f"[ -e {tmp_path}/sent ] || kill -INT {os.getpid()}; touch {tmp_path}/sent"
    commands("scontrol", f"{second}; sleep 0.2; echo JobState=RUNNING")
    commands("scancel", f'echo "$@" >> {tmp_path}/cancelled')
    job = slurm.Slurm().started(CONFIG, tmp_path, Rendezvous.open(tmp_path, 2), print)
    with pytest.raises(KeyboardInterrupt), signals_held(), job:
        raise KeyboardInterrupt
    assert (tmp_path / "cancelled").read_text().splitlines()[0] == "7"


@pytest.mark.parametrize(
    ("states", "why"),
    [
        (["COMPLETING Reason=TimeLimit"], "reached its time limit (--time): COMPLETING (TimeLimit)"),
        (["COMPLETING Reason=None", "PREEMPTED Reason=None"], "was preempted by another job: PREEMPTED"),
        (["COMPLETING Reason=None"], "has ended: COMPLETING"),
        (["FAILED Reason=NonZeroExitCode"], "has ended: FAILED (NonZeroExitCode)"),
    ],
    ids=["time", "preempted", "unknown", "by itself"],
)
def test_who_has_ended_a_job_is_waited_for_while_it_completes(tmp_path, commands, monkeypatch, states, why):
    monkeypatch.setattr(slurm_job, "JOB_POLL_SECONDS", 0.0)
    if states == ["COMPLETING Reason=None"]:  # forever
        monkeypatch.setattr(slurm_job, "COMPLETING_SECONDS", 0.5)
    told = tmp_path / "told"
    told.write_text("".join(f"JobState={state}\n" for state in ["RUNNING Reason=None", *states]))
    # The next state at each look, and the last one from then on.
    commands("scontrol", f"head -n 1 {told}; [ $(wc -l < {told}) = 1 ] || sed -i 1d {told}")
    commands("scancel", ":")
    with slurm.Slurm().started(CONFIG, tmp_path, Rendezvous.open(tmp_path, 2), lambda line: None) as poll_exit:
        while (ended := poll_exit()) is None:
            pass
    assert ended.why.startswith(f"Slurm job 7 {why}\n")
    assert ended.is_cause == ("has ended" not in why)


def test_a_comment_is_not_taken_for_the_state_of_a_job(commands):
    commands("scontrol", "echo 'JobId=7 JobState=RUNNING Reason=None Comment=x JobState=COMPLETED Reason=y'")
    assert slurm_job.state_of("7") == ("RUNNING", "None")
