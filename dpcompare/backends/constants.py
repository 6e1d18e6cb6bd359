"""Constants of the training arithmetic, defined once; each framework's side carries them out."""

BATCH_NORM_EPSILON = 1e-3
