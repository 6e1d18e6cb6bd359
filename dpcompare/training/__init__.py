"""Training: the one measured loop and what surrounds it in a training process."""
