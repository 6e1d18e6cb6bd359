"""How many images per second one process can feed to several GPUs: with devices that only take time.

    python -m benchmarks.feed [--image-size 260 ...] [--devices 8] [--rounds 3] [--write [FOLDER]]

What a host does for GPUs is all there: batches are gathered as bytes, their tables made with all augmentations, and
the bytes copied once, as they are into pinned memory. A device takes its part of a global batch and then does nothing
for as long as one that trains 2,000 images/s would compute. "ceiling" is without that pause. Threads of one process
share the cores of this machine; images/s, the median over the rounds and the range, and the share of the time spent
waiting.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from benchmarks.evidence import Keeper, Table, extremes, number, spread, table
from dpcompare.data.augmentation import Augmentation
from dpcompare.data.batches import BatchLoader, BatchReader, prefetch
from dpcompare.data.names import AUGMENTATIONS
from dpcompare.data.order import training_batches
from dpcompare.data.store import Split

NUM_IMAGES = 2048
ROWS_PER_DEVICE = 64
NUM_STEPS = 30
IMAGES_PER_SECOND = 2000.0
"""The images per second that a device trains."""


class Fed(NamedTuple):
    """By a number of threads in a round."""

    images_per_second: float
    waiting: float
    ceiling: float


Rounds = Mapping[tuple[int, int], list[Fed]]
"""(image size, threads) -> each round."""


def split_of(folder: Path, size: int) -> Split:
    """Random images in a file, as a store has them."""
    path = folder / f"{size}.npy"
    images = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(NUM_IMAGES, size, size, 3))
    generator = np.random.default_rng(0)
    for row in range(NUM_IMAGES):
        images[row] = generator.integers(0, 256, images.shape[1:], dtype=np.uint8)
    sums = images.sum(axis=(1, 2, 3), dtype=np.int64)
    return Split(images=np.load(path, mmap_mode="r"), labels=np.zeros(NUM_IMAGES, np.int32), sums=sums)


def feed(split: Split, num_devices: int, num_threads: int, *, pause: bool) -> tuple[float, float]:
    """Images per second, and the share of the time in which the devices waited for them."""
    reader = BatchReader(
        split,
        Augmentation(AUGMENTATIONS, seed=0, num_samples=len(split)),
        data_parallel_rank=0,
        data_parallel_size=1,
        replicas_per_process=num_devices,
    )
    rows = ROWS_PER_DEVICE * num_devices
    order = training_batches(len(split), rows, seed=0, num_steps=NUM_STEPS + 2)

    def placed(read: BatchLoader) -> tuple[np.ndarray, np.ndarray]:
        batch = read()
        return batch.pixels.copy(), batch.tables

    batches = prefetch(reader.batch_loaders(order), placed, num_threads)
    next(batches)
    next(batches)
    begin, waited = time.perf_counter(), 0.0
    for _ in range(NUM_STEPS):
        asked = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - asked
        if pause:
            time.sleep(ROWS_PER_DEVICE / IMAGES_PER_SECOND)
    seconds = time.perf_counter() - begin
    batches.close()  # type: ignore[attr-defined]  # a generator
    return NUM_STEPS * rows / seconds, waited / seconds


def measured(sizes: list[int], num_devices: int, rounds: int) -> Rounds:
    found = defaultdict(list)
    with tempfile.TemporaryDirectory() as temporary:
        splits = {size: split_of(Path(temporary), size) for size in sizes}
        for _, size, num_threads in product(range(rounds), sizes, (1, 2, num_devices)):
            fed, waiting = feed(splits[size], num_devices, num_threads, pause=True)
            ceiling, _ = feed(splits[size], num_devices, num_threads, pause=False)
            found[size, num_threads].append(Fed(fed, waiting, ceiling))
    return found


def kibibytes(size: int) -> float:
    """Of an image as it is copied: its bytes and its tables."""
    return (size * size * 3 + 3 * 256 * 4) / 1024


def table_of(found: Rounds) -> Table:
    columns = [
        number("image size"),
        number("KiB per image", ".0f"),
        number("threads"),
        number("images/s", ",.0f"),
        number("waiting", ".0%"),
        number("ceiling, images/s", ",.0f"),
    ]
    rows = [
        (size, kibibytes(size), num_threads, *map(spread, zip(*rounds, strict=True)))
        for (size, num_threads), rounds in found.items()
    ]
    return table(columns, rows)


def figures_of(found: Rounds) -> dict[str, str]:
    speeds = [median(fed.images_per_second for fed in rounds) for rounds in found.values()]
    waits = [median(fed.waiting for fed in rounds) for rounds in found.values()]
    return extremes("images_per_second", speeds, ",.0f") | extremes("waiting", waits, ".0%")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image-size", type=int, action="append")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    keeper = Keeper(parser, "benchmarks.feed")
    arguments = parser.parse_args()
    wanted = arguments.devices * IMAGES_PER_SECOND
    found = measured(arguments.image_size or [64, 128, 260], arguments.devices, arguments.rounds)
    keeper.keep(
        arguments.write,
        "feed",
        "measured",
        sentences=[
            f"{len(os.sched_getaffinity(0))} cores, {arguments.devices} devices that take {wanted:,.0f} images/s "
            f"together, {arguments.rounds} rounds."
        ],
        tables=[table_of(found)],
        figures=figures_of(found),
    )


if __name__ == "__main__":
    main()
