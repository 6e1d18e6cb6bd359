"""The result of a run that completed on two replicas, field by field: no run is behind it."""

from dpcompare.config.cluster import Cluster
from dpcompare.config.placement import Placement
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.results.result import Evaluation, NodeRecord, RunResult
from dpcompare.system.gpu_state import GpuReading, GpuState

SETTINGS = {
    "optimizer": {"name": "adam", "betas": [0.9, 0.999], "epsilon": 1e-7},
    "batchnorm_epsilon": 1e-3,
    "dropout": 0.0,
    "stochastic_depth": 0.0,
    "tf32": False,
    "compilation": "none",
    "input_threads": 1,
    "steps_per_window": 1,
    "environment": {},
    "allocator": "keeps memory",
    "convolution_algorithms": "fixed",
    "cores": 2,
}


COMPUTED = {
    "optimizer_steps": 45,
    "optimizer_steps_asked": 45,
    "images": 1438,
    "images_asked": 1438,
    "images_claimed": 1438,
    "batch_digests": {1: "ab", 45: "cd"},
    "first_gradient_norm": 0.5,
    "first_evaluation_loss": 2.2,
    "first_evaluation_accuracy": 0.25,
    "first_update_norms": {"classifier.bias": 0.03, "classifier.weight": 0.04},
}


def result(
    framework="torch",
    mode="ddp",
    *,
    settings=None,
    workload=None,
    placement=None,
    computed=None,
    reuse_batch=False,
    **changes,
):
    config = RunConfig(
        framework=framework,
        mode=mode,
        workload=Workload(**workload or {}),
        placement=Placement(**placement or {}),
        cluster=Cluster.partition(1 if mode == "single" else 2, device="cpu", num_cores=2),
        reuse_batch=reuse_batch,
    )
    layout = "NCHW" if framework == "torch" else "NHWC"
    fields = {
        "status": "completed",
        "framework": framework,
        "mode": mode,
        "num_nodes": 2,
        "num_processes": 2,
        "num_replicas": 2,
        "device_type": "cpu",
        "device_names": ["cpu:0", "cpu:1"],
        "emulated": False,
        "collective": "gloo" if framework == "torch" else "ring",
        "model": config.workload.model,
        "dataset": "digits",
        "image_size": 64,
        "global_batch_size": 32,
        "precision": config.workload.precision,
        "profile": config.workload.profile,
        "images_per_second": 100.0,
        "measured_steps": 40,
        "wall_seconds": 30.0,
        "train_loss": [2.0] * 45,
        "evaluations": [Evaluation(epoch=1, step=45, loss=1.0, accuracy=0.5, count=359)],
        "sample_order_sha256": "order",
        "computed": COMPUTED | (computed or {}),
        "store_sha256": "store",
        "weights_sha256": "weights",
        "threads_per_process": 1,
        "settings": SETTINGS | {"memory_layout": layout} | (settings or {}),
        "versions": {framework: "2"},
        "config": config.model_dump(mode="json"),
    }
    return RunResult(**fields | changes)


def on_gpus(*gpus):
    node = NodeRecord(node_rank=0, host="here", device_names=["NVIDIA H100"], versions={}, gpus=list(gpus))
    return result(device_type="gpu", device_names=["NVIDIA H100"], nodes=[node])


def gpu(*, watts=700.0, link="18 NVLinks", **changes):
    reading = GpuReading(power_limit_watts=watts)
    fields = {"device": "0", "uuid": "GPU-a", "ecc": True, "links": {"GPU-b": link}, "before": reading}
    return GpuState(**fields | changes)
