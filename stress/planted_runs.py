"""The runs of planted faults: trained in processes that fork from one that holds their framework, healthy ones once."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from dpcompare.config.run import PreparedRun, RunConfig
from dpcompare.experiments.checks import Side
from dpcompare.experiments.verify_groups import Contender
from dpcompare.experiments.verify_runs import resume_side, run_side
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.launch.outcome import LaunchOutcome
from dpcompare.launch.plan import NodeProcess
from dpcompare.launch.run import resume, run
from dpcompare.results.result import RunResult
from dpcompare.results.run_dir import attempt_config_path, checkpoint_paths
from stress.planted_row import Planted
from tests.support.warm import WarmLauncher

MOST_BYTES_KEPT = 50e6
"""Of the arrays of a healthy side; a larger one is made again when it is needed."""


class Bench:
    """Trains with and without a fault; a context that ends the processes that it has started."""

    def __enter__(self) -> Bench:
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dpcompare-planted-")))
            self._healthy_folder = self._folder / "healthy"
            self._healthy_folder.mkdir()
            python_path = os.environ.get("PYTHONPATH")
            self._python_path = [python_path] if python_path else []
            # Before the frameworks are imported, which read it then: threads that spin take the cores from others.
            stack.enter_context(patch.dict(os.environ, OMP_WAIT_POLICY="PASSIVE"))
            self._warm = WarmLauncher(self._folder)
            stack.callback(self._warm.close)
            for module in ("attempt", "late_step"):
                stack.enter_context(patch(f"dpcompare.launch.{module}.launch", self._launch))
            stack.enter_context(patch("dpcompare.experiments.verify_runs.run_side", self._side))
            stack.enter_context(patch("dpcompare.experiments.verify_runs.resume_side", self._resumed_side))
            self._stack = stack.pop_all()
        self._fault: Planted | None = None
        self._fault_folder = self._healthy_folder
        self._results: dict[str, RunResult] = {}
        self._sides: dict[str, Side] = {}
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @contextmanager
    def planted(self, fault: Planted | None) -> Iterator[Path]:
        """Within it, what is trained by the framework of the fault has it; gives a folder for runs."""
        with tempfile.TemporaryDirectory(dir=self._folder, prefix="fault-", ignore_cleanup_errors=True) as name:
            self._fault = fault
            if fault is not None:
                self._fault_folder = Path(name) / "planted"
                fault.install(self._fault_folder)
            yield Path(name)
            self._fault = None

    def trained(self, config: RunConfig, run_dir: Path, *, resumed: bool) -> RunResult:
        """The result of a run with the present fault, if it is one of its framework.

        Raises:
            RunFailedError: it failed.
        """
        result = run(prepare_inputs(config), run_dir)
        if not resumed:
            return result
        for later in checkpoint_paths(run_dir)[:-1]:
            later.unlink()
        return resume(run_dir, prepare_inputs(config))

    def healthy(self, config: RunConfig, *, resumed: bool) -> RunResult:
        """The result of a run without any fault, made once."""
        key = f"{config.model_dump_json()} {resumed}"
        if key not in self._results:
            fault, self._fault = self._fault, None
            with tempfile.TemporaryDirectory(dir=self._folder, ignore_cleanup_errors=True) as name:
                self._results[key] = self.trained(config, Path(name) / "run", resumed=resumed)
            self._fault = fault
        return self._results[key]

    def _has_fault(self, framework: str) -> bool:
        return self._fault is not None and self._fault.place.framework == framework

    def _launch(
        self, node_processes: Sequence[NodeProcess], run_dir: Path, *watched: Any, **options: Any
    ) -> LaunchOutcome:
        """As `WarmLauncher.launch`; one framework may repeat what another one has trained."""
        config = RunConfig.load(attempt_config_path(run_dir))
        folder = self._fault_folder if self._has_fault(config.framework) else self._healthy_folder
        with patch.dict(os.environ, PYTHONPATH=os.pathsep.join([str(folder), *self._python_path])):
            return self._warm.launch(node_processes, run_dir, *watched, **options)

    def _side(
        self, contender: Contender, config: PreparedRun, run_dir: Path, stopped_by: Callable[[], str | None]
    ) -> Side:
        """As `run_side`; healthy sides are made once."""
        if self._has_fault(contender.framework):
            return run_side(contender, config, run_dir, stopped_by)
        return self._once(contender, config, lambda: run_side(contender, config, run_dir, stopped_by))

    def _resumed_side(
        self, contender: Contender, whole: Side, run_dir: Path, stopped_by: Callable[[], str | None]
    ) -> Side:
        """As `resume_side`, whose run may have been made for an earlier group."""
        if self._has_fault(contender.framework):
            return resume_side(contender, whole, run_dir, stopped_by)

        def again() -> Side:
            folder = run_dir.with_name(f"{run_dir.name}-whole")
            return resume_side(contender, run_side(contender, whole.config, folder, stopped_by), folder, stopped_by)

        return self._once(contender, whole.config, again)

    def _once(self, contender: Contender, config: PreparedRun, make: Callable[[], Side]) -> Side:
        # Disturbed weights are in another folder each time, and what they are disturbed by says their name.
        key = f"{contender} {config.without_inputs().model_dump_json()} {config.inputs.weights.name}"
        if key in self._sides:
            return self._sides[key]
        side = make()
        if sum(array.nbytes for array in side.arrays.values()) < MOST_BYTES_KEPT:
            self._sides[key] = side
        return side
