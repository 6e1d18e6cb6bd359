"""Files of a dataset that are not what their names say, or not where they seem to be."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from dpcompare.data.folders import find_images
from dpcompare.data.prepare import prepare
from dpcompare.errors import RequestError

POSTSCRIPT = """%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 40 40
%%EndComments
2 10 exp 1024 eq { 1 0 0 setrgbcolor } { 0 0 1 setrgbcolor } ifelse 0 0 40 40 rectfill showpage
"""


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A picture of somebody else's, outside of the dataset."""
    path = tmp_path / "home" / "private.png"
    path.parent.mkdir()
    Image.new("RGB", (8, 8), (1, 2, 3)).save(path)
    return path


@pytest.mark.process
def test_postscript_that_is_called_a_photograph_is_not_executed(photos, tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/executed\n")
    (programs / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    for number in range(2):
        (photos / "cat" / f"x{number}.jpg").write_text(POSTSCRIPT)
    with pytest.raises(
        RequestError, match=r"x0\.jpg' cannot be decoded: OSError: its content is none of BMP, GIF, JPEG"
    ):
        prepare(photos, tmp_path / "store", 8, num_processes=1)
    for num_processes in (1, 2):
        store = prepare(photos, tmp_path / f"{num_processes}", 8, num_processes=num_processes, skip_corrupt=True)
        assert store.manifest.skipped == ("cat/x0.jpg", "cat/x1.jpg")
    assert not (tmp_path / "executed").exists()


def test_an_image_may_have_the_suffix_of_another_format(photos, tmp_path):
    for suffix in ("webp", "tif", "bmp", "gif", "ppm"):
        Image.new("RGB", (9, 9)).save(photos / "cat" / f"x.{suffix}")
        (photos / "cat" / f"x.{suffix}").rename(photos / "cat" / f"{suffix}.jpg")
    store = prepare(photos, tmp_path / "store", 8, num_processes=1)
    assert sum(split.count for split in store.manifest.splits.values()) == 25


AUDITED = """
import sys
events = []
sys.addaudithook(lambda name, arguments: events.append((name, arguments)))
from pathlib import Path
from dpcompare.data.prepare import prepare
prepare(sys.argv[1], Path(sys.argv[2]), 8, num_processes=1, skip_corrupt=True)
started = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty.spawn")
print([event for event in events if event[0] in started])
print([str(arguments[0]) for name, arguments in events if name == "open" and "home" in str(arguments[0])])
"""


@pytest.mark.process
def test_preparing_starts_no_program_and_opens_nothing_outside(photos, private, tmp_path):
    (photos / "cat" / "x.jpg").write_text(POSTSCRIPT)
    (photos / "cat" / "link.png").symlink_to(private)
    argv = [sys.executable, "-c", AUDITED, str(photos), str(tmp_path / "store")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "[]"]


def test_links_out_of_a_dataset_are_followed_only_on_request(photos, private, tmp_path):
    (photos / "cat" / "link.png").symlink_to(private)
    with pytest.raises(RequestError, match=r"link\.png' cannot be decoded: PermissionError: it leads to .*private"):
        prepare(photos, tmp_path / "store", 8, num_processes=1)
    store = prepare(photos, tmp_path / "store", 8, num_processes=1, follow_links=True)
    assert sum(split.count for split in store.manifest.splits.values()) == 21


def test_links_within_a_dataset_are_followed(photos, tmp_path):
    (photos / "cat" / "again.jpg").symlink_to(next((photos / "dog").iterdir()))
    (tmp_path / "name").symlink_to(photos)
    assert len(find_images(tmp_path / "name").splits["train"]) == len(find_images(photos).splits["train"])
    store = prepare(tmp_path / "name", tmp_path / "store", 8, num_processes=1)
    assert sum(split.count for split in store.manifest.splits.values()) == 21


@pytest.mark.parametrize("place", ["class", "train", "validation", "train/class"])
def test_a_folder_that_links_outside_is_refused_unlisted(photos, private, tmp_path, place):
    root = photos
    if place != "class":
        root = tmp_path / "split"
        for split in ("train", "validation"):
            shutil.copytree(photos, root / split)
        if place != "train/class":
            shutil.rmtree(root / place)
    (root / place).symlink_to(private.parent.parent)
    with pytest.raises(RequestError, match=r"is a link to .* outside of the dataset; .*--follow-links"):
        find_images(root)
    (root / place).unlink()


@pytest.mark.process
@pytest.mark.parametrize("kind", ["pipe", "device", "link"])
def test_a_list_of_stanford_dogs_names_only_its_own_files(photos, private, tmp_path, kind):
    root = tmp_path / "dogs"
    shutil.copytree(photos, root / "Images")
    strange = root / "Images" / "cat" / "p.jpg"
    make = {
        "pipe": lambda: os.mkfifo(strange),
        "device": lambda: strange.symlink_to("/dev/zero"),
        "link": lambda: strange.symlink_to(private),
    }
    make[kind]()
    listed = np.array([["cat/p.jpg"], ["dog/01.jpg"]], object)
    for name in ("train_list.mat", "test_list.mat"):
        savemat(root / name, {"file_list": listed, "labels": np.array([[1], [2]])})
    message = "it is a pipe" if kind == "pipe" else "outside of the dataset"
    with pytest.raises(RequestError, match=message):
        prepare(root, tmp_path / "store", 8, num_processes=1)


@pytest.mark.process
def test_folders_a_thousand_deep_are_read(photos, tmp_path):
    deep = photos / "cat"
    descriptor = os.open(deep, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    assert sum(map(len, find_images(photos).splits.values())) == 20
    assert list(find_images(photos).notes()) == []
    subprocess.run(["rm", "-r", deep / "d"], check=True)  # shutil.rmtree of Python 3.11 recurses
