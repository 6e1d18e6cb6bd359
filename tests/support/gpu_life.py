"""The whole life of torch's backends, as a program: `python -m tests.support.gpu_life LIFE...`, with lives as JSON.

Each is lived with the fake GPUs of this process, or on its CPU, and what it computed is printed as one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch

from dpcompare import Cluster, RunConfig, Workload, load_backend, prepare_inputs
from dpcompare.backends.torch.backend import TorchBackend
from dpcompare.data.batches import BatchReader
from dpcompare.data.order import evaluation_batches, training_batches
from dpcompare.data.store import open_store
from dpcompare.training.reader import training_reader
from tests.support import fake_gpus

WORKLOAD: dict[str, Any] = {
    **{"model": "toy-bn", "dataset": "synthetic-mini", "image_size": 32, "precision": "float64"},
    **{"global_batch_size": 16, "steps": 3, "warmup_steps": 2},
    **{"regularization": "shared", "augment": ("flip", "brightness")},
}  # fmt: skip


def config_of(life: Mapping[str, Any]) -> RunConfig:
    """The run that a life is of: `mode`, `device`, `devices`, and what else it has."""
    count = life["devices"]
    where = {"gpus": [str(gpu) for gpu in range(count)]} if life["device"] == "gpu" else {"device": "cpu"}
    return RunConfig(
        framework="torch",
        mode=life["mode"],
        workload=Workload(**WORKLOAD | life.get("workload", {})),
        cluster=Cluster.partition(1, count, **where),
        stages=life.get("stages", 1),
        tune=life.get("tune", {}),
    )


def live(life: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that a run asks of a backend, in its order; returns what came of it."""
    config = prepare_inputs(config_of(life))
    workload = config.workload
    if "port" in life:
        os.environ["MASTER_PORT"] = str(life["port"])
    fake_gpus.calls.clear()
    fake_gpus.see(life["devices"])
    backend = load_backend("torch", life["mode"])(config)
    backend.setup()
    found: dict[str, Any] = {"device": str(backend.device), "index": backend.device.index}
    store = open_store(backend.inputs.store)
    place = {
        "data_parallel_rank": backend.data_parallel_rank,
        "data_parallel_size": backend.data_parallel_size,
        "replicas_per_process": config.topology.replicas_per_process,
    }
    batch, split = workload.global_batch_size, store.split("train")
    reader = training_reader(workload, split, **place, accumulate=workload.accumulate)
    order = training_batches(len(split), batch, seed=workload.seed, num_steps=workload.steps)
    feed = iter(backend.feed(reader.reads(order)))
    handles = []
    for step in range(1, workload.steps + 1):
        batches = [next(feed) for _ in range(workload.accumulate)]
        handles.append(backend.train_step(batches, 0.01))
        backend.synchronize()
        if step == 1:
            found["gradient_squares"] = backend.first_gradient_squares()
    found["losses"] = backend.read(handles).tolist()
    found["rows"] = {name: str(array.dtype) for name, array in backend.to_host(batches[0]).items()}
    validation = BatchReader(store.split("validation"), None, None, **place)
    reads = validation.reads(evaluation_batches(len(store.split("validation")), batch))
    found["evaluated"] = backend.read([backend.evaluate_step(part) for part in backend.feed(reads)]).sum(0).tolist()
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
    found["counted"] = list(backend.counted())
    found["calls"] = [call for call in fake_gpus.calls if call[0] in ("set_device", "connect", "reset_peak_memory")]
    backend.teardown()
    return found


def device_without_index(backend: TorchBackend) -> None:
    """A `connect` that leaves the choice of the GPU to torch, whose `set_device` then refuses."""
    backend.device = torch.device("cuda")


def labels_on_the_host(backend: TorchBackend, array: npt.NDArray[Any]) -> torch.Tensor:
    """A `_move` that forgets the labels."""
    tensor = torch.from_numpy(array)
    return tensor if array.dtype == np.int32 else tensor.pin_memory().to(backend.device, non_blocking=True)


PLANTED = {"connect": device_without_index, "_move": labels_on_the_host}
"""Method of TorchBackend -> one that is wrong in its place."""


def with_planted(life: Mapping[str, Any]) -> dict[str, Any]:
    """As `live`, with one of PLANTED where a life names it, which must then end by an error."""
    if "planted" not in life:
        return live(life)
    with mock.patch.object(TorchBackend, life["planted"], PLANTED[life["planted"]]):
        try:
            return live(life)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    fake_gpus.install(1)
    print(json.dumps([with_planted(json.loads(life)) for life in sys.argv[1:]], default=str))


if __name__ == "__main__":
    main()
