"""Runs as jobs of a real Slurm, with two nodes on this machine."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from dpcompare.results.events import EventTail, Started, StepsTrained
from dpcompare.system.processes import is_alive
from tests.support.command import dpcompare, invoke, start
from tests.support.slurm import jobs, missing_programs, output, slurm

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        bool(missing_programs()), reason=f"no {', '.join(missing_programs())} (Debian: slurm-wlm, munge)"
    ),
]
TINY = ["--model", "toy-cnn", "--image-size", "32", "--dataset", "synthetic-mini", "--global-batch-size", "16"]
TWO_NODES = ["--engine", "slurm", "--nodes", "2", "--cores-per-node", "1", "--device", "cpu"]
TORCH = ["--framework", "torch", "--mode", "ddp"]
TENSORFLOW = ["--framework", "tensorflow", "--mode", "multiworker"]
JAX = ["--framework", "jax", "--mode", "multiprocess"]
SHORT = ["--steps", "4", "--warmup-steps", "0"]
LONG = ["--steps", "100000"]
FRAMEWORKS = [
    pytest.param(TORCH, marks=pytest.mark.torch, id="torch"),
    pytest.param(TENSORFLOW, marks=[pytest.mark.tensorflow, pytest.mark.long], id="tensorflow"),
    pytest.param(JAX, marks=pytest.mark.jax, id="jax"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


def begun(run_dir, environment, *arguments):
    """A run whose processes have all made a step; returns it and their pids."""
    process = start("run", *TWO_NODES, *TINY, *LONG, *arguments, "--run-dir", run_dir, **environment)
    tail, pids, trained = EventTail(run_dir, range(2)), {}, set()
    deadline = time.monotonic() + 120
    while len(trained) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        for event in tail.new_events():
            if isinstance(event, Started):
                pids[event.process_rank] = event.pid
            elif isinstance(event, StepsTrained):
                trained.add(event.process_rank)
        time.sleep(0.1)
    return process, pids


def until_idle(environment):
    """Every node of Slurm serves again, and has no job to clear up after."""
    deadline = time.monotonic() + 600
    while set(output(environment, "sinfo", "--noheader", "--Node", "--format=%T").split()) != {"idle"}:
        assert time.monotonic() < deadline
        output(environment, "scontrol", "update", "nodename=node1", "state=resume")
        time.sleep(0.5)


def all_gone(pids):
    deadline = time.monotonic() + 600
    while any(is_alive(pid) for pid in pids.values()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(is_alive(pid) for pid in pids.values())


@pytest.mark.parametrize("mode", FRAMEWORKS)
def test_a_job_trains_what_simulated_nodes_train(cluster, tmp_path, mode):
    short = [*mode, *TINY, "--steps", "8", "--json"]
    done = dpcompare("run", *TWO_NODES, *short, "--run-dir", tmp_path / "job", **cluster)
    assert done.code == 0, done.stderr
    assert "Slurm job" in done.stderr
    assert "step 8/8" in done.stderr
    local = dpcompare("run", "--nodes", "2", "--device", "cpu", *short, "--run-dir", tmp_path / "local")
    assert done.json["train_loss"] == pytest.approx(local.json["train_loss"], rel=1e-6)
    assert [node["node_rank"] for node in done.json["nodes"]] == [0, 1]
    assert jobs(cluster) == []


@pytest.mark.parametrize("mode", FRAMEWORKS[:2])
def test_a_killed_rank_fails_the_job_and_is_named(cluster, tmp_path, mode):
    process, pids = begun(tmp_path / "run", cluster, *mode)
    os.kill(pids[1], signal.SIGKILL)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 1, said
    # The signal is reported by its agent, which Slurm may have ended with the step before it could.
    assert "process 1 (node 1, local rank 0) ended without a message" in said
    assert all_gone(pids)
    assert jobs(cluster) == []
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "failed"


@pytest.mark.tensorflow
def test_ctrl_c_cancels_the_job_and_tensorflow_ends(cluster, tmp_path):
    process, pids = begun(tmp_path / "run", cluster, *TENSORFLOW)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 130, said
    assert time.monotonic() - begin < 30
    assert all_gone(pids)
    assert jobs(cluster) == []
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "interrupted"


@pytest.mark.parametrize(
    ("mode", "end", "says"),
    [
        pytest.param(TORCH, ["scancel"], "was cancelled: CANCELLED", marks=pytest.mark.torch, id="cancelled"),
        pytest.param(
            TENSORFLOW,
            ["scontrol", "update", "nodename=node1", "state=down", "reason=test"],
            "lost a machine, which failed: ",
            marks=pytest.mark.tensorflow,
            id="a machine down",
        ),
    ],
)
def test_that_slurm_has_ended_a_job_comes_first(cluster, tmp_path, mode, end, says):
    process, pids = begun(tmp_path / "run", cluster, *mode)
    (job,) = jobs(cluster)
    try:
        output(cluster, *end, *([job] if end == ["scancel"] else []))
        _, said = process.communicate(timeout=600)
        assert process.returncode == 1, said
        error = json.loads((tmp_path / "run" / "result.json").read_text())["error"]
        assert error.startswith(f"Slurm job {job} {says}"), error
        assert all_gone(pids)
    finally:
        until_idle(cluster)


@pytest.mark.torch
@pytest.mark.tensorflow
def test_within_an_allocation_the_runs_of_a_study_are_its_steps(cluster, tmp_path):
    study = [
        "compare",
        *TWO_NODES,
        "--arm",
        "torch:ddp",
        "--arm",
        "tensorflow:multiworker",
        "--repeats",
        "1",
        *TINY,
        *SHORT,
    ]
    done = subprocess.run(
        ["salloc", "--nodes=2", "--ntasks-per-node=1", sys.executable, "-m", "dpcompare", *study,
         "--out", tmp_path / "study"],
        env=os.environ | cluster, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # A run that the machine disturbs is repeated.
    assert len(set(re.findall(r"round 1: (.*): [\d.]+ images/s in", done.stderr))) == 2, done.stderr
    assert "was submitted" not in done.stderr
    runs = [json.loads(path.read_text()) for path in (tmp_path / "study").rglob("result.json")]
    assert {run["mode"] for run in runs} == {"ddp", "multiworker"}
    assert {(run["status"], len(run["nodes"])) for run in runs} == {("completed", 2)}


@pytest.mark.torch
def test_a_study_is_a_job_per_run(cluster, tmp_path):
    arms = ["--arm", "torch:ddp", "--arm", "torch:ddp,env=shown", "--env", "shown=TORCH_SHOWN=1"]
    done = dpcompare("compare", *TWO_NODES, *arms, "--repeats", "1", *TINY, *SHORT, "--json", "--out",
                     tmp_path / "study", **cluster)  # fmt: skip
    assert done.code == 0, done.stderr
    assert done.stderr.count("was submitted") >= 2
    assert len(set(re.findall(r"round 1: (.*): [\d.]+ images/s in", done.stderr))) == 2, done.stderr
    runs = [json.loads(path.read_text()) for path in (tmp_path / "study").rglob("result.json")]
    assert {run["settings"]["environment"].get("TORCH_SHOWN") for run in runs} == {None, "1"}


@pytest.mark.torch
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--nodes", "3"], "--nodes: received 3, but partition both has 2"),
        (["--nodes", "2", "--partition", "one"], "--nodes: received 2, but partition one has 1"),
        (["--nodes", "2", "--partition", "gone"], "--partition: received 'gone', expected one of both, one"),
        (["--nodes", "2", "--cores-per-node", "9"], "--cores-per-node: received 9, but nodes of partition both have 2"),
        (["--nodes", "2", "--sbatch=--no-such-option"], "unrecognized option"),
        (["--nodes", "2", "--time", "99:00:00"], "PartitionTimeLimit"),
    ],
    ids=["nodes", "nodes of a partition", "partition", "cores", "sbatch", "time"],
)
def test_what_the_partition_cannot_give_is_refused(cluster, tmp_path, asked, says):
    refused = invoke("run", "--engine", "slurm", "--device", "cpu", *TORCH, *TINY, *asked, "--global-batch-size", "6",
                        "--run-dir", tmp_path / "run", **cluster)  # fmt: skip
    assert refused.code == 2, refused.stderr
    assert says in refused.stderr
    assert jobs(cluster) == []


@pytest.mark.torch
def test_the_job_can_be_looked_at_before(cluster, tmp_path):
    shown = invoke(
        "plan", "--format", "slurm", *TWO_NODES, *TORCH, "--time", "10", "--run-dir", tmp_path / "run", **cluster
    )
    assert shown.code == 0, shown.stderr
    for line in ("#SBATCH --nodes=2", "#SBATCH --time=10", "#SBATCH --cpus-per-task=1", "exec srun"):
        assert line in shown.stdout
