"""Augmentation as a function of (seed, epoch, sample)."""

import numpy as np
import pytest

from dpcompare.data.augmentation import AUGMENTATIONS, UNCHANGED, Augmentation
from dpcompare.data.pixels import look_up


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)


def in_0_1(pixels):
    return np.divide(pixels, 255, dtype=np.float32)


def augment(pixels, indices, *, names=AUGMENTATIONS, seed=0, epoch=0):
    """The augmented images, in 0..1."""
    chosen = np.asarray(indices)
    means = pixels[chosen].mean(axis=(1, 2, 3)) / 255
    augmented = Augmentation(names, seed=seed, num_samples=6)(epoch=epoch, indices=chosen, means=means)
    tables = np.repeat(augmented.brightnesses[:, None], 3, axis=1)
    return look_up(pixels[chosen], tables, augmented.flips)


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
    assert not np.array_equal(augmented, in_0_1(pixels))
    assert augmented.min() >= 0
    assert augmented.max() <= 1


def test_flip_mirrors_some_images_left_to_right(pixels):
    augmented = augment(pixels, range(6), names=["flip"])
    flipped = [np.array_equal(a, p[:, ::-1]) for a, p in zip(augmented, in_0_1(pixels), strict=True)]
    same = [np.array_equal(a, p) for a, p in zip(augmented, in_0_1(pixels), strict=True)]
    assert any(flipped)
    assert any(same)
    assert all(f or s for f, s in zip(flipped, same, strict=True))


def test_brightness_is_more_than_rounding_on_the_scale_of_the_pixels(pixels):
    assert np.abs(augment(pixels, range(6), names=["brightness"]) - in_0_1(pixels)).mean() > 0.01


def test_contrast_keeps_the_mean_of_an_image_and_scales_the_distances_from_it():
    """Of pixels so near to the middle that nothing is clipped."""
    pixels = np.random.default_rng(1).integers(100, 156, (6, 5, 4, 3), dtype=np.uint8)
    before, after = in_0_1(pixels).astype(float), augment(pixels, range(6), names=["contrast"])
    axes = (1, 2, 3)
    np.testing.assert_allclose(after.mean(axes), before.mean(axes), rtol=1e-6)
    factors = after.std(axes) / before.std(axes)
    assert factors.std() > 0.02
    assert (np.abs(factors - 1) <= 0.2).all()


def test_brightness_comes_before_contrast_whose_mean_it_moves():
    """As if brightness had been added to the pixels, and the mean taken of them then."""
    pixels = np.random.default_rng(1).integers(110, 146, (6, 5, 4, 3), dtype=np.uint8)
    brightened = augment(pixels, range(6), names=["brightness"]).astype(float)
    both = augment(pixels, range(6), names=["brightness", "contrast"])
    np.testing.assert_allclose(both.mean((1, 2, 3)), brightened.mean((1, 2, 3)), rtol=1e-6)


def test_none_leaves_the_pixels_alone(pixels):
    assert np.array_equal(augment(pixels, range(6), names=[]), in_0_1(pixels))
    assert UNCHANGED.brightnesses.shape == (1, 256)
