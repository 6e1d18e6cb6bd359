"""The exactness of resumed runs: the command killed with SIGKILL at every step of a run, in every mode, and in a chain.

    python -m stress.exact_resume [--steps 20] [--chain 10] [--mode FRAMEWORK:MODE ...] [--write [FOLDER]]
    python -m stress.exact_resume --across-frameworks [--steps 20] [--write [FOLDER]]

After a step a training process kills the command. Two seconds later nothing of the run may be left: no process, port or
shared memory. The resumed run must have the losses, evaluations and sample order of one that was left alone, and the
bytes of its weights and of its optimizer's memory. Prints a table of modes and steps; exit code 3 where a cell differs.
Across frameworks, a run of one is resumed in the other, in float64, and its losses are compared with those of a run
that stayed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.evidence import Keeper, Status, Table, number, table, text
from dpcompare.config.modes import USUAL_MODES
from dpcompare.results.checkpoint import decode
from dpcompare.results.run_dir import checkpoint_paths
from dpcompare.system.terminal_text import pluralize
from stress.faults import before_a_step
from stress.injection import write_sitecustomize
from stress.trials import (
    LONGEST,
    SECONDS_TO_BE_GONE,
    TINY,
    Fault,
    Trial,
    ports_listening,
    resume_command,
    shared_memory,
    trial_of,
    wait_until_gone,
)

MODEL = ("--model", "toy-bn", "--image-size", "16")
"""BatchNorm's statistics are part of what must be equal."""


def kill_the_command(trial: Trial) -> tuple[str, str]:
    return before_a_step(trial, f"{{note}}; os.kill(int(open({str(trial.pid_file)!r}).read()), signal.SIGKILL)")


def fault(steps: int) -> Fault:
    options = (*MODEL, "--steps", str(steps))
    return Fault(code=-signal.SIGKILL, within=SECONDS_TO_BE_GONE, inject=kill_the_command, options=options)


def outcome(run_dir: Path) -> dict[str, Any]:
    """All that must be equal."""
    result = json.loads((run_dir / "result.json").read_text())
    checkpoint = decode(checkpoint_paths(run_dir)[0].read_bytes())
    state = hashlib.sha256()
    for part in (checkpoint.model, checkpoint.optimizer):
        for name in sorted(part):
            state.update(name.encode() + part[name].tobytes())
    same = {name: result[name] for name in ("status", "train_loss", "evaluations", "sample_order_sha256")}
    return same | {"sha256 of weights and optimizer": state.hexdigest()}


def resume_trial(trial: Trial, steps: int, *, kill_at: int | None = None) -> list[str]:
    """Resume to the end, or to the next kill; returns problems."""
    code = 0
    (trial.folder / "acted").unlink(missing_ok=True)
    if kill_at is None:
        (trial.folder / "fault" / "sitecustomize.py").unlink()
    else:
        code, trial.step = -signal.SIGKILL, kill_at
        write_sitecustomize(trial.folder / "fault", *kill_the_command(trial))
    before = shared_memory() | ports_listening()
    trial.process = trial.start(resume_command(trial, steps))
    trial.pid_file.write_text(str(trial.process.pid))
    try:
        trial.process.wait(LONGEST)
    except subprocess.TimeoutExpired:
        trial.process.kill()
        return ["HANG"]
    left = wait_until_gone(trial, before, time.monotonic() + SECONDS_TO_BE_GONE)
    return left + (
        [f"exit code {trial.process.returncode}, expected {code}"] if trial.process.returncode != code else []
    )


def undisturbed(framework: str, mode: str, steps: int) -> dict[str, Any]:
    alone = Fault(code=0, within=LONGEST, options=fault(steps).options, act=lambda trial, events: None)
    with trial_of(alone, framework, mode, random.Random(0)) as trial:
        return outcome(trial.run_dir)


def killed_at(framework: str, mode: str, steps: int, kills: list[int], expected: dict[str, Any]) -> list[str]:
    """Kill at these steps, one attempt after the other, and resume to the end; returns problems."""
    with trial_of(fault(steps), framework, mode, random.Random(kills[0]), step=kills[0]) as trial:
        problems = list(trial.problems)
        for kill_at in [*kills[1:], None]:
            problems += [] if problems else resume_trial(trial, steps, kill_at=kill_at)
        if not problems:
            found = outcome(trial.run_dir)
            problems = [f"{name} differs" for name in expected if found[name] != expected[name]]
        if problems:
            print(f"{framework} {mode}, killed at {kills}: {problems}\n{trial.said[-1500:]}", file=sys.stderr)
        return problems


def trained(folder: Path, *options: str) -> dict[str, Any]:
    """The result of a run, new or resumed."""
    done = subprocess.run(
        [sys.executable, "-m", "dpcompare", "run", *options, "--json"],
        env=os.environ | {"DPCOMPARE_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


Changed = tuple[str, str, str, int, float, float]
"""Optimizer, first and second framework, step after which it changed, differences of a loss and an evaluation."""


def across_frameworks(steps: int) -> Iterator[Changed]:
    """Runs that change the framework after some steps."""
    tiny = [*TINY, *MODEL, "--precision", "float64"]
    for optimizer in ("adam", "sgd"):
        for first, second in (("torch", "tensorflow"), ("tensorflow", "torch")):
            with tempfile.TemporaryDirectory(prefix="dpcompare-across-") as temporary:
                folder = Path(temporary)
                begin = ["--framework", first, "--mode", "single", *tiny, "--optimizer", optimizer]
                uninterrupted = trained(folder, *begin, "--steps", str(steps), "--run-dir", f"{folder}/uninterrupted")
                for stop in range(1, steps, 6):
                    run_dir = f"{folder}/{stop}"
                    trained(folder, *begin, "--steps", str(stop), "--run-dir", run_dir)
                    resumed = trained(
                        folder, "--resume", run_dir, "--framework", second, "--mode", "single", "--steps", str(steps)
                    )
                    pairs = zip(resumed["train_loss"], uninterrupted["train_loss"], strict=True)
                    loss = max(abs(one - other) for one, other in pairs)
                    last = abs(resumed["evaluations"][-1]["loss"] - uninterrupted["evaluations"][-1]["loss"])
                    print(f"{optimizer}, {first}, {second} after {stop}: {loss:.1e}, {last:.1e}", file=sys.stderr)
                    yield optimizer, first, second, stop, loss, last


def table_of_changed(rows: Sequence[Changed]) -> Table:
    columns = [
        *text("optimizer", "started in", "resumed in"),
        number("after step"),
        number("largest difference of a loss", ".1e"),
        number("of the last evaluation", ".1e"),
    ]
    return table(columns, rows)


def figures_of_changed(rows: Sequence[Changed]) -> dict[str, str | int]:
    return {
        "runs": len(rows),
        "largest_difference_of_a_loss": f"{max(loss for *_, loss, _ in rows):.1e}",
        "largest_difference_of_an_evaluation": f"{max(last for *_, last in rows):.1e}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="of a run; it is killed at each but the last")
    parser.add_argument("--chain", type=int, default=10, help="kills of one run")
    parser.add_argument("--mode", action="append", help="only these, such as torch:ddp")
    parser.add_argument("--across-frameworks", action="store_true", help="that table instead")
    keeper = Keeper(parser, "stress.exact_resume")
    arguments = parser.parse_args()
    has_all_steps = arguments.steps >= parser.get_default("steps")
    if arguments.across_frameworks:
        rows = list(across_frameworks(arguments.steps))
        keeper.keep(
            arguments.write,
            "across-frameworks",
            "measured" if has_all_steps else "open",
            tables=[table_of_changed(rows)],
            figures=figures_of_changed(rows),
        )
        return
    chain = chain_of(arguments)
    resumed = list(every_step(arguments, chain))
    failed = sum(each.num_different for each in resumed)
    is_whole = has_all_steps and len(chain) >= parser.get_default("chain") and not arguments.mode
    status: Status = "failed" if failed else "passed" if is_whole else "open"
    kills = len(resumed) * (arguments.steps - 1 + len(chain))
    keeper.keep(
        arguments.write,
        "exact-resume",
        status,
        sentences=[f"{pluralize(kills, 'kill')} of the command, {pluralize(failed, 'run')} with a problem."],
        tables=[table_of_resumed(resumed, arguments.steps, len(chain))],
        figures={"modes": len(resumed), "kills": kills, "failed": failed},
    )
    sys.exit(3 if failed else 0)


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """The runs of a mode that were killed and resumed."""

    name: str
    are_equal: list[bool]
    """Of each step that a run was killed after, and last of the chain of kills."""
    sha256: str

    @property
    def num_different(self) -> int:
        return self.are_equal.count(False)


def chain_of(arguments: argparse.Namespace) -> list[int]:
    """The steps after which one run is killed, one attempt after the other."""
    return [1 + index * arguments.steps // arguments.chain for index in range(arguments.chain)]


def every_step(arguments: argparse.Namespace, chain: list[int]) -> Iterator[Resumed]:
    """Each mode, killed at each step and in a chain."""
    kills = [*([step] for step in range(1, arguments.steps)), chain]
    modes = [tuple(mode.split(":")) for mode in arguments.mode] if arguments.mode else USUAL_MODES
    for framework, mode in modes:
        expected = undisturbed(framework, mode, arguments.steps)
        are_equal = []
        for index, at in enumerate(kills, start=1):
            are_equal.append(not killed_at(framework, mode, arguments.steps, at, expected))
            said = f"{framework} {mode} [{index}/{len(kills)}] killed at {at}: {shown_equal(are_equal[-1])}"
            print(said, file=sys.stderr)
        sha256 = expected["sha256 of weights and optimizer"][:12]
        yield Resumed(name=f"{framework} {mode}", are_equal=are_equal, sha256=sha256)


def shown_equal(is_equal: bool) -> str:
    return "=" if is_equal else "differs"


def table_of_resumed(resumed: Sequence[Resumed], steps: int, num_in_chain: int) -> Table:
    """A row for each mode, a column for each step."""
    titles = ["mode, killed after step", *map(str, range(1, steps)), f"chain of {num_in_chain}", "sha256"]
    rows = [(each.name, *map(shown_equal, each.are_equal), each.sha256) for each in resumed]
    return table(text(*titles), rows)


if __name__ == "__main__":
    main()
