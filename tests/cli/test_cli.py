"""The command line as a user or a script meets it: real processes, exit codes, stdout and stderr."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpcompare.cli.options import OPTION_GROUPS, OPTIONS
from dpcompare.config.gpu_defaults import (
    IMAGES_PER_REPLICA,
    LARGE_MEMORY,
    MEASURED_STEPS,
    WARMUP_STEPS,
    gpu_defaults,
)
from dpcompare.data.prepare import prepare
from dpcompare.results.run_dir import checkpoint_paths
from stress.terminal import on_terminal
from tests.support.command import dpcompare, invoke, start

TINY = ("--model", "toy-cnn", "--image-size", "32", "--steps", "8")
TORCH = ("--framework", "torch", "--mode", "single", "--device", "cpu")
ESCAPE = "\x1b"


# ---- what is refused: exit code 2, nothing started ----

REFUSED = {
    "unknown framework": (
        ["--framework", "toch", "--mode", "ddp"],
        "unknown framework 'toch'.*Did you mean 'torch'",
    ),
    "unknown mode": (
        ["--framework", "torch", "--mode", "dpp"],
        "unknown mode 'dpp' of torch; expected one of single.*Did you mean 'ddp'",
    ),
    "mode of the other framework": (
        ["--framework", "torch", "--mode", "mirrored"],
        "'mirrored' is a mode of tensorflow",
    ),
    "name of a framework in another spelling": (["-f", "TF", "-m", "mirrored"], "Did you mean 'tensorflow'"),
    "mode in capitals": (["-f", "torch", "-m", "DDP"], "Did you mean 'ddp'"),
    "no framework": (["--mode", "ddp"], "--framework is required: one of torch, tensorflow, jax"),
    "no mode": (["-f", "tensorflow"], "--mode is required: single, mirrored, multiworker"),
    "no GPU": ([*TORCH[:4], "--device", "gpu"], "no GPU is visible here.*--device cpu"),
    "two nodes of a single-node mode": (
        ["--framework", "tensorflow", "--mode", "mirrored", "--nodes", "2"],
        "trains on one node, received 2 nodes.*multiworker",
    ),
    "a target above 1": ([*TORCH, "--target-accuracy", "90"], "target_accuracy: received 90.*such as 0.9"),
    "a target that is not an accuracy": ([*TORCH, "--target-accuracy", "0"], "target_accuracy: received 0, expected"),
    "an end at no target": ([*TORCH, "--stop-at-target"], "stop_at_target: received without a target"),
    "no steps between evaluations": ([*TORCH, "--evaluate-every", "0"], "evaluate_every: .*received 0"),
    "evaluations beyond the steps": (
        [*TORCH, "--evaluate-every", "9", "--steps", "8"],
        "evaluate_every: received 9, but the run has only 8 steps",
    ),
    "two devices of single": ([*TORCH, "--devices-per-node", "2"], "trains on one device, received 2"),
    "GPU twice": (
        ["--framework", "torch", "--mode", "ddp", "--gpus", "0,1,0"],
        "GPUs 0,1,0, which name a physical GPU more than once",
    ),
    "GPUs that do not divide": (
        ["--framework", "torch", "--mode", "ddp", "--gpus", "0,1,2", "--nodes", "2"],
        "3 devices do not divide evenly among 2 nodes",
    ),
    "GPUs that are not visible": (
        ["--framework", "torch", "--mode", "ddp", "--gpus", "0,1"],
        r"GPUs 0, 1 are not visible here \(visible: none\)",
    ),
    "more devices than visible": (
        ["--framework", "torch", "--mode", "ddp", "--gpus", "0,1", "--nodes", "2", "--devices-per-node", "2"],
        "need 4 gpu devices, but 2 are visible",
    ),
    "one image per replica": (
        ["--framework", "torch", "--mode", "ddp", "--nodes", "2", "--global-batch-size", "2", "--image-size", "32"],
        "leaves each replica one image per micro-batch",
    ),
    "run directory that cannot be made": ([*TORCH, *TINY, "--run-dir", "/proc/run"], "cannot be written"),
    "GPUs on the CPU": ([*TORCH, "--gpus", "0"], "both a list of GPUs and the device type cpu"),
    "no node": ([*TORCH, "--nodes", "0"], "nodes: received 0, expected at least 1"),
    "batch that does not divide": (
        ["--framework", "torch", "--mode", "ddp", "--nodes", "2", "--global-batch-size", "31"],
        "received 31, which does not divide evenly among 2 replicas",
    ),
    "batch of 0": (
        [*TORCH, "--global-batch-size", "0"],
        "global_batch_size: received 0, expected at least 1",
    ),
    "image size of 0": (
        [*TORCH, "--image-size", "0"],
        "image_size: received 0, expected at least 1",
    ),
    "image size that is not a number": ([*TORCH, "--image-size", "big"], "'big' is not a valid integer"),
    "image too small": ([*TORCH, "--image-size", "8"], "efficientnet-b2 needs at least 32 pixels"),
    "epochs and steps": ([*TORCH, "--epochs", "1", "--steps", "9"], "received both epochs=1 and steps=9"),
    "float16": (
        [*TORCH, "--precision", "float16"],
        "'--precision': received float16; float16 needs scaled losses.*use bfloat16",
    ),
    "float16 in the config file": (
        [*TORCH, "--config", "float16.toml"],
        "float16.toml:1: key 'precision'.*use bfloat16",
    ),
    "an optimizer of another name": ([*TORCH, "--optimizer", "AdamW"], "received AdamW; adam with a weight decay"),
    "unknown model": ([*TORCH, "--model", "resnext"], "unknown model 'resnext'"),
    "unknown augmentation": ([*TORCH, "--augment", "flip,rotate"], "unknown augmentation 'rotate'"),
    "dataset that is missing": ([*TORCH, "--dataset", "no/where"], "dataset 'no/where' does not exist"),
    "dataset of the hub": ([*TORCH, "--dataset", "mnist"], "Did you mean 'hf:ylecun/mnist'"),
    "dataset that is empty": ([*TORCH, "--dataset", "empty"], "'empty' is not a dataset: it holds no images"),
    "dataset with one class": ([*TORCH, "--dataset", "one-class"], "has one class only"),
    "dataset that is a file": ([*TORCH, "--dataset", "file"], "is a file, not a folder"),
    "corrupt image": ([*TORCH, "--dataset", "corrupt"], r"05\.jpg' cannot be decoded: .*--skip-corrupt"),
    "damaged store": ([*TORCH, *TINY, "--dataset", "damaged"], "the checksum of split train does not match"),
    "store of another size": ([*TORCH, "--dataset", "store"], "holds images of 32 px, received image_size 64"),
    "profiled steps that are none": ([*TORCH, "--profile-steps", "3"], "received '3', expected FIRST:LAST"),
    "profiled steps backwards": ([*TORCH, "--profile-steps", "5:3"], "profile_steps: received .*a later last one"),
    "profiled steps after the end": ([*TORCH, *TINY, "--profile-steps", "5:99"], "received 5:99, but the run has"),
    "weights that are missing": ([*TORCH, "--weights", "nowhere"], "received 'nowhere', which cannot be read"),
    "regularization of nothing": (
        [*TORCH, "--model", "toy-cnn", "--regularization", "shared"],
        "toy-cnn has no dropout and no stochastic depth",
    ),
    "run directory in use": ([*TORCH, "--run-dir", "used"], "run directory 'used' already holds a run"),
    "unknown key in the config file": (
        [*TORCH, "--config", "unknown.toml"],
        r"unknown.toml:2: key 'epoch' is unknown; .*Did you mean 'epochs'",
    ),
    "wrong type in the config file": (
        [*TORCH, "--config", "type.toml"],
        r"type.toml:3: key 'image_size': received '64', expected an integer",
    ),
    "config file that is not TOML": ([*TORCH, "--config", "broken.toml"], "is not valid TOML"),
    "config file with a number of 5,000 digits": ([*TORCH, "--config", "long.toml"], "long.toml' is not valid TOML"),
    "config file with deep brackets": ([*TORCH, "--config", "deep.toml"], "deep.toml' is not valid TOML: .* too deep"),
    "config file of megabytes": (
        [*TORCH, "--config", "large.toml"],
        "large.toml' is not valid TOML: .* 1,000,000 bytes",
    ),
    "config file of megabytes, in letters of two bytes": (
        [*TORCH, "--config", "letters.toml"],
        "letters.toml' is not valid TOML: .* 1,000,000 bytes",
    ),
    "config file with a key of many parts": ([*TORCH, "--config", "parts.toml"], "a line has more than 100 dots"),
    "infinite time in the config file": ([*TORCH, "--config", "inf.toml"], "'progress_timeout': received inf"),
    "infinite time": ([*TORCH, "--progress-timeout", "inf"], "received 'inf', expected a finite number"),
    "time that becomes infinite": ([*TORCH, "--start-timeout", "1e400"], "received '1e400', expected a finite number"),
    "learning rate that is not a number": ([*TORCH, "--lr", "nan"], "received 'nan', expected a finite number"),
    "config file that is missing": ([*TORCH, "--config", "missing.toml"], "missing.toml.* cannot be read"),
    "interpreter that is missing": (
        [*TORCH, "--python", "torch=/no/python"],
        "'/no/python' for torch cannot be used",
    ),
    "interpreter of nothing": ([*TORCH, "--python", "/usr/bin/python3"], "expected FRAMEWORK=PATH"),
    "unknown option": ([*TORCH, "--batch", "3"], "No such option"),
}


@pytest.fixture
def bad_input(photos, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "result.json").touch()
    (tmp_path / "unknown.toml").write_text("# a comment\nepoch = 3\n")
    (tmp_path / "type.toml").write_text("\nepochs = 3\nimage_size = '64'\n")
    (tmp_path / "float16.toml").write_text("precision = 'float16'\n")
    (tmp_path / "broken.toml").write_text("epochs = = 3\n")
    (tmp_path / "long.toml").write_text(f"steps = {'9' * 5000}\n")
    (tmp_path / "deep.toml").write_text(f"arm = {'[' * 5000}{']' * 5000}\n")
    (tmp_path / "large.toml").write_text("# comment\n" * 200_000)
    (tmp_path / "letters.toml").write_text(f"# {'é' * 500_000}\nno TOML\n")
    (tmp_path / "parts.toml").write_text(f"{'a.' * 20_000}a = 1\n")
    (tmp_path / "inf.toml").write_text("progress_timeout = inf\n")
    store = prepare(photos, tmp_path / "damaged", 32)
    shutil.copytree(store.path, tmp_path / "store")
    content = bytearray((store.path / "train-images.npy").read_bytes())
    content[-1] ^= 1
    (store.path / "train-images.npy").write_bytes(content)
    shutil.copytree(photos / "cat", tmp_path / "one-class" / "cat")
    (photos / "cat" / "05.jpg").write_text("no image")
    photos.rename(tmp_path / "corrupt")
    return tmp_path


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
@pytest.mark.torch
@pytest.mark.tensorflow
def test_wrong_requests_are_refused_before_anything_starts(bad_input, arguments, message):
    before = sorted(bad_input.rglob("*"))
    refused = invoke("run", *arguments)
    assert refused.code == 2
    assert re.search(message, refused.stderr, re.DOTALL), refused.stderr
    assert "Traceback" not in refused.stderr
    assert refused.stdout == ""
    assert sorted(bad_input.rglob("*")) == before


def test_all_wrong_keys_of_a_config_file_are_named_at_once(tmp_path):
    (tmp_path / "many.toml").write_text("a = 1\nb = 2\nseed = true\nlearning_rate = 'fast'\n")
    refused = invoke("run", *TORCH, "--config", "many.toml")
    assert refused.code == 2
    assert len(re.findall(r"many\.toml:\d: key", refused.stderr)) == 4


def test_unknown_keys_are_answered_with_the_options_like_them(tmp_path):
    (tmp_path / "study.toml").write_text('arms = ["torch:ddp"]\n')
    refused = invoke("compare", "study.toml")
    assert refused.code == 2
    assert "expected an option such as arm" in refused.stderr
    assert "Did you mean 'arm'?" in refused.stderr
    assert len(refused.stderr) < 300
    (tmp_path / "tables.toml").write_text('[[arm]]\nmode = "ddp"\n')
    assert 'such as arm = ["FRAMEWORK:MODE' in invoke("compare", "tables.toml").stderr
    assert "Did you mean '--version'?" in invoke("version").stderr
    assert "Did you mean 'precision'?" in invoke("compare", "--arm", "torch:ddp,precison=float64").stderr


def test_a_wrong_value_of_a_variable_is_blamed_on_the_variable():
    refused = invoke("run", *TORCH, DPCOMPARE_NODES="abc")
    assert refused.code == 2
    assert "environment variable DPCOMPARE_NODES: 'abc' is not a valid integer" in refused.stderr


def test_a_variable_that_no_option_reads_is_told():
    planned = invoke("plan", *TORCH, DPCOMPARE_NODE="2", DPCOMPARE_SEED="1")
    assert planned.code == 0
    told = [line for line in planned.stderr.splitlines() if line.startswith("warning")]
    assert told == [
        "warning: the environment variable DPCOMPARE_NODE is set, but no option reads it. "
        "Did you mean 'DPCOMPARE_NODES'?"
    ]


@pytest.mark.parametrize("command", [[], ["data"]])
def test_a_command_alone_prints_its_help_once(command):
    shown = invoke(*command)
    assert shown.code == 2
    assert shown.stderr.count("Usage:") == 1
    assert "error" not in shown.stderr


def test_options_have_their_usual_short_names():
    short = invoke("plan", "-f", "torch", "-m", "ddp", "--lr", "0.1", "--batch-size", "64", "--device", "cpu", "--json")
    workload = short.json["config"]["workload"]
    assert (workload["learning_rate"], workload["global_batch_size"]) == (0.1, 64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["torch"], "received 'torch', expected FRAMEWORK:MODE such as torch:ddp"),
        (["torch:ddp", "-m", "dp"], "received torch:ddp and --mode dp; name the mode once"),
        (["torch:single,env=old,batch_size=8"], "own: dpcompare run torch:single --env old --batch-size 8"),
        (["torch", "ddp"], "received torch ddp; expected torch:ddp"),
        (["torch:ddp", "torch:dp"], "received torch:ddp torch:dp; expected one FRAMEWORK:MODE such as torch:ddp"),
    ],
)
def test_a_mode_that_is_named_wrongly_is_refused(arguments, message):
    refused = invoke("run", *arguments)
    assert refused.code == 2
    assert message in refused.stderr


def test_the_directory_of_a_study_is_not_taken_for_a_run(tmp_path):
    (tmp_path / "study.json").write_text("{}")
    refused = invoke("run", "torch:single", "--device", "cpu", "--run-dir", tmp_path)
    assert refused.code == 2
    assert f"is a study; name a new directory, or continue the study: dpcompare compare --resume {tmp_path}" in (
        refused.stderr
    )
    assert "remove" not in refused.stderr


@pytest.mark.parametrize("flag", ["--plots", "--tensorboard", "--mlflow", "--wandb"])
def test_a_file_in_the_place_of_a_directory_is_refused(flag, tmp_path):
    (tmp_path / "notes.txt").touch()
    refused = invoke("report", tmp_path, flag, tmp_path / "notes.txt")
    assert refused.code == 2
    assert "notes.txt', which is a file; expected a directory" in refused.stderr


def test_a_mode_can_be_named_as_the_arms_of_a_study(tmp_path):
    planned = invoke("plan", "torch:ddp", "--nodes", "2", "--device", "cpu", "--json", DPCOMPARE_MODE="dp").json
    assert (planned["config"]["framework"], planned["config"]["mode"]) == ("torch", "ddp")


@pytest.mark.process
@pytest.mark.parametrize(
    ("mode", "given", "devices"),
    [
        ("torch:ddp", [], (2, 1)),
        ("torch:dp", [], (1, 2)),
        ("tensorflow:mirrored", [], (1, 2)),
        ("tensorflow:multiworker", [], (2, 1)),
        ("tensorflow:parameter-server", [], (4, 1)),
        ("torch:pipeline", [], (1, 2)),
        ("torch:single", [], (1, 1)),
        ("torch:ddp", ["--nodes", "1"], (1, 1)),
        ("torch:ddp", ["--devices-per-node", "1"], (1, 1)),
        ("torch:ddp", ["--gpus", "0,1,2,3"], (1, 4)),
        ("torch:ddp", ["--stages", "2"], (1, 2)),
    ],
)
def test_simulated_devices_are_two_replicas_by_default(mode, given, devices):
    planned = invoke("plan", mode, *given, *([] if "--gpus" in given else ["--device", "cpu"]), "--json").json
    nodes = planned["config"]["cluster"]["nodes"]
    assert (len(nodes), len(nodes[0]["devices"])) == devices


@pytest.mark.process
@pytest.mark.slow
def test_a_missing_framework_is_refused_with_its_extra(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty"], check=True)
    python = str(tmp_path / "empty" / "bin" / "python")
    refused = dpcompare("run", *TORCH, DPCOMPARE_TORCH_PYTHON=python)
    assert refused.code == 2
    assert "pip install 'dpcompare[torch]'" in refused.stderr
    listed = invoke("modes", "--json", "--python", f"torch={python}").json["modes"]
    assert {row["usable"] for row in listed if row["framework"] == "torch"} == {False}


@pytest.mark.process
@pytest.mark.slow
def test_with_json_a_refusal_is_one_object():
    refused = dpcompare("run", "--framework", "toch", "--mode", "ddp", "--json")
    assert refused.code == 2
    assert refused.json["error"]["code"] == 2
    assert "unknown framework" in refused.json["error"]["message"]


# ---- what works ----


ON_GPUS = {
    "dataset": "synthetic",
    "image_size": "the model's own",
    "global_batch_size": f"{IMAGES_PER_REPLICA} per replica, twice as many from {LARGE_MEMORY / 1e9:.0f} GB on",
    "epochs": f"{WARMUP_STEPS + MEASURED_STEPS} steps",
    "warmup_steps": f"without --epochs {WARMUP_STEPS}, at most a quarter of --steps",
}
"""What the help says of the options that have other defaults there."""


def test_the_help_shows_the_defaults_of_the_fields():
    shown = {row.name: row.settings["help"] for row in OPTIONS}
    assert shown["seed"].endswith("  [default: 0]")
    assert shown["learning_rate"].endswith("  [default: 0.001]")
    assert "default" not in shown["clip_norm"]  # None: there is no limit
    assert "default" not in shown["skip_corrupt"]
    for name, on_gpus in ON_GPUS.items():
        assert f"; on GPUs {on_gpus}]" in shown[name]


def test_the_help_shows_the_defaults_on_gpus_that_are_taken():
    assert gpu_defaults({}, models=["efficientnet-b2"], replicas=[1]).keys() - {"steps"} == ON_GPUS.keys() - {"epochs"}


def test_the_help_shows_every_option_of_a_run_in_one_group():
    listed = [name for names in OPTION_GROUPS.values() for name in names]
    assert len(listed) == len(set(listed))
    assert {row.name for row in OPTIONS} - set(listed) == {"run_dir"}
    shown = invoke("run", "--help").stdout
    assert shown.index("Mode and devices:") < shown.index("--framework TEXT") < shown.index("Training:")
    assert all(flag in shown for row in OPTIONS for flags in row.flags for flag in flags.split("/"))
    assert shown.count("FRAMEWORK:MODE") == 1  # in the usage, not as an option


@pytest.mark.process
def test_plan_shows_eight_gpus_as_two_nodes_of_four():
    planned = invoke("plan", "--framework", "torch", "--mode", "ddp", "--gpus", "0,1,2,3,4,5,6,7", "--nodes", "2")
    assert planned.code == 0
    assert "CUDA_VISIBLE_DEVICES=0,1,2,3 " in planned.stdout
    assert "CUDA_VISIBLE_DEVICES=4,5,6,7 " in planned.stdout
    assert planned.stdout.count("dpcompare.backends.torch.agent --nnodes 2") == 2
    assert len(re.findall(r"gpu \d", planned.stdout)) == 8
    assert not Path("runs").exists()


@pytest.mark.process
def test_plan_as_json_has_two_workers_on_distinct_ports():
    arguments = [
        "--framework",
        "tensorflow",
        "--mode",
        "multiworker",
        "--gpus",
        "0,1,2,3,4,5,6,7",
        "--nodes",
        "2",
    ]
    planned = invoke("plan", *arguments, "--json").json
    workers = [json.loads(node["env"]["TF_CONFIG"])["cluster"]["worker"] for node in planned["node_processes"]]
    assert workers[0] == workers[1]
    assert len(set(workers[0])) == 2
    assert planned["num_replicas"] == 8


def test_plan_respects_a_mask_that_is_set(install_gpus):
    install_gpus()
    planned = invoke("plan", "--framework", "torch", "--mode", "dp", "--json", CUDA_VISIBLE_DEVICES="3,1").json
    assert planned["node_processes"][0]["env"]["CUDA_VISIBLE_DEVICES"] == "3,1"


def test_modes_lists_every_mode():
    listed = invoke("modes")
    assert listed.code == 0
    for mode in ("single", "dp", "ddp", "mirrored", "multiworker"):
        assert f" {mode} " in listed.stdout


def test_flag_before_environment_before_file_before_default(tmp_path):
    (tmp_path / "config.toml").write_text('model = "mlp"\nseed = 1\nimage_size = 40\n')
    arguments = ["plan", *TORCH, "--json", "--config", "config.toml", "--seed", "3"]
    planned = invoke(*arguments, DPCOMPARE_SEED="2", DPCOMPARE_IMAGE_SIZE="48").json
    workload = planned["config"]["workload"]
    assert (workload["model"], workload["seed"], workload["image_size"]) == ("mlp", 3, 48)
    assert workload["global_batch_size"] == 32


@pytest.mark.process
@pytest.mark.slow
def test_a_config_file_can_hold_the_whole_request(tmp_path):
    (tmp_path / "config.toml").write_text('framework = "torch"\nmode = "ddp"\nnodes = 2\nlearning_rate = 1\n')
    planned = dpcompare("plan", "--json", "--config", "config.toml").json
    assert planned["num_nodes"] == 2


@pytest.mark.process
@pytest.mark.slow
def test_data_prepare_describes_the_store(photos):
    prepared = dpcompare("data", "prepare", "photos", "store", "--image-size", "32", "--json")
    assert prepared.code == 0
    assert prepared.json["classes"] == ["cat", "dog"]
    assert "preparing images: 20/20" in prepared.stderr
    refused = dpcompare("data", "prepare", "photos", "store", "--image-size", "32")
    assert (refused.code, "already exists" in refused.stderr) == (2, True)


@pytest.mark.torch
@pytest.mark.slow
def test_a_runs_result_goes_to_stdout_and_the_rest_to_stderr(tmp_path):
    done = dpcompare("run", *TORCH, *TINY, "--run-dir", "one", "--json")
    assert done.code == 0
    assert done.json["status"] == "completed"
    assert done.json == json.loads((tmp_path / "one" / "result.json").read_text())
    assert re.search(r"process 0: pid \d+ on \S+, node 0, local rank 0, device cpu:0", done.stderr)
    assert "step 8/8: loss" in done.stderr
    assert ESCAPE not in done.stderr
    table = invoke("report", "one")
    assert table.code == 0
    assert "One arm alone: torch single 1x1." in table.stdout
    assert dpcompare("report", "one", "--json").json["arms"][0]["rounds_shown"][0]["run_dir"] == "one"


@pytest.mark.torch
@pytest.mark.slow
def test_forced_colour_does_not_animate_a_pipe():
    done = dpcompare("run", *TORCH, *TINY, FORCE_COLOR="1")
    assert done.code == 0
    assert f"{ESCAPE}[2K" not in done.stderr
    assert "images/s over 3 measured steps" in done.stdout
    assert "result" in done.stdout
    speed, *commands = done.stderr.splitlines()[-3:]
    assert re.fullmatch(r"torch single on 1 device: [\d.]+ images/s", speed)
    assert [line.split()[:3] for line in commands] in (
        [["next:", "dpcompare", "compare"], ["next:", "dpcompare", "report"]],
        [["next:", "dpcompare", "setup"], ["next:", "dpcompare", "report"]],
    )


@pytest.mark.torch
@pytest.mark.slow
def test_a_terminal_gets_a_live_bar():
    command = [sys.executable, "-m", "dpcompare", "run", *TORCH, *TINY[:4], "--steps", "100"]
    shown = on_terminal(command, 120, environment=os.environ | {"TERM": "xterm"}, stdout=subprocess.DEVNULL)
    assert re.search("/100.*images/s", shown)
    assert "\x1b[2K" in shown


def wait_for(process, pattern, path):
    deadline = time.monotonic() + 120
    while not (path.is_file() and re.search(pattern, path.read_text())):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


DDP = ["--framework", "torch", "--mode", "ddp", "--nodes", "2"]
MULTIWORKER = ["--framework", "tensorflow", "--mode", "multiworker", "--nodes", "2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "number"),
    [
        pytest.param(DDP, signal.SIGINT, marks=pytest.mark.torch, id="ddp-int"),
        pytest.param(MULTIWORKER, signal.SIGTERM, marks=pytest.mark.tensorflow, id="multiworker-term"),
    ],
)
def test_an_interrupted_run_ends_with_130_and_keeps_its_figures(tmp_path, mode, number):
    saving = ("--steps", "1000000", "--checkpoint-every", "10")
    process = start("run", *mode, *TINY[:4], *saving, "--run-dir", "run", "--json")
    for rank in range(2):
        wait_for(process, '"train"', tmp_path / "run" / "events" / f"process-{rank}.jsonl")
    deadline = time.monotonic() + 600
    while not checkpoint_paths(tmp_path / "run"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=600)
    assert process.returncode == 130
    assert json.loads(stdout)["error"]["code"] == 130
    assert "Traceback" not in stderr
    assert "to continue from the newest checkpoint: dpcompare run --resume run\n" in stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "interrupted"
    assert result["train_loss"]


def test_want_of_memory_is_told_in_words(monkeypatch):
    def without_memory(*arguments):
        raise MemoryError

    monkeypatch.setattr("dpcompare.cli.progress.StudyView", without_memory)
    done = invoke("watch", ".")
    assert done.code == 1
    assert "error: this process has no memory left" in done.stderr
