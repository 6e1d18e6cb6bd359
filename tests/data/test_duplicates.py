"""Images that a dataset holds twice are counted, where the accuracy would be that of images that were trained on."""

import shutil

import numpy as np
import pytest

from dpcompare.data.digest import SplitContent, find_duplicates
from dpcompare.data.prepare import prepare
from tests.support.command import invoke


def content(images, labels):
    pixels = np.array(images, np.uint8).reshape(len(images), 1, 1, 3)
    return SplitContent(pixels, np.array(labels, np.int32), pixels.sum(axis=(1, 2, 3), dtype=np.int64))


A, A_WITH_THE_SAME_SUM, B, C = (1, 2, 3), (3, 2, 1), (9, 9, 9), (7, 0, 0)


@pytest.mark.parametrize(
    ("train", "validation", "shared", "repeated"),
    [
        (([A, B], [0, 1]), ([C], [0]), 0, 0),
        (([A, B], [0, 1]), ([A_WITH_THE_SAME_SUM], [0]), 0, 0),
        (([A, B], [0, 1]), ([B, C, A], [0, 0, 0]), 2, 0),  # also under another class
        (([A, A, A, B], [0, 0, 0, 1]), ([C], [1]), 0, 2),
        (([A, A], [0, 1]), ([A, A], [0, 0]), 2, 1),
    ],
)
def test_duplicates_are_counted(train, validation, shared, repeated):
    found = find_duplicates({"train": content(*train), "validation": content(*validation)})
    assert (found.shared, found.repeated) == (shared, repeated)
    assert len(list(found.remarks())) == (shared > 0) + (repeated > 0)


@pytest.mark.process
@pytest.mark.slow
def test_a_dataset_with_duplicates_says_so(photos, tmp_path):
    for split in ("train", "validation"):
        shutil.copytree(photos, tmp_path / "split" / split)
    shutil.copy(tmp_path / "split/train/cat/00.png", tmp_path / "split/train/cat/again.png")
    store = prepare(tmp_path / "split", tmp_path / "store", 8, num_processes=1)
    assert (store.manifest.duplicates.shared, store.manifest.duplicates.repeated) == (20, 1)
    done = invoke("data", "prepare", str(tmp_path / "split"), str(tmp_path / "other"), "--image-size", "8")
    assert "20 images of the validation split are in the train split too" in done.stdout
    assert "1 image repeats another of the same split and class" in done.stdout
