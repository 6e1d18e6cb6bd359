"""Datasets in a .npz file of NumPy: arrays x_train, y_train, x_validation and y_validation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dpcompare.data.decode import DECODER, RESIZE_RULE, resize
from dpcompare.data.sources import Progress, Source
from dpcompare.data.store import Store, StoreWriter
from dpcompare.errors import RequestError
from dpcompare.system.files import expanded

SPLITS = ("train", "validation")


class Npz(Source):
    """Images as arrays of uint8, (samples, height, width, 3), and class indices."""

    @classmethod
    def takes(cls, name: str) -> bool:
        return name.endswith(".npz")

    @property
    def title(self) -> str:
        return Path(self.name).stem

    def num_train(self) -> int:
        return len(self._arrays()["y_train"])

    def stamps(self) -> Iterator[str]:
        path = expanded(self.name).resolve()
        status = path.stat()
        yield f"{path}|{status.st_size}|{status.st_mtime_ns}"

    def write(self, writer: StoreWriter, num_processes: int, progress: Progress) -> Store:
        arrays = self._arrays()
        total = sum(len(arrays[f"y_{split}"]) for split in SPLITS)
        done = 0
        for split in SPLITS:
            pixels = writer.images(split, len(arrays[f"x_{split}"]))
            for row, image in enumerate(arrays[f"x_{split}"]):
                pixels[row] = resize(Image.fromarray(image), writer.side)
                done += 1
                progress(done, total)
        labels = {split: arrays[f"y_{split}"].astype(np.int32) for split in SPLITS}
        classes = tuple(str(label) for label in range(max(int(each.max()) for each in labels.values()) + 1))
        return writer.finish(labels, source=self.name, classes=classes, resize=RESIZE_RULE, decoder=DECODER)

    def _arrays(self) -> dict[str, Any]:
        try:
            with np.load(expanded(self.name), allow_pickle=False) as file:
                return {f"{kind}_{split}": file[f"{kind}_{split}"] for kind in "xy" for split in SPLITS}
        except (OSError, ValueError, KeyError) as error:
            raise RequestError(
                f"dataset: {self.name!r} cannot be read ({type(error).__name__}: {error}); expected arrays x_train, "
                "y_train, x_validation and y_validation"
            ) from None
