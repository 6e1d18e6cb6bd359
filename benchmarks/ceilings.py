"""What a device can do at most: its memory's bandwidth, and products of matrices in each precision; by torch.

    python -m benchmarks.ceilings [--device gpu] [--size 8192] [--seconds 1]

Prints one JSON object: bytes per second, read and written, of a copy within the device, and floating-point operations
per second of a product of two square matrices of random numbers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

LEAST_TIMES = 5


def seconds_of(work: Callable[[], object], synchronize: Callable[[], None], at_least: float) -> float:
    """The median time of a piece of work, repeated for about so many seconds."""
    times: list[float] = []
    work()
    synchronize()
    while sum(times) < at_least or len(times) < LEAST_TIMES:
        begin = time.perf_counter()
        work()
        synchronize()
        times.append(time.perf_counter() - begin)
    return median(times)


def ceilings(device: torch.device, size: int, seconds: float) -> dict[str, float]:
    """Figure -> its value; `copy` is in bytes per second, the others in operations per second."""

    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    found: dict[str, float] = {}
    source, target = (torch.randn(8 * size * size, device=device) for _ in range(2))
    found["copy"] = 2 * source.nbytes / seconds_of(lambda: target.copy_(source), synchronize, seconds)
    for name, dtype, tf32 in (
        ("float32", torch.float32, False),
        ("tf32", torch.float32, True),
        ("bfloat16", torch.bfloat16, False),
    ):
        if tf32 and device.type == "cpu":
            continue
        torch.backends.cuda.matmul.allow_tf32 = tf32
        one, other = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        found[name] = 2 * size**3 / seconds_of(partial(torch.matmul, one, other), synchronize, seconds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--seconds", type=float, default=1.0)
    arguments = parser.parse_args()
    device = torch.device("cuda", 0) if arguments.device == "gpu" else torch.device("cpu")
    print(json.dumps(ceilings(device, arguments.size, arguments.seconds)))


if __name__ == "__main__":
    main()
