"""Asynchronous training by a parameter server: who is who, what it promises, and what it does not."""

import json

import pytest

from dpcompare import Cluster, RunConfig, Workload
from dpcompare.launch.plan import Endpoints, num_ports, plan
from dpcompare.results.events import CheckpointSaved, Ready, StepsTrained, read_events
from tests.support.command import invoke

TINY = [
    "--model",
    "toy-cnn",
    "--image-size",
    "32",
    "--dataset",
    "synthetic-mini",
    "--global-batch-size",
    "16",
    "--device",
    "cpu",
]
SERVED = ["--framework", "tensorflow", "--mode", "parameter-server"]


def test_every_node_has_its_role(tmp_path):
    config = RunConfig(
        framework="tensorflow",
        mode="parameter-server",
        workload=Workload(model="toy-cnn", image_size=32),
        cluster=Cluster.partition(4, 1, device="cpu"),
    )
    assert (config.topology.num_replicas, config.topology.num_processes, config.topology.trainers) == (2, 4, range(1))
    planned = plan(config, tmp_path, Endpoints(range(7000, 7000 + num_ports(config))))
    configs = [json.loads(node.env["TF_CONFIG"]) for node in planned]
    assert configs[0]["cluster"] == {
        "chief": ["127.0.0.1:7000"],
        "ps": ["127.0.0.1:7001"],
        "worker": ["127.0.0.1:7002", "127.0.0.1:7003"],
    }
    tasks = [(each["task"]["type"], each["task"]["index"]) for each in configs]
    assert tasks == [("chief", 0), ("ps", 0), ("worker", 0), ("worker", 1)]
    assert [node.processes[0].trains for node in planned] == [True, False, False, False]


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--nodes", "2"],
         "nodes: received 2 with mode parameter-server; expected at least 3: one each for chief and ps"),
        (["--nodes", "3", "--devices-per-node", "2"],
         "devices_per_node: received 2 with mode parameter-server; expected 1"),
        (["--nodes", "3", "--accumulate", "2"],
         "accumulate: received 2 with mode parameter-server, which can have 1 only"),
    ],
    ids=["nodes", "devices", "accumulate"],
)  # fmt: skip
def test_what_it_cannot_do_is_refused(tmp_path, asked, says):
    refused = invoke("run", *SERVED, *TINY, *asked, "--run-dir", tmp_path / "run")
    assert refused.code == 2, refused.stderr
    assert says in refused.stderr


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_two_workers_are_asynchronous_and_not_comparable(tmp_path):
    short = [*TINY, "--image-size", "64", "--global-batch-size", "64", "--dataset", "synthetic", "--steps", "40"]
    done = invoke("run", *SERVED, *short, "--nodes", "4", "--json", "--run-dir", tmp_path / "served")
    assert done.code == 0, done.stderr
    settings = done.json["settings"]
    assert settings["updates"] == "asynchronous"
    assert 0 < settings["staleness"]["mean"] <= settings["staleness"]["max"] <= 4
    mirrored = ["--framework", "tensorflow", "--mode", "mirrored", "--devices-per-node", "2"]
    assert invoke("run", *mirrored, *short, "--run-dir", tmp_path / "mirrored").code == 0
    shown = invoke("report", tmp_path / "served", tmp_path / "mirrored", "--json")
    (reason,) = [reason for reason in shown.json["reasons"] if reason.startswith("updates")]
    assert "throughput alone" in reason


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.alone
@pytest.mark.usefixtures("warm")
def test_what_workers_still_have_to_do_counts(tmp_path):
    """Steps return before they are made; between the first and last loss only checkpoints are not part of a step."""
    steps = ["--model", "toy-cnn", "--image-size", "128", "--global-batch-size", "256", "--dataset", "synthetic"]
    done = invoke("run", *SERVED, *steps, "--steps", "4", "--warmup-steps", "0", "--device", "cpu", "--nodes", "3",
                     "--checkpoint-every", "1", "--run-dir", tmp_path / "run", "--json")  # fmt: skip
    assert done.code == 0, done.stderr
    events = read_events(tmp_path / "run", 1)
    (ready,) = [event for event in events if isinstance(event, Ready)]
    last_loss = [event for event in events if isinstance(event, StepsTrained)][-1]
    elapsed = last_loss.time - ready.time
    checkpoints = [event for event in events if isinstance(event, CheckpointSaved) and event.time < last_loss.time]
    expected = elapsed - sum(event.seconds for event in checkpoints)
    # What looks at the first step's batch is no part of one either, and takes longer on a busy machine; of steps that
    # were not waited for little would be left.
    assert expected / 2 < 4 * 256 / done.json["images_per_second"] < 1.05 * expected


@pytest.mark.tensorflow
@pytest.mark.parametrize("mode", ["keras-fit", "tpu"])
def test_what_cannot_be_verified_says_why(mode):
    refused = invoke("verify", "--modes", f"single,{mode}")
    assert refused.code == 2
    assert f"{mode}: " in refused.stderr


@pytest.mark.tensorflow
def test_there_is_no_tpu_here(tmp_path):
    refused = invoke("run", "--framework", "tensorflow", "--mode", "tpu", "--model", "toy-cnn", "--image-size", "32",
                        "--run-dir", tmp_path / "run")  # fmt: skip
    assert refused.code == 2
    assert "there is no TPU here" in refused.stderr
    (row,) = [row for row in invoke("modes", "--json").json["modes"] if row["mode"] == "tpu"]
    assert row["usable"] is False
    assert "there is no TPU here" in row["reason"]
