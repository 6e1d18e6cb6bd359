"""Augmentation as a function of (seed, epoch, sample)."""

import numpy as np
import pytest

from dpcompare.data.augmentation import AUGMENTATIONS, Augmentation


@pytest.fixture
def pixels():
    return np.random.default_rng(0).random((6, 5, 4, 3), dtype=np.float32)


def augment(pixels, indices, *, names=AUGMENTATIONS, seed=0, epoch=0):
    chosen = np.asarray(indices)
    return Augmentation(names, seed=seed, num_samples=6)(pixels[chosen].copy(), epoch=epoch, indices=chosen)


def test_a_sample_is_augmented_alike_in_every_batch(pixels):
    whole = augment(pixels, range(6))
    assert np.array_equal(whole[[4, 1]], augment(pixels, [4, 1]))


@pytest.mark.parametrize("change", [{"seed": 1}, {"epoch": 1}])
def test_seed_and_epoch_change_it(pixels, change):
    assert not np.array_equal(augment(pixels, range(6)), augment(pixels, range(6), **change))


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_each_one_changes_pixels_and_keeps_their_range(pixels, name):
    augmented = augment(pixels, range(6), names=[name])
    assert augmented.dtype == np.float32
    assert not np.array_equal(augmented, pixels)
    assert augmented.min() >= 0
    assert augmented.max() <= 1


def test_flip_mirrors_some_images_left_to_right(pixels):
    augmented = augment(pixels, range(6), names=["flip"])
    flipped = [np.array_equal(a, p[:, ::-1]) for a, p in zip(augmented, pixels, strict=True)]
    same = [np.array_equal(a, p) for a, p in zip(augmented, pixels, strict=True)]
    assert any(flipped)
    assert any(same)
    assert all(f or s for f, s in zip(flipped, same, strict=True))


def test_brightness_is_more_than_rounding_on_the_scale_of_the_pixels(pixels):
    assert np.abs(augment(pixels, range(6), names=["brightness"]) - pixels).mean() > 0.01


def test_none_leaves_the_pixels_alone(pixels):
    assert np.array_equal(augment(pixels, range(6), names=[]), pixels)
