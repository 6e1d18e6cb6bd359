"""The shell scripts, run as a user runs them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import with_default_signals

pytestmark = pytest.mark.process

SCRIPTS = Path(__file__).parents[2] / "scripts"
TINY = ["--model", "toy-cnn", "--image-size", "32", "--steps", "7"]


def start(script, *arguments, **environment):
    (Path.cwd() / "dpcompare").write_text(f'#!/bin/sh\nexec {sys.executable} -m dpcompare "$@"\n')
    (Path.cwd() / "dpcompare").chmod(0o755)
    return subprocess.Popen(
        [SCRIPTS / script, *arguments],
        env=os.environ | {"DPCOMPARE": "./dpcompare", "DEVICE": "cpu"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=with_default_signals,
    )


def run(script, *arguments, **environment):
    process = start(script, *arguments, **environment)
    stdout, stderr = process.communicate(timeout=300)
    return process.returncode, stdout, stderr


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("run_torch_ddp_4x2.sh", marks=[pytest.mark.torch, pytest.mark.slow]),
        pytest.param("run_tf_multiworker_4x2.sh", marks=[pytest.mark.tensorflow, pytest.mark.slow]),
    ],
)
def test_eight_simulated_devices_as_two_nodes_of_four(script):
    code, stdout, stderr = run(script, *TINY, "--json", "--run-dir", "run")
    assert code == 0, stderr
    result = json.loads(stdout)
    assert (result["num_nodes"], result["num_replicas"]) == (2, 8)


@pytest.mark.parametrize("script", ["run_torch_ddp_4x2.sh", "run_tf_multiworker_4x2.sh"])
@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, "--nodes 2 --devices-per-node 4"), ({"NODES": "4"}, "--nodes 4 --devices-per-node 2")],
)
def test_eight_devices_are_split_among_the_nodes(script, environment, expected):
    done = subprocess.run(
        [SCRIPTS / script], env=os.environ | {"DPCOMPARE": "echo"} | environment, capture_output=True, text=True
    )
    assert f"{expected} --device gpu" in done.stdout  # a machine whose GPUs are gone must not simulate them in silence


def test_nodes_that_do_not_divide_eight_devices_are_refused():
    code, _, stderr = run("run_torch_ddp_4x2.sh", NODES="3")
    assert code == 2
    assert "NODES: received '3', expected 1, 2, 4 or 8" in stderr


def check_claims(*arguments):
    command = [sys.executable, "-m", "stress.check_claims", *arguments]
    done = subprocess.run(command, cwd=SCRIPTS.parent, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[2:]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.alone
def test_a_delayed_exchange_is_found_in_communication_alone():
    plain, delayed = check_claims("--only", "ablation", "--rounds", "1", "--ablated-steps", "60")
    assert "communication" in plain
    assert "communication" in delayed


@pytest.mark.parametrize("script", ["run_torch_ddp_4x2.sh", "run_tf_multiworker_4x2.sh"])
def test_the_exit_code_of_a_refusal_is_returned(script):
    code, _, stderr = run(script, "--image-size", "0")
    assert code == 2
    assert "image_size" in stderr
