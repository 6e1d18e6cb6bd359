"""Preparing stores from folders of images, in every layout."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from dpcompare.data.decode import resize
from dpcompare.data.folders import find_images
from dpcompare.data.prepare import prepare
from dpcompare.data.store import sweep
from dpcompare.errors import RequestError
from dpcompare.system.cache import folder_held
from dpcompare.system.processes import is_alive
from tests.support.command import with_default_signals
from tests.support.processes import wait_until


def counts(store):
    return {name: split.count for name, split in store.manifest.splits.items()}


def test_a_folder_without_splits_holds_out_a_fifth_of_each_class(photos, tmp_path):
    store = prepare(photos, tmp_path / "store", 32)
    assert store.manifest.classes == ("cat", "dog")
    assert counts(store) == {"train": 16, "validation": 4}
    assert np.bincount(store.split("validation").labels).tolist() == [2, 2]
    assert prepare(photos, tmp_path / "again", 32).manifest.sha256 == store.manifest.sha256


@pytest.mark.parametrize("validation", ["validation", "val", "test"])
def test_split_folders_are_taken_as_they_are(photos, tmp_path, validation):
    root = tmp_path / "split"
    for split, name, files in (
        ("train", "cat", 9),
        ("train", "dog", 6),
        (validation, "cat", 3),
        (validation, "dog", 2),
    ):
        (root / split / name).mkdir(parents=True)
        for path in sorted((photos / name).iterdir())[:files]:
            shutil.copy(path, root / split / name)
    assert counts(prepare(root, tmp_path / "store", 32)) == {"train": 15, "validation": 5}


@pytest.mark.process
def test_the_stanford_dogs_layout(photos, tmp_path):
    root = tmp_path / "dogs"
    shutil.copytree(photos, root / "Images")
    for file, rows in (
        ("train_list.mat", [("cat/00.png", 1), ("dog/01.jpg", 2)]),
        ("test_list.mat", [("dog/02.png", 2)]),
    ):
        names = np.empty((len(rows), 1), object)
        names[:, 0] = [name for name, _ in rows]
        savemat(root / file, {"file_list": names, "labels": np.array([[label] for _, label in rows])})
    store = prepare(root, tmp_path / "store", 32)
    assert store.manifest.classes == ("cat", "dog")
    assert counts(store) == {"train": 2, "validation": 1}
    assert store.split("train").labels.tolist() == [0, 1]
    expected = resize(Image.open(photos / "dog" / "02.png"), 32)
    assert np.array_equal(store.split("validation").images[0], expected)


@pytest.mark.process
def test_a_stanford_list_cannot_point_outside(photos, tmp_path):
    root = tmp_path / "dogs"
    shutil.copytree(photos, root / "Images")
    names = np.empty((1, 1), object)
    names[0, 0] = "../../secret.jpg"
    for file in ("train_list.mat", "test_list.mat"):
        savemat(root / file, {"file_list": names, "labels": np.array([[1]])})
    with pytest.raises(RequestError, match="names a file outside"):
        find_images(root)


def test_several_processes_write_the_same_store_as_one(photos, tmp_path):
    seen = []
    alone = prepare(photos, tmp_path / "alone", 32, num_processes=1)
    combined = prepare(photos, tmp_path / "together", 32, num_processes=2, progress=lambda *done: seen.append(done))
    assert combined.manifest.sha256 == alone.manifest.sha256
    assert seen[-1] == (20, 20)


@pytest.mark.process
def test_a_script_without_a_main_guard_can_prepare(photos, tmp_path):
    script = "from dpcompare.data.prepare import prepare; from pathlib import Path\n"
    script += "prepare('photos', Path('store'), 32, num_processes=2); print('once')"
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=True)
    assert done.stdout == "once\n"


@pytest.fixture
def preparing(tmp_path):
    """A preparation that has decoded its first images."""
    folders = [tmp_path / "many" / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir(parents=True)
    Image.new("RGB", (600, 600)).save(folders[0] / "one.png")
    for index in range(600):
        (folders[index % 2] / f"{index}.png").hardlink_to(folders[0] / "one.png")
    command = [sys.executable, "-m", "dpcompare", "data", "prepare", "many", "store", "--image-size", "32"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=with_default_signals)
    assert "preparing" in process.stderr.readline()
    with process:
        yield process
        process.kill()


@pytest.mark.process
@pytest.mark.slow
def test_an_interrupted_preparation_leaves_nothing(preparing, tmp_path):
    preparing.terminate()
    preparing.communicate(timeout=600)
    assert preparing.returncode == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["many"]


@pytest.mark.process
@pytest.mark.slow
def test_a_killed_preparation_leaves_no_process(preparing, tmp_path):
    children = Path(f"/proc/{preparing.pid}/task/{preparing.pid}/children").read_text().split()
    assert len(children) > 1
    preparing.kill()
    preparing.communicate()
    wait_until(lambda: not any(is_alive(int(pid)) for pid in children))
    (left,) = tmp_path.glob(".dpcompare-unfinished-*")
    in_use = shutil.copytree(left, tmp_path / ".dpcompare-unfinished-in-use")
    for folder in (left, in_use):
        os.utime(folder, (0, 0))
    with folder_held(in_use):
        sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [in_use.name, "many"]


def test_preparing_removes_no_folder_that_is_not_its_own(tmp_path):
    mine = {tmp_path / name for name in (".store-backup", ".dpcompare-unfinished-notes")}
    for folder in mine:
        folder.mkdir()
        os.utime(folder, (0, 0))
    prepare("synthetic-mini", tmp_path / "store", 8)
    assert set(tmp_path.iterdir()) == mine | {tmp_path / "store"}


def test_synthetic_many_has_labels_beyond_a_byte(tmp_path):
    store = prepare("synthetic-many", tmp_path / "store", 8)
    assert (len(store.manifest.classes), counts(store)) == (300, {"train": 66, "validation": 41})
    assert all(128 <= store.split(name).labels.max() < 300 for name in counts(store))
    assert store.split("train").labels.max() > 255


@pytest.mark.process
@pytest.mark.slow
def test_a_process_that_decodes_and_is_killed_is_told(preparing, tmp_path):
    children = Path(f"/proc/{preparing.pid}/task/{preparing.pid}/children").read_text().split()
    decoding = [pid for pid in children if "popen_loky" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(int(decoding[0]), signal.SIGKILL)
    _, said = preparing.communicate(timeout=600)
    assert preparing.returncode == 2
    assert "error: a process that decodes images was killed or crashed" in said
    assert "Traceback" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["many"]


def test_resizing_keeps_the_centre_and_turns_images_upright():
    image = Image.new("RGB", (40, 20), "white")
    image.paste("black", (0, 0, 10, 20))  # cut off: the centre square is columns 10 to 30
    assert resize(image, 10).min() == 255
    upright = Image.new("L", (20, 20), 0)
    upright.paste(255, (0, 0, 20, 10))
    turned = upright.rotate(90)
    turned.getexif()[0x0112] = 6  # to be shown turned by 90 degrees clockwise
    assert np.array_equal(resize(turned, 20), resize(upright, 20))


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1"])
def test_every_kind_of_image_becomes_rgb(mode):
    assert resize(Image.new(mode, (50, 40)), 16).shape == (16, 16, 3)


@pytest.mark.process
@pytest.mark.parametrize("damage", ["empty file", "unequal lists", "a file that crashes SciPy 1.17"])
def test_a_broken_stanford_list_is_named(photos, tmp_path, damage):
    root = tmp_path / "dogs"
    shutil.copytree(photos, root / "Images")
    names = np.empty((2, 1), object)
    names[:, 0] = ["cat/00.png", "dog/01.jpg"]
    for file in ("train_list.mat", "test_list.mat"):
        savemat(root / file, {"file_list": names, "labels": np.array([[1]])})
    if damage == "empty file":
        (root / "train_list.mat").write_bytes(b"")
    if "SciPy" in damage:
        shutil.copy(Path(__file__).parent / "crashes_scipy.mat", root / "train_list.mat")
    with pytest.raises(RequestError, match=r"train_list\.mat' cannot be read as a Stanford Dogs list"):
        find_images(root)


@pytest.fixture
def corrupt(photos):
    path = photos / "dog" / "03.jpg"
    path.write_bytes(path.read_bytes()[:200])
    (photos / "cat" / "05.jpg").write_text("no image")
    return photos


def test_a_corrupt_image_is_named(corrupt, tmp_path):
    with pytest.raises(RequestError, match=r"(03|05).jpg' cannot be decoded.*--skip-corrupt"):
        prepare(corrupt, tmp_path / "store", 32)
    assert not (tmp_path / "store").exists()


def test_corrupt_images_can_be_skipped_and_are_counted(corrupt, tmp_path):
    store = prepare(corrupt, tmp_path / "store", 32, skip_corrupt=True)
    assert sorted(store.manifest.skipped) == ["cat/05.jpg", "dog/03.jpg"]
    assert sum(counts(store).values()) == 18
    shutil.rmtree(corrupt / "dog")
    (corrupt / "cat" / "05.jpg").unlink()
    cats = [resize(Image.open(path), 32) for path in sorted((corrupt / "cat").iterdir())]
    images = store.split("train").images[store.split("train").labels == 0]
    assert all(any(np.array_equal(image, cat) for cat in cats) for image in images)


def empty(root):
    shutil.rmtree(root)
    root.mkdir()


def one_class(root):
    shutil.rmtree(root / "dog")


def no_class_folders(root):
    for path in [*root.rglob("*.png"), *root.rglob("*.jpg")]:
        path.rename(root / f"{path.parent.name}-{path.name}")


def foreign_class(root):
    (root / "train").mkdir()
    (root / "val").mkdir()
    (root / "cat").rename(root / "train" / "cat")
    (root / "dog").rename(root / "val" / "dog")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "does not exist"),
        (empty, "is not a dataset: it holds no images"),
        (one_class, "has one class only \\('cat'\\)"),
        (no_class_folders, "20 images but no folder per class"),
        (foreign_class, "has classes that .* lacks: 'dog'"),
    ],
)
def test_what_is_no_dataset_is_refused(photos, damage, message):
    damage(photos)
    with pytest.raises(RequestError, match=message):
        find_images(photos)


def test_a_folder_one_level_too_high_is_recognised(photos, tmp_path):
    (tmp_path / "above").mkdir()
    photos.rename(tmp_path / "above" / "photos")
    with pytest.raises(RequestError, match=r"Did you mean '.*above/photos', which holds 2 folders of images\?"):
        find_images(tmp_path / "above")


@pytest.mark.process
@pytest.mark.slow
def test_what_is_left_out_is_told(photos, tmp_path):
    assert prepare(photos, tmp_path / "whole", 32).manifest.notes == ()
    (photos / "empty").mkdir()
    (photos / "cat" / "raw.heic").touch()
    (photos / "stray.png").touch()
    assert prepare(photos, tmp_path / "store", 32).manifest.notes == (
        "left out, without an image: empty/",
        "left out, files in formats that are not read (by suffix): .heic: 1",
        "left out, images next to the class folders: 1",
    )
    shutil.copytree(photos, tmp_path / "split" / "train")
    shutil.copytree(photos, tmp_path / "split" / "test")
    split = prepare(tmp_path / "split", tmp_path / "split-store", 32)
    assert split.manifest.notes[0] == "test/ is taken as the validation split, since no folder has that name"


def test_names_that_look_the_same_are_told_apart(photos, tmp_path):
    for split, name in (("train", "na\u00efve"), ("validation", "nai\u0308ve")):
        shutil.copytree(photos, tmp_path / "split" / split)
        (tmp_path / "split" / split / "cat").rename(tmp_path / "split" / split / name)
    with pytest.raises(RequestError, match=r"spell the name of a class with other characters.*'nai\\u0308ve'; rename"):
        find_images(tmp_path / "split")


def test_a_file_is_no_dataset(tmp_path):
    (tmp_path / "file.zip").touch()
    with pytest.raises(RequestError, match="is a file, not a folder"):
        find_images(tmp_path / "file.zip")


def test_an_existing_destination_is_left_alone(tmp_path):
    with pytest.raises(RequestError, match="already exists"):
        prepare("digits", tmp_path, 8)


@pytest.mark.process
@pytest.mark.slow
def test_the_clothing_photographs(clothing, tmp_path):
    store = prepare(clothing, tmp_path / "store", 32)
    assert counts(store) == {"train": 3068, "validation": 341}
    assert len(store.manifest.classes) == 10


def test_names_that_are_not_utf8_are_refused_or_rewritten(photos, tmp_path):
    root = tmp_path / "named"
    shutil.copytree(photos, root)
    bad = os.fsencode(root / "cat") + b"/x\xe9.png"
    Path(os.fsdecode(bad)).write_bytes(b"no image")
    store = prepare(root, tmp_path / "store", 32, skip_corrupt=True)
    assert store.manifest.skipped == (r"cat/x\xe9.png",)
    Path(os.fsdecode(os.fsencode(root) + b"/hat\xe9")).mkdir()  # empty, so it is not a class
    Path(os.fsdecode(os.fsencode(root) + b"/dog/notes.\xe9")).touch()
    noted = prepare(root, tmp_path / "noted", 32, skip_corrupt=True).manifest.notes
    assert noted == (
        r"left out, without an image: hat\xe9/",
        r"left out, files in formats that are not read (by suffix): .\xe9: 1",
    )
    (root / "cat").rename(Path(os.fsdecode(os.fsencode(root) + b"/x\xe9")))
    with pytest.raises(RequestError, match=r"b'x\\xe9' is not UTF-8"):
        find_images(root)
