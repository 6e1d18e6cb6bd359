"""Healthy runs whose settings look unusual; `stress.planted` must raise no alarm for any pair of them."""

from __future__ import annotations

from typing import Any

from stress.planted_row import (
    DDP,
    FSDP,
    JAX,
    MIRRORED,
    MULTIPROCESS,
    MULTIWORKER,
    SPMD,
    TENSORFLOW,
    TORCH,
    Odd,
    Place,
)

DP, DDP_THREE = Place(framework="torch", mode="dp", devices=2), Place(framework="torch", mode="ddp", devices=3)
MIRRORED_THREE = Place(framework="tensorflow", mode="mirrored", devices=3)

ADAM = {"optimizer": "adam", "learning_rate": 1e-3}

ODD_PAIRS: dict[str, Odd] = {
    "healthy: labels that are mostly smoothed": Odd(places=(TORCH, TENSORFLOW), workload={"label_smoothing": 0.9}),
    "healthy: a rate at which nothing is learned": Odd(places=(TORCH, JAX), workload={"learning_rate": 1e-8}),
    "healthy: a rate at which the loss grows": Odd(places=(TORCH, TENSORFLOW), workload={"learning_rate": 2.0}),
    "healthy: weights that decay by a tenth in each step": Odd(
        places=(TORCH, TENSORFLOW), workload={"weight_decay": 10.0}
    ),
    "healthy: gradients cut to nearly nothing": Odd(places=(JAX, TENSORFLOW), workload={"clip_norm": 1e-4}),
    "healthy: a limit of the norm that no gradient reaches": Odd(places=(JAX, TORCH), workload={"clip_norm": 1e4}),
    "healthy: a warm-up as long as the run": Odd(
        places=(TORCH, TENSORFLOW), workload={"lr_warmup_steps": 30, "schedule": "cosine"}
    ),
    "healthy: a mean of the weights that hardly moves": Odd(
        places=(TORCH, JAX), workload={"weight_average": 0.9999, **ADAM}
    ),
    "healthy: a mean of the weights that is the last step": Odd(
        places=(TENSORFLOW, TORCH), workload={"weight_average": 0.001}
    ),
    "healthy: running statistics of the last batch": Odd(
        places=(TORCH, TENSORFLOW), workload={"batchnorm_momentum": 0.0}
    ),
    "healthy: running statistics that hardly move": Odd(places=(TORCH, JAX), workload={"batchnorm_momentum": 0.9999}),
    "healthy: statistics recomputed over an epoch and more": Odd(
        places=(TENSORFLOW, TORCH), workload={"batchnorm_recompute": 7}
    ),
    "healthy: eight micro-batches of two images": Odd(places=(TORCH, TENSORFLOW), workload={"accumulate": 8}),
    "healthy: a seed of 63 bits": Odd(places=(TORCH, JAX), workload={"seed": 2**63 - 1, "regularization": "shared"}),
    "healthy: images of an odd size": Odd(places=(TORCH, TENSORFLOW), workload={"image_size": 13}),
    "healthy: a batch of nearly all images": Odd(places=(TORCH, JAX), workload={"global_batch_size": 64, "steps": 12}),
    "healthy: batches of four": Odd(places=(TENSORFLOW, TORCH), workload={"global_batch_size": 4}),
    "healthy: three replicas": Odd(places=(DDP_THREE, MIRRORED_THREE), workload={"global_batch_size": 18}),
    "healthy: replicas of bfloat16 with Adam": Odd(
        places=(DDP, MULTIWORKER), workload={"precision": "bfloat16", **ADAM}
    ),
    "healthy: shards and replicas": Odd(places=(FSDP, DDP), workload={"clip_norm": 0.1}),
    "healthy: threads and replicas in float64": Odd(places=(DP, SPMD), workload={"precision": "float64"}),
    "healthy: synchronized BatchNorm of four images": Odd(
        places=(DDP, MIRRORED), workload={"batchnorm": "sync", "global_batch_size": 4}
    ),
    "healthy: processes of JAX with regularization": Odd(
        places=(MULTIPROCESS, DDP), workload={"model": "mlp", "regularization": "shared"}
    ),
    "healthy: resumed with a mean of the weights": Odd(
        places=(TORCH, TENSORFLOW), workload={"weight_average": 0.9, **ADAM}, resumed=True
    ),
    "healthy: max pools in bfloat16": Odd(
        places=(JAX, TENSORFLOW), workload={"model": "toy-cnn", "image_size": 32, "precision": "bfloat16"}
    ),
    "healthy: no augmentation, and a cosine": Odd(
        places=(TORCH, TENSORFLOW), workload={"augment": (), "schedule": "cosine", **ADAM}
    ),
}

ODD_SETTINGS: dict[str, dict[str, Any]] = {
    **{
        name: dict(odd.workload)
        for name, odd in ODD_PAIRS.items()
        if not odd.resumed and all(place.mode == "single" for place in odd.places)
    },
    "healthy: a rate that grows with the batch": {"scale_lr": "linear", "global_batch_size": 48},
    "healthy: micro-batches of one image": {"accumulate": 16, "model": "mlp"},
    "healthy: Adam that decays by a hundredth in each step": {"weight_decay": 10.0, **ADAM},
    "healthy: gradients cut to nearly nothing, with Adam": {"clip_norm": 1e-4, **ADAM},
    "healthy: everything at once": {
        "label_smoothing": 0.3, "weight_decay": 0.1, "clip_norm": 0.5, "lr_warmup_steps": 4, "schedule": "cosine",
        "weight_average": 0.9, "batchnorm_recompute": 3, "accumulate": 2, **ADAM,
    },
}  # fmt: skip
"""Of one device; each is trained by all frameworks in all precisions."""

PAIRS: dict[str, Odd] = {
    **ODD_PAIRS,
    **{
        f"{name}, in {precision}": Odd(
            places=(TORCH, TENSORFLOW, JAX), workload={**settings, "precision": precision}, proved=False
        )
        for name, settings in ODD_SETTINGS.items()
        for precision in ("float32", "float64", "bfloat16")
    },
}
"""All of them."""
