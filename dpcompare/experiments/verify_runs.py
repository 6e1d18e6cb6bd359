"""The runs of `dpcompare verify`: each contender once, several at the same time, since nothing of them is timed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import numpy as np

from dpcompare.config.cluster import Cluster
from dpcompare.config.run import PreparedRun, RunConfig
from dpcompare.config.workload import Workload
from dpcompare.experiments.checks import Side
from dpcompare.experiments.contenders import Contender
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.launch.plan import exposure
from dpcompare.launch.run import require_environment, resume, run
from dpcompare.models.sealed import read_weights, seal
from dpcompare.results import predictions as arrays
from dpcompare.results.run_dir import checkpoint_paths
from dpcompare.system.devices import MOST_USED, free_gpu_memory, gpu_memory, installed_gpus, visible_gpus
from dpcompare.system.processes import available_memory
from dpcompare.system.signals import signals_held

FLOOR_SEEDS = 3
FLOOR_PERTURBATION = {"float32": 1e-7, "bfloat16": 4e-3}
"""Relative size of the disturbance: about the rounding of a float32 (6e-8) or of a bfloat16 (4e-3)."""

MEMORY_AT_ONCE = 8e9
"""Bytes that must be free for each of the runs at the same time: two processes that train EfficientNet-B2 in float64
take some 6e9."""
MOST_AT_ONCE = 8
GPU_MEMORY_AT_ONCE = 6e9
"""The same of a GPU: of an H200, JAX took 2.9e9 bytes to train EfficientNet-B2 at 64 px with 128 images in float32."""

WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Variables of runs alongside others: threads of OpenMP that spin while they wait would take the cores from those that
they wait for, and two runs at the same time last as long as one after the other."""

Arguments = ParamSpec("Arguments")
Given = TypeVar("Given")

Say = Callable[[str], None]
"""Called with a line of progress, from several threads."""


def runs_at_once(device: str) -> int:
    """How many runs this machine takes at the same time: one per core, as far as memory goes, also that of its GPUs.

    A run is mostly one thread that imports a framework, builds a model and traces it.
    """
    at_once = min(len(os.sched_getaffinity(0)), int(available_memory() // MEMORY_AT_ONCE), MOST_AT_ONCE)
    gpus = [] if device == "cpu" else visible_gpus(installed_gpus())
    if gpus:  # all runs take the first ones, and a run is refused a GPU of which others hold most
        free, total = free_gpu_memory(gpus) or 0, gpu_memory(gpus) or 0
        at_once = min(at_once, int((free - (1 - MOST_USED) * total) // GPU_MEMORY_AT_ONCE))
    return max(1, at_once)


class Runs:
    """Runs in threads of this process, begun in the order in which they are asked for; all end with this context."""

    def __init__(self, at_once: int, say: Say) -> None:
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="verify")
        self._given_up = threading.Event()
        self._say = say
        self._exposures_said: set[str] = set()
        self._waiting = WAITING if at_once > 1 else {}

    def __enter__(self) -> Self:
        self._set_before = {name: os.environ.get(name) for name in self._waiting}
        for name, value in self._waiting.items():
            os.environ.setdefault(name, value)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._given_up.set()
        with signals_held():  # or a second Ctrl-C would leave processes behind
            self._pool.shutdown(cancel_futures=True)
        for name, before in self._set_before.items():
            if before is None:
                del os.environ[name]

    def side(self, title: str, contender: Contender, config: PreparedRun, run_dir: Path) -> Future[Side]:
        """Begin a run, and gather what it will have left; `title` is said when its turn comes."""
        if (line := exposure(config)) and line not in self._exposures_said:
            self._exposures_said.add(line)
            self._say(line)
        return self._begin(title, run_side, contender, config, run_dir, self._stopped_by)

    def resumed(self, title: str, contender: Contender, whole: Future[Side], run_dir: Path) -> Future[Side]:
        """Begin to resume a run, when it is done."""
        return self._begin(title, lambda: resume_side(contender, whole.result(), run_dir, self._stopped_by))

    def floor(self, contender: Contender, config: PreparedRun, folder: Path) -> list[Future[Side]]:
        """Begin runs of a contender whose initial weights are disturbed by about a rounding."""
        precision = config.workload.precision
        size = FLOOR_PERTURBATION[precision]

        def disturbed_side(seed: int) -> Side:
            return run_side(contender, disturbed(config, folder, seed, size), folder / str(seed), self._stopped_by)

        return [
            self._begin(
                f"{contender}: floor of {precision}, weights disturbed by {size:g} (seed {seed})", disturbed_side, seed
            )
            for seed in range(FLOOR_SEEDS)
        ]

    def _begin(
        self,
        title: str,
        function: Callable[Arguments, Given],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Future[Given]:
        def say_and_run() -> Given:
            self._say(title)
            return function(*arguments, **named)

        return self._pool.submit(say_and_run)

    def _stopped_by(self) -> str | None:
        return "verify was given up" if self._given_up.is_set() else None


def until_done(futures: Sequence[Future[Side]]) -> None:
    """Wait until all have ended, in whatever way.

    Raises:
        KeyboardInterrupt: a signal came meanwhile.
    """
    with signals_held() as held:
        while wait(futures, timeout=0.1).not_done:
            held.deliver()


def config_of(
    contender: Contender,
    workload: Workload,
    device: str,
    interpreters: dict[str, str],
    checkpoint_every: int | None = None,
) -> RunConfig:
    """The run of one contender, which keeps all of its checkpoints."""
    interpreter = contender.python or interpreters.get(contender.framework)
    chosen: dict[str, Any] = {"python": interpreter} if interpreter else {}
    nodes, devices = contender.num_nodes, contender.devices_per_node
    if contender.device == "shared gpu":
        cluster = Cluster.partition(nodes, devices, device="gpu", share_gpu=True)
    else:
        cluster = Cluster.partition(nodes, devices, device=contender.device or device)  # type: ignore[arg-type]
    config = RunConfig(
        framework=contender.framework,
        mode=contender.mode,
        workload=workload.changed(accumulate=contender.accumulate),
        cluster=cluster,
        task="probe",
        stages=contender.stages,
        launcher=contender.launcher,
        backend=contender.backend,
        pipeline_schedule=contender.pipeline_schedule,
        tune=dict(contender.tune),
        checkpoint_every=checkpoint_every,
        keep_checkpoints=workload.steps or 1,
        environment=contender.environment,
        **chosen,
    )
    require_environment(config)
    return config


def run_side(
    contender: Contender, config: RunConfig, run_dir: Path, stopped_by: Callable[[], str | None] = lambda: None
) -> Side:
    """Run one contender and gather what it left; `stopped_by` as for `run`."""
    prepared = prepare_inputs(config)
    result = run(prepared, run_dir, stopped_by=stopped_by)
    left = arrays.load(run_dir, prepared.topology.trainers)
    return Side(contender=contender, config=prepared, result=result, arrays=left)


def disturbed(config: PreparedRun, folder: Path, seed: int, perturbation: float) -> PreparedRun:
    """The same run from initial weights that differ by about a rounding; `folder` gets them.

    Args:
        config: of the run.
        folder: for the weights.
        seed: of the disturbance.
        perturbation: its standard deviation, relative to each weight.
    """
    generator = np.random.default_rng(seed)
    weights = {
        name: (array * (1 + perturbation * generator.standard_normal(array.shape))).astype(np.float32)
        for name, array in read_weights(config.inputs.weights).items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"disturbed-{seed}.safetensors"
    path.write_bytes(seal(weights, {}))
    return config.changed(inputs=config.inputs.changed(weights=path))


def resume_side(
    contender: Contender, whole: Side, run_dir: Path, stopped_by: Callable[[], str | None] = lambda: None
) -> Side:
    """Go on with the run of a contender from its first checkpoint, as if it had been interrupted there.

    Of the arrays only those at the end are new: the others are of the first step.
    """
    for later in checkpoint_paths(run_dir)[:-1]:
        later.unlink()
    result = resume(run_dir, whole.config, stopped_by=stopped_by)
    left = arrays.load(run_dir, whole.config.topology.trainers)
    trained = {name: array for name, array in left.items() if name.startswith(("trained.", "averaged."))}
    return Side(contender=contender, config=whole.config, result=result, arrays=whole.arrays | trained)
