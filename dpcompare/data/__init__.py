"""The dataset as data, without any framework: prepared once, read in one order, augmented by one rule."""
