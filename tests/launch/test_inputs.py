"""The cache of datasets and initial weights."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.data.prepare import prepare
from dpcompare.data.store import open_store
from dpcompare.errors import RequestError
from dpcompare.launch.initial_weights import with_seed
from dpcompare.launch.inputs import (
    check_inputs,
    num_training_images,
    prepare_compared,
    prepare_inputs,
    restored,
)
from dpcompare.models.sealed import is_whole
from dpcompare.system.cache import cache_dir
from tests.support.inputs import config, inputs


def test_equal_requests_share_their_files():
    assert inputs() == inputs()
    assert inputs(seed=1).weights != inputs().weights
    assert inputs(seed=1).store == inputs().store


def test_another_seed_has_other_weights_of_the_same_data():
    prepared = prepare_inputs(config())
    other = with_seed(prepared, 7)
    assert other == prepare_inputs(config(seed=7))
    assert other.inputs.weights_sha256 != prepared.inputs.weights_sha256
    assert with_seed(config(), 7) == config(seed=7)  # nothing is prepared for a plan


def test_evaluations_are_no_further_apart_than_the_run_is_long():
    apart = config(steps=9).model_copy(update={"evaluate_every": 10})
    with pytest.raises(RequestError, match="evaluate_every: received 10, but the run has only 9 steps"):
        prepare_inputs(apart)
    with pytest.raises(RequestError, match="received 10, but the run has only 9 steps"):
        check_inputs(apart)  # before anything is prepared


def test_weights_are_those_of_the_model():
    weights = load_file(inputs().weights)
    assert weights["fc1.weight"].shape == (512, 192)


def test_synthetic_grows_with_the_global_batch():
    sizes = {batch: inputs(dataset="synthetic", global_batch_size=batch) for batch in (32, 64, 65)}
    assert [sizes[batch].num_train for batch in sizes] == [1024, 1024, 16 * 65]
    assert {sizes[batch].num_validation for batch in sizes} == {256}
    assert sizes[32].store == sizes[64].store != sizes[65].store
    assert inputs(dataset="synthetic", global_batch_size=64) == sizes[64]
    assert num_training_images(config(dataset="synthetic", global_batch_size=65)) == 16 * 65


def test_runs_that_are_compared_train_on_the_same_synthetic_data():
    batches = [config(dataset="synthetic", global_batch_size=batch, steps=9) for batch in (32, 128, 64)]
    stores = {prepared.inputs.store_sha256 for prepared in prepare_compared(batches)}
    assert stores == {inputs(dataset="synthetic", global_batch_size=128).store_sha256}


def test_the_cache_can_be_moved(tmp_path, monkeypatch):
    monkeypatch.setenv("DPCOMPARE_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert cache_dir() == tmp_path / "elsewhere"
    assert inputs().store.is_relative_to(tmp_path / "elsewhere")


def test_a_folder_that_changed_is_prepared_again(photos):
    before = inputs(dataset=str(photos), steps=6)
    assert before.num_train == 16
    Image.new("RGB", (9, 9)).save(photos / "cat" / "new.png")
    assert inputs(dataset=str(photos), steps=6).store != before.store


def test_a_folder_has_the_longest_name_that_a_file_system_takes(photos, tmp_path):
    longest = photos.rename(tmp_path / ("ä" * 127))
    assert inputs(dataset=str(longest), steps=6).num_train == 16


@pytest.mark.parametrize("name", ["n" * 300, f"{'n' * 300}/{'n' * 300}"])
def test_a_name_that_no_file_system_takes_is_no_dataset(name):
    with pytest.raises(RequestError, match=r"dataset 'n+.*' does not exist; expected a folder of images"):
        inputs(dataset=name)


def test_a_damaged_cache_is_made_again():
    store = inputs(image_size=9).store
    labels = np.load(store / "train-labels.npy")
    np.save(store / "train-labels.npy", labels[::-1])
    sha256 = inputs(image_size=9).store_sha256
    assert inputs(image_size=9).store_sha256 == sha256
    assert np.array_equal(np.load(store / "train-labels.npy"), labels)


@pytest.mark.parametrize("damage", ["empty", "cut off", "another", "one bit"])
def test_damaged_weights_are_made_again(damage):
    path = inputs(seed=39).weights
    content = path.read_bytes()
    damaged = {
        "empty": b"",
        "cut off": content[:-1],
        "another": b"x" * len(content),
        "one bit": content[:-1] + bytes([content[-1] ^ 1]),
    }
    path.write_bytes(damaged[damage])
    assert inputs(seed=39).weights == path
    assert path.read_bytes() == content


def test_a_pipe_in_the_place_of_weights_is_replaced():
    path = inputs(seed=41).weights
    content = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    assert inputs(seed=41).weights == path
    assert path.read_bytes() == content


def test_a_shared_cache_is_read_by_all_whom_the_umask_lets():
    umask = os.umask(0o002)
    try:
        found = inputs(seed=40, image_size=10)
    finally:
        os.umask(umask)
    for path in (found.weights, *found.store.iterdir()):
        assert path.stat().st_mode & 0o777 == 0o664, path


def test_what_a_cache_has_lost_is_prepared_again_as_it_was(photos):
    before = prepare_inputs(config(dataset=str(photos), steps=6))
    assert restored(before, largest_batch=32) is before
    shutil.rmtree(before.inputs.store)
    before.inputs.weights.write_bytes(b"")
    assert restored(before, largest_batch=32) == before
    assert is_whole(before.inputs.weights)
    assert open_store(before.inputs.store, verify=True).manifest.sha256 == before.inputs.store_sha256
    shutil.rmtree(before.inputs.store)
    Image.new("RGB", (9, 9)).save(photos / "cat" / "new.png")
    with pytest.raises(
        RequestError, match=r"has lost what was prepared .* and the dataset .* gives something else now"
    ):
        restored(before, largest_batch=32)


FULL = """
import resource, sys
from pathlib import Path
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError
from tests.support.inputs import inputs
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
try:
    inputs(image_size=32)
except RequestError as error:
    print(error)
"""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("room", "message"),
    [(200_000, "the store cannot be written below"), (5_000_000, "weights cannot be written below")],
)
def test_a_cache_without_room_is_refused(tmp_path, room, message):
    """A limit of the size of files is met where the disk is full: once for the images, once for the weights."""
    environ = os.environ | {"DPCOMPARE_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    argv = [sys.executable, "-c", FULL, str(room)]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{message} '{tmp_path}" in done.stdout
    assert "DPCOMPARE_CACHE_DIR" in done.stdout
    assert not list(tmp_path.rglob("*.safetensors*"))


def test_a_prepared_store_of_another_size_is_refused(photos, tmp_path):
    prepare(photos, tmp_path / "store", 16)
    with pytest.raises(RequestError, match="holds images of 16 px, received image_size 8; pass --image-size 16"):
        inputs(dataset=str(tmp_path / "store"))


def test_crop_needs_a_margin_that_a_users_store_may_lack(photos, tmp_path):
    prepare(photos, tmp_path / "store", 8)
    crop = config(dataset=str(tmp_path / "store"), augment=("crop",), steps=6)
    for check in (check_inputs, prepare_inputs):
        with pytest.raises(RequestError, match=r"received crop, but the store .* without a margin .* --margin 1`, or"):
            check(crop)
    check_inputs(config(dataset="/not/on/this/machine"))  # a plan may be for another one
    prepare(photos, tmp_path / "larger", 8, margin=3)
    found = inputs(dataset=str(tmp_path / "larger"), augment=("crop",), steps=6)
    assert open_store(found.store).split("train").images.shape[1:] == (11, 11, 3)


def test_crop_of_a_folder_is_prepared_in_a_store_of_its_own(photos):
    without, with_crop = (inputs(dataset=str(photos), augment=names, steps=6) for names in ((), ("crop",)))
    assert without.store != with_crop.store
    assert [open_store(each.store).manifest.margin for each in (without, with_crop)] == [0, 1]


@pytest.mark.parametrize("margin", [-1, 9])
def test_a_margin_that_is_none_is_refused(photos, tmp_path, margin):
    with pytest.raises(RequestError, match=f"margin: received {margin}, expected 0 to 8 pixels"):
        prepare(photos, tmp_path / "store", 8, margin=margin)


def test_a_damaged_store_of_the_users_is_refused(photos, tmp_path):
    store = prepare(photos, tmp_path / "store", 8)
    path = store.path / "train-images.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(RequestError, match="checksum"):
        inputs(dataset=str(store.path))


def test_an_epoch_that_is_all_warm_up_is_refused(photos):
    with pytest.raises(RequestError, match="received 5, but the run has only 1 step,"):
        inputs(dataset=str(photos), warmup_steps=5)


def test_few_images_leave_a_step_to_be_measured(photos):
    workload = Workload(model="mlp", image_size=8, dataset=str(photos), global_batch_size=4)
    cluster = Cluster.partition(1, 1, device="cpu")
    prepared = prepare_inputs(RunConfig(framework="torch", mode="single", workload=workload, cluster=cluster))
    num_steps = prepared.workload.total_steps(prepared.inputs.num_train)
    assert 1 < num_steps <= 5
    assert prepared.workload.warmup_steps == num_steps - 1


def test_a_learning_rate_warmup_longer_than_the_run_is_refused():
    with pytest.raises(RequestError, match="lr_warmup_steps: received 99, but the run has only 45 steps"):
        inputs(lr_warmup_steps=99)


def test_skipped_images_are_counted(photos):
    (photos / "cat" / "05.jpg").write_text("no image")
    assert inputs(dataset=str(photos), steps=6, skip_corrupt=True).num_skipped == 1


def test_nothing_is_left_in_the_cache_but_whole_files():
    inputs()
    assert not list(Path(os.environ["DPCOMPARE_CACHE_DIR"]).glob("*/.*"))


@pytest.mark.process
@pytest.mark.slow
def test_a_damaged_store_is_replaced_once_whoever_finds_it(tmp_path, monkeypatch):
    """Three commands at once: each verified it, removed it, and prepared it again under the others."""
    monkeypatch.setenv("DPCOMPARE_CACHE_DIR", str(tmp_path / "cache"))
    whole = inputs(dataset="synthetic-mini", warmup_steps=1)
    with (whole.store / "train-images.npy").open("r+b") as images:
        images.seek(200)
        images.write(b"damaged")
    code = (
        "import tests.support.inputs as t; from unittest import mock; import dpcompare.launch.inputs as i\n"
        "with mock.patch.object(i, 'prepare_source', wraps=i.prepare_source) as prepared:\n"
        "    print(t.inputs(dataset='synthetic-mini', warmup_steps=1).store_sha256, prepared.call_count)"
    )
    commands = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = [command.communicate(timeout=600)[0].split() for command in commands]
    assert [command.returncode for command in commands] == [0] * 3
    assert {answer[0] for answer in answers} == {whole.store_sha256}
    assert sum(int(answer[1]) for answer in answers) == 1
    assert list(whole.store.parent.iterdir()) == [whole.store]
