"""The cost of input: preparing a store, and reading batches from it, against the frameworks' loaders over JPEG files.

    python -m benchmarks.input PHOTOS [--image-size 64 ...] [--enlarge 1 ...] [--rounds 5] [--write [FOLDER]]

PHOTOS is a folder of images, one folder per class; `--enlarge` makes them that many times as wide and high, since the
photographs of public datasets are often smaller than a camera's. Everything runs on one core, in a separate process,
and in every round each contestant runs once; images per second, the median over the rounds and the range.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice, product
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image

from benchmarks.evidence import Keeper, Table, extremes, number, spread, table, text
from dpcompare.data.augmentation import Augmentation
from dpcompare.data.batches import BatchReader
from dpcompare.data.folders import find_images
from dpcompare.data.names import AUGMENTATIONS
from dpcompare.data.order import training_batches
from dpcompare.data.prepare import prepare
from dpcompare.data.store import open_store

BATCH = 32
NUM_BATCHES = 40
NUM_PREPARED = 600


def photos(folder: Path, count: int) -> list[Path]:
    """The first images of the training split."""
    return [path for path, _ in islice(find_images(folder).splits["train"], count)]


def linked(folder: Path, temporary: Path) -> Path:
    """A folder with as many images as are prepared, in two classes, since fewer are no dataset."""
    for index, path in enumerate(photos(folder, NUM_PREPARED)):
        link = temporary / "photos" / f"class-{index % 2}" / f"{index}{path.suffix}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path.resolve())
    return temporary / "photos"


def enlarged(folder: Path, factor: int, temporary: Path) -> Path:
    """A folder with the photographs that are prepared, so many times as wide and high, in two classes."""
    for index, path in enumerate(photos(folder, NUM_PREPARED)):
        target = temporary / "enlarged" / f"class-{index % 2}" / f"{index}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            larger = image.convert("RGB").resize(
                (image.width * factor, image.height * factor), Image.Resampling.BICUBIC
            )
            larger.save(target, quality=90)
    return temporary / "enlarged"


def prepare_ours(folder: Path, size: int) -> float:
    """Images per second of preparing a store."""
    with tempfile.TemporaryDirectory() as temporary:
        source = linked(folder, Path(temporary))
        begin = time.perf_counter()
        prepare(source, Path(temporary) / "store", size, num_processes=1)
        return len(photos(folder, NUM_PREPARED)) / (time.perf_counter() - begin)


def prepare_pillow(folder: Path, size: int) -> float:
    """The loop that everybody writes, and the file that it is written for."""
    paths = photos(folder, NUM_PREPARED)
    begin = time.perf_counter()
    pixels = []
    for path in paths:
        with Image.open(path) as image:
            pixels.append(np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC)))
    with tempfile.TemporaryFile() as file:
        np.save(file, np.stack(pixels))
    return len(paths) / (time.perf_counter() - begin)


def read_ours(folder: Path, size: int, augment: tuple[str, ...] = (), *, looked_up: bool = False) -> float:
    split = open_store(folder).split("train")
    reader = BatchReader(
        split, Augmentation(augment, seed=0, num_samples=len(split)), None, data_parallel_rank=0, data_parallel_size=1
    )
    batches = reader.read(training_batches(len(split), BATCH, seed=0, num_steps=NUM_BATCHES + 2))
    return _speed(batch.images for batch in batches) if looked_up else _speed(batches)


def read_augmented(folder: Path, size: int) -> float:
    return read_ours(folder, size, AUGMENTATIONS)


def read_looked_up(folder: Path, size: int) -> float:
    """Images per second with the images made on the host, as for the CPU."""
    return read_ours(folder, size, AUGMENTATIONS, looked_up=True)


def read_torch(folder: Path, size: int) -> float:
    """DataLoader over torchvision's ImageFolder."""
    import torch
    from torchvision import datasets, transforms

    torch.set_num_threads(1)
    transform = transforms.Compose([transforms.Resize((size, size)), transforms.ToTensor()])
    loader = torch.utils.data.DataLoader(datasets.ImageFolder(folder, transform), BATCH, shuffle=True)
    return _speed(iter(loader))


def read_tensorflow(folder: Path, size: int) -> float:
    """tf.data over the files, decoded and resized by TensorFlow."""
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)

    def load(path: tf.Tensor) -> tf.Tensor:
        pixels = tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)
        return tf.image.resize(pixels, (size, size)) / 255

    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    paths = [str(path) for path in photos(folder, BATCH * (NUM_BATCHES + 2))]
    dataset = tf.data.Dataset.from_tensor_slices(paths).repeat().map(load).batch(BATCH).with_options(options)
    return _speed(iter(dataset))


def _speed(batches: Iterator[object]) -> float:
    next(batches)
    begin = time.perf_counter()
    count = sum(1 for _ in islice(batches, NUM_BATCHES))
    return count * BATCH / (time.perf_counter() - begin)


PREPARING, BY_PILLOW = "prepare a store", "a plain loop of Pillow and np.save"
AS_BYTES = "batches of the store, as bytes"
OVER_FILES = {
    PREPARING: prepare_ours,
    BY_PILLOW: prepare_pillow,
    "torch DataLoader over files": read_torch,
    "tf.data over files": read_tensorflow,
}
OVER_STORE = {
    AS_BYTES: read_ours,
    "the same, all augmentations": read_augmented,
    "the same, looked up on the host": read_looked_up,
}
Speeds = dict[tuple[str, int], Mapping[str, list[float]]]
"""(width and height of the photographs, image size) -> contestant -> images per second of each round."""


def in_a_process(name: str, folder: Path, size: int) -> float:
    """Images per second of a contestant, measured in a separate process."""
    argv = [sys.executable, "-m", "benchmarks.input", str(folder), "--image-size", str(size), "--only", name]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        argv,
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return float(json.loads(done.stdout))


def table_of(speeds: Speeds) -> Table:
    columns = [
        *text("photographs"),
        number("image size"),
        *text("what, on one core"),
        number("images/s", ",.0f"),
    ]
    rows = [
        (pixels, size, name, spread(of_rounds))
        for (pixels, size), found in speeds.items()
        for name, of_rounds in found.items()
    ]
    return table(columns, rows)


def figures_of(speeds: Speeds) -> dict[str, str]:
    """Of preparing, as a multiple of the plain loop, and of the store, over all sizes."""
    ratios = [median(found[PREPARING]) / median(found[BY_PILLOW]) for found in speeds.values()]
    of_store = [median(found[AS_BYTES]) for found in speeds.values() if AS_BYTES in found]
    return extremes("prepare_ratio", ratios, ".2f") | extremes("batches_images_per_second", of_store, ",.0f")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--image-size", type=int, action="append")
    parser.add_argument(
        "--enlarge", type=int, action="append", help="how many times as wide and high; default: 1 and 6"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=[*OVER_FILES, *OVER_STORE], help="one contestant, once, in this process")
    keeper = Keeper(parser, "benchmarks.input")
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps((OVER_FILES | OVER_STORE)[arguments.only](arguments.photos, arguments.image_size[0])))
        return
    speeds: Speeds = {}
    for factor, size in product(arguments.enlarge or [1, 6], arguments.image_size or [64, 128, 260]):
        found = defaultdict(list)
        with tempfile.TemporaryDirectory() as temporary:
            store = prepare(linked(arguments.photos, Path(temporary)), Path(temporary) / "store", size).path
            files = arguments.photos if factor == 1 else enlarged(arguments.photos, factor, Path(temporary))
            with Image.open(photos(files, 1)[0]) as image:
                pixels = f"{image.width} x {image.height}"
            for _ in range(arguments.rounds):
                for name in OVER_FILES:
                    found[name].append(in_a_process(name, files, size))
                for name in OVER_STORE if factor == 1 else ():
                    found[name].append(in_a_process(name, store, size))
        speeds[pixels, size] = found
        for name, of_rounds in found.items():
            print(f"{pixels}, image size {size}: {name} {median(of_rounds):,.0f} images/s", file=sys.stderr)
    keeper.keep(
        arguments.write,
        "input",
        "measured",
        sentences=[f"{arguments.rounds} rounds."],
        tables=[table_of(speeds)],
        figures=figures_of(speeds),
    )


if __name__ == "__main__":
    main()
