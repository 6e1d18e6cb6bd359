"""A session on a GPU whose minutes are few: each check leaves a line at once, and what no longer fits is left out."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.evidence import Table, commit, table, text
from dpcompare.backends.cuda_wheels import cuda_problem, cuda_wheels_of
from dpcompare.cli.option_values import interpreters

ROOT = Path(__file__).parents[1]
SECONDS_TO_END = 10
"""The seconds that a command has to end its own processes."""
PATIENCE = 10
"""How many times longer each command may take where the checks are only tried, on a CPU of few cores."""
NOT_ARCHIVED = ("cache", "checkpoints", "probe")
"""Folders that would make the archive large, and that `dpcompare report` does not read."""

Figures = dict[str, Any]


class CheckFailedError(Exception):
    """What a check found to be wrong, or why it has no figures."""


class LeftOutError(Exception):
    """Why a check is not made here."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check of a part."""

    name: str
    about: str
    """What it shows, as the beginning of a sentence."""
    make: Callable[[Session], Figures]
    seconds: float
    """The seconds that must be left for it to begin (estimated, on one H100); 0: it takes none, and is always made."""


@dataclass
class Session:
    """What checks share: where they leave what they find, the time that is left, and runs that several look at."""

    part: str
    out: Path
    seconds: float
    jobs: int
    device: str
    model: str
    image_size: int
    batch: int
    steps: int
    warmup_steps: int
    timm_benchmark: Path | None = None
    _begun: float = field(default_factory=time.monotonic)
    _runs: dict[str, Future[dict[str, Any]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _lock_of_modes: threading.Lock = field(default_factory=threading.Lock)
    _modes: set[tuple[str, str]] | None = None
    _run_dirs: dict[str, Path] = field(default_factory=dict)
    _made: list[dict[str, Any]] = field(default_factory=list)

    @property
    def seconds_left(self) -> float:
        return self.seconds - (time.monotonic() - self._begun)

    @property
    def on_gpu(self) -> bool:
        return self.device == "gpu"

    @property
    def lines(self) -> Path:
        """One JSON object per line, written as it happens."""
        return self.out / f"{self.part}.jsonl"

    @cached_property
    def environment(self) -> dict[str, str]:
        """The environment of all commands: this checkout is found also where it is not installed."""
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "DPCOMPARE_CACHE_DIR": str(self.out / "cache")}

    @property
    def modes(self) -> set[tuple[str, str]]:
        """(framework, mode) that can be used here, in this environment or in those of `dpcompare setup`."""
        with self._lock_of_modes:  # or all checks that begin together would ask
            if self._modes is None:
                listed = json.loads(self.command("modes", "dpcompare", "modes", "--json", seconds=60))["modes"]
                usable = {(row["framework"], row["mode"]) for row in listed if row["usable"]}
                self._modes = {each for each in usable if not self.on_gpu or _finds_cuda(each[0])}
        return self._modes

    def require(self, framework: str, mode: str = "single") -> None:
        """Raise LeftOutError where a mode cannot be used here."""
        if (framework, mode) not in self.modes:
            raise LeftOutError(f"{framework} {mode} is not installed, or cannot use the GPU")

    def run_dir(self, name: str) -> Path:
        """The directory of a run of this session; one of an earlier session in the same folder keeps its own."""
        with self._lock:
            if name not in self._run_dirs:
                folder, number = self.out / "runs" / name, 1
                while folder.exists():
                    number += 1
                    folder = self.out / "runs" / f"{name}-{number}"
                self._run_dirs[name] = folder
            return self._run_dirs[name]

    def write(self, **fields: Any) -> None:
        """One line, on the disk before this returns."""
        with self._lock, self.lines.open("a") as file:
            file.write(json.dumps({"part": self.part, "time": datetime.now(UTC).isoformat(), **fields}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def command(self, name: str, module: str, *arguments: str, seconds: float, codes: Sequence[int] = (0,)) -> str:
        """What `python -m MODULE` prints; all that it says is in OUT/logs.

        Raises:
            CheckFailedError: it ended otherwise than by one of `codes`, or took longer than it may.
            LeftOutError: the time of the session was up before.
        """
        return self.output(name, [sys.executable, "-m", module, *arguments], seconds=seconds, codes=codes)

    def output(self, name: str, argv: Sequence[str], *, seconds: float, codes: Sequence[int] = (0,)) -> str:
        """The same of any command."""
        log = self.out / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        asked = seconds if self.on_gpu else PATIENCE * seconds
        allowed = min(asked, self.seconds_left - SECONDS_TO_END)
        with log.open("a") as errors:
            errors.write(f"$ {shlex.join(argv)}\n")
            errors.flush()
            with subprocess.Popen(
                argv, stdout=subprocess.PIPE, stderr=errors, text=True, env=self.environment, cwd=self.out
            ) as process:
                try:
                    printed, _ = process.communicate(timeout=max(1.0, allowed))
                except subprocess.TimeoutExpired:
                    errors.write(self._end(process))
                    if allowed < asked:
                        raise LeftOutError(f"time: no end within the {allowed:.0f} s that were left") from None
                    raise CheckFailedError(f"no end after {allowed:.0f} s; see {log.relative_to(self.out)}") from None
            errors.write(printed)
        if process.returncode not in codes:
            end = " ".join(log.read_text(errors="replace").split())[-600:]
            raise CheckFailedError(f"ended with {process.returncode}: {end}")
        return printed

    def _end(self, process: subprocess.Popen[str]) -> str:
        """Have a command end with its processes, which it does by itself where it is asked to; what it printed."""
        process.send_signal(signal.SIGINT)
        try:
            printed, _ = process.communicate(timeout=SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            printed, _ = process.communicate()
        return printed or ""

    def run(self, name: str, *options: str, mode: str = "single", framework: str = "torch", seconds: float = 90,
            **workload: Any) -> dict[str, Any]:  # fmt: skip
        """The result of `dpcompare run`, see `run_dir`; whoever asks again gets the same, also a failure.

        Args:
            name: of the run.
            options: further ones.
            mode: with `framework`, which is left out where it cannot be used.
            seconds: that it may take at most.
            workload: in the place of that of the session.
        """
        with self._lock:
            is_first = name not in self._runs
            future = self._runs.setdefault(name, Future())
        if is_first:
            try:
                self.require(framework, mode)
                argv = self.arguments(name, *options, mode=mode, framework=framework, **workload)
                future.set_result(json.loads(self.command(name, "dpcompare", *argv, seconds=seconds)))
            except Exception as error:  # raised below, and whenever the run is asked for
                future.set_exception(error)
        return future.result()

    def arguments(self, name: str, *options: str, mode: str, framework: str, **workload: Any) -> list[str]:
        """The arguments of `dpcompare run`."""
        asked: Mapping[str, Any] = {
            "model": self.model,
            "dataset": "synthetic",
            "image_size": self.image_size,
            "global_batch_size": self.batch,
            "steps": self.steps,
            "warmup_steps": self.warmup_steps,
        } | workload
        # One evaluation, at the end: each ends a window of the clock.
        asked = {"evaluate_every": asked["steps"]} | asked
        given = [part for key, value in asked.items() for part in (f"--{key.replace('_', '-')}", str(value))]
        one = [] if {"--nodes", "--devices-per-node", "--gpus"} & set(options) else ["--devices-per-node", "1"]
        where = ["--device", self.device, "--run-dir", str(self.run_dir(name))]
        return ["run", "--framework", framework, "--mode", mode, "--json", *where, *one, *given, *options]

    def killed_and_resumed(self, name: str, framework: str, *, seconds: float, **workload: Any) -> dict[str, Any]:
        """The result of a run whose processes were all killed after its first checkpoint, and that was resumed."""
        self.require(framework)
        run_dir = self.run_dir(name)
        argv = self.arguments(name, "--checkpoint-every", "3", mode="single", framework=framework, **workload)
        log = self.out / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        until = time.monotonic() + min(seconds, self.seconds_left)
        with log.open("a") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "dpcompare", *argv],
                **{"stdout": output, "stderr": output, "env": self.environment, "cwd": self.out},
                start_new_session=True,
            )
            while process.poll() is None and time.monotonic() < until and not list(run_dir.glob("checkpoints/*.safe*")):
                time.sleep(0.02)
            had_ended = process.poll() is not None
            with suppress(ProcessLookupError):  # it has ended already
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if had_ended or not list(run_dir.glob("checkpoints/*.safe*")):
            why = "the run ended before it could be killed" if had_ended else "the run had no checkpoint in time"
            raise CheckFailedError(f"{why}: {' '.join(log.read_text(errors='replace').split())[-600:]}")
        left = until - time.monotonic()
        resumed = json.loads(self.command(name, "dpcompare", "run", "--resume", str(run_dir), "--json", seconds=left))
        return dict(resumed)

    def make(self, checks: Sequence[Check]) -> bool:
        """Make the checks, `jobs` at a time, in their order; returns whether none failed."""
        with ThreadPoolExecutor(self.jobs, thread_name_prefix="check") as pool:
            return all(list(pool.map(self._make, checks)))

    def _make(self, check: Check) -> bool:
        begun = time.monotonic()
        fields: dict[str, Any] = {}
        if check.seconds and self.seconds_left < check.seconds:
            fields = {"status": "left out", "why": f"time: {max(0, self.seconds_left):.0f} s of {check.seconds:.0f}"}
        else:
            try:
                fields = {"status": "ok", "figures": check.make(self)}
            except LeftOutError as reason:
                fields = {"status": "left out", "why": str(reason)}
            except Exception as error:  # the other checks go on
                fields = {"status": "failed", "why": f"{type(error).__name__}: {error}"}
        fields = {"check": check.name, "about": check.about, "seconds": round(time.monotonic() - begun, 1)} | fields
        self.write(**fields)
        self._made.append(fields)
        print(*row_of(fields), sep=" | ", file=sys.stderr, flush=True)
        return fields["status"] != "failed"

    @property
    def table(self) -> Table:
        """The checks of this session."""
        return table(text("check", "verdict", "figures"), map(row_of, self._made))

    @property
    def checks(self) -> int:
        """How many were made or left out."""
        return len(self._made)

    @property
    def left_out(self) -> int:
        """How many checks were left out."""
        return sum(fields["status"] == "left out" for fields in self._made)

    def archive(self) -> Path:
        """Everything that was kept, but for what is large, in one file."""
        path = self.out / f"first-gpu-{self.part}.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for each in sorted(self.out.rglob("*")):
                inside = each.relative_to(self.out)
                if each.is_file() and each.suffixes[-2:] != [".tar", ".gz"] and not set(NOT_ARCHIVED) & {*inside.parts}:
                    archive.add(each, arcname=f"first-gpu-{self.part}/{inside}")
        return path


def row_of(fields: Mapping[str, Any]) -> tuple[str, str, str]:
    """A row of the table."""
    figures = "; ".join(f"{name} {_in_words(value)}" for name, value in fields.get("figures", {}).items())
    told = f"{fields['about']}: {fields.get('why') or figures} ({fields['seconds']:.0f} s)"
    return fields["check"], fields["status"], " ".join(told.split())


def _in_words(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def _finds_cuda(framework: str) -> bool:
    """Whether the environment of a framework has what it needs for the GPUs of this machine."""
    python = interpreters(()).get(framework, sys.executable)
    return cuda_problem(framework, python, cuda_wheels_of(python)) is None


def spans(run_dir: Path) -> list[dict[str, Any]]:
    """The events with a duration in the trace of the first process of a run."""
    events = json.loads((run_dir / "traces" / "process-0.json").read_text())["traceEvents"]
    return [event for event in events if event.get("ph") == "X" and event.get("dur")]


def difference(losses: Sequence[float], others: Sequence[float]) -> float:
    """The largest relative difference of two series of losses; infinite where they are not of the same length."""
    if len(losses) != len(others):
        return float("inf")
    return max(abs(one - other) / abs(one) for one, other in zip(losses, others, strict=True))


def about_this() -> dict[str, Any]:
    """What the first line of a part says."""
    without_paths = [Path(word).name if os.sep in word else word for word in sys.argv[1:]]
    command = shlex.join(["python", "-m", "stress.first_gpu", *without_paths])
    return {"commit": commit(), "command": command, "python": sys.version.split()[0]}
