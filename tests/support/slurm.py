"""A Slurm of two nodes on this machine, for the time of a test: real daemons, on loopback only."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dpcompare.system.ports import free_ports

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
SECONDS_TO_START = 30
SECONDS_TO_END = 10

_CONFIG = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
KillWait=10
SlurmdParameters=config_overrides
# Or the daemons would listen on every interface.
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
NodeName=node0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[0]} CPUs=2 RealMemory=4000
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=4000
PartitionName=both Nodes=node0,node1 Default=YES MaxTime=60 State=UP
PartitionName=one Nodes=node0 MaxTime=60 State=UP
"""


def missing_programs() -> list[str]:
    return [program for program in PROGRAMS if shutil.which(program, path=_path()) is None]


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"  # where Debian has its daemons


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Yields the environment of its commands."""
    controller_port, *ports = free_ports(3)
    config = folder / "slurm.conf"
    host = socket.gethostname().partition(".")[0]
    config.write_text(_CONFIG.format(folder=folder, host=host, controller_port=controller_port, ports=ports))
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    for name in ("state", "spool-node0", "spool-node1"):
        (folder / name).mkdir()
    environment = {"SLURM_CONF": str(config), "PATH": _path()}
    munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munged += [f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed"]
    with ExitStack() as daemons:
        daemons.callback(_end_steps, folder)
        daemons.enter_context(_daemon(munged, environment, folder / "munged.out"))
        _until((folder / "munge.socket").exists, "munged does not listen")
        daemons.enter_context(_daemon(["slurmctld", "-D"], environment, folder / "slurmctld.out"))
        for node in ("node0", "node1"):
            daemons.enter_context(_daemon(["slurmd", "-D", "-N", node], environment, folder / f"{node}.out"))
        _until(lambda: _states(environment) == {"idle"}, f"the nodes are not idle; see {folder}")
        yield environment


def _states(environment: dict[str, str]) -> set[str]:
    return set(output(environment, "sinfo", "--noheader", "--Node", "--format=%t").split())


def output(environment: dict[str, str], *command: str) -> str:
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True).stdout


def jobs(environment: dict[str, str]) -> list[str]:
    """Ids of jobs that have not ended; Slurm may still be clearing up after others (COMPLETING)."""
    return output(environment, "squeue", "--noheader", "--states=PD,CF,R,S", "--format=%i").split()


@contextmanager
def _daemon(command: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("wb") as written:
        process = subprocess.Popen(
            command,
            env=os.environ | environment,
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _end_steps(folder: Path) -> None:
    """Kill what the daemons have left: a step waits forever for a controller that was killed while it was frozen."""
    for place in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # it has ended, or is another's
            if place.readlink() == folder.resolve():
                os.kill(int(place.parent.name), signal.SIGKILL)


def _until(holds, complaint: str) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + SECONDS_TO_START
    while not holds():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.1)
