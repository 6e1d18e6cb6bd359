"""The agent that starts training processes from inside a program: `python -m dpcompare.backends.torch.spawn ...`.

As many tutorials do, instead of torchrun; the processes find what torchrun would say in the same environment variables.
"""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import sys
from importlib import import_module
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import torch.multiprocessing as mp

from dpcompare.backends.torch.agent import bound_store
from dpcompare.system.processes import AGENT_PID, SIGNALED


def main() -> None:
    """Start the training processes of a node, and end as the first that failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nnodes", type=int, required=True)
    parser.add_argument("--nproc-per-node", type=int, required=True)
    parser.add_argument("--master-addr", required=True)
    parser.add_argument("--master-port", required=True)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--node-rank", type=int, required=True)
    arguments = parser.parse_args()
    os.environ |= {
        AGENT_PID: str(os.getpid()),
        "WORLD_SIZE": str(arguments.nnodes * arguments.nproc_per_node),
        "MASTER_ADDR": arguments.master_addr,
        "MASTER_PORT": arguments.master_port,
    }
    # mp.spawn needs Python's tracker of resources, whose start unblocks the signal again.
    resource_tracker.ensure_running()
    # The processes inherit the mask: each waits for the signal in a separate thread.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    processes = mp.spawn(_train, (arguments,), arguments.nproc_per_node, join=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    try:
        while not processes.join():
            continue
    except mp.ProcessExitedException as ended:
        print(ended, file=sys.stderr)
        sys.exit(ended.exit_code if ended.exit_code >= 0 else SIGNALED - ended.exit_code)


def _train(local_rank: int, arguments: argparse.Namespace) -> None:
    rank = arguments.node_rank * arguments.nproc_per_node + local_rank
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(local_rank)}
    # torch's store listens on all interfaces. (As an attribute of torch.distributed, rendezvous is a function.)
    rendezvous: Any = import_module("torch.distributed.rendezvous")
    rendezvous.TCPStore = bound_store
    sys.argv = ["dpcompare.worker", str(arguments.run_dir), "--node-rank", str(arguments.node_rank)]
    runpy.run_module("dpcompare.worker", run_name="__main__")


if __name__ == "__main__":
    main()
