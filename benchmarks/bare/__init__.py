"""Training loops as short as they can be written by hand: the baselines of dpcompare's loop."""
