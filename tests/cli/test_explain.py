"""`dpcompare explain`: what it runs, what it refuses, and the commands that it recommends."""

import json
import shlex
import sys

import pytest

from dpcompare.cli.build_config import build_config, with_named_mode
from dpcompare.cli.compare import compare
from dpcompare.cli.next_commands import autotune_command_of, command_of
from dpcompare.cli.run import run
from dpcompare.config.cluster import Cluster
from dpcompare.config.placement import Placement
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.experiments.study import Study
from dpcompare.results.result import StepSeconds
from dpcompare.results.run_dir import RESULT_FILE
from tests.support.command import invoke
from tests.support.results import result

TINY = ["--model", "mlp", "--image-size", "8", "--steps", "4", "--warmup-steps", "1", "--device", "cpu"]
SECONDS = StepSeconds(median=0.1, p95=0.1, mean=0.1, mad=0.0)


@pytest.fixture
def run_dir(tmp_path):
    """What a run leaves that has completed."""
    result(step_seconds=SECONDS).save(tmp_path)
    return tmp_path


@pytest.mark.torch
def test_an_arm_is_planned_with_all_its_variants_in_each_round():
    done = invoke("explain", "torch:ddp,global_batch_size=8", "--nodes", "2", *TINY, "--dry-run", "--json")
    assert done.code == 0, done.stderr
    runs = done.json["runs"]
    assert len(runs) == 36
    assert {each["arm"] for each in runs if each["round"] == 6} == {
        "torch ddp 2x1 global_batch_size=8",
        *(f"torch ddp 2x1 global_batch_size=8 {end}" for end in ("one batch", "without gradient sync")),
        *(
            f"torch ddp 2x1 global_batch_size=8 one batch without gradient sync{end}"
            for end in ("", " on one device", " 4x as large")
        ),
    }
    assert {each["workload"]["global_batch_size"] for each in runs} == {8, 4, 32}


def test_a_run_is_planned_from_its_directory(run_dir):
    done = invoke("explain", run_dir, "--repeats", "1", "--dry-run", "--json")
    assert done.code == 0, done.stderr
    assert {each["workload"]["steps"] for each in done.json["runs"]} == {85}  # 8 s of steps of 0.1 s


@pytest.mark.parametrize(
    ("spoil", "arguments", "message"),
    [
        ({"status": "interrupted"}, [], "has the status interrupted; expected one that completed"),
        ({"dpcompare_version": "9.9.1"}, [], "is a run of dpcompare 9.9.1"),
        ({}, ["--steps", "5"], "received --steps with the run"),
        ({}, ["--repeats", "0"], "Invalid value for '--repeats'"),
        ({}, ["--measured-link", "fast"], "--measured-link: received 'fast', expected a rate"),
        ({}, ["--measured-link", "10gbit"], "with a run on one machine; expected a run on several machines"),
    ],
)
def test_what_cannot_be_explained_is_refused_before_it_starts(run_dir, spoil, arguments, message):
    document = json.loads((run_dir / RESULT_FILE).read_text())
    (run_dir / RESULT_FILE).write_text(json.dumps(document | spoil))
    refused = invoke("explain", run_dir, *arguments, "--out", run_dir / "out")
    assert refused.code == 2
    assert message in refused.stderr
    assert not (run_dir / "out").exists()


@pytest.mark.torch
def test_what_is_neither_an_arm_nor_a_run_is_refused(tmp_path):
    for arguments, message in (
        (["torch:dp", "--devices-per-node", "2", "--device", "cpu"], "torch dp is emulated on cpu devices"),
        (["torch:nothing", "--device", "cpu"], "unknown mode 'nothing'"),
        (["torch:ddp,nosuch=mlp"], "nosuch"),
        (["torch:ddp,nodes=0"], "received 'nodes=0' in 'torch:ddp,nodes=0'; expected a number such as nodes=2"),
        (["nowhere"], "which is not a directory; expected that of a completed run, or an arm such as torch:ddp"),
        (
            ["torch:ddp,engine=namespaces,link=1gbit", "--nodes", "2", "--device", "cpu", "--measured-link", "10gbit"],
            "received '10gbit' with a run that has --link 1gbit; expected only one of them",
        ),
    ):
        refused = invoke("explain", *arguments)
        assert refused.code == 2, arguments
        assert message in refused.stderr
    (tmp_path / "study").mkdir()
    Study(arms=({"name": "a", "config": result().config},), repeats=1).save(tmp_path / "study")
    refused = invoke("explain", tmp_path / "study")
    assert (refused.code, "is a study of several arms" in refused.stderr) == (2, True)


@pytest.mark.torch
@pytest.mark.usefixtures("warm")
def test_a_run_is_explained_from_its_runs(tmp_path):
    command = ["explain", "torch:single", *TINY, "--repeats", "1", "--out", tmp_path / "out"]
    done = invoke(*command, "--json")
    assert done.code == 0, done.stderr
    assert {row["part"] for row in done.json["parts"]} == {"input", "launching", "computing"}
    assert sum(row["share"] for row in done.json["parts"]) == pytest.approx(1)
    assert done.json["unmeasured"]["exchange"] == "one replica has no other to exchange gradients with"
    again = invoke(*command)
    assert again.stderr.count("not run again, made before: completed") == 3
    assert "FIRST LOOK: 1 of 6 rounds, nothing is claimed." in again.stdout
    assert invoke(*command, "--markdown").stdout.startswith("# torch single 1x1\n")


CLUSTERS = {
    "simulated": Cluster.partition(2, 1, device="cpu"),
    "machines": Cluster.of_machines(2, 4, device_type="gpu", num_cores=12),
}
CONFIGS = {
    "defaults": RunConfig(framework="tensorflow", mode="multiworker", cluster=CLUSTERS["simulated"]),
    "many options": RunConfig(
        framework="torch",
        mode="ddp",
        cluster=CLUSTERS["simulated"],
        placement=Placement(engine="namespaces", link="100mbit"),
        workload=Workload(
            model="mlp", augment=("flip", "contrast"), steps=9, profile="native", clip_norm=1.5, skip_corrupt=True
        ),
        tune={"compilation": "none", "gradient_buckets": "copies"},
        input_threads=3,
        python="/elsewhere/python",
    ),
    "machines with GPUs": RunConfig(
        framework="torch",
        mode="fsdp",
        cluster=CLUSTERS["machines"],
        placement=Placement(engine="hosts", hosts=("a", "b"), ssh=True),
        workload=Workload(global_batch_size=32, steps=50),
    ),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_command_that_is_recommended_asks_for_the_run_it_is_of(config):
    words = shlex.split(command_of(config, {}))
    assert words[:2] == ["dpcompare", "run"]
    context = run.make_context("run", words[2:])
    values = {name: value for name, value in context.params.items() if name not in ("named_mode", "resume", "as_json")}
    built = build_config(with_named_mode(context, context.params["named_mode"], values))
    assert built == config
    larger = shlex.split(command_of(config, {"global_batch_size": "128"}))
    assert run.make_context("run", larger[2:]).params["global_batch_size"] == 128
    elsewhere = shlex.split(command_of(config, {"framework": "jax", "mode": "multiprocess"}))
    assert elsewhere[2] == "jax:multiprocess"
    assert {"--tune", "--python"}.isdisjoint(elsewhere)  # another framework has another interpreter


def test_what_can_be_tuned_is_recommended_as_a_study():
    found = autotune_command_of(CONFIGS["many options"])
    assert found is not None
    words = shlex.split(found)
    params = compare.make_context("compare", words[2:]).params
    assert (params["arm"], params["autotune"], params["profile"]) == (("torch:ddp,profile=native",), True, None)
    assert (params["nodes"], params["link"], params["input_threads"]) == ((2,), "100mbit", 3)
    assert autotune_command_of(CONFIGS["defaults"]) is None
    assert sys.executable not in found
