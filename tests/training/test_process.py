"""What a training process records of itself, run in this one by a backend that needs no framework."""

import os
import sys
from functools import partial

import pytest

from dpcompare.backends.other_variables import make_key
from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.results.attempts import ProcessRecord
from dpcompare.results.events import Started, read_events
from dpcompare.results.run_dir import ATTEMPT_CONFIG_FILE, ATTEMPT_ID_FILE, CONFIG_FILE, process_record_path
from dpcompare.system.cores import near_cores
from dpcompare.system.machine import this_machine
from dpcompare.training import process
from tests.support.numpy_backend import NumpyBackend
from tests.support.nvml import H100, Nvml


class OnGpu(NumpyBackend):
    """Its steps warm the GPU up, its evaluations let it cool down."""

    nvml = None

    def setup(self):
        super().setup()
        self.nvml.gpus["GPU-aaaa"]["CurrentClocksEventReasons"] = 0x1

    def train_step(self, batches, learning_rate):
        self.nvml.gpus["GPU-aaaa"]["CurrentClocksEventReasons"] = 0x40
        return super().train_step(batches, learning_rate)

    def evaluate_step(self, batch):
        self.nvml.gpus["GPU-aaaa"]["CurrentClocksEventReasons"] = 0x1
        return super().evaluate_step(batch)


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """The record of a process that has trained on an imitated GPU, as CUDA_VISIBLE_DEVICES shows it."""

    def train(visible, cluster=None):
        nvml = Nvml({"GPU-aaaa": dict(H100)})
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        monkeypatch.setattr(OnGpu, "nvml", nvml)
        monkeypatch.setattr(process, "load_backend", lambda framework, mode, own: OnGpu)
        monkeypatch.setattr(process, "_say_when_stopped", lambda events: None)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        for name, value in {"KERAS_BACKEND": "torch", "KERAS_NNX_ENABLED": "0"}.items():
            monkeypatch.setenv(name, value)  # as the process sets it itself, which stays
        workload = Workload(model="mlp", image_size=8, steps=4, warmup_steps=1, learning_rate=0.01)
        cluster = cluster or Cluster.partition(gpus=["0"])
        config = RunConfig(framework="torch", mode="single", workload=workload, cluster=cluster)
        prepare_inputs(config).save(tmp_path / ATTEMPT_CONFIG_FILE)
        (tmp_path / CONFIG_FILE).write_text("edited since the attempt was started")
        assert process._work(tmp_path, 0, 0) == 0
        return ProcessRecord.model_validate_json(process_record_path(tmp_path, 0).read_text())

    return train


def test_gpus_are_read_before_training_and_after_the_last_step(trained, install_gpus):
    install_gpus("GPU 0: NVIDIA H100 (UUID: GPU-aaaa)\n")
    (gpu,) = trained("0").gpus
    assert gpu.uuid == "GPU-aaaa"
    assert gpu.before.clock_reasons == ["idle"]
    assert gpu.after.clock_reasons == ["thermal slowdown by the hardware"]  # and not those of the evaluation after it
    assert gpu.slowdown == "thermal slowdown by the hardware"


def test_a_process_records_what_it_saw_of_itself(trained, install_gpus, tmp_path):
    install_gpus("GPU 0: NVIDIA H100 (UUID: GPU-aaaa)\n")
    make_key(tmp_path)
    (tmp_path / ATTEMPT_ID_FILE).write_text("a1")
    record = trained("0")
    begun = next(event for event in read_events(tmp_path, 1) if isinstance(event, Started))
    assert (record.attempt_id, begun.attempt_id) == ("a1", "a1")
    assert record.observed.cores_at_start == record.observed.cores_at_end
    assert record.observed.threads is None  # this backend does not say
    assert record.variables.digests.keys() <= os.environ.keys()
    assert record.machine == this_machine()


def test_a_process_that_sees_no_gpu_records_none(trained, install_gpus):
    install_gpus("GPU 0: NVIDIA H100 (UUID: GPU-aaaa)\n")
    assert trained("").gpus == []


@pytest.fixture
def two_numa_nodes(tmp_path, monkeypatch):
    """Two NUMA nodes of two cores each; holds the cores of this process, which it only seems to be bound to."""
    usable = {0, 1, 2, 3}
    for number, cores in enumerate(("0-1", "2-3")):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "cpulist").write_text(cores)
    monkeypatch.setattr(process, "near_cores", partial(near_cores, numa_nodes=tmp_path))
    monkeypatch.setattr(process, "bind", usable.intersection_update)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(usable))
    return usable


def test_a_process_is_bound_to_the_cores_near_its_gpu(trained, install_gpus, two_numa_nodes):
    install_gpus("GPU 0: NVIDIA H100 (UUID: GPU-aaaa)\n")
    record = trained("0", Cluster.partition(gpus=["0"], num_cores=2))
    assert two_numa_nodes == {2, 3}
    assert record.bound_to_cores == "2-3"
    assert record.settings["cores"] == len({0, 1, 2, 3})  # as of a process that could not be bound


def test_the_share_of_the_largest_class_is_recorded(trained, install_gpus):
    """Of the digits' 359 validation samples."""
    install_gpus("GPU 0: NVIDIA H100 (UUID: GPU-aaaa)\n")
    assert trained("0").settings["largest_class_share"] == pytest.approx(39 / 359)


def test_a_process_that_has_all_cores_is_not_bound(trained, install_gpus, two_numa_nodes):
    install_gpus("GPU 0: NVIDIA H100 (UUID: GPU-aaaa)\n")
    assert trained("0", Cluster.partition(gpus=["0"], num_cores=4)).bound_to_cores is None
    assert two_numa_nodes == {0, 1, 2, 3}
