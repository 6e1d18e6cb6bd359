"""Splitting devices into nodes."""

import os

import joblib
import pytest

from dpcompare.config.cluster import Cluster, topology_in_words
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.system.devices import available_cores, installed_gpus, invisible_gpus, visible_gpus

MIG = """\
GPU 0: NVIDIA H200 (UUID: GPU-aaaa0000)
  MIG 1g.18gb     Device  0: (UUID: MIG-1111)
  MIG 1g.18gb     Device  1: (UUID: MIG-2222)
GPU 1: NVIDIA H200 (UUID: GPU-bbbb1111)
"""


def shares(cluster):
    return [",".join(node.devices) for node in cluster.nodes]


@pytest.mark.parametrize(("num_nodes", "expected"), [(1, ["0,1,2,3"]), (2, ["0,1", "2,3"]), (4, ["0", "1", "2", "3"])])
def test_visible_gpus_are_split_evenly(install_gpus, num_nodes, expected):
    install_gpus()
    cluster = Cluster.partition(num_nodes)
    assert cluster.device_type == "gpu"
    assert shares(cluster) == expected


def test_eight_absent_gpus_split_as_four_by_two():
    cluster = Cluster.partition(4, 2, gpus=[str(i) for i in range(8)])
    assert shares(cluster) == ["0,1", "2,3", "4,5", "6,7"]


def test_a_topology_is_shown_in_words():
    assert Cluster.partition(2, 4, gpus=[str(i) for i in range(8)]).in_words == "2 nodes x 4 GPUs"
    assert Cluster.partition(1, 2, device="cpu").in_words == "1 node x 2 CPU devices"
    assert Cluster.partition(1, 1, device="tpu").in_words == "1 node x 1 TPU core"
    assert topology_in_words(3, 1) == "3 nodes x 1 device"


def test_fewer_devices_than_visible(install_gpus):
    install_gpus()
    assert shares(Cluster.partition(2, 1)) == ["0", "1"]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("2,3", ["2", "3"]),
        ("3,0", ["3", "0"]),
        ("GPU-bbbb1111,GPU-aaaa", ["GPU-bbbb1111", "GPU-aaaa"]),
        ("1,9,2", ["1"]),  # CUDA stops at the first entry that names no device
        ("", []),
        ("-1", []),
    ],
)
def test_a_mask_that_is_set_is_respected(install_gpus, monkeypatch, mask, expected):
    install_gpus()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    assert visible_gpus(installed_gpus()) == expected


def test_mig_devices_take_the_place_of_their_gpu(install_gpus):
    install_gpus(MIG)
    assert visible_gpus(installed_gpus()) == ["MIG-1111", "MIG-2222", "1"]
    assert visible_gpus(installed_gpus(), {"CUDA_VISIBLE_DEVICES": "MIG-2222"}) == ["MIG-2222"]


@pytest.mark.parametrize("gpus", [["0", "0"], ["0", "GPU-aaaa0000"]])
def test_one_gpu_twice_is_refused_with_the_reason(install_gpus, gpus):
    install_gpus()
    with pytest.raises(RequestError, match="name a physical GPU more than once"):
        Cluster.partition(1, gpus=gpus)


def test_mig_devices_that_cannot_train_together_are_refused(install_gpus):
    install_gpus(MIG)
    with pytest.raises(RequestError, match=r"^MIG-1111, MIG-2222 are MIG slices of one GPU, .* turn MIG off"):
        Cluster.partition()
    with pytest.raises(RequestError, match=r"^a process sees one MIG slice at most; .* \(--devices-per-node 1\)"):
        Cluster.partition(gpus=["MIG-1111", "1"])
    assert shares(Cluster.partition(2, gpus=["MIG-1111", "1"])) == ["MIG-1111", "1"]


def test_a_mask_that_names_one_gpu_twice_is_refused(install_gpus, monkeypatch):
    install_gpus()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,0")
    with pytest.raises(RequestError, match=r"^received GPUs 0,0, which name a physical GPU more than once \(0\)"):
        Cluster.partition()


def test_gpus_are_recognised_by_any_of_their_names(install_gpus, monkeypatch):
    install_gpus()
    assert invisible_gpus(["0", "GPU-bbbb1111", "GPU-cccc", "7", "GPU-none"]) == ["7", "GPU-none"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-aaaa0000")
    assert invisible_gpus(["0", "1"]) == ["1"]


def test_cpu_devices_are_made_up_where_there_is_no_gpu():
    cluster = Cluster.partition(2)
    assert cluster.device_type == "cpu"
    assert shares(cluster) == ["cpu:0", "cpu:1"]
    assert shares(Cluster.partition(2, 2)) == ["cpu:0,cpu:1", "cpu:2,cpu:3"]


def test_cpu_can_be_chosen_beside_gpus(install_gpus):
    install_gpus()
    assert Cluster.partition(1, device="cpu").devices == ("cpu:0",)


def test_as_many_cores_as_joblib_says():
    assert available_cores() == joblib.cpu_count()


@pytest.mark.parametrize(
    ("files", "share"),
    [
        ({}, 1),
        ({"cpu.max": "max 100000\n"}, 1),
        ({"cpu.max": "100000 100000\n"}, 0),
        ({"cpu.max": "20000 100000\n"}, 0),
        ({"cpu.max": "99900000 100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0),
    ],
)
def test_a_limit_of_a_container_is_respected(tmp_path, files, share):
    """Limits of one core or less, and such that leave all of those that the affinity allows."""
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert available_cores(tmp_path) == (len(os.sched_getaffinity(0)) if share else 1)


def test_affinity_is_respected(tmp_path):
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert available_cores(tmp_path) == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(("num_cores", "num_nodes", "expected"), [(8, 2, 4), (2, 2, 1), (2, 4, 1)])
def test_nodes_share_the_cores(num_cores, num_nodes, expected):
    cluster = Cluster.partition(num_nodes, num_cores=num_cores)
    assert {node.num_cores for node in cluster.nodes} == {expected}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_nodes": 0}, "nodes: received 0"),
        ({"devices_per_node": 0}, "devices per node: received 0"),
        ({"num_nodes": 3, "gpus": ["0", "1", "2", "3"]}, "4 devices do not divide evenly among 3 nodes"),
        ({"num_nodes": 4, "gpus": ["0", "1"]}, "4 nodes need at least 4 devices, but 2 are visible"),
        (
            {"num_nodes": 2, "devices_per_node": 2, "gpus": ["0", "1", "2"]},
            "need 4 gpu devices, but 3 are visible",
        ),
        ({"device": "gpu"}, "no GPU is visible here"),
        ({"device": "cpu", "gpus": ["0"]}, "both a list of GPUs and the device type cpu"),
        ({"gpus": []}, "received an empty list"),
    ],
)
def test_what_cannot_be_split_is_refused(arguments, message):
    with pytest.raises(RequestError, match=message):
        Cluster.partition(**arguments)


def test_a_mask_that_hides_all_gpus_is_named(install_gpus, monkeypatch):
    install_gpus()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(RequestError, match="CUDA_VISIBLE_DEVICES='' leaves none"):
        Cluster.partition(device="gpu")


def test_one_gpu_stands_for_several_where_it_is_asked_for():
    shared = Cluster.partition(2, 2, gpus=["3", "5"], share_gpu=True)
    assert [node.devices for node in shared.nodes] == [("3", "3")] * 2
    assert shared.shared
    assert Cluster.model_validate_json(shared.model_dump_json()) == shared
    assert Cluster.partition(1, gpus=["0"], share_gpu=True).num_devices == 2
    assert Cluster.partition(2, gpus=["0"], share_gpu=True).num_devices == 2
    with pytest.raises(RequestError, match="--share-gpu: received with the device type cpu"):
        Cluster.partition(2, 1, device="cpu", share_gpu=True)
    with pytest.raises(RequestError, match="--share-gpu: received for one replica"):
        Cluster.partition(1, 1, gpus=["0"], share_gpu=True)
    with pytest.raises(RequestError, match="--share-gpu emulates several on one"):
        Cluster.partition(1, 2, gpus=["0", "0"])


@pytest.mark.parametrize(
    ("mode", "changes", "problem"),
    [
        ("fsdp", {}, "share_gpu: received with torch fsdp, whose collectives only NCCL carries between GPUs"),
        ("pipeline", {"stages": 2}, "share_gpu: received with torch pipeline"),
        ("ddp", {"stages": 2}, "share_gpu: received with 2 stages, which are on different GPUs; expected 1"),
        (
            "ddp",
            {
                "tune": {"batchnorm_kernels": "SyncBatchNorm"},
                "workload": {"batchnorm": "sync", "profile": "native"},
            },
            "tune: received batchnorm_kernels=SyncBatchNorm with share_gpu",
        ),
    ],
)
def test_what_only_nccl_carries_is_refused_on_a_shared_gpu(mode, changes, problem):
    shared = Cluster.partition(1, 2, gpus=["0"], share_gpu=True)
    with pytest.raises(RequestError, match=problem):
        RunConfig(framework="torch", mode=mode, cluster=shared, **changes)
    assert RunConfig(framework="torch", mode="ddp", cluster=shared).collective == "gloo"
    assert RunConfig(framework="torch", mode="ddp", cluster=shared).emulated
