"""Augmentation as a function of (seed, epoch, sample)."""

import numpy as np
import pytest

from dpcompare.data.augmentation import UNCHANGED, Augmentation
from dpcompare.data.names import AUGMENTATIONS
from dpcompare.data.pixels import look_up
from dpcompare.data.store import Split


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)


def in_0_1(pixels):
    return np.divide(pixels, 255, dtype=np.float32)


MARGIN = 2


def split_of(pixels, margin=0):
    return Split(images=pixels, labels=np.zeros(len(pixels), np.int32), sums=pixels.sum((1, 2, 3)), margin=margin)


def augment(pixels, indices, *, names=AUGMENTATIONS, seed=0, epoch=0):
    """The augmented images, in 0..1, without a margin."""
    chosen = np.asarray(indices)
    means = pixels[chosen].mean(axis=(1, 2, 3)) / 255
    augmentation = Augmentation(names, seed=seed, num_samples=6, margin=MARGIN)
    augmented = augmentation(epoch=epoch, indices=chosen, means=means)
    tables = np.repeat(augmented.brightnesses[:, None], 3, axis=1)
    margin = MARGIN if "crop" in names else 0
    return look_up(split_of(pixels, margin).pixels(chosen, augmented.corners), tables, augmented.flips)


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
    unchanged = split_of(pixels, MARGIN if name == "crop" else 0).pixels(np.arange(6))
    assert not np.array_equal(augmented, in_0_1(unchanged))
    assert augmented.min() >= 0
    assert augmented.max() <= 1


def test_flip_mirrors_some_images_left_to_right(pixels):
    augmented = augment(pixels, range(6), names=["flip"])
    flipped = [np.array_equal(a, p[:, ::-1]) for a, p in zip(augmented, in_0_1(pixels), strict=True)]
    same = [np.array_equal(a, p) for a, p in zip(augmented, in_0_1(pixels), strict=True)]
    assert any(flipped)
    assert any(same)
    assert all(f or s for f, s in zip(flipped, same, strict=True))


def test_brightness_is_more_than_rounding_of_pixels(pixels):
    assert np.abs(augment(pixels, range(6), names=["brightness"]) - in_0_1(pixels)).mean() > 0.01


def test_contrast_keeps_the_mean_and_scales_the_distances():
    """Pixels so near to the middle that nothing is clipped."""
    pixels = np.random.default_rng(1).integers(100, 156, (6, 5, 4, 3), dtype=np.uint8)
    before, after = in_0_1(pixels).astype(float), augment(pixels, range(6), names=["contrast"])
    axes = (1, 2, 3)
    np.testing.assert_allclose(after.mean(axes), before.mean(axes), rtol=1e-6)
    factors = after.std(axes) / before.std(axes)
    assert factors.std() > 0.02
    assert (np.abs(factors - 1) <= 0.2).all()


def test_brightness_comes_before_contrast_whose_mean_it_moves():
    """The mean of pixels to which brightness was added before it was taken."""
    pixels = np.random.default_rng(1).integers(110, 146, (6, 5, 4, 3), dtype=np.uint8)
    brightened = augment(pixels, range(6), names=["brightness"]).astype(float)
    both = augment(pixels, range(6), names=["brightness", "contrast"])
    np.testing.assert_allclose(both.mean((1, 2, 3)), brightened.mean((1, 2, 3)), rtol=1e-6)


def test_crop_takes_every_place_and_evaluation_the_centre():
    """Each pixel of an image has its row and column as values."""
    rows, columns = np.indices((7, 6), np.uint8)
    pixels = np.repeat(np.stack([rows, columns, rows], 2)[None], 6, axis=0)
    split = split_of(pixels, MARGIN)
    corners = set()
    for epoch in range(20):
        augmentation = Augmentation(["crop"], seed=0, num_samples=6, margin=MARGIN)
        drawn = augmentation(epoch=epoch, indices=np.arange(6), means=split.means).corners
        cut = split.pixels(np.arange(6), drawn)
        assert cut.shape == (6, 5, 4, 3)
        assert np.array_equal(cut[:, 0, 0, :2], drawn)
        assert (cut[:, -1, -1, :2] - cut[:, 0, 0, :2] == (4, 3)).all()
        corners |= set(map(tuple, drawn.tolist()))
    assert corners == {(top, left) for top in range(3) for left in range(3)}
    assert (split.pixels(np.arange(6))[:, 0, 0, :2] == 1).all()


def test_crop_draws_after_the_others_and_changes_none(pixels):
    def drawn(names):
        augmentation = Augmentation(names, seed=0, num_samples=6, margin=MARGIN)
        return augmentation(epoch=0, indices=np.arange(6), means=np.zeros(6))

    without, with_crop = drawn(["flip", "brightness"]), drawn(["flip", "brightness", "crop"])
    assert without.corners is None
    assert np.array_equal(without.flips, with_crop.flips)
    assert np.array_equal(without.brightnesses, with_crop.brightnesses)


def test_none_leaves_the_pixels_alone(pixels):
    assert np.array_equal(augment(pixels, range(6), names=[]), in_0_1(pixels))
    assert UNCHANGED.brightnesses.shape == (1, 256)
