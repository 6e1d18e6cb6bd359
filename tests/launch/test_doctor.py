"""The diagnosis of this machine, and that it can find something wrong."""

import json
import os
import sys
from importlib import import_module
from pathlib import Path

import pytest

from dpcompare.backends.cuda_wheels import gpus_seen
from dpcompare.config.cluster import Cluster
from dpcompare.config.environment import Environment
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.modes import USUAL_MODES, modes_by_default
from dpcompare.launch import doctor, findings, trial
from tests.conftest import NVIDIA_SMI
from tests.support.command import dpcompare, invoke


@pytest.mark.process
@pytest.mark.slow
def test_a_look_without_trials_tells_of_everything():
    done = dpcompare("doctor", "--no-trials", "--json", "--device", "cpu", MALLOC_ARENA_MAX="7", XLA_FLAGS="--x")
    names = {finding["name"]: finding for finding in done.json["findings"]}
    assert {"dpcompare", "system", "cores", "ports", "/dev/shm", "open files", "torch", "tensorflow", "GPUs"} <= set(
        names
    )
    assert done.code == (0 if done.json["usable"] else 3)
    assert names["ports"]["status"] == "ok"
    recorded = names["environment, as recorded"]["found"]
    assert "XLA_FLAGS=--x" in recorded
    assert "MALLOC_ARENA_MAX" in recorded
    assert "MALLOC_ARENA_MAX=7" not in recorded
    assert os.uname().release in names["system"]["found"]


@pytest.mark.process
@pytest.mark.slow
def test_an_interpreter_that_is_none_is_a_problem(tmp_path):
    done = dpcompare("doctor", "--no-trials", "--python", f"torch={tmp_path / 'nowhere'}")
    assert done.code == 3
    assert "problem torch: the interpreter" in done.stdout
    assert "name one that holds dpcompare[torch]" in done.stdout


def environment(folder: Path, **packages: list[str]) -> str:
    """An interpreter that sees distributions of these names with these files."""
    site = folder / "site"
    for name, files in packages.items():
        info = site / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
        for file in files:  # from Python 3.12 on, files that are missing are left out of a distribution's list
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            (site / file).touch()
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{site}" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


@pytest.mark.process
@pytest.mark.slow
def test_cuda_wheels_that_claim_the_same_files_are_found(tmp_path):
    library = "nvidia/nccl/lib/libnccl.so.2"
    both = {"nvidia-nccl-cu12": [library], "nvidia-nccl-cu13": [library], "torch": [], "timm": []}
    python = environment(tmp_path, **both)
    done = dpcompare("doctor", "--no-trials", "--python", f"torch={python}", "--json")
    assert done.code == 3
    (found,) = [finding for finding in done.json["findings"] if finding["name"] == "torch CUDA wheels"]
    assert found["found"].endswith("nvidia-nccl-cu12 and nvidia-nccl-cu13")
    assert "an environment of its own" in found["remedy"]


@pytest.mark.parametrize(
    ("versions", "status", "text"),
    [
        ({"torch": "2.15.0", "timm": "1.0.31", "python": "3.11.7"}, "ok", "torch 2.15.0"),
        ({"torch": "2.1.5", "timm": "1.0.31", "python": "3.11.7"}, "note", "tested with torch 2.14 and 2.15"),
        ({"torch": "2.15.0+cu132", "timm": "1.0.31", "python": "3.13.0"}, "note", "tested with python 3.11"),
        ({"python": "3.11.7"}, "problem", "torch, timm not installed"),
    ],
)
def test_versions_are_judged_by_what_was_tested(versions, status, text):
    (finding,) = findings.judge_versions("torch", ("torch", "timm"), versions, "python")
    assert finding.status == status
    assert text in finding.found + finding.remedy


def test_frameworks_are_asked_if_they_were_built_for_gpus(tmp_path, monkeypatch, install_gpus):
    """Builds and driver are imitated: torch has machine code for one of two kinds of GPUs, TensorFlow PTX."""
    listing = "GPU 0: NVIDIA H100 (UUID: GPU-aaaa)\nGPU 1: NVIDIA T4 (UUID: GPU-bbbb)\n"
    install_gpus(listing)
    program = tmp_path / "driver" / "nvidia-smi"
    rows = "printf 'GPU-aaaa, 9.0\\nGPU-bbbb, 7.5\\n'"
    program.write_text(f'#!/bin/sh\ncase "$1" in -L) cat {tmp_path}/driver/listing;; *compute_cap) {rows};; esac\n')
    builds = {"torch": ["sm_80", "sm_90"], "tensorflow": ["sm_70", "compute_90"]}
    monkeypatch.setattr(findings, "compiled_for", lambda framework, python: builds[framework])
    found = [
        (finding.name, finding.status, finding.found)
        for framework in builds
        for finding in findings._gpu_code(framework, "python", ["0", "1"])
    ]
    assert found == [
        ("torch GPU code", "problem", "none for compute capability 7.5, built for sm_80 sm_90"),
        ("torch GPU code", "ok", "machine code for compute capability 9.0, built for sm_80 sm_90"),
        ("tensorflow GPU code", "ok", "machine code for compute capability 7.5, built for sm_70 compute_90"),
        ("tensorflow GPU code", "note", "PTX for compute capability 9.0, built for sm_70 compute_90"),
    ]


def test_an_environment_is_checked_with_the_frameworks_it_holds(monkeypatch):
    def looked_at(framework, python, gpus):
        lacks = python == "/envs/gone" or (python == "/envs/old" and framework != "torch")
        yield findings.Finding(name=framework, status="problem" if lacks else "ok", found=f"as in {python}")

    def tried(framework, mode, cluster, interpreters, *, name=None, environment=None):
        own = environment and (environment.name, environment.variables, interpreters["torch"])
        return findings.Finding(name=name or f"{framework} {mode}", status="ok", found=str(own))

    monkeypatch.setattr(doctor, "limits", lambda: iter(()))
    monkeypatch.setattr(doctor, "of_framework", looked_at)
    monkeypatch.setattr(doctor, "_holds", lambda framework, python: False)
    monkeypatch.setattr(doctor, "trial", tried)
    environments = [
        (Environment(name="old", variables={"TORCH_X": "0"}), "/envs/old"),
        (Environment(name="gone"), "/envs/gone"),
    ]
    told = list(doctor.diagnose({}, device="cpu", trials=True, environments=environments))
    found = {finding.name: finding for finding in told if " in env=" in finding.name}
    assert {name for name in found if name.endswith("env=old")} == {
        "torch in env=old",
        *(f"{framework} {mode} in env=old" for framework, mode in modes_by_default() if framework == "torch"),
    }
    assert found["torch single in env=old"].found == "('old', {'TORCH_X': '0'}, '/envs/old')"
    # Of what holds nothing that is usable every reason is said once.
    (gone,) = (finding for name, finding in found.items() if name.endswith("env=gone"))
    assert gone.status == "problem"
    assert gone.remedy.startswith("`dpcompare setup --env gone REQUIREMENT...` makes one")
    # What is there and broken is shown, although another framework is usable.
    monkeypatch.setattr(doctor, "_holds", lambda framework, python: framework == "tensorflow")
    again = doctor.diagnose({}, device="cpu", trials=False, environments=environments)
    broken = {finding.name: finding.status for finding in again}
    assert broken["tensorflow in env=old"] == "problem"
    assert "jax in env=old" not in broken


@pytest.mark.process
@pytest.mark.slow
def test_without_gpus_no_framework_is_imported(monkeypatch):
    monkeypatch.setattr(findings, "compiled_for", lambda framework, python: pytest.fail("it was asked"))
    monkeypatch.setattr(doctor, "limits", lambda: iter(()))
    names = [finding.name for finding in doctor.diagnose({}, device="cpu", trials=False)]
    assert {"torch", "tensorflow"} <= set(names)


def test_a_framework_that_nobody_asked_for_is_missed_by_nobody(monkeypatch):
    def looked_at(framework, python, gpus):
        lacks = framework == "jax" and python != "/envs/jax/bin/python"
        yield findings.Finding(name=framework, status="problem" if lacks else "ok", found=python)

    monkeypatch.setattr(doctor, "limits", lambda: iter(()))
    monkeypatch.setattr(doctor, "of_framework", looked_at)
    tried = []
    monkeypatch.setattr(doctor, "trial", lambda framework, mode, *rest, **named: tried.append((framework, mode)))
    told = [found for found in doctor.diagnose({}, device="cpu", trials=True) if found]
    assert [found.status for found in told if found.name in FRAMEWORKS] == ["ok", "ok", "note"]
    assert tried == USUAL_MODES

    tried.clear()
    list(doctor.diagnose({"jax": "/envs/jax/bin/python"}, device="cpu", trials=True))
    assert tried == [
        *USUAL_MODES,
        *(("jax", mode) for mode in ("single", "spmd", "multiprocess", "jit")),
    ]

    lacking = doctor.diagnose({"jax": "/envs/broken"}, device="cpu", trials=False)
    assert "problem" in [found.status for found in lacking]


@pytest.mark.process
@pytest.mark.parametrize(
    ("prints", "status", "found"),
    [
        ("echo 2", "ok", "it finds 2 of 2"),
        ("echo 1", "note", "it finds 1 of 2"),
        ("echo 0; echo no CUDA-enabled jaxlib >&2", "problem", "it finds 0 of 2: no CUDA-enabled jaxlib"),
        ("exit 1", "problem", "the jax of "),
    ],
)
def test_a_framework_is_asked_how_many_gpus_it_finds(tmp_path, prints, status, found):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{prints}\n")
    python.chmod(0o755)
    finding = findings._gpus_seen("jax", str(python), ["0", "1"])
    assert (finding.name, finding.status) == ("jax GPUs", status)
    assert finding.found.startswith(found)


@pytest.mark.jax
def test_without_gpus_jax_finds_none():
    assert gpus_seen("jax", sys.executable)[0] == 0


@pytest.mark.torch
@pytest.mark.slow
def test_a_mode_that_works_says_how():
    finding = trial.trial("torch", "ddp", Cluster.partition(2, 1, device="cpu"), {})
    assert finding.status == "ok"
    assert finding.found.startswith("works on 2 cpu replicas, collectives by gloo")


def test_every_pair_of_gpus_is_tried(install_gpus, monkeypatch):
    tried = []

    def note(framework, mode, cluster, interpreters, name=None):
        tried.append((mode, cluster.devices, name))
        return findings.Finding(name=name or mode, status="ok", found="")

    install_gpus(NVIDIA_SMI)
    monkeypatch.setattr(doctor, "trial", note)
    monkeypatch.setattr(doctor, "of_framework", lambda *arguments, **options: iter(()))
    list(doctor.diagnose({}, device="auto", trials=True))
    pairs = [(devices, name) for mode, devices, name in tried if name]
    assert len(pairs) == 6
    assert pairs[0][1] == f"all-reduce between GPUs {pairs[0][0][0]} and {pairs[0][0][1]}"
    assert len({frozenset(devices) for devices, _ in pairs}) == 6


@pytest.mark.parametrize(
    ("listing", "why"),
    [
        ("GPU 0: NVIDIA H200 (UUID: GPU-a)\n  MIG 3g.71gb     Device  0: (UUID: MIG-1)\n"
         "  MIG 3g.71gb     Device  1: (UUID: MIG-2)\n  MIG 1g.18gb     Device  2: (UUID: MIG-3)\n",
         "MIG-1, MIG-2 are MIG slices of one GPU"),
        ("GPU 0: NVIDIA H200 (UUID: GPU-a)\nGPU 1: NVIDIA A100 (UUID: GPU-b)\nGPU 2: NVIDIA H200 (UUID: GPU-c)\n",
         "are of different models"),
    ],
    ids=["MIG", "mixed"],
)  # fmt: skip
def test_gpus_that_no_run_can_combine_are_a_note(install_gpus, monkeypatch, listing, why):
    tried = []
    install_gpus(listing)
    monkeypatch.setattr(
        doctor, "trial", lambda framework, mode, cluster, interpreters, name=None: tried.append(cluster.devices)
    )
    monkeypatch.setattr(doctor, "of_framework", lambda *arguments, **options: iter(()))
    told = [finding for finding in doctor.diagnose({}, device="auto", trials=True) if finding]
    (note,) = [finding for finding in told if finding.name == "GPUs together"]
    assert why in note.found
    assert (note.status, note.remedy) == ("note", "the modes are tried on one")
    first = tried[0]
    assert len(first) == 1
    pairs = [("0", "2")] if "A100" in listing else []
    assert [devices for devices in tried if devices != first] == pairs


@pytest.mark.torch
@pytest.mark.slow
def test_a_mode_that_fails_or_hangs_is_a_problem(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'dpcompare.worker' in sys.orig_argv:\n    import time; time.sleep(60)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setitem(trial.TRIAL_SECONDS, "cpu", 3)
    hanging = trial.trial("torch", "single", Cluster.partition(device="cpu"), {})
    assert (hanging.status, hanging.found) == ("problem", "no end after 3 s")
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'dpcompare.worker' in sys.orig_argv:\n    raise SystemExit('broken on purpose')\n"
    )
    failing = trial.trial("torch", "single", Cluster.partition(device="cpu"), {})
    assert failing.status == "problem"
    assert "keeps all logs" in failing.remedy


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_noise_tells_what_can_be_detected(monkeypatch):
    small = {"model": "toy-bn", "image_size": 16, "global_batch_size": 16, "steps": 12, "warmup_steps": 2}
    module = import_module("dpcompare.cli.doctor")  # its name in the package is the command
    monkeypatch.setattr(module, "WORKLOAD_OF_NOISE", small)
    done = invoke("doctor", "--no-trials", "--noise", "6", "--device", "cpu", "--json")
    noise = json.loads(done.stdout)["noise"]
    assert noise["rounds"] == 6
    assert 0 < noise["detectable"] < float("inf")  # how much, is the machine's
    assert "Here a study of 6 rounds" in noise["sentence"]
