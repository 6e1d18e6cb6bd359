"""The body of a training process: it sets up a backend, trains, and leaves its record."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import PIL

from dpcompare._version import __version__
from dpcompare.backends import load_backend
from dpcompare.backends.base import Backend, Inspectable, require_planned
from dpcompare.backends.keras import compute_with
from dpcompare.config.run import PreparedRun, RunConfig
from dpcompare.data.store import open_store
from dpcompare.errors import in_words
from dpcompare.results.attempts import ProcessRecord
from dpcompare.results.events import LAST_EVENTS, Alive, Ended, EventLog, EventTail, Failed, Started, Stopped
from dpcompare.results.run_dir import attempt_config_path, log_path, read_attempt_id
from dpcompare.system.cache import cache_dir
from dpcompare.system.cores import CoresMeter, CoresUsed, bind, near_cores
from dpcompare.system.devices import available_cores
from dpcompare.system.energy import meter_of
from dpcompare.system.files import no_link
from dpcompare.system.gpu_state import GpuState, in_ranges, near_numa_nodes, read_again, read_gpus
from dpcompare.system.machine import this_machine
from dpcompare.system.processes import MemoryPeak
from dpcompare.system.python_environment import installed_packages
from dpcompare.training import late_step, loop, probe
from dpcompare.training.evaluated import keep_predictions
from dpcompare.training.observer import Observer, variables_of
from dpcompare.training.window import StepLog

SECONDS_BETWEEN_LOOKS = 0.2


def work(run_dir: Path, node_rank: int) -> NoReturn:
    """Be the training process of a node whose local rank the environment says; this ends the process."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))  # torchrun's name; a plain node process is alone
    _write_output_to(log_path(run_dir, node_rank, local_rank))
    faulthandler.enable(all_threads=False)  # logs where it was, if it crashes in native code
    # Before torch is imported, which would choose a folder below /tmp: compiling EfficientNet-B2 takes two minutes.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "compiled"))
    status = _work(run_dir, node_rank, local_rank)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit(): TensorFlow's shutdown of a worker hung for up to 98 seconds after its work was done.
    os._exit(status)


def _write_output_to(path: Path) -> None:
    """One log per process, C++ messages of the framework included."""
    log = no_link(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    os.close(log)


def _work(run_dir: Path, node_rank: int, local_rank: int) -> int:
    variables = variables_of(run_dir, os.environ)  # before a framework adds its own
    config = PreparedRun.load(attempt_config_path(run_dir))
    process_rank = node_rank * config.topology.processes_per_node + local_rank
    local_devices = _local_devices(config, node_rank, local_rank)
    place = {"node_rank": node_rank, "local_rank": local_rank}
    events = EventLog(run_dir, process_rank)
    attempt_id = read_attempt_id(run_dir)
    events.append(
        Started(pid=os.getpid(), host=socket.gethostname(), devices=local_devices, attempt_id=attempt_id, **place)
    )
    threading.Thread(target=_say_when_stopped, args=(events,), name="sigterm", daemon=True).start()
    cores = available_cores()
    try:
        bound_to = _bind_near_gpus(config, process_rank, local_rank)  # before the framework starts threads
        observer = Observer(config)
        compute_with(config.framework)
        backend = load_backend(config.framework, config.mode, config.backend)(config)
        backend.setup()
        require_planned(backend, process_rank)
        meters = Meters(config, _gpus(config, local_devices))
        if process_rank not in config.topology.trainers:
            _serve(events, run_dir)
            meters.read_gpus()
            trained = None
        else:
            trained = _train(backend, events, run_dir, meters, observer, local_devices)
        record = _record(backend, config, trained, observer, cores=cores, bound_to=bound_to, **place)
        seen = {"cores_used": meters.cores_used, "gpus": meters.gpus, "variables": variables, "attempt_id": attempt_id}
        record.model_copy(update=seen).save(run_dir)
        backend.teardown()
    except BaseException as error:  # also SystemExit, with which a model may end its process
        traceback.print_exc()
        events.append(Failed(message=in_words(error), traceback=traceback.format_exc()))
        return 1
    events.append(Ended())
    return 0


class Meters:
    """What is read when the last step is done, before its evaluation: cores that were used, and the GPUs again."""

    def __init__(self, config: PreparedRun, gpus: list[GpuState]) -> None:
        self.gpus = gpus
        self.cores_used: CoresUsed | None = None
        self._last_step = config.workload.total_steps(config.inputs.num_train)
        self._cores = CoresMeter(after_steps=config.workload.least_warmup_steps)

    def after_step(self, step: int) -> None:
        """Count a step; after the last one read them, while the clocks are still those of the training."""
        self._cores.count_step()
        if step == self._last_step:
            self.read()

    def read(self) -> None:
        """Read them, unless they were."""
        if self.cores_used is None:
            self.cores_used = self._cores.used()
            self.read_gpus()

    def read_gpus(self) -> None:
        """Read the GPUs again."""
        self.gpus = read_again(self.gpus)


def _train(
    backend: Backend,
    events: EventLog,
    run_dir: Path,
    meters: Meters,
    observer: Observer,
    local_devices: tuple[str, ...],
) -> loop.TrainingSummary | None:
    """The training that the config asks for; None where it repeats steps of another run."""
    config = backend.config
    store = open_store(config.inputs.store)
    if config.task == "late step":
        late_step.make_again(backend, store, events, run_dir)
        return None
    if config.task == "probe":
        assert isinstance(backend, Inspectable)
        return probe.run(backend, store, events, run_dir)
    energy = meter_of(
        config.cluster.device_type,
        () if config.cluster.shared else local_devices,  # of a GPU that others use too
        counts_packages=backend.process_rank in config.topology.first_of_machines,
    )

    def after_step(step: int) -> None:
        meters.after_step(step)
        observer.after_step(step)

    trained = loop.train(backend, store, events, run_dir, after_step, energy=energy)
    if config.stop_at_target:  # it may have ended before its last step
        meters.read()
    if config.keep_predictions:
        assert isinstance(backend, Inspectable)
        keep_predictions(backend, store, run_dir, StepLog(backend, events).alive)
    return trained


def _local_devices(config: RunConfig, node_rank: int, local_rank: int) -> tuple[str, ...]:
    """The devices of a process: of simulated ones the config has the names, of real GPUs their machine."""
    devices = config.cluster.nodes[node_rank].devices
    if config.cluster.device_type == "gpu" and not config.cluster.simulated:
        devices = tuple(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
    count = config.topology.devices_per_process
    return devices[local_rank * count : (local_rank + 1) * count]


def _gpus_of_machine(config: RunConfig) -> Sequence[str]:
    """The GPUs of the run on this machine; none on the CPU, and none where this process only keeps parameters."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if config.cluster.device_type != "gpu" or not visible:
        return []
    # Simulated nodes share the machine, and each sees its GPUs only.
    return config.cluster.devices if config.cluster.simulated else visible.split(",")


def _gpus(config: RunConfig, local_devices: tuple[str, ...]) -> list[GpuState]:
    """The GPUs of this process before it trains."""
    machine_devices = _gpus_of_machine(config)
    return read_gpus(local_devices, machine_devices) if machine_devices else []


def _bind_near_gpus(config: RunConfig, process_rank: int, local_rank: int) -> str | None:
    """Bind this process to the cores near its GPUs, where all of this machine can be; returns them as ranges."""
    gpus = _gpus_of_machine(config)
    if not gpus or not config.topology.all_processes_train:  # where some only serve, all need cores
        return None
    numa_nodes, count = near_numa_nodes(gpus), config.topology.devices_per_process
    near = near_cores(
        [numa_nodes[first : first + count] for first in range(0, len(gpus), count)],
        config.topology.threads_per_process,
        os.sched_getaffinity(0),
    )
    if not near:
        return None
    cores = near[process_rank if config.cluster.simulated else local_rank]
    bind(cores)
    return in_ranges(cores)


def _serve(events: EventLog, run_dir: Path) -> None:
    """Be there until the first process, which trains, has ended."""
    events.append(Alive())
    tail = EventTail(run_dir, [0])
    while not any(isinstance(event, LAST_EVENTS) for event in tail.new_events()):
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _say_when_stopped(events: EventLog) -> None:
    """Wait for SIGTERM, which the parent sends when another process has failed, and end.

    A handler would not run while the main thread waits for a process that is gone, and the parent must
    be able to distinguish a process that was asked to end from one that was killed.
    """
    signal.sigwait({signal.SIGTERM})
    events.append(Stopped())
    os._exit(128 + signal.SIGTERM)


def _record(
    backend: Backend,
    config: RunConfig,
    trained: loop.TrainingSummary | None,
    observer: Observer,
    *,
    cores: int,
    bound_to: str | None,
    node_rank: int,
    local_rank: int,
) -> ProcessRecord:
    description = backend.describe()
    measured = {"largest_class_share": trained.largest_class_share} if trained else {}
    return ProcessRecord(
        process_rank=backend.process_rank,
        node_rank=node_rank,
        local_rank=local_rank,
        pid=os.getpid(),
        host=socket.gethostname(),
        machine=this_machine(),
        device_names=description.devices,
        threads=config.topology.threads_per_process,
        bound_to_cores=bound_to,
        collective=description.collective,
        settings=description.settings | {"cores": cores} | measured,
        sample_order_sha256=trained.order_sha256 if trained else "",
        computed=trained.computed if trained else None,
        peak_memory_bytes=(trained.memory if trained else MemoryPeak()).num_bytes,
        peak_device_memory_bytes=description.peak_device_memory_bytes,
        versions={
            "dpcompare": __version__,
            "python": sys.version.split()[0],
            "pillow": PIL.__version__,
            **description.libraries,
            # From the module: a distribution may have another name, such as tensorflow-cpu. timm may not be loaded.
            **{
                package: sys.modules[package].__version__
                for package in ("numpy", *backend.packages)
                if package in sys.modules
            },
        },
        packages=installed_packages() if config.keep_packages and backend.process_rank == 0 else {},
        observed=observer.observed(backend, description),
        gradients=description.gradients,
    )
