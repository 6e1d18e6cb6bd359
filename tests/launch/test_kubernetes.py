"""Manifests: by the schemas that they are for, and as two processes in the place of their pods."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.support.command import invoke
from tests.support.kubernetes_schema import Manifests

TINY = ["--model", "toy-cnn", "--image-size", "32", "--dataset", "synthetic-mini", "--global-batch-size", "16"]
PLAN = ["plan", "--engine", "kubernetes", "--format", "kubernetes", "--nodes", "2", "--cores-per-node", "1"]
PLACE = ["--image", "registry.example/dpcompare:torch", "--volume-claim", "runs", "--run-dir", "runs/first-run"]
MODES = [
    pytest.param(["--framework", "torch", "--mode", "ddp"], "TrainJob", marks=pytest.mark.torch, id="torch"),
    pytest.param(
        ["--framework", "tensorflow", "--mode", "multiworker"], "Job", marks=pytest.mark.tensorflow, id="tensorflow"
    ),
]
TORCH = MODES[0].values[0]


def planned(mode, *more):
    shown = invoke(*PLAN, "--device", "cpu", *PLACE, *mode, *TINY, "--steps", "8", *more)
    assert shown.code == 0, shown.stderr
    return shown.json


@pytest.mark.parametrize(
    ("mode", "kind"),
    [*((case.values[0], case.values[1]) for case in MODES), (["--framework", "jax", "--mode", "multiprocess"], "Job")],
)
def test_manifests_are_by_the_schema(mode, kind):
    manifests = planned(mode)
    Manifests.model_validate_json(json.dumps(manifests))
    settings, job = manifests["items"]
    assert (settings["kind"], job["kind"]) == ("ConfigMap", kind)
    assert job["metadata"]["name"] == "first-run"


@pytest.mark.torch
def test_an_environment_of_variables_needs_no_other_image(monkeypatch):
    """Whatever interpreter trains here: the pods have that of their image."""
    usual = str(Path(sys.executable).with_name("python3"))
    monkeypatch.setenv("DPCOMPARE_TORCH_PYTHON", usual)
    settings, _ = planned(TORCH, "--env", "passive=OMP_WAIT_POLICY=PASSIVE")["items"]
    assert "OMP_WAIT_POLICY" in json.dumps(settings)  # each process sets it
    other = Path(sys.executable).with_name(f"python3.{sys.version_info.minor}")
    refused = invoke(*PLAN, "--device", "cpu", *PLACE, *TORCH, *TINY, "--env", f"other={other}")
    assert refused.code == 2
    assert "whose pods have that of their image" in " ".join(refused.stderr.split())


def test_a_job_without_a_name_gets_one_that_kubernetes_takes():
    shown = invoke(*PLAN, "--device", "cpu", *PLACE[:4], *TORCH, *TINY, "--steps", "8")
    assert shown.code == 0, shown.stderr
    Manifests.model_validate_json(shown.stdout)
    assert shown.json["items"][1]["metadata"]["name"].startswith("torch-ddp-")


@pytest.mark.parametrize(("mode", "kind"), MODES)
def test_pods_have_shared_memory_and_keep_compiled_kernels(mode, kind):
    _, job = planned(mode)["items"]
    if kind == "TrainJob":
        (patch,) = job["spec"]["runtimePatches"]
        (replicated,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        pods = replicated["template"]["spec"]["template"]["spec"]
        environment = job["spec"]["trainer"]["env"]
    else:
        pods = job["spec"]["template"]["spec"]
        environment = pods["containers"][0]["env"]
    (volume,) = [volume for volume in pods["volumes"] if volume.get("emptyDir")]
    assert volume["emptyDir"] == {"medium": "Memory"}
    mounted = {mount["name"]: mount["mountPath"] for mount in pods["containers"][0]["volumeMounts"]}
    assert mounted[volume["name"]] == "/dev/shm"
    assert {"name": "CUDA_CACHE_PATH", "value": "/shared/cache/cuda"} in environment


def test_gpus_are_asked_for():
    shown = invoke(*PLAN, "--device", "gpu", "--devices-per-node", "4", *PLACE, *TORCH)
    job = shown.json["items"][1]
    assert job["spec"]["trainer"]["resourcesPerNode"] == {"limits": {"cpu": "1", "nvidia.com/gpu": "4"}}


def misspelt(manifest, path, name, wrong):
    """The manifest with one field under another name, or without it."""
    changed = copy.deepcopy(manifest)
    place = changed
    for step in path:
        place = place[step]
    value = place.pop(name)
    if wrong:
        place[wrong] = value
    return changed


@pytest.mark.parametrize("wrong", [True, False], ids=["misspelt", "missing"])
@pytest.mark.parametrize(
    ("path", "name"),
    [
        (["items", 1], "apiVersion"),
        (["items", 1], "metadata"),
        (["items", 1, "spec"], "runtimeRef"),
        (["items", 1, "spec", "runtimeRef"], "name"),
        (["items", 1, "spec", "runtimePatches", 0], "manager"),
        (["items", 1, "spec", "trainer"], "numNodes"),
        (["items", 0], "data"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_manifest_with_a_misspelt_or_missing_field_is_refused(path, name, wrong):
    changed = misspelt(planned(TORCH), path, name, f"{name}s" if wrong else None)
    if name == "numNodes" and not wrong:  # optional: one node
        Manifests.model_validate_json(json.dumps(changed))
        return
    with pytest.raises(ValidationError):
        Manifests.model_validate_json(json.dumps(changed))


@pytest.mark.parametrize(("mode", "kind"), MODES)
@pytest.mark.slow
def test_the_commands_of_the_pods_make_one_run(tmp_path, mode, kind):
    """What Kubernetes adds, an index, an address and two folders, is given by hand."""
    settings, job = planned(mode)["items"]
    container = job["spec"]["trainer"] if kind == "TrainJob" else job["spec"]["template"]["spec"]["containers"][0]
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.json").write_text(settings["data"]["config.json"])
    folders = {"/shared": str(tmp_path / "shared"), "/config": str(tmp_path / "config")}
    command = container["command"]
    for inside, outside in folders.items():
        command = [part.replace(f" {inside}/", f" {outside}/") for part in command]
    given = {variable["name"]: variable.get("value", "127.0.0.1") for variable in container["env"]}
    given["DPCOMPARE_CACHE_DIR"] = f"{tmp_path}/shared/cache"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # the python3 of the image
    pods = [
        subprocess.Popen(
            command, env=os.environ | given | {"JOB_COMPLETION_INDEX": str(index), "PATH": path}, stderr=subprocess.PIPE
        )
        for index in (1, 0)
    ]
    said = [pod.communicate(timeout=600)[1] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], said
    result = json.loads((tmp_path / "shared" / "runs" / "first-run" / "result.json").read_text())
    assert (result["status"], result["num_nodes"]) == ("completed", 2)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--run-dir", "runs/First_Run", *PLACE[:4]], "'First_Run', whose last part names the job"),
        (["--max-restarts", "1", "--image", "i", "--volume-claim", "c"], "--max-restarts: received 1, but a pod"),
        (["--image", "i"], "--volume-claim: received none with engine kubernetes; expected the claim of a volume"),
        (["--volume-claim", "c"], "image: received none"),
    ],
    ids=["name", "restarts", "claim", "image"],
)  # fmt: skip
def test_what_makes_no_manifest_is_refused(asked, says):
    refused = invoke(*PLAN, "--device", "cpu", *TORCH, *asked)
    assert refused.code == 2
    assert says in refused.stderr


@pytest.mark.torch
def test_a_run_outside_of_a_pod_says_what_to_do(tmp_path):
    refused = invoke("run", *PLAN[1:3], "--nodes", "2", "--device", "cpu", *TORCH, *TINY, "--image", "i",
                    "--volume-claim", "c", "--run-dir", tmp_path / "run")  # fmt: skip
    assert refused.code == 2
    assert "`dpcompare plan --format kubernetes`" in refused.stderr
