"""Constants of the training arithmetic, defined once; each framework's side carries them out."""

SGD_MOMENTUM = 0.9

ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-7
"""Added to the root of the second moment before its bias is corrected (Kingma and Ba 2015, section 2)."""

FIRST_MOMENTS = {"momentum": 1.0, "exp_avg": 1 - ADAM_BETAS[0]}
"""What an optimizer remembers -> how many times the gradient of the first step it is after that step."""

BATCH_NORM_EPSILON = 1e-3
