"""Loops as short as they can be written by hand: training, the baseline of dpcompare's speed, and an evaluation."""
