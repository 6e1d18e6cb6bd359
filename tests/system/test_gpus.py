"""The GPUs of a machine: imitated programs and libraries of the driver, which is absent."""

import sys
from types import SimpleNamespace

import pytest

from dpcompare.config.cluster import Cluster
from dpcompare.errors import RequestError
from dpcompare.system import devices
from dpcompare.system.devices import (
    Gpu,
    compute_capabilities,
    gpu_memory,
    gpus_without_slices,
    installed_gpus,
    used_gpus,
    visible_gpus,
)
from tests.conftest import NVIDIA_SMI
from tests.support.command import invoke
from tests.support.nvml import Nvml

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _asked_anew():
    installed_gpus.cache_clear()
    yield
    installed_gpus.cache_clear()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with an nvidia-smi that is this shell script, if any, and these device files; without NVML."""

    def make(script=None, files=()):
        programs, device_files = tmp_path / "bin", tmp_path / "dev"
        programs.mkdir()
        device_files.mkdir()
        for name in files:
            (device_files / name).touch()
        if script is not None:
            (programs / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
            (programs / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        monkeypatch.setattr(devices, "DEVICE_FILES", device_files)
        monkeypatch.setitem(sys.modules, "pynvml", None)
        return programs

    return make


class NVMLError(Exception):
    pass


def nvml(monkeypatch, *uuids, mig=()):
    """An NVML that knows these GPUs; those of `mig` (GPU, part) are cut into parts."""

    def part(handle, index):
        parts = [name for gpu, name in mig if gpu == handle]
        if index >= len(parts):
            raise errors.NVMLError_NotFound
        return parts[index]

    def most_parts(handle):
        if handle not in [gpu for gpu, _ in mig]:
            raise errors.NVMLError_NotSupported
        return 7

    errors = SimpleNamespace(
        NVMLError_NotFound=type("NVMLError_NotFound", (NVMLError,), {}),
        NVMLError_NotSupported=type("NVMLError_NotSupported", (NVMLError,), {}),
    )

    def init():
        if not uuids:
            raise NVMLError("Driver Not Loaded")

    library = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=init,
        nvmlDeviceGetCount=lambda: len(uuids),
        nvmlDeviceGetHandleByIndex=lambda index: uuids[index],
        nvmlDeviceGetUUID=lambda handle: handle,
        nvmlDeviceGetName=lambda handle: "NVIDIA H200",
        nvmlDeviceGetMaxMigDeviceCount=most_parts,
        nvmlDeviceGetMigDeviceHandleByIndex=part,
        **vars(errors),
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)


def test_a_machine_without_a_driver_has_no_gpus(machine):
    machine()
    assert installed_gpus() == []
    assert Cluster.partition(2, 1).device_type == "cpu"


def test_where_nvidia_smi_is_not_installed_nvml_is_asked(machine, monkeypatch):
    machine(files=["nvidia0", "nvidia1", "nvidiactl"])
    nvml(monkeypatch, "GPU-aaaa", "GPU-bbbb", mig=[("GPU-bbbb", "MIG-1"), ("GPU-bbbb", "MIG-2")])
    assert installed_gpus() == [
        Gpu(index="0", uuid="GPU-aaaa", name="NVIDIA H200"),
        Gpu(index="1", uuid="GPU-bbbb", name="NVIDIA H200", mig=["MIG-1", "MIG-2"]),
    ]


@pytest.mark.parametrize("script", [None, "echo Failed to initialize NVML: Driver/library version mismatch; exit 18"])
def test_gpus_that_cannot_be_listed_are_refused(machine, monkeypatch, script):
    machine(script, files=["nvidia0", "nvidiactl"])
    nvml(monkeypatch)
    with pytest.raises(RequestError, match=r"has .*/nvidia0, but its GPUs cannot be listed: .*Driver Not Loaded"):
        Cluster.partition(1, 1, device="auto")
    assert Cluster.partition(1, 1, device="cpu").device_type == "cpu"


def test_an_nvidia_smi_that_hangs_is_ended_and_nvml_left_alone(machine, monkeypatch):
    machine("sleep 60", files=["nvidia0"])
    monkeypatch.setattr(devices, "LISTING_SECONDS", 0.5)
    nvml(monkeypatch, "GPU-aaaa")
    with pytest.raises(RequestError, match=r"timed out after 0\.5 seconds"):
        installed_gpus()


def test_a_drivers_program_without_gpus_is_no_obstacle(machine):
    machine("echo NVIDIA-SMI has failed; exit 9")
    assert Cluster.partition(1, 1).device_type == "cpu"


def test_a_command_asks_once(machine, tmp_path):
    (tmp_path / "listing").write_text(NVIDIA_SMI)
    machine(f'echo "$1" >> {tmp_path}/asked; cat {tmp_path}/listing')
    done = invoke(
        "plan", "--framework", "torch", "--mode", "ddp", "--nodes", "2", "--global-batch-size", "64", "--json"
    )
    assert done.code == 0, done.stderr
    assert (tmp_path / "asked").read_text() == "-L\n"
    done = invoke("plan", "--framework", "torch", "--mode", "ddp", "--nodes", "2", "--json")
    assert done.code == 0, done.stderr
    assert (tmp_path / "asked").read_text().count("--query-gpu=uuid,memory.total") == 1  # for the default batch


def test_commands_that_need_no_gpu_go_on_and_say_so(machine):
    machine("exit 9", files=["nvidia0"])
    listed = invoke("modes")
    assert listed.code == 0
    assert "warning: this machine has" in listed.stderr
    diagnosed = invoke("doctor", "--no-trials")
    assert diagnosed.code == 3
    assert "problem GPUs: this machine has" in diagnosed.stdout


def test_gpus_of_different_models_in_one_run_are_refused(install_gpus):
    install_gpus(
        "GPU 0: NVIDIA H200 (UUID: GPU-aaaa)\nGPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-bbbb)\n"
        "GPU 2: NVIDIA H200 (UUID: GPU-cccc)\n"
    )
    with pytest.raises(RequestError, match=r"GPUs 0 \(NVIDIA H200\), 1 \(NVIDIA A100.*choose equal ones with --gpus"):
        Cluster.partition(1, 2, device="gpu")
    assert Cluster.partition(1, 2, gpus=["0", "2"]).devices == ("0", "2")
    assert Cluster.partition(1, 2, gpus=["0", "7"]).devices == ("0", "7")  # planned for another machine


def test_a_gpu_that_another_process_fills_is_named(machine, tmp_path):
    (tmp_path / "listing").write_text(NVIDIA_SMI)
    rows = "GPU-aaaa0000, 1024, 143771\\nGPU-bbbb1111, 140000, 143771\\nGPU-cccc2222, [N/A], 143771\\n"
    machine(f'case "$1" in -L) cat {tmp_path}/listing;; *) printf "{rows.split("GPU-cccc")[0]}";; esac')
    assert used_gpus(["0", "1"]) == ["1 (140,000 of 143,771 MiB)"]
    assert used_gpus(["0", "GPU-aaaa"]) == []


def test_compute_capabilities_are_found_by_any_name_of_a_gpu(machine, tmp_path):
    listing = NVIDIA_SMI + "  MIG 1g.10gb     Device  0: (UUID: MIG-1)\n"
    (tmp_path / "listing").write_text(listing)
    rows = "GPU-aaaa0000, 9.0\\nGPU-bbbb1111, 12.0\\nGPU-cccc2222, 7.5\\nGPU-dddd3333, 8.6\\n"
    machine(f'case "$1" in -L) cat {tmp_path}/listing;; *) printf "{rows}";; esac')
    assert compute_capabilities(["1", "GPU-cc", "MIG-1", "9"]) == {"1": (12, 0), "GPU-cc": (7, 5), "MIG-1": (8, 6)}


@pytest.mark.parametrize(
    "answer", ["echo GPU-aaaa0000, [N/A]", "echo 'Field \"compute_cap\" is not a valid field'; exit 2"]
)
def test_a_driver_without_the_compute_capability_is_no_error(machine, tmp_path, answer):
    (tmp_path / "listing").write_text(NVIDIA_SMI)
    machine(f'case "$1" in -L) cat {tmp_path}/listing;; *) {answer};; esac')
    assert compute_capabilities(["0"]) == {}


@pytest.mark.parametrize(
    "answer",
    ["echo GPU-aaaa, [N/A]", "echo 'Field \"compute_cap\" is not a valid field'; exit 2", "exit 9", None],
    ids=["not told", "not known", "nothing", "no nvidia-smi"],
)
def test_nvml_tells_the_compute_capability_nvidia_smi_lacks(machine, monkeypatch, answer):
    listing = "echo 'GPU 0: H100 (UUID: GPU-aaaa)'; echo 'GPU 1: T4 (UUID: GPU-bbbb)'"
    machine(answer and f'case "$1" in -L) {listing};; *) {answer};; esac', files=["nvidia0"])
    capabilities = {"GPU-aaaa": (9, 0), "GPU-bbbb": (7, 5)}
    gpus = {uuid: {"Name": "GPU", "CudaComputeCapability": each} for uuid, each in capabilities.items()}
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(gpus))
    assert compute_capabilities(["1", "GPU-aa", "7"]) == {"1": (7, 5), "GPU-aa": (9, 0)}
    del gpus["GPU-aaaa"]["CudaComputeCapability"]
    assert compute_capabilities(["GPU-aa"]) == {}


def test_where_nvidia_smi_hangs_nvml_is_not_asked(machine, monkeypatch):
    machine("case \"$1\" in -L) echo 'GPU 0: H100 (UUID: GPU-aaaa)';; *) sleep 60;; esac")
    monkeypatch.setattr(devices, "LISTING_SECONDS", 0.5)
    monkeypatch.setitem(sys.modules, "pynvml", Nvml({"GPU-aaaa": {"CudaComputeCapability": (9, 0)}}))
    assert compute_capabilities(["0"]) == {}


def test_where_the_memory_is_not_told_no_gpu_counts_as_used(machine, tmp_path):
    (tmp_path / "listing").write_text(NVIDIA_SMI)
    machine(f'case "$1" in -L) cat {tmp_path}/listing;; *) echo "GPU-aaaa0000, [N/A], [N/A]";; esac')
    assert used_gpus(["0", "1"]) == []
    assert gpu_memory(["0"]) is None


def test_the_smallest_memory_of_the_named_gpus_is_told(machine, tmp_path):
    (tmp_path / "listing").write_text(NVIDIA_SMI)
    sizes = "printf 'GPU-aaaa0000, 81559\\nGPU-bbbb1111, 24564\\nGPU-cccc2222, 81559\\nGPU-dddd3333, 81559\\n'"
    machine(f'case "$1" in -L) cat {tmp_path}/listing;; *) {sizes};; esac')
    assert gpu_memory(["0", "2"]) == 81559 << 20
    assert gpu_memory(["0", "GPU-bb"]) == 24564 << 20
    assert gpu_memory(["0", "7"]) is None


def test_a_gpu_with_mig_on_and_no_slices_is_refused(machine, tmp_path):
    (tmp_path / "listing").write_text(NVIDIA_SMI)
    modes = "printf 'GPU-aaaa0000, Enabled\\nGPU-bbbb1111, Disabled\\nGPU-cccc2222, [N/A]\\n'"
    machine(f'case "$1" in -L) cat {tmp_path}/listing;; *) {modes};; esac')
    assert gpus_without_slices(["0", "1", "2"]) == ["0"]
    cut = NVIDIA_SMI.replace("\n", "\n  MIG 1g.10gb     Device  0: (UUID: MIG-1)\n", 1)
    (tmp_path / "listing").write_text(cut)
    installed_gpus.cache_clear()
    assert gpus_without_slices(["0", "MIG-1"]) == []


@pytest.mark.parametrize(
    ("environ", "is_refused"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0"}, True),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a,1"}, True),
        ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, False),
        ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, True),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a"}, False),
        ({}, False),
    ],
)
def test_numbers_that_cuda_counts_in_another_order_are_refused(environ, is_refused):
    mixed = [Gpu(index="0", uuid="GPU-a", name="T4"), Gpu(index="1", uuid="GPU-b", name="H100")]
    if is_refused:
        with pytest.raises(RequestError, match="set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by the beginning"):
            visible_gpus(mixed, environ)
    else:
        assert visible_gpus(mixed, environ)
    assert visible_gpus([gpu.model_copy(update={"name": "H100"}) for gpu in mixed], environ)
