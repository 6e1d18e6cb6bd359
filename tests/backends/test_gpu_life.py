"""Every mode of torch lives its whole life on GPUs whose C functions are replaced, and computes what the CPU does.

JAX lives what it does on GPUs with XLA's client of the CPU in their place. What no such life can show, in any mode:
kernels of CUDA and their rounding, NCCL, torch.compile and CUDA graphs, which ask the driver themselves, and autocast
to bfloat16. They wait for a GPU: `pytest -m gpu`, `python -m stress.first_gpu`.
"""

import fcntl
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import pytest

from dpcompare.config.modes import MODES
from tests.support.marks import with_cuda_build
from tests.support.ports import held_ports
from tests.support.runs import held

pytestmark = [pytest.mark.torch, pytest.mark.slow, *with_cuda_build()]

REPOSITORY = Path(__file__).parents[2]
LEFT_TO_GPUS = {"keras-fit"}
"""Keras makes variables and moves arrays by calls of its own, which reach CUDA where nothing is replaced."""

LIVES = {
    "single": {"mode": "single", "devices": 1, "like": "one"},
    "single, native": {
        **{"mode": "single", "devices": 1, "like": "one"},
        "workload": {"profile": "native", "accumulate": 1},
    },
    "dp": {"mode": "dp", "devices": 2, "like": "two"},
    "dp, one GPU": {"mode": "dp", "devices": 1, "like": "one"},
    "ddp, one process": {"mode": "ddp", "devices": 1, "processes": 1, "like": "one"},
    "fabric": {"mode": "fabric", "devices": 1, "processes": 1, "like": "one"},
    "accelerate": {"mode": "accelerate", "devices": 1, "processes": 1, "like": "one"},
    "ddp": {"mode": "ddp", "devices": 2, "processes": 2, "like": "two"},
    "ddp, synchronized": {
        **{"mode": "ddp", "devices": 2, "processes": 2, "like": "one"},
        "workload": {"batchnorm": "sync"},
    },
    "ddp, two stages": {"mode": "ddp", "devices": 2, "processes": 1, "stages": 2, "like": "one"},
    **{
        f"{mode}, shared": {"mode": mode, "devices": 2, "processes": 2, "shared": True, "like": "two"}
        for mode in ("ddp", "fabric", "accelerate")
    },
    "ddp, shared by nodes": {
        **{"mode": "ddp", "devices": 2, "nodes": 2},
        **{"processes": 2, "shared": True, "like": "two"},
    },
    "fsdp": {"mode": "fsdp", "devices": 2, "processes": 2, "like": "two"},
    "pipeline": {
        **{"mode": "pipeline", "devices": 2, "processes": 2, "stages": 2, "like": "one"},
        "leaves_out": {"activations": "a process has a part of the layers; `verify` asks a custom model alone, "
                                      "which no pipeline takes"},
    },
}  # fmt: skip
"""Name -> what is lived, what on the CPU must agree with it, and what its life leaves out, with the reason."""


PLANTED = {name: LIVES["single"] | {"planted": name} for name in ("connect", "_move")}
"""Method of torch's backend that is replaced by a wrong one -> the life that must end by it."""

ON_CPU = {"one": {"mode": "single", "devices": 1}, "two": {"mode": "dp", "devices": 2}}


def lived(framework, lives, *, processes):
    """What each process of these lives printed."""
    environment = os.environ | {
        **{"PYTHONPATH": str(REPOSITORY), "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"},
        **{"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)},
        **{"TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "0"},  # as torchrun does
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }
    with held_ports(len(lives)) as ports, ThreadPoolExecutor() as pool:
        asked = [json.dumps({**life, "port": port}) for life, port in zip(lives, ports, strict=True)]
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.gpu_life", framework, *asked],
                env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True},
            )
            for rank in range(processes)
        ]
        ends = {pool.submit(process.communicate): process for process in started}
        for end in as_completed(ends):
            if (failed := ends[end]).returncode:
                for process in started:  # the others would wait for it
                    process.kill()
                raise AssertionError(f"process {started.index(failed)} failed: {end.result()[1][-3000:]}")
    return [json.loads(end.result()[0].splitlines()[-1]) for end in ends]


@pytest.fixture(scope="module")
def found(session_folder):
    """What each process found in a life, by its name; a session lives all of them once."""
    path = session_folder / "gpu-lives.json"
    with held(path.with_suffix(".lock"), fcntl.LOCK_EX):
        if not path.exists():
            path.write_text(json.dumps(lived_all()))
    return json.loads(path.read_text()).__getitem__


def lived_all():
    """The CPU's lives and those that must end are among those of one process."""
    gathered = {}
    for processes in (1, 2):
        lives = {
            name: life | {"device": "gpu"} for name, life in LIVES.items() if life.get("processes", 1) == processes
        }
        if processes == 1:
            lives |= {name: life | {"device": "gpu"} for name, life in PLANTED.items()}
            lives |= {name: life | {"device": "cpu"} for name, life in ON_CPU.items()}
        by_process = lived("torch", list(lives.values()), processes=processes)
        gathered |= dict(zip(lives, zip(*by_process, strict=True), strict=True))
    return gathered


def test_every_mode_has_a_life():
    known = {mode for framework, mode in MODES if framework == "torch"}
    assert {life["mode"] for life in LIVES.values()} == known - LEFT_TO_GPUS


@pytest.mark.parametrize("name", LIVES)
def test_a_life_on_gpus_computes_what_the_cpu_does(found, name):
    (expected,) = found(LIVES[name]["like"])
    processes = found(name)

    def total(figure):
        return [sum(values) for values in zip(*(process[figure] for process in processes), strict=True)]

    losses = [sum(process["losses"][step] for process in processes) for step in range(3)]
    assert losses == pytest.approx(expected["losses"], rel=1e-12)
    assert total("evaluated") == pytest.approx(expected["evaluated"], rel=1e-12)
    assert sum(process["gradient_squares"] for process in processes) == pytest.approx(
        expected["gradient_squares"], rel=1e-11
    )
    assert processes[0]["state"] == pytest.approx(expected["state"], rel=1e-11)
    assert total("logits") == pytest.approx(expected["logits"], rel=1e-10)
    assert all(process["state is kept"] for process in processes)
    assert sum(process["counted"][1] for process in processes) == expected["counted"][1]
    assert {process["counted"][0] for process in processes} == {4}
    assert "activations" in LIVES[name].get("leaves_out", {}) or processes[0]["layers"] == expected["layers"]


@pytest.mark.parametrize("name", LIVES)
def test_a_life_on_gpus_names_its_own_gpu(found, name):
    for rank, process in enumerate(found(name)):
        rank = 0 if LIVES[name].get("shared") else rank
        # With its index: torch.cuda.set_device takes none without.
        assert process["device"] == f"cuda:{rank}"
        count = LIVES[name]["devices"] // LIVES[name].get("processes", 1)
        assert process["described"]["devices"] == ["NVIDIA H100 80GB HBM3"] * count
        assert process["described"]["memory"] > 0
        assert ["reset_peak_memory", rank] in process["calls"]
        assert process["described"]["settings"]["convolution_algorithms"] == "measured"
        assert {call[1] for call in process["calls"] if call[0] == "set_device"} <= set(range(rank, rank + count))


@pytest.mark.parametrize("name", [name for name, life in LIVES.items() if life.get("shared")])
def test_replicas_on_one_gpu_exchange_by_gloo(found, name):
    for process in found(name):
        assert process["described"]["collective"] == "gloo"
        assert "connect" not in {call[0] for call in process["calls"]}  # NCCL is never asked


@pytest.mark.parametrize("name", LIVES)
def test_the_gpu_takes_the_time_at_the_end_of_each_step(found, name):
    """No single GPU knows when a step of a replica in stages has ended."""
    for process in found(name):
        between = process["between steps"]
        if "stages" in LIVES[name]:
            assert between is None
            continue
        assert len(between) == 2
        assert min(between) > 0
        of_gpu = [call for call in process["calls"] if call[0] in ("time", "update")]
        updates = [number for number, call in enumerate(of_gpu) if call[0] == "update"]
        assert len(updates) == 4
        gpu = int(process["device"].removeprefix("cuda:"))
        for number in updates:  # after the update, on the stream that computes
            assert of_gpu[number + 1] == ["time", [0, gpu, 1]]


def test_a_process_with_one_gpu_names_it_before_nccl_connects(found):
    for rank, process in enumerate(found("ddp")):
        first = [call for call in process["calls"] if call[0] in ("set_device", "connect")][:2]
        assert first == [["set_device", rank], ["connect", rank]]


def test_with_stages_nccl_connects_as_they_come(found):
    (staged,) = found("ddp, two stages")
    assert "connect" not in {call[0] for call in staged["calls"]}


@pytest.mark.parametrize("name", ["single", "ddp, one process", "ddp", "fabric", "accelerate"])
def test_events_of_the_gpu_tell_when_gradients_are_ready(found, name):
    for process in found(name):
        assert 0 < process["described"]["backward_ends"] <= 1


@pytest.mark.parametrize(
    ("planted", "message"),
    [
        ("connect", "ValueError: Expected a torch.device with a specified index or an integer, but got:cuda"),
        ("_move", "RuntimeError: Expected all tensors to be on the same device, but found at least two devices"),
    ],
)
def test_what_a_gpu_would_refuse_ends_a_life(found, planted, message):
    (process,) = found(planted)
    assert message in process["error"]


JAX_LIVES = {
    "single": {"mode": "single", "devices": 1, "like": "one"},
    "spmd": {"mode": "spmd", "devices": 2, "like": "two"},
    "multiprocess": {"mode": "multiprocess", "devices": 2, "nodes": 2, "like": "two"},
    "jit": {"mode": "jit", "devices": 2, "nodes": 2, "like": "one", "workload": {"batchnorm": "sync"}},
}


def test_every_mode_of_jax_has_a_life():
    known = {mode for framework, mode in MODES if framework == "jax"}
    assert {life["mode"] for life in JAX_LIVES.values()} == known - LEFT_TO_GPUS


@pytest.mark.jax
@pytest.mark.parametrize("name", JAX_LIVES)
def test_jax_on_gpus_computes_what_torch_does_on_the_cpu(found, name):
    life = JAX_LIVES[name]
    lives = lived("jax", [life | {"device": "gpu"}], processes=life.get("nodes", 1))
    processes = [process for (process,) in lives]
    (expected,) = found(life["like"])
    losses = [sum(losses) for losses in zip(*(process["losses"] for process in processes), strict=True)]
    evaluated = [sum(sums) for sums in zip(*(process["evaluated"] for process in processes), strict=True)]
    assert losses == pytest.approx(expected["losses"], rel=1e-11)
    assert evaluated == pytest.approx(expected["evaluated"], rel=1e-10)
    assert sum(process["gradient_squares"] for process in processes) == pytest.approx(
        expected["gradient_squares"], rel=1e-10
    )
    for process in processes:
        assert process["platforms"] == "cuda"
        assert process["state is kept"]
        assert process["described"]["memory"] is None  # XLA's client of the CPU keeps no statistics, as some of GPUs
        assert process["described"]["settings"]["convolutions"] == "kernel"
        assert "from the start" in process["described"]["settings"]["peak_memory_counted"]
        assert process["described"]["collective"] == ("none" if life["devices"] == 1 else "nccl")
