"""The Ray engine: a task for each node, on machines of a Ray cluster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpcompare.config.engines import RayOptions
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.launch.engines import Engine, NodesEnded, PollExit, options_of
from dpcompare.launch.outcome import Report
from dpcompare.launch.rendezvous import Rendezvous
from dpcompare.system.ports import local_address
from dpcompare.system.python_environment import import_extra


class Ray(Engine):
    """Tasks spread over the machines of a cluster, which share the run directory."""

    may_queue = True

    def check(self, config: RunConfig) -> None:
        import_extra("ray", extra="ray", needed_by="--engine ray")

    @contextmanager
    def started(
        self, config: RunConfig, run_dir: Path, rendezvous: Rendezvous, report: Report
    ) -> Iterator[PollExit | None]:
        ray = import_extra("ray", extra="ray", needed_by="--engine ray")
        address = options_of(config, RayOptions).address
        ray.init(address=address)
        report(f"Ray at {address} starts {config.cluster.num_nodes} nodes")
        node = config.cluster.nodes[0]
        needs = {"CPU": node.num_cores, "GPU": len(node.devices) if config.cluster.device_type == "gpu" else 0}
        group = ray.util.placement_group([needs] * config.cluster.num_nodes, strategy="STRICT_SPREAD")
        start = ray.remote(_run_node).options(num_cpus=needs["CPU"], num_gpus=needs["GPU"], placement_group=group)
        tasks = [start.remote(str(run_dir), rank, rendezvous.attempt.id) for rank in range(config.cluster.num_nodes)]

        def poll_exit() -> NodesEnded | None:
            done, running = ray.wait(tasks, num_returns=len(tasks), timeout=0)
            return None if running else NodesEnded(why=f"the tasks have ended with {ray.get(done)}")

        try:
            yield poll_exit
        finally:
            for task in tasks:
                ray.cancel(task, force=True)
            ray.util.remove_placement_group(group)
            ray.shutdown()

    def node_identity(self, config: RunConfig, node_rank: int | None) -> tuple[int, str]:
        if node_rank is None:
            raise RequestError("--node-rank: received none; expected `dpcompare run --engine ray` to start this node")
        ray = import_extra("ray", extra="ray", needed_by="--engine ray")
        return node_rank, local_address(ray.util.get_node_ip_address())


def _run_node(run_dir: str, rank: int, attempt: str) -> int:
    """The exit status of a node, on its machine."""
    argv = [sys.executable, "-P", "-m", "dpcompare.launch.node", run_dir]
    return subprocess.run([*argv, "--node-rank", str(rank), "--attempt", attempt], check=False).returncode
