"""Constants of the training arithmetic, defined once; each framework's side carries them out."""

SGD_MOMENTUM = 0.9

ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-7
"""Added to the root of the second moment before its bias is corrected (Kingma and Ba 2015, section 2)."""

BATCH_NORM_EPSILON = 1e-3
