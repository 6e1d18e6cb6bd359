"""The seconds that `dpcompare run` adds to the start and the end of the processes that it runs.

    python -m benchmarks.start [--mode torch:ddp ...] [--rounds 5] [--write [FOLDER]]

In every round each mode runs twice, in either order: by the command, and without it, by a script that starts the same
processes from the same plan and waits for them, its inputs prepared before. Also how long `dpcompare --help` takes,
compared with a Python that does nothing, and how long the first step takes, in which TensorFlow traces.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.evidence import Keeper, Table, extremes, number, shown, spread, table, text
from benchmarks.overhead import devices_of
from dpcompare import Cluster, RunConfig, Workload
from dpcompare.config.modes import MODES, USUAL_MODES
from dpcompare.launch.plan import INHERITED_TO_DROP, Endpoints, num_ports, plan
from dpcompare.launch.run import prepare_run
from dpcompare.results.result import RunResult
from dpcompare.system.ports import free_ports

WORKLOAD = Workload(model="toy-cnn", dataset="synthetic", global_batch_size=32, steps=3, warmup_steps=1)
SECONDS = ".2f"
"""The format of seconds."""

# Python keeps what it has compiled, as it does for most users, whatever the shell that this is started from says.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class Seconds(NamedTuple):
    """Of a mode in a round."""

    hand_written: float
    added: float
    first_step: float


def seconds_of(argv: list[str]) -> float:
    """Seconds that a command takes; it must succeed."""
    begin = time.perf_counter()
    subprocess.run(argv, check=True, capture_output=True, env=ENVIRONMENT)
    return time.perf_counter() - begin


def by_command(framework: str, mode: str, run_dir: Path) -> float:
    """Seconds of `dpcompare run`."""
    argv = [sys.executable, "-m", "dpcompare", "run", "--framework", framework, "--mode", mode, "--device", "cpu"]
    argv += ["--model", WORKLOAD.model, "--dataset", WORKLOAD.dataset, "--global-batch-size", "32", "--steps", "3"]
    argv += ["--warmup-steps", "1", *devices_of(framework, mode), "--run-dir", str(run_dir)]
    return seconds_of(argv)


def by_script(framework: str, mode: str, run_dir: Path) -> float:
    """Seconds of the same processes, started without the command."""
    row = MODES[framework, mode]
    nodes, devices = (2, 1) if row.multi_node else (1, 2) if row.multi_device else (1, 1)
    cluster = Cluster.partition(nodes, devices, device="cpu")
    config = prepare_run(RunConfig(framework=framework, mode=mode, workload=WORKLOAD, cluster=cluster), run_dir)
    inherited = {name: value for name, value in ENVIRONMENT.items() if name not in INHERITED_TO_DROP}
    planned = plan(config, run_dir.resolve(), Endpoints(free_ports(num_ports(config))))
    begin = time.perf_counter()
    processes = [
        subprocess.Popen(node.argv, env=inherited | node.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for node in planned
    ]
    codes = [process.wait(timeout=600) for process in processes]
    seconds = time.perf_counter() - begin
    if any(codes):
        raise RuntimeError(f"{framework} {mode} by a hand-written command: exit codes {codes}; logs in {run_dir}")
    return seconds


def measured(modes: list[tuple[str, str]], rounds: int, generator: random.Random) -> dict[str, list[Seconds]]:
    """Mode -> seconds of each round."""
    found: dict[str, list[Seconds]] = defaultdict(list)
    for round_number in range(1, rounds + 1):
        for framework, mode in modes:
            name = f"{framework} {mode}"
            with tempfile.TemporaryDirectory(prefix="dpcompare-start-") as folder:
                seconds = {}
                for way in generator.sample([by_command, by_script], 2):
                    seconds[way] = way(framework, mode, Path(folder) / way.__name__)
                result = RunResult.load(Path(folder) / by_command.__name__)
            assert result.first_step_seconds is not None
            added = seconds[by_command] - seconds[by_script]
            found[name].append(Seconds(seconds[by_script], added, result.first_step_seconds))
            print(f"round {round_number}: {name} {json.dumps(found[name][-1]._asdict())}", file=sys.stderr)
    return found


def table_of(found: Mapping[str, list[Seconds]]) -> Table:
    columns = [
        *text("mode"),
        number("s by a hand-written command", SECONDS),
        number("s that the command adds", SECONDS),
        number("s of the first step", SECONDS),
    ]
    return table(columns, [(name, *map(spread, zip(*rounds, strict=True))) for name, rounds in found.items()])


def sentence_of(rounds: int, helped: Sequence[float], nothing: Sequence[float]) -> str:
    seconds = number("s", SECONDS)
    return (
        f"{rounds} rounds. `dpcompare --help`: {shown(spread(helped), seconds)} s; "
        f"a Python that does nothing: {shown(spread(nothing), seconds)} s."
    )


def figures_of(found: Mapping[str, list[Seconds]], helped: Sequence[float], nothing: Sequence[float]) -> dict[str, str]:
    added = [median(seconds.added for seconds in rounds) for rounds in found.values()]
    return {
        "help_seconds": format(median(helped), SECONDS),
        "nothing_seconds": format(median(nothing), SECONDS),
        **extremes("added_seconds", added, SECONDS),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", action="append", help="only these, such as torch:ddp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="of the order in a round")
    keeper = Keeper(parser, "benchmarks.start")
    arguments = parser.parse_args()
    modes = [(mode.split(":")[0], mode.split(":")[1]) for mode in arguments.mode] if arguments.mode else USUAL_MODES
    helped = [seconds_of([sys.executable, "-m", "dpcompare", "--help"]) for _ in range(2 * arguments.rounds)]
    nothing = [seconds_of([sys.executable, "-c", ""]) for _ in range(2 * arguments.rounds)]
    found = measured(modes, arguments.rounds, random.Random(arguments.seed))
    keeper.keep(
        arguments.write,
        "start",
        "open" if arguments.mode else "measured",
        sentences=[sentence_of(arguments.rounds, helped, nothing)],
        tables=[table_of(found)],
        figures=figures_of(found, helped, nothing),
    )


if __name__ == "__main__":
    main()
