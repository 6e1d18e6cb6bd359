"""What a collective costs on this machine: latency per step of its ring, rate, CPU time, and the bytes it sends.

    sudo python -m benchmarks.collectives [--nodes 2 3 4] [--link free 1gbit 100mbit] [--collective gloo ring]

The real all-reduce of torch's Gloo and of TensorFlow's ring, and Gloo's all-gather and reduce-scatter, between hosts in
network namespaces. Latency is that of the smallest message over the steps of the ring; on cores that others use it is
mostly scheduling, so nothing of it holds for real networks. `--collective nccl` measures the GPUs of this machine,
without namespaces.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from dpcompare.launch.engines.namespaces import address, linked_hosts
from dpcompare.system.devices import installed_gpus, visible_gpus
from dpcompare.system.ports import free_ports

FREE = "free"
SIZES = (4 * 1024, 64 * 1024, 1024 * 1024, 8 * 1024 * 1024)
SMALLEST = SIZES[0]
REPETITIONS = {64 * 1024: 200, math.inf: 20}
"""Up to how many bytes -> how often a collective is called."""
LONGEST_SECONDS = 600


def measured(collective: str, num_ranks: int, link: str, sizes: Sequence[int] = SIZES) -> list[dict[str, Any]]:
    """A row per kind of collective and size, of the slowest rank.

    Args:
        collective: gloo, ring or nccl.
        num_ranks: hosts, or GPUs of this machine.
        link: of each host, or `free`.
        sizes: bytes of float32.
    """
    on_hosts = collective != "nccl"
    hosts_or_none = linked_hosts(num_ranks, None if link == FREE else link) if on_hosts else nullcontext([])
    with TemporaryDirectory(prefix="dpcompare-collectives-") as folder, hosts_or_none as hosts:
        addresses = [address(rank) for rank in range(num_ranks)] if hosts else ["127.0.0.1"] * num_ranks
        ports = [29500] * num_ranks if hosts else free_ports(num_ranks)
        processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "benchmarks.collectives", "--rank", str(rank), "--write", folder),
                    *("--collective", collective, "--size", *map(str, sizes)),
                ],
                env=os.environ | _environment(rank, addresses, ports, own_host=bool(hosts)),
                preexec_fn=hosts[rank].enter if hosts else None,
            )
            for rank in range(num_ranks)
        ]
        statuses = [process.wait(timeout=LONGEST_SECONDS) for process in processes]
        if any(statuses):
            raise RuntimeError(f"the ranks have ended with {statuses}")
        of_ranks = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(num_ranks)]
    return [max(rows, key=lambda row: row["seconds"]) for rows in zip(*of_ranks, strict=True)]


def latency_per_step(rows: Sequence[dict[str, Any]], num_ranks: int) -> float:
    """Seconds of each of the 2 (n - 1) steps of a ring, by its smallest all-reduce."""
    smallest = next(row for row in rows if row["kind"] == "all-reduce" and row["bytes"] == SMALLEST)
    return float(smallest["seconds"]) / (2 * (num_ranks - 1))


def _environment(rank: int, addresses: Sequence[str], ports: Sequence[int], *, own_host: bool) -> dict[str, str]:
    workers = [f"{host}:{port}" for host, port in zip(addresses, ports, strict=True)]
    return {
        "MASTER_ADDR": addresses[0],
        "MASTER_PORT": str(ports[0]),
        "RANK": str(rank),
        "WORLD_SIZE": str(len(addresses)),
        "OMP_NUM_THREADS": "1",
        "TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}),
        **({"GLOO_SOCKET_IFNAME": "eth0"} if own_host else {}),
    }


def be_rank(collective: str, sizes: Sequence[int], folder: Path, rank: int) -> None:
    """Measure as one rank among those of the environment."""
    calls, barrier = (_of_tensorflow if collective == "ring" else _of_torch)(collective, rank)
    rows = []
    for kind, call in calls.items():
        for size in sizes:
            once = call(size // 4)
            once()
            barrier()
            repetitions = next(count for most, count in REPETITIONS.items() if size <= most)
            cpu, sent = time.process_time(), _bytes_sent()
            seconds = [_seconds_of(once) for _ in range(repetitions)]
            row = {
                "kind": kind,
                "bytes": size,
                # The first ones, and those that wait for a core, take several times as long.
                "seconds": median(seconds),
                "cpu_seconds": (time.process_time() - cpu) / repetitions,
                "sent_bytes": (_bytes_sent() - sent) / repetitions,
            }
            rows.append(row)
            barrier()
    (folder / f"{rank}.json").write_text(json.dumps(rows))


def _seconds_of(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _bytes_sent() -> int:
    """The bytes sent by all interfaces of this network namespace but loopback."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    return sum(int(line.split(":")[1].split()[8]) for line in lines if not line.strip().startswith("lo:"))


def _of_torch(collective: str, rank: int) -> tuple[dict[str, Callable[[int], Callable[[], object]]], Callable[[], Any]]:
    import torch
    from torch import distributed

    device = torch.device("cuda", rank) if collective == "nccl" else torch.device("cpu")
    distributed.init_process_group(collective)
    ranks = distributed.get_world_size()

    def finished() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def all_reduce(count: int) -> Callable[[], object]:
        tensor = torch.ones(count, device=device)
        return lambda: (distributed.all_reduce(tensor), finished())

    def all_gather(count: int) -> Callable[[], object]:
        part = torch.ones(count // ranks, device=device)
        whole = torch.empty(len(part) * ranks, device=device)
        return lambda: (distributed.all_gather_into_tensor(whole, part), finished())

    def reduce_scatter(count: int) -> Callable[[], object]:
        part = torch.empty(count // ranks, device=device)
        whole = torch.ones(len(part) * ranks, device=device)
        return lambda: (distributed.reduce_scatter_tensor(part, whole), finished())

    calls = {"all-reduce": all_reduce, "all-gather": all_gather, "reduce-scatter": reduce_scatter}
    return calls, distributed.barrier


def _of_tensorflow(
    collective: str, rank: int
) -> tuple[dict[str, Callable[[int], Callable[[], object]]], Callable[[], Any]]:
    import tensorflow as tf

    implementation = tf.distribute.experimental.CommunicationImplementation.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=implementation)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)

    def all_reduce(count: int) -> Callable[[], object]:
        tensor = tf.ones(count)

        @tf.function
        def summed() -> Any:
            return strategy.run(
                lambda: tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensor)
            )

        return lambda: summed()

    return {"all-reduce": all_reduce}, all_reduce(1)


def table(rows: Sequence[dict[str, Any]], collective: str, num_ranks: int, link: str) -> list[str]:
    lines = []
    for row in rows:
        passes = 2 if row["kind"] == "all-reduce" else 1
        ring = passes * (num_ranks - 1) / num_ranks * row["bytes"]
        cells = [
            *(f"{collective} {row['kind']}", num_ranks, link, row["bytes"] // 1024),
            *(f"{1000 * row[part]:.2f}" for part in ("seconds", "cpu_seconds")),
            f"{row['sent_bytes'] / ring:.2f}",
            f"{ring * 8 / row['seconds'] / 1e6:.0f}",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", nargs="+", type=int, default=[2, 3, 4])
    parser.add_argument("--link", nargs="+", default=[FREE, "1gbit", "100mbit"])
    parser.add_argument("--collective", nargs="+", choices=["gloo", "ring", "nccl"], default=["gloo", "ring"])
    parser.add_argument("--size", nargs="+", type=int, default=SIZES, help="bytes")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        be_rank(arguments.collective[0], arguments.size, arguments.write, arguments.rank)
        return
    print("| collective | ranks | link | KiB | ms | CPU ms | bytes sent / ring | Mbit/s |")
    print("|---|--:|---|--:|--:|--:|--:|--:|")
    for collective in arguments.collective:
        counts = [len(visible_gpus(installed_gpus()))] if collective == "nccl" else arguments.nodes
        for num_ranks in counts:
            for link in arguments.link if collective != "nccl" else [FREE]:
                rows = measured(collective, num_ranks, link, arguments.size)
                print("\n".join(table(rows, collective, num_ranks, link)), flush=True)


if __name__ == "__main__":
    main()
