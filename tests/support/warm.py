"""Frameworks that are imported once: a launcher whose training processes fork from a process that holds theirs already.

For tests of what is trained, not of how processes are started: it takes the place of `launch`, and of the command that
builds a custom model, alone. Run directory, plan, environment, the entry point `dpcompare.worker`, the loop and the
collecting of results are the real ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from select import select
from typing import Any

from dpcompare.config.run import RunConfig
from dpcompare.launch import local
from dpcompare.launch.local import ProcessWatch
from dpcompare.launch.outcome import Deadlines, LaunchOutcome, Observer
from dpcompare.launch.plan import INHERITED_TO_DROP, NodeProcess, TrainingProcess
from dpcompare.results.events import EventTail
from dpcompare.results.run_dir import attempt_config_path
from dpcompare.system.commands import run_command
from dpcompare.system.network_namespace import isolated
from dpcompare.system.processes import PROCESS_POLL_SECONDS
from tests.support import warm_process

# torch imports the last one, which takes longest, when the first optimizer is made.
IMPORTED = {
    "torch": ("torch", "torch.distributed", "torch._dynamo"),
    "tensorflow": ("tensorflow", "keras"),
    "jax": ("jax",),
}
WHERE_IT_IS_IMPORTED = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
"""Variables that training processes do not have. Most of a tiny training in JAX is XLA's compiler, which takes half of
the time without LLVM's optimizations."""
DOOR = "dpcompare.worker"
BUILDS_MODELS = "dpcompare.backends.custom_model"


class WarmLauncher:
    """Starts the process of a framework when a run first needs it; `close` ends them all."""

    def __init__(self, folder: Path) -> None:
        """`folder` gets what the frameworks print."""
        self._folder = folder
        # Of the session: the test that happens to start a framework may have put a fault into PYTHONPATH.
        self._environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", **WHERE_IT_IS_IMPORTED}
        self._frameworks: dict[str, subprocess.Popen[str]] = {}
        self._answers = defaultdict(threading.Lock)  # a framework trains one run after the other

    @property
    def pids(self) -> set[int]:
        """The ids of the processes that stay."""
        return {process.pid for process in self._frameworks.values()}

    def launch(
        self,
        node_processes: Sequence[NodeProcess],
        run_dir: Path,
        deadlines: Deadlines,
        observe: Observer,
        *,
        isolate: bool,
        stopped_by: Callable[[], str | None],
    ) -> LaunchOutcome:
        """The same as `local.launch`, without deadlines.

        What needs processes of its own is started as ever: another interpreter, spawn.
        """
        config = RunConfig.load(attempt_config_path(run_dir))
        if config.python != sys.executable or config.launch == "spawn":
            return local.launch(node_processes, run_dir, deadlines, observe, isolate=isolate, stopped_by=stopped_by)
        placed = [(node, process) for node in node_processes for process in node.processes]
        ranks = {process.process_rank: node.node_rank for node, process in placed}
        trainers = [process.process_rank for _, process in placed if process.trains]
        watch = ProcessWatch(EventTail(run_dir, ranks), trainers, deadlines, observe)
        with isolated() if isolate else nullcontext() as network:
            holder = network.pid if network else None
            requests = [{"network": holder, **_request(config, *place)} for place in placed]
            statuses = self._answer(config.framework, requests, watch)
        watch.look()
        watch.save_clocks(run_dir)
        outcome = LaunchOutcome()
        for (node, process), status in zip(placed, statuses, strict=True):
            outcome.nodes[node.node_rank] = outcome.nodes.get(node.node_rank) or status
            if status < 0:
                outcome.vanished.append(process.process_rank)
        return outcome

    def describe(
        self, argv: Sequence[str], *, env: Mapping[str, str], **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """The same as `commands.run_command` of what builds a custom model; prints into the framework's log."""
        if argv[0] != sys.executable:
            return run_command(argv, env=env, **options)
        built = argv[argv.index(BUILDS_MODELS) :]  # and the model, its framework, ...
        request = {"argv": built, "environment": dict(env), "folder": str(Path.cwd()), "network": None}
        (status,) = self._answer(built[2], [request], None)
        return subprocess.CompletedProcess(argv, status, "", "")

    def _answer(self, framework: str, request: list[dict[str, Any]], watch: ProcessWatch | None) -> list[int]:
        with self._answers[framework]:
            return self._ask(framework, request, watch)

    def _ask(self, framework: str, request: list[dict[str, Any]], watch: ProcessWatch | None) -> list[int]:
        known = self._frameworks.get(framework)
        if known is None or known.poll() is not None:
            self._frameworks[framework] = self._start(framework)
        process = self._frameworks[framework]
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        while not select([process.stdout], [], [], PROCESS_POLL_SECONDS)[0]:
            if watch:
                watch.look()
        answer = process.stdout.readline()
        assert answer, f"the process that holds {framework} has ended; see {self._folder / framework}.log"
        statuses: list[int] = json.loads(answer)
        return statuses

    def _start(self, framework: str) -> subprocess.Popen[str]:
        with (self._folder / f"{framework}.log").open("w") as log:
            return subprocess.Popen(
                [sys.executable, warm_process.__file__, *IMPORTED[framework]],
                env=self._environment,
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def close(self) -> None:
        for process in self._frameworks.values():
            process.communicate()


def _request(config: RunConfig, node: NodeProcess, process: TrainingProcess) -> dict[str, Any]:
    inherited = {name: value for name, value in os.environ.items() if name not in INHERITED_TO_DROP}
    environment = inherited | node.env
    if config.launch == "torchrun":
        environment |= _of_torchrun(config, node, process)
    return {"argv": node.argv[node.argv.index(DOOR) :], "environment": environment, "folder": str(Path.cwd())}


def _of_torchrun(config: RunConfig, node: NodeProcess, process: TrainingProcess) -> dict[str, str]:
    """What an agent of torchrun sets for the processes that it starts."""
    options = dict(zip(node.argv, node.argv[1:], strict=False))
    return {
        "RANK": str(process.process_rank),
        "LOCAL_RANK": str(process.local_rank),
        "WORLD_SIZE": str(config.topology.num_processes),
        "LOCAL_WORLD_SIZE": str(config.topology.processes_per_node),
        "GROUP_RANK": str(node.node_rank),
        "MASTER_ADDR": options["--master-addr"],
        "MASTER_PORT": options["--master-port"],
    }
