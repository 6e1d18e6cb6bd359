"""Operations and bytes per second of a run, and what they are of a device's peaks."""

import pytest

from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.run_fields import Inputs
from dpcompare.config.workload import Workload
from dpcompare.models.costs import training_flops, values_moved
from dpcompare.results.computed import utilization_figures
from dpcompare.system.peaks import PEAKS, peak_of

INPUTS = Inputs(
    **{"store": "s", "store_sha256": "", "weights": "w", "weights_sha256": ""},
    **{"num_classes": 10, "num_train": 100, "num_validation": 10, "num_skipped": 0},
)
H100 = "NVIDIA H100 80GB HBM3"


def figures(speed=1000.0, gpus=2, names=(H100,), *, tf32=False, shared=False, **workload):
    cluster = Cluster.partition(1, gpus, gpus=[str(gpu) for gpu in range(gpus)], share_gpu=shared)
    asked = Workload(**{"model": "efficientnet-b2", "image_size": 260, "global_batch_size": 64, **workload})
    config = RunConfig(framework="torch", mode="ddp", workload=asked, cluster=cluster, inputs=INPUTS)
    return utilization_figures(config, speed, list(names) * gpus, tf32=tf32)


def test_operations_and_bytes_are_per_device_and_by_precision():
    flops, values = training_flops("efficientnet-b2", 260, 10), values_moved("efficientnet-b2", 260, 10)
    found = figures()
    assert found["flops_per_image"] == flops
    assert found["achieved_flops"] == 500 * flops
    assert found["achieved_bandwidth"] == 500 * values * 4
    assert found["model_flops_utilization"] == pytest.approx(500 * flops / 66.9e12)
    assert found["bandwidth_utilization"] == pytest.approx(500 * values * 4 / 3.35e12)
    assert figures(tf32=True)["model_flops_utilization"] == pytest.approx(500 * flops / 494.7e12)
    in_bfloat16 = figures(precision="bfloat16")
    assert in_bfloat16["model_flops_utilization"] == pytest.approx(500 * flops / 989.4e12)
    assert in_bfloat16["achieved_bandwidth"] == 500 * values * 2
    assert "989.4 TFLOP/s in bfloat16" in in_bfloat16["peak_source"]


@pytest.mark.parametrize(
    "changes", [{"names": ["Some GPU"]}, {"names": [H100, "NVIDIA H200"], "gpus": 1}, {"shared": True}]
)
def test_without_one_peak_there_is_no_utilization(changes):
    found = figures(**changes)
    gpus = 1 if changes.get("shared") else changes.get("gpus", 2)
    assert found["achieved_flops"] == 1000 / gpus * training_flops("efficientnet-b2", 260, 10)
    assert (found["model_flops_utilization"], found["peak_source"]) == (None, None)


def test_without_a_speed_there_is_nothing():
    assert figures(speed=None) == {}


@pytest.mark.parametrize(
    ("name", "bandwidth"),
    [
        ("NVIDIA H100 80GB HBM3", 3.35e12),
        ("NVIDIA H100 PCIe", 2.0e12),
        ("NVIDIA H200", 4.8e12),
        ("NVIDIA A100-SXM4-40GB", 1.555e12),
        ("NVIDIA A100 80GB PCIe", 1.935e12),
        ("Tesla T4", 0.32e12),
        ("NVIDIA A10", 0.6e12),
        ("NVIDIA A100X", None),
        ("NVIDIA L40", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA GeForce RTX 4090", 1.008e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("cpu:0", None),
    ],
)
def test_a_gpu_is_known_by_its_name(name, bandwidth):
    peak = peak_of(name)
    assert (peak and peak.bandwidth) == bandwidth


def test_peaks_name_their_source_and_rise_as_precision_falls():
    for peak in PEAKS.values():
        assert "NVIDIA" in peak.source
        assert peak.flops["float32"] <= peak.flops.get("tf32", 1e99) <= peak.flops.get("bfloat16", 1e99)
