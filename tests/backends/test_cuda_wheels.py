"""What an environment's distributions say about using GPUs, before anything is started on them."""

import pytest

from dpcompare.backends import cuda_wheels
from dpcompare.backends.cuda_wheels import CudaWheels, cuda_problem
from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError
from dpcompare.launch.run import run
from tests.conftest import NVIDIA_SMI

CUDA_12 = {"nvidia-cuda-runtime-cu12": "12.5.82", "nvidia-cudnn-cu12": "9.3.0"}
CUDA_13 = {"nvidia-cuda-runtime": "13.0.48", "nvidia-cudnn-cu13": "9.13.0"}


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A driver that says its version."""

    def install(version):
        file = tmp_path / "version"
        file.write_text(
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue Oct 22 20:52:08 UTC 2026\n"
            "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
        )
        monkeypatch.setattr(cuda_wheels, "DRIVER_VERSION", file)

    return install


def problem(framework, versions, *, finds_cudnn=False, claimed_twice=()):
    wheels = CudaWheels(versions=versions, claimed_twice=list(claimed_twice), finds_cudnn=finds_cudnn)
    return cuda_problem(framework, "python", wheels)


@pytest.mark.parametrize(("framework", "versions"), [("torch", CUDA_12), ("torch", CUDA_13), ("tensorflow", CUDA_12)])
def test_its_libraries_and_a_new_driver_make_a_sound_environment(framework, versions, driver):
    driver("580.65.06")
    assert problem(framework, versions) is None


@pytest.mark.parametrize(
    ("version", "versions", "least"), [("575.57.08", CUDA_13, "580.65"), ("515.105.01", CUDA_12, "525.60")]
)
def test_a_driver_that_is_too_old_for_the_wheels_is_named(version, versions, least, driver):
    driver(version)
    found, remedy, is_of_driver = problem("torch", versions)
    assert f"driver is {version[:6].rstrip('.')}" in found
    assert f"need at least {least}" in found
    assert "update the driver" in remedy
    assert is_of_driver


@pytest.mark.parametrize(
    ("framework", "version", "older"),
    [
        ("torch", "575.57", "pip install --upgrade torch torchvision --index-url https://"),
        ("torch", "515.105", None),  # no wheels that it supports are for CUDA 11
        ("tensorflow", "575.57", None),
    ],
)
def test_wheels_that_an_old_driver_runs_are_named(framework, version, older, driver):
    driver(version)
    _, remedy, _ = problem(framework, CUDA_13 | {"nvidia-cudnn-cu12": "9"})
    assert remedy == "update the driver" if older is None else older in remedy


@pytest.mark.parametrize(
    ("file", "is_loaded", "is_sound"),
    [
        ("libcuda.so.580.65.06", True, True),
        ("lib.real/libcuda.so.580.65.06", True, True),
        ("libcuda.so.580.65.06", False, False),
        ("libcuda.so.570.10", True, False),
        ("README", True, False),
    ],
)
def test_a_package_for_older_drivers_counts_with_a_new_library(
    tmp_path, driver, monkeypatch, file, is_loaded, is_sound
):
    driver("535.104.05")
    compatibility = tmp_path / "compat"
    (compatibility / file).parent.mkdir(parents=True)
    (compatibility / file).touch()
    monkeypatch.setattr(cuda_wheels, "COMPATIBILITY", compatibility)
    monkeypatch.setattr(cuda_wheels, "LINKER_FOLDERS", tmp_path / "none")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/elsewhere:{compatibility}" if is_loaded else "/elsewhere")
    assert (problem("torch", CUDA_13) is None) == is_sound


def test_tensorflow_without_cuda_is_told_how_to_get_it():
    found, remedy, is_of_driver = problem("tensorflow", {})
    assert "has no CUDA libraries" in found
    assert "'dpcompare[tensorflow-cuda]'" in remedy
    assert not is_of_driver
    assert problem("tensorflow", {}, finds_cudnn=True) is None  # an image of NVIDIA's
    assert problem("torch", {}) is None


def test_jax_without_its_plugin_for_gpus_is_told_how_to_get_it():
    found, remedy, _ = problem("jax", CUDA_12, finds_cudnn=True)
    assert "jax-cuda12-plugin" in found
    assert "'dpcompare[jax-cuda,keras]'" in remedy
    assert problem("jax", CUDA_12 | {"jax-cuda12-plugin": "0.10.2"}) is None


def test_jax_is_told_the_extra_of_the_newest_cuda_of_the_driver(driver):
    driver("580.65.06")
    _, remedy, _ = problem("jax", CUDA_13)
    assert remedy.endswith("'dpcompare[jax-cuda13,keras]'")  # next to torch, whose libraries they are
    driver("570.10")
    _, remedy, _ = problem("jax", {})
    assert "'dpcompare[jax-cuda,keras]', in an environment without torch" in remedy


def test_two_frameworks_in_one_environment_are_told_apart():
    found, remedy, is_of_driver = problem(
        "torch", CUDA_12 | CUDA_13, claimed_twice=["nvidia-nccl-cu12 and nvidia-nccl-cu13"]
    )
    assert "nvidia-nccl-cu12 and nvidia-nccl-cu13" in found
    assert "an environment of its own" in remedy
    assert not is_of_driver


def test_a_run_is_refused_before_anything_is_written(tmp_path, install_gpus, driver, monkeypatch):
    install_gpus(NVIDIA_SMI)
    driver("470.10")
    monkeypatch.setattr("dpcompare.launch.run.require_mode", lambda *arguments: None)
    wheels = CudaWheels(versions=CUDA_12, claimed_twice=[], finds_cudnn=False)
    monkeypatch.setattr(cuda_wheels, "cuda_wheels_of", lambda python: wheels)
    workload = Workload(model="mlp", dataset="synthetic-mini", image_size=8, steps=2, warmup_steps=0)
    config = RunConfig(
        framework="torch", mode="single", workload=workload, cluster=Cluster.partition(1, 1, device="gpu")
    )
    with pytest.raises(RequestError, match=r"torch cannot use the GPUs: this machine's driver is 470\.10"):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_gpu_that_others_fill_is_refused_with_how_full_it_is(tmp_path, install_gpus, monkeypatch):
    install_gpus(NVIDIA_SMI)
    monkeypatch.setattr("dpcompare.launch.run.require_mode", lambda *arguments: None)
    monkeypatch.setattr("dpcompare.launch.run.used_gpus", lambda names: ["1 (140,000 of 143,771 MiB)"])
    config = RunConfig(framework="torch", mode="ddp", cluster=Cluster.partition(1, 2, device="gpu"))
    with pytest.raises(
        RequestError, match=r"other processes hold most of the memory of GPUs 1 \(140,000 of 143,771 MiB"
    ):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
