"""A process in which a framework is imported already, and from which training processes fork.

`python warm_process.py MODULE...` reads one launch per line, a JSON list of training processes, and answers with a JSON
list of their exit statuses. A training process that is to have a fault, which PYTHONPATH leads to, imports the modules
of dpcompare itself; the others find them imported.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import signal
import sys
import time
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

LONGEST_SECONDS = 600.0
"""Seconds of a launch; one that hangs is killed."""
SECONDS_TO_END = 10.0


def main() -> None:
    parent = os.getppid()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a framework may print what it likes
    for name in [*sys.argv[1:], "safetensors.numpy", "dpcompare.training.process"]:
        import_module(name)
    import_module("pydantic").create_model("First", number=(int, 0))  # which looks for plugins in all distributions
    gc.freeze()  # no collection in a training process looks at, and thereby copies, what the framework has made
    for line in sys.stdin:  # it ends with the parent
        print(json.dumps(_launch(json.loads(line), parent)), file=answers, flush=True)


def _launch(processes: list[dict[str, Any]], parent: int) -> list[int]:
    """Fork the processes of a run and wait for all; the first that fails ends the others, as does the parent's end.

    The kernel is not asked for that (PR_SET_PDEATHSIG): it looks at the thread that started this process, which may be
    one of a pool and end before the parent does.
    """
    pids = [os.fork() or _train(**process) for process in processes]
    statuses: dict[int, int] = {}
    deadline = time.monotonic() + LONGEST_SECONDS
    while running := [pid for pid in pids if pid not in statuses]:
        if os.getppid() != parent:
            os._exit(1)
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid and time.monotonic() < deadline:
            time.sleep(0.01)
        elif not pid:
            _signal(running, signal.SIGKILL)
        else:
            if status and not any(statuses.values()):
                _signal(running, signal.SIGTERM)
                deadline = time.monotonic() + SECONDS_TO_END
            statuses[pid] = os.waitstatus_to_exitcode(status)
    return [statuses[pid] for pid in pids]


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it is the one that has just ended
            os.kill(pid, number)


def _enter_network_of(pid: int) -> None:
    for kind in ("user", "net"):
        namespace = Path(f"/proc/{pid}/ns/{kind}")
        if namespace.stat().st_ino == Path(f"/proc/self/ns/{kind}").stat().st_ino:  # which cannot be entered again
            continue
        if ctypes.CDLL(None).setns(os.open(namespace, os.O_RDONLY), 0):
            raise OSError(f"the {kind} namespace of process {pid} cannot be entered")


def _train(argv: list[str], environment: dict[str, str], folder: str, network: int | None) -> NoReturn:
    """Become a training process: `argv` begins with its entry point, and process `network` holds its network."""
    try:
        if network is not None:
            _enter_network_of(network)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, which fork clears: of the thread that forked
        inherited = os.environ.get("PYTHONPATH")
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = argv
        if environment.get("PYTHONPATH") != inherited:
            _lead_to_fault([entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry])
        runpy.run_module(argv[0], run_name="__main__")
    except BaseException:
        traceback.print_exc()
    os._exit(1)  # a training process ends itself


def _lead_to_fault(python_path: list[str]) -> None:
    """Do what an interpreter does when it starts, with modules of dpcompare that are yet to be imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "dpcompare"]:
        del sys.modules[name]
    sys.path[:0] = python_path
    for entry in python_path:
        if (custom := Path(entry, "sitecustomize.py")).is_file():
            exec(compile(custom.read_text(), custom, "exec"), {"__name__": "sitecustomize"})


if __name__ == "__main__":
    main()
