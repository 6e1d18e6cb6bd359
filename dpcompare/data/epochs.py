"""How many steps an epoch has, and how many samples some steps train."""

from __future__ import annotations


def steps_per_epoch(num_samples: int, global_batch_size: int) -> int:
    return -(-num_samples // global_batch_size)


def parts_trained(num_samples: int, global_batch_size: int, *, num_parts: int, num_steps: int) -> int:
    """How many parts of the first global batches hold a sample, each batch being cut into `num_parts` in order."""
    epochs, steps = divmod(num_steps, steps_per_epoch(num_samples, global_batch_size))
    return epochs * -(-num_samples // (global_batch_size // num_parts)) + steps * num_parts


def samples_trained(num_samples: int, global_batch_size: int, *, num_steps: int) -> int:
    """How many samples count in the first steps; one that comes again in the next epoch counts again."""
    epochs, steps = divmod(num_steps, steps_per_epoch(num_samples, global_batch_size))
    return epochs * num_samples + steps * global_batch_size
