"""Datasets that the library `datasets` wrote or reads: splits, columns, classes, and the pixels of a folder."""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpcompare.config.workload import Workload
from dpcompare.data.names import is_custom_dataset
from dpcompare.data.prepare import prepare, source_of
from dpcompare.data.store import open_store
from dpcompare.errors import RequestError
from dpcompare.launch.inputs import num_training_images
from tests.support.command import invoke
from tests.support.inputs import config, inputs

pytestmark = pytest.mark.seconds  # the library takes them to load

CLASSES = ["cat", "dog"]


@pytest.fixture(scope="session")
def datasets(tmp_path_factory):
    """The real library, which may reach no hub and writes nothing outside of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("huggingface")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        library = pytest.importorskip("datasets", reason="needs the extra hf")
        library.disable_progress_bars()
        patch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # no thread that watches bars
        yield library


@pytest.fixture
def split_of(datasets, photos):
    """A split of the first so many photographs of each class, as files or with their bytes inside."""

    def build(cats, dogs, **columns):
        files = [*sorted((photos / "cat").iterdir())[:cats], *sorted((photos / "dog").iterdir())[:dogs]]
        labels = [0] * cats + [1] * dogs
        features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES)}
        rows = {"image": list(map(str, files)), "label": labels}
        for name, feature in columns.items():
            rows[name], features[name] = rows["image" if isinstance(feature, datasets.Image) else "label"], feature
        return datasets.Dataset.from_dict(rows, features=datasets.Features(features))

    return build


@pytest.fixture
def saved(datasets, tmp_path):
    """Write splits as `save_to_disk` does; gives the name of the dataset."""

    def save(**splits):
        (datasets.DatasetDict(splits) if splits.keys() != {"all"} else splits["all"]).save_to_disk(tmp_path / "saved")
        return f"hf:{tmp_path / 'saved'}"

    return save


def test_a_saved_dataset_has_the_pixels_of_its_files(saved, split_of, photos, tmp_path):
    name = saved(train=split_of(12, 8), validation=split_of(3, 2), extra=split_of(1, 1))
    store = prepare(name, tmp_path / "store", 32, num_processes=1)
    assert store.manifest.classes == ("cat", "dog")
    assert {split: part.count for split, part in store.manifest.splits.items()} == {"train": 20, "validation": 5}
    assert np.bincount(store.split("train").labels).tolist() == [12, 8]
    assert store.manifest.source == name
    assert store.manifest.notes == (
        "the split train is trained on, and validation is the validation split",
        "left out, splits: extra",
    )
    assert store.manifest.duplicates.shared == 5  # the photographs of both splits are the same
    (tmp_path / "layout").mkdir()
    for split in ("train", "validation"):
        (tmp_path / "layout" / split).symlink_to(photos)
    as_folder = prepare(tmp_path / "layout", tmp_path / "as-folder", 32, follow_links=True, num_processes=1)
    assert store.manifest.splits["train"] == as_folder.manifest.splits["train"]  # pixels and labels, by their checksums


def test_what_the_store_is_of_is_recorded_and_compared(saved, split_of):
    name = saved(train=split_of(8, 8), test=split_of(3, 2))
    before = inputs(dataset=name, steps=6)
    assert inputs(dataset=name, steps=6) == before
    assert num_training_images(config(dataset=name, steps=6)) == before.num_train == 16
    manifest = open_store(before.store).manifest
    assert manifest.revision == source_of(name).files().revision
    assert manifest.revision.startswith("fingerprints train ")
    saved(train=split_of(8, 7), test=split_of(3, 2))
    after = inputs(dataset=name, steps=6)
    assert open_store(after.store).manifest.revision != manifest.revision
    assert after.store_sha256 != before.store_sha256  # which the fairness sheet compares as `data`


@pytest.mark.parametrize(
    ("splits", "chosen", "counts", "note"),
    [
        (("train", "test"), "", (20, 5), "the split train is trained on, and test is the validation split"),
        (("all",), "", (16, 4), "a fifth of the split all is held out as the validation split"),
        (("test",), "", (4, 1), "a fifth of the split test is held out as the validation split"),
        (("train", "val", "test"), "", (20, 5), "the split train is trained on, and val is the validation split"),
        (("train", "test"), ",validation=train", (16, 4), "a fifth of the split train is held out as the"),
        (("fold1", "fold2"), ",train=fold2,validation=fold1", (5, 5), "the split fold2 is trained on, and fold1 is"),
    ],
)
def test_which_splits_are_taken_is_told(saved, split_of, splits, chosen, counts, note):
    name = saved(**{split: split_of(12, 8) if split in ("train", "all") else split_of(3, 2) for split in splits})
    found = source_of(name + chosen).files()
    assert (len(found.splits["train"]), len(found.splits["validation"])) == counts
    assert next(iter(found.notes())).startswith(note)
    files = [[str(file) for file, _ in found.splits[part]] for part in ("train", "validation")]
    assert not set(files[0]) & set(files[1])


def test_a_folder_of_the_librarys_formats(datasets, photos, split_of, tmp_path):
    """`imagefolder`, whose images are files, and Parquet with two configs, which has their bytes."""
    assert [len(part) for part in source_of(f"hf:{photos}").files().splits.values()] == [16, 4]
    assert source_of(f"hf:{photos}").files().classes == ("cat", "dog")
    folder = tmp_path / "parquet"
    for name, count in (("small", 3), ("large", 8)):
        split_of(count, count).to_parquet(folder / name / "train.parquet")
    yaml = [{"config_name": name, "data_files": f"{name}/*.parquet"} for name in ("small", "large")]
    (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(yaml)}\n---\n")
    assert sum(map(len, source_of(f"hf:{folder}:small").files().splits.values())) == 6
    assert sum(map(len, source_of(f"hf:{folder}:large").files().splits.values())) == 16
    with pytest.raises(RequestError, match=r"cannot be loaded .*'tiny' not found. Available: \['small', 'large'\]"):
        source_of(f"hf:{folder}:tiny").files()
    with pytest.raises(RequestError, match=r"cannot be loaded .*Config name is missing.*\['small', 'large'\]"):
        source_of(f"hf:{folder}").files()


def test_a_dataset_of_the_hub_is_known_by_its_commit(datasets, photos, tmp_path):
    """Without a network the library takes what it downloaded before, which has the commit in its path."""
    photos.rename(tmp_path / "pets")
    built = datasets.load_dataset_builder(str(tmp_path / "pets"))
    built.download_and_prepare()
    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = Path(datasets.config.HF_DATASETS_CACHE) / "somebody___pets" / "default" / "0.0.0" / commit
    shutil.copytree(built.cache_dir, cached)
    info = json.loads((cached / "dataset_info.json").read_text())
    (cached / "dataset_info.json").write_text(json.dumps(info | {"config_name": "default"}))
    found = source_of("hf:somebody/pets").files()
    assert found.revision == f"commit {commit}"
    assert (found.classes, len(found.splits["train"])) == (("cat", "dog"), 16)


def test_columns_are_found_or_asked_for(datasets, saved, split_of):
    coarse, mask = datasets.ClassLabel(names=["animal", "plant"]), datasets.Image()
    name = saved(train=split_of(12, 8, coarse=coarse, mask=mask))
    with pytest.raises(
        RequestError, match=r"expected image=COLUMN with one of the columns .* Image: image, mask; such"
    ):
        source_of(name).files()
    with pytest.raises(RequestError, match=r"ClassLabel: label, coarse; such as hf:\S+saved,image=mask,label=label"):
        source_of(f"{name},image=mask").files()
    with pytest.raises(RequestError, match=r"received .*label=mask', expected label=COLUMN with one of"):
        source_of(f"{name},image=mask,label=mask").files()
    assert source_of(f"{name},image=mask,label=coarse").files().classes == ("animal", "plant")


def test_an_image_that_cannot_be_decoded_is_named_or_skipped(datasets, saved, split_of, tmp_path):
    whole = split_of(8, 8)
    broken = whole.cast_column("image", datasets.Image(decode=False))
    broken = broken.map(lambda row, index: {"image": {"bytes": b"no image", "path": None}} if index == 3 else row,
                        with_indices=True, features=broken.features)  # fmt: skip
    name = saved(train=broken.cast_column("image", datasets.Image()), test=split_of(2, 2))
    with pytest.raises(RequestError, match=r"image 'train\[3\]' cannot be decoded.*--skip-corrupt"):
        prepare(name, tmp_path / "store", 32)
    assert prepare(name, tmp_path / "store", 32, skip_corrupt=True).manifest.skipped == ("train[3]",)
    assert Workload(dataset=name, skip_corrupt=True).skip_corrupt


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["label"], r"no column with the feature Image, but label \(ClassLabel\); give one that feature"),
        (["image"], r"no column with the feature ClassLabel, but image \(Image\)"),
    ],
)
def test_what_lacks_a_column_is_refused(saved, split_of, columns, message):
    with pytest.raises(RequestError, match=message):
        source_of(saved(train=split_of(3, 2).select_columns(columns))).files()


def test_other_datasets_that_cannot_be_used_are_refused(datasets, saved, split_of):
    hidden = split_of(3, 2).map(lambda row: {"label": -1})
    name = saved(train=split_of(12, 8), test=hidden)
    with pytest.raises(RequestError, match=r"5 of 5 images of split 'test' .* have no label; choose another split"):
        source_of(name).files()
    assert len(source_of(f"{name},validation=train").files().splits["validation"]) == 4
    with pytest.raises(RequestError, match="asks for train=fold, which is no split; expected one of train, test"):
        source_of(f"{name},train=fold").files()
    with pytest.raises(RequestError, match="names the config 'plain', but `save_to_disk` wrote"):
        source_of(f"{name}:plain").files()
    with pytest.raises(RequestError, match="the splits a, b, of which none is called train; choose one, such as hf:"):
        source_of(saved(a=hidden, b=hidden)).files()
    with pytest.raises(RequestError, match=r"cannot be loaded \(ConnectionError: .*; expected hf:NAME"):
        source_of("hf:nobody/has-written-this").files()
    other = split_of(3, 2).cast_column("label", datasets.ClassLabel(names=["dog", "cat"]))
    with pytest.raises(RequestError, match="differ in their column 'image' or 'label'; expected both in both"):
        source_of(saved(train=split_of(12, 8), test=other)).files()


@pytest.mark.parametrize("name", ["hf:", "hf:x,label", "hf:x,colour=red", "hf:x,label="])
def test_wrong_names_are_refused(name):
    with pytest.raises(RequestError, match=r"dataset: received .*, expected hf:NAME\[:CONFIG\]\[,image=COLUMN\]"):
        source_of(name).files()


def test_without_the_library_its_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused = invoke("data", "prepare", "hf:ylecun/mnist", tmp_path / "store", "--image-size", "32")
    assert refused.code == 2
    assert "needs datasets, which is not installed; install the extra with" in refused.stderr
    assert "'dpcompare[hf]'" in refused.stderr
    assert not is_custom_dataset("hf:mnist")


def test_the_command_says_which_splits_it_took(saved, split_of, tmp_path):
    name = saved(train=split_of(8, 8), test=split_of(3, 2))
    done = invoke("data", "prepare", name, tmp_path / "store", "--image-size", "16")
    assert done.code == 0
    assert "train 16, validation 5" in done.stdout
    assert "the split train is trained on, and test is the validation split" in done.stdout
    assert Image.fromarray(open_store(tmp_path / "store").split("train").images[0]).size == (16, 16)


@pytest.fixture
def private(tmp_path):
    """A picture of somebody else's, outside of every dataset."""
    (tmp_path / "home").mkdir()
    Image.new("RGB", (8, 8), (200, 0, 0)).save(tmp_path / "home" / "private.png")
    return tmp_path / "home" / "private.png"


@pytest.mark.parametrize("kind", ["file", "link", "pipe"])
def test_a_row_names_no_file_outside_of_its_dataset(datasets, split_of, saved, private, tmp_path, kind):
    name = saved(train=split_of(3, 3), validation=split_of(2, 2))
    if kind == "link":
        (tmp_path / "saved" / "x.png").symlink_to(private)
    elif kind == "pipe":
        os.mkfifo(tmp_path / "saved" / "x.png")
    path = str(private if kind == "file" else tmp_path / "saved" / "x.png")
    rows = split_of(3, 3).cast_column("image", datasets.Image(decode=False))
    features = rows.features
    named = {"image": {"path": path, "bytes": None}}
    rows = rows.map(lambda row, number: row if number else row | named, with_indices=True, features=features)
    shard = tmp_path / "saved" / "train"
    # Not by save_to_disk, which would put the file's bytes into the row.
    with datasets.arrow_writer.ArrowWriter(path=str(shard / "data-00000-of-00001.arrow"), features=features) as written:
        written.write_table(rows.data.table)
        written.finalize()
    message = "it is a pipe" if kind == "pipe" else "outside of the dataset"
    with pytest.raises(RequestError, match=message):
        prepare(name, tmp_path / "store", 8, num_processes=1)


@pytest.mark.parametrize("pattern", ["absolute", "above"])
def test_a_readme_names_no_file_outside_of_its_dataset(datasets, private, tmp_path, pattern):
    folder = tmp_path / "folder"
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(folder / name / "0.png")
    named = str(private) if pattern == "absolute" else "../home/private.png"
    configs = f'configs:\n- config_name: default\n  data_files:\n  - split: train\n    path: ["{named}", "*/*.png"]'
    (folder / "README.md").write_text(f"---\n{configs}\n---\n")
    with pytest.raises(RequestError, match="outside of the dataset"):
        prepare(f"hf:{folder}", tmp_path / "store", 8, num_processes=1)


@pytest.mark.parametrize("what", ["file", "split"])
def test_a_saved_dataset_names_no_part_outside_of_its_folder(saved, split_of, tmp_path, what):
    name = saved(train=split_of(3, 3), validation=split_of(2, 2))
    shutil.copytree(tmp_path / "saved" / "train", tmp_path / "private")
    if what == "file":
        state = tmp_path / "saved" / "train" / "state.json"
        content = json.loads(state.read_text())
        content["_data_files"] = [{"filename": str(tmp_path / "private" / content["_data_files"][0]["filename"])}]
        state.write_text(json.dumps(content))
    else:
        splits = tmp_path / "saved" / "dataset_dict.json"
        splits.write_text(json.dumps({"splits": ["../private", "validation"]}))
    with pytest.raises(RequestError, match=r"it names '.*private.*', outside of the dataset"):
        prepare(name, tmp_path / "store", 8, num_processes=1)


def test_a_readme_names_no_archive_outside_of_its_dataset(datasets, private, tmp_path):
    shutil.make_archive(str(tmp_path / "home" / "private"), "zip", tmp_path / "home", "private.png")
    folder = tmp_path / "folder"
    folder.mkdir()
    named = f"zip://private.png::{tmp_path}/home/private.zip"
    configs = f"configs:\n- config_name: default\n  data_files:\n  - split: train\n    path: '{named}'"
    (folder / "README.md").write_text(f"---\n{configs}\n---\n")
    with pytest.raises(RequestError, match=r"outside of the dataset|cannot be loaded"):
        prepare(f"hf:{folder}", tmp_path / "store", 8, num_processes=1)
