"""The exactness of resumed runs: the command killed with SIGKILL at every step of a run, in every mode, and in a chain.

    python -m stress.exact_resume [--steps 20] [--chain 10] [--mode FRAMEWORK:MODE ...] [--write FILE]
    python -m stress.exact_resume --across-frameworks [--steps 20] [--write FILE]

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
from pathlib import Path
from typing import Any

from benchmarks.sections import commit, typed, write_section
from dpcompare.config.modes import modes_by_default
from dpcompare.results.checkpoint import decode
from dpcompare.results.run_dir import checkpoint_paths
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


def across_frameworks(steps: int) -> list[str]:
    """The table of runs that change the framework after some steps."""
    lines = [
        "| optimizer | started in | resumed in | after step | largest difference of a loss | of the last evaluation |"
    ]
    lines.append("|---|---|---|--:|--:|--:|")
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
                    lines.append(f"| {optimizer} | {first} | {second} | {stop} | {loss:.1e} | {last:.1e} |")
                    print(lines[-1], file=sys.stderr)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="of a run; it is killed at each but the last")
    parser.add_argument("--chain", type=int, default=10, help="kills of one run")
    parser.add_argument("--mode", action="append", help="only these, such as torch:ddp")
    parser.add_argument("--across-frameworks", action="store_true", help="that table instead")
    parser.add_argument("--write", type=Path, metavar="FILE", help="a Markdown file whose section gets the table")
    arguments = parser.parse_args()
    if arguments.across_frameworks:
        lines = [f"{typed('stress.exact_resume')} at {commit()}:", ""]
        lines += across_frameworks(arguments.steps)
        print("\n".join(lines))
        if arguments.write:
            write_section(arguments.write, "across frameworks", lines)
        return
    lines, failed = every_step(arguments)
    print("\n".join(lines))
    if arguments.write:
        write_section(arguments.write, "exact resume", lines)
    sys.exit(3 if failed else 0)


def every_step(arguments: argparse.Namespace) -> tuple[list[str], int]:
    """The table of modes and killed steps, and how many runs had a problem."""
    steps = range(1, arguments.steps)
    chain = [1 + number * arguments.steps // arguments.chain for number in range(arguments.chain)]
    modes = [tuple(mode.split(":")) for mode in arguments.mode] if arguments.mode else modes_by_default()
    lines = [
        f"| mode, killed after step | {' | '.join(map(str, steps))} | chain of {len(chain)} | sha256 |",
        f"|---|{'--|' * len(steps)}--|---|",
    ]
    kills = failed = 0
    for framework, mode in modes:
        expected = undisturbed(framework, mode, arguments.steps)
        cells = []
        for number, at in enumerate([*([step] for step in steps), chain], start=1):
            problems = killed_at(framework, mode, arguments.steps, at, expected)
            cells.append("differs" if problems else "=")
            kills += len(at)
            failed += bool(problems)
            print(f"{framework} {mode} [{number}/{len(steps) + 1}] killed at {at}: {cells[-1]}", file=sys.stderr)
        sha256 = expected["sha256 of weights and optimizer"][:12]
        lines.append(f"| {framework} {mode} | {' | '.join(cells)} | {sha256} |")
    lines = [
        f"{typed('stress.exact_resume')} at {commit()}: {kills} kills of the command, {failed} runs with a problem.",
        "",
        *lines,
    ]
    return lines, failed


if __name__ == "__main__":
    main()
