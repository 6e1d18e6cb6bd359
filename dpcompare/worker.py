"""The entry point of every training process: `python -m dpcompare.worker RUN_DIR --node-rank I`."""

from __future__ import annotations

import os
import signal

from dpcompare.system.processes import AGENT_PID, die_with_parent

if __name__ == "__main__":
    die_with_parent(int(os.environ[AGENT_PID]) if AGENT_PID in os.environ else None)
    # Before NumPy starts threads of its own, which would take the signal that dpcompare.training.process waits for.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

import argparse
from pathlib import Path

from dpcompare.training.process import work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--node-rank", type=int, required=True)
    arguments = parser.parse_args()
    work(arguments.run_dir, arguments.node_rank)


if __name__ == "__main__":
    main()
