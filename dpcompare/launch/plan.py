"""The node processes of a run as data and as a bash script, and whether they get a network of their own."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from dpcompare.backends.description import SET_BY_US
from dpcompare.config.cluster import Node
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.run import RunConfig
from dpcompare.config.tuning import COMPILE_MODES
from dpcompare.errors import RequestError
from dpcompare.system.network_namespace import why_not_permitted
from dpcompare.system.ports import LOOPBACK
from dpcompare.system.processes import AGENT_PID

UNIFIED_MEMORY = Path("/dev/nvidia-uvm")
"""The device that CUDA makes where it is missing, by a program that is root, as none is in a user namespace."""


def is_isolated(config: RunConfig) -> bool:
    """Whether the processes of a run get a network of their own: where that is asked for, or needed and possible."""
    if config.isolate is not None:
        return config.isolate
    return config.serves_files and config.placement.engine == "local" and _why_impossible(config) is None


def exposure(config: RunConfig) -> str | None:
    """Who can do what while a run lasts, where that is more than to spoil the run; None where it was accepted."""
    if not config.serves_files or config.isolate is not None or is_isolated(config):
        return None
    engine = config.placement.engine
    if engine == "namespaces":  # each node has a network of its own, which ends on this machine
        return None
    if engine == "local":
        why = f"it cannot get a network of its own ({_why_impossible(config)})"
        whom = "every user of this machine, and whoever reaches its ports,"
        remedy = "run it as root, or allow what is missing"
    else:
        why, whom = "its nodes have to reach each other", "whoever reaches their ports"
        remedy = "use a network that only people whom you trust can reach (docs/security.md)"
    return (
        f"{config.framework} {config.mode}: {why}, so while it lasts {whom} can read and write files as you, through "
        f"TensorFlow's servers; {remedy}, or accept that with --no-isolate"
    )


def _why_impossible(config: RunConfig) -> str | None:
    """Why this machine gives a run no network of its own; None where it does."""
    if config.cluster.device_type == "gpu" and os.geteuid() != 0 and not UNIFIED_MEMORY.exists():
        return f"{UNIFIED_MEMORY} is missing, which only root can create: `nvidia-modprobe -u -c=0`"
    return why_not_permitted()


KEPT_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(64 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""Have glibc keep what a process frees (mallopt(3)): with its defaults large arrays go back to the kernel after every
operation and come back page by page. EfficientNet-B2 on 2 CPU cores: multiworker 1.08 and 1.14, mirrored 1.02 times as
fast."""

INHERITED_TO_DROP = tuple(
    sorted([AGENT_PID, *(name for row in FRAMEWORKS.values() for name in row.rendezvous_variables)])
)
"""Variables of an outer launcher, which would make our processes believe they belong to its cluster."""


class TrainingProcess(BaseModel):
    """One process of the training: its place and the devices it drives."""

    model_config = ConfigDict(frozen=True)

    process_rank: int
    local_rank: int
    devices: tuple[str, ...]
    trains: bool = True
    """Whether it runs the training loop, or is a server of those that do."""


class NodeProcess(BaseModel):
    """What is started once on one node; it becomes, or starts, the node's training processes."""

    model_config = ConfigDict(frozen=True)

    node_rank: int
    argv: tuple[str, ...]
    env: dict[str, str]
    """Added to the inherited environment."""
    processes: tuple[TrainingProcess, ...]


def num_ports(config: RunConfig) -> int:
    """How many free ports `plan` needs for this config."""
    return {"plain": 0, "torchrun": 1, "spawn": 1, "coordinator": 1, "tf_config": config.cluster.num_nodes}[
        config.launch
    ]


class Endpoints(NamedTuple):
    """Where the processes of all nodes find each other."""

    ports: Sequence[int]
    """One that the first node of torchrun or JAX listens on, or one for each TensorFlow worker; see `num_ports`."""
    addresses: Sequence[str] = ()
    """The addresses of the nodes, if they are separate machines."""

    def address(self, node_rank: int) -> str:
        """The address of one node; loopback if all are this machine."""
        return self.addresses[node_rank] if self.addresses else LOOPBACK


def plan(
    config: RunConfig, run_dir: Path, endpoints: Endpoints, script: Sequence[str] | None = None
) -> list[NodeProcess]:
    """One node process per node, in the order of the node ranks.

    Args:
        config: the run.
        run_dir: where the processes find config.json and leave their results.
        endpoints: with `num_ports(config)` ports that are free.
        script: a file of Python and its arguments, in the place of the training process of a run.
    """
    start = _STARTERS[config.launch]
    node_processes = []
    for node in config.cluster.nodes:
        program = _worker_argv(node, str(run_dir)) if script is None else list(script)
        argv, env = start(config, node, program, endpoints)
        ours, own = _environment(config, node) | env, config.environment.variables if config.environment else {}
        _require_free(own, ours)
        node_processes.append(
            NodeProcess(
                node_rank=node.rank,
                argv=tuple(argv),
                env=ours | own,
                processes=_training_processes(config, node),
            )
        )
    return node_processes


def require_free_variables(config: RunConfig) -> None:
    """Raise RequestError where the environment of a run sets variables that its plan sets too."""
    if config.environment and config.environment.variables:
        addresses = () if config.cluster.simulated else [LOOPBACK] * config.cluster.num_nodes
        plan(config, Path("run"), Endpoints(range(1, num_ports(config) + 1), addresses))


def _require_free(own: Mapping[str, str], ours: Mapping[str, str]) -> None:
    known = {*ours, *INHERITED_TO_DROP, *SET_BY_US, "NPROC"}
    reserved = {name for name in own if name in known or name.startswith("DPCOMPARE_")}
    if reserved:
        raise RequestError(
            f"env: received {', '.join(sorted(reserved))}, which dpcompare sets itself in every process; expected "
            "other variables, or the option that decides it"
        )


def _training_processes(config: RunConfig, node: Node) -> tuple[TrainingProcess, ...]:
    num_devices, processes_per_node = config.topology.devices_per_process, config.topology.processes_per_node
    first = node.rank * processes_per_node
    return tuple(
        TrainingProcess(
            process_rank=process_rank,
            local_rank=local_rank,
            devices=node.devices[local_rank * num_devices : (local_rank + 1) * num_devices],
            trains=process_rank in config.topology.trainers,
        )
        for local_rank, process_rank in enumerate(range(first, first + processes_per_node))
    )


def _environment(config: RunConfig, node: Node) -> dict[str, str]:
    """The environment of every node process, whatever starts it."""
    on_gpu = config.cluster.device_type == "gpu"
    threads = str(config.topology.threads_per_process)
    # torch's pool of compilers outlives a training process that is killed, by a minute: on the CPU there is none. On
    # GPUs the hundreds of kernels of a model, compiled one after another, could take longer than a first step may.
    compiling = config.tuning.get("compilation") in COMPILE_MODES
    compilers = {"TORCHINDUCTOR_COMPILE_THREADS": threads if on_gpu else "1"} if compiling else {}
    # cuBLAS then takes the same workspace every time, which torch's deterministic algorithms ask for.
    comparing = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if on_gpu and config.task == "probe" else {}
    return (
        KEPT_MEMORY
        | compilers
        | comparing
        | {
            "CUDA_VISIBLE_DEVICES": mask_of(config, node),
            # For GPUs newer than itself TensorFlow compiles its kernels, more of them than fit into CUDA's 1 GiB.
            "CUDA_CACHE_MAXSIZE": str(4 << 30),
            # nvidia-smi counts in PCI order, CUDA by default puts the fastest GPU first.
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            # A folder named like a framework in the current directory is not the framework.
            "PYTHONSAFEPATH": "1",
        }
    )


def mask_of(config: RunConfig, node: Node) -> str:
    """The GPUs that a node sees, each once; "" hides all."""
    if config.cluster.device_type != "gpu" or _keeps_parameters(config, node):
        return ""
    return ",".join(dict.fromkeys(node.devices))


def _keeps_parameters(config: RunConfig, node: Node) -> bool:
    """Whether a node only keeps parameters: TensorFlow would take all memory of a GPU that it never computes on."""
    return config.mode_row.task_of(node.rank) == "ps"


def _worker_argv(node: Node, run_dir: str) -> list[str]:
    return ["-m", "dpcompare.worker", run_dir, "--node-rank", str(node.rank)]


Start = tuple[list[str], dict[str, str]]


def _plain(config: RunConfig, node: Node, program: list[str], endpoints: Endpoints) -> Start:
    return [config.python, *program], _interface(endpoints)


def _torchrun(config: RunConfig, node: Node, program: list[str], endpoints: Endpoints) -> Start:
    """A torchrun agent; static rendezvous keeps the order of the nodes (c10d takes the order of arrival)."""
    agent = [
        *(config.python, "-m", "dpcompare.backends.torch.agent"),
        *_world(config, endpoints),
        *("--node-rank", str(node.rank), "--local-addr", endpoints.address(node.rank)),
        # Each training process writes its own log; left out, an empty folder of the agent's stays below /tmp.
        *("--max-restarts", "0", "--log-dir", os.devnull),
    ]
    return [*agent, *program], _interface(endpoints)


def _spawn(config: RunConfig, node: Node, program: list[str], endpoints: Endpoints) -> Start:
    """A program that starts its training processes itself, from the arguments of one of them."""
    _module, _worker, *arguments = program
    spawning = [config.python, "-m", "dpcompare.backends.torch.spawn", *_world(config, endpoints)]
    return [*spawning, *arguments], _interface(endpoints)


def _world(config: RunConfig, endpoints: Endpoints) -> list[str]:
    return [
        *("--nnodes", str(config.cluster.num_nodes), "--nproc-per-node", str(config.topology.processes_per_node)),
        *("--master-addr", endpoints.address(0), "--master-port", str(endpoints.ports[0])),
    ]


def _interface(endpoints: Endpoints) -> dict[str, str]:
    """Simulated nodes are all this machine, whatever its name resolves to; others find their network themselves."""
    # NCCL takes loopback last of all and beginnings of names, but for "=".
    return {} if endpoints.addresses else {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}


def _tf_config(config: RunConfig, node: Node, program: list[str], endpoints: Endpoints) -> Start:
    """One TensorFlow task per node, on different ports since nodes may share a machine."""
    task_of = config.mode_row.task_of
    tasks: dict[str, list[str]] = {}
    for rank, port in enumerate(endpoints.ports):
        tasks.setdefault(task_of(rank), []).append(f"{endpoints.address(rank)}:{port}")
    task = task_of(node.rank)
    index = tasks[task].index(f"{endpoints.address(node.rank)}:{endpoints.ports[node.rank]}")
    content = {"cluster": tasks, "task": {"type": task, "index": index}}
    return [config.python, *program], {"TF_CONFIG": json.dumps(content)} | _interface(endpoints)


def _coordinator(config: RunConfig, node: Node, program: list[str], endpoints: Endpoints) -> Start:
    """One JAX process per node; the first one coordinates them."""
    place = {
        "JAX_COORDINATOR_ADDRESS": f"{endpoints.address(0)}:{endpoints.ports[0]}",
        "JAX_NUM_PROCESSES": str(config.cluster.num_nodes),
        "JAX_PROCESS_ID": str(node.rank),
    }
    return [config.python, *program], place | _interface(endpoints)


_STARTERS: dict[str, Callable[[RunConfig, Node, list[str], Endpoints], Start]] = {
    "plain": _plain,
    "torchrun": _torchrun,
    "spawn": _spawn,
    "tf_config": _tf_config,
    "coordinator": _coordinator,
}


TEMPLATE = "plan.sh.template"
"""In this package; `@name@` stands for a value."""


def command_line(node_process: NodeProcess) -> str:
    """The node process as a line that a shell runs."""
    env = [f"{name}={shlex.quote(value)}" for name, value in node_process.env.items()]
    return " ".join([*env, shlex.join(node_process.argv)])


def shell_script(config: RunConfig, run_dir: Path, node_processes: Sequence[NodeProcess]) -> str:
    """A bash script that prepares the run directory, starts all node processes and collects the result.

    Raises:
        RequestError: the config asks for what a script cannot do.
    """
    for option, given in (("--isolate", config.isolate), ("--max-restarts", config.max_restarts)):
        if given:
            raise RequestError(
                f"{option}: a shell script cannot do this; use `dpcompare run {option}`, or leave it out"
            )
    values = {
        "title": f"{config.framework} {config.mode}: {config.cluster.in_words}",
        "runner": shlex.join([config.python, "-P", "-m", "dpcompare.launch.run"]),
        "run_dir": shlex.quote(str(run_dir)),
        "config": config.model_dump_json(),
        "exposure": f"echo {shlex.quote(line)} >&2\n" if (line := _exposure(config)) else "",
        "starts": "\n".join(_start(process, run_dir) for process in node_processes),
    }
    template = files("dpcompare.launch").joinpath(TEMPLATE).read_text()
    return re.sub(r"@(\w+)@", lambda placeholder: values[placeholder[1]], template)


def _exposure(config: RunConfig) -> str | None:
    """What a script says of a run that `dpcompare run` would give a network of its own, which a script cannot."""
    if not config.serves_files or config.isolate is False:
        return None
    return (
        f"{config.framework} {config.mode}: while it lasts, every user of this machine and whoever reaches its ports "
        "can read and write files as you, through TensorFlow's servers; `dpcompare run` gives it a network of its own"
    )


def _start(process: NodeProcess, run_dir: Path) -> str:
    """The lines that start a node process in the background."""
    devices = ", ".join(device for each in process.processes for device in each.devices)
    unset = " ".join(f"-u {name}" for name in INHERITED_TO_DROP)
    log = f"{shlex.quote(str(run_dir))}/logs/node{process.node_rank}.log"
    return (
        f"# node {process.node_rank}: devices {devices}\n"
        f"setsid env {unset} {command_line(process)} \\\n  >> {log} 2>&1 &\n"
        "nodes+=($!)"
    )
