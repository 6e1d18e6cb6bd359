"""The whole life of backends, as a program: `python -m tests.support.gpu_life FRAMEWORK LIFE...`, with lives as JSON.

Each is lived with fake GPUs or on the CPU, and what each computed is printed as one JSON list.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from dpcompare import Cluster, RunConfig, Workload
from dpcompare.backends import load_backend
from dpcompare.backends.base import Inspectable
from dpcompare.data.batches import BatchReader
from dpcompare.data.order import evaluation_batches, training_batches
from dpcompare.data.store import open_store
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.training.schedule import training_reader

WORKLOAD: dict[str, Any] = {
    **{"model": "toy-bn", "dataset": "synthetic-mini", "image_size": 32, "precision": "float64"},
    **{"global_batch_size": 16, "steps": 3, "warmup_steps": 2},
    **{"regularization": "shared", "augment": ("flip", "brightness")},
}  # fmt: skip


def config_of(framework: str, life: Mapping[str, Any]) -> RunConfig:
    """The run that a life is of: `mode`, `device`, `devices`, and what else it has."""
    nodes, count = life.get("nodes", 1), life["devices"]
    on_gpus = {"gpus": ["0"], "share_gpu": True} if life.get("shared") else {"gpus": [str(gpu) for gpu in range(count)]}
    where: dict[str, Any] = on_gpus if life["device"] == "gpu" else {"device": "cpu"}
    return RunConfig(
        framework=framework,
        mode=life["mode"],
        workload=Workload(**WORKLOAD | life.get("workload", {})),
        cluster=Cluster.partition(nodes, count // nodes, **where),
        stages=life.get("stages", 1),
        tune=life.get("tune", {}),
    )


def live(framework: str, life: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that a run asks of a backend, in its order; returns what came of it."""
    config = prepare_inputs(config_of(framework, life))
    workload = config.workload
    backend = load_backend(framework, life["mode"])(config)
    assert isinstance(backend, Inspectable)
    backend.setup()
    found: dict[str, Any] = {"device": str(getattr(backend, "device", None))}
    store = open_store(backend.inputs.store)
    place = {
        "data_parallel_rank": backend.data_parallel_rank,
        "data_parallel_size": backend.data_parallel_size,
        "replicas_per_process": config.topology.replicas_per_process,
    }
    batch, split = workload.global_batch_size, store.split("train")
    reader = training_reader(workload, split, config.drops, **place, accumulate=workload.accumulate)
    order = training_batches(len(split), batch, seed=workload.seed, num_steps=workload.steps)
    feed = iter(backend.prefetch_to_device(reader.batch_loaders(order)))
    handles = []
    for step in range(1, workload.steps + 1):
        batches = [next(feed) for _ in range(workload.accumulate)]
        handles.append(backend.train_step(batches, 0.01))
        backend.synchronize()
        if step == 1:
            found["gradient_squares"] = backend.first_grad_norm_sq()
    found["between steps"] = backend.seconds_between_steps()
    found["losses"] = backend.read(handles).tolist()
    found["rows"] = {name: str(array.dtype) for name, array in backend.to_host(batches[0]).items()}
    validation = BatchReader(store.split("validation"), None, None, **place)
    batch_loaders = validation.batch_loaders(evaluation_batches(len(store.split("validation")), batch))
    found["evaluated"] = (
        backend.read([backend.evaluate_step(part) for part in backend.prefetch_to_device(batch_loaders)])
        .sum(0)
        .tolist()
    )
    state = backend.state()
    backend.load_state(state)
    backend.barrier()
    again = backend.state()
    found["state"] = sum(float(np.square(array).sum()) for array in (state.model | state.optimizer).values())
    found["state is kept"] = all(
        np.array_equal(array, (again.model | again.optimizer)[name])
        for name, array in (state.model | state.optimizer).items()
    )
    backend.reset_peak_memory()
    found["logits"] = [float(backend.logits(batches[0], training=training).sum()) for training in (False, True)]
    if "activations" not in life.get("leaves_out", ()):
        found["layers"] = len(backend.activations(batches[0]))
    with tempfile.TemporaryDirectory() as folder, backend.profile(Path(folder) / "trace.json"):
        backend.read([backend.train_step(batches, 0.01)])
    description = backend.describe()
    found["described"] = {
        **{"devices": description.devices, "collective": description.collective, "settings": description.settings},
        "memory": description.peak_device_memory_bytes,
        "backward_ends": description.gradients.backward_ends if description.gradients else None,
    }
    found["counted"] = list(backend.counters())
    backend.teardown()
    return found


CALLS = ("set_device", "connect", "reset_peak_memory", "time", "update")
"""What a life on GPUs prints of the calls that it makes."""


def live_torch(lives: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Lives of torch, with its C functions of CUDA replaced."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from tests.support import fake_gpus

    fake_gpus.install(1)
    register_optimizer_step_post_hook(lambda *_: fake_gpus.calls.append(("update",)))
    for life in lives:
        if "port" in life:
            os.environ["MASTER_PORT"] = str(life["port"])
        # Accelerate changes it on a shared GPU; of several nodes each process is the only one.
        os.environ["LOCAL_RANK"] = "0" if life.get("nodes", 1) > 1 else os.environ.get("RANK", "0")
        fake_gpus.calls.clear()
        fake_gpus.see(1 if life.get("shared") else life["devices"])
        found = _with_planted(life)
        yield found | {"calls": [call for call in fake_gpus.calls if call[0] in CALLS]}


def _with_planted(life: Mapping[str, Any]) -> dict[str, Any]:
    """A life, with a method of a torch backend's parts replaced where it names one; it must then end by an error."""
    if "planted" not in life:
        return live("torch", life)
    import torch

    from dpcompare.backends.torch.feed import DeviceFeed
    from dpcompare.backends.torch.parallel import Parallel

    def device_without_index(parallel: Parallel) -> None:
        parallel.device = torch.device("cuda")

    def labels_on_the_host(feed: DeviceFeed, array: npt.NDArray[Any]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if array.dtype == np.int32 else tensor.pin_memory().to(feed._device, non_blocking=True)

    planted = {"connect": (Parallel, device_without_index), "_move": (DeviceFeed, labels_on_the_host)}
    owner, fault = planted[life["planted"]]
    with mock.patch.object(owner, life["planted"], fault):
        try:
            return live("torch", life)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}


def live_jax(lives: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """One life of JAX, which finds its devices once, with XLA's client of the CPU where that of CUDA is made."""
    import jax
    from jax._src import hardware_utils, xla_bridge

    (life,) = lives
    os.environ |= {
        **{"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{life['port']}", "JAX_NUM_PROCESSES": os.environ["WORLD_SIZE"]},
        **{"JAX_PROCESS_ID": os.environ["RANK"]},
    }
    jax.config.update("jax_num_cpu_devices", life["devices"] // life.get("nodes", 1))
    gloo = partial(xla_bridge._jax.make_gloo_tcp_collectives, interface="lo")
    jax.config.update("jax_cpu_collectives_implementation", "gloo" if life.get("nodes", 1) > 1 else None)
    xla_bridge._jax.make_gloo_tcp_collectives = gloo
    hardware_utils.has_visible_nvidia_gpu = lambda: True  # it looks for files of the driver's
    xla_bridge._backend_factories.pop("cuda", None)
    xla_bridge.register_backend_factory("cuda", xla_bridge.make_cpu_client, priority=500, fail_quietly=False)
    yield live("jax", life) | {"platforms": jax.config.jax_platforms}


FRAMEWORKS = {"torch": live_torch, "jax": live_jax}


def main() -> None:
    framework, *lives = sys.argv[1:]
    print(json.dumps(list(FRAMEWORKS[framework]([json.loads(life) for life in lives])), default=str))


if __name__ == "__main__":
    main()
