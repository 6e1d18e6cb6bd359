"""The frame of every bare loop: warm-up, two readings of the clock around its steps, and one JSON object printed."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

NUM_CLASSES = 10
NUM_BATCHES = 4
"""In memory, used again and again."""


def arguments(modes: list[str], variants: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=modes, required=True)
    parser.add_argument("--variant", choices=variants, default=variants[0])
    parser.add_argument("--model", default="efficientnet-b2")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--global-batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warmup-steps", type=int, default=5)
    parser.add_argument(
        "--profile", choices=["strict", "native"], default="strict", help="of dpcompare, whose TF32 on GPUs this takes"
    )
    parser.add_argument("--threads", type=int, default=2, help="of this process")
    return parser.parse_args()


def batches(size: int, image_size: int) -> list[tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]]:
    """Images (size, height, width, 3) and labels."""
    generator = np.random.default_rng(0)
    shape = (size, image_size, image_size, 3)
    return [
        (generator.normal(size=shape).astype(np.float32), generator.integers(0, NUM_CLASSES, size, dtype=np.int32))
        for _ in range(NUM_BATCHES)
    ]


def measured(
    step: Callable[[int], object], chosen: argparse.Namespace, synchronize: Callable[[], None] = lambda: None
) -> float:
    """Images per second over the steps after the warm-up; `synchronize` waits for the device."""
    for number in range(chosen.warmup_steps):
        step(number)
    synchronize()
    begin = time.perf_counter()
    for number in range(chosen.warmup_steps, chosen.steps):
        step(number)
    synchronize()
    images = (chosen.steps - chosen.warmup_steps) * chosen.global_batch_size
    return images / (time.perf_counter() - begin)


def report(images_per_second: float) -> None:
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    kibibytes = {words[0]: int(words[1]) for words in lines if words and words[0] in ("VmHWM:", "VmRSS:")}
    peak = 1024 * kibibytes.get("VmHWM:", kibibytes["VmRSS:"])  # gVisor keeps no peak
    print(json.dumps({"images_per_second": images_per_second, "peak_memory_bytes": peak}), flush=True)
