"""The table of every image looked up by JAX, where its bytes are."""

from __future__ import annotations

import jax
from jax import numpy as jnp

from dpcompare.data.pixels import NUM_BYTES


@jax.jit
def look_up(pixels: jax.Array, tables: jax.Array, flips: jax.Array | None) -> jax.Array:
    """As `dpcompare.data.pixels.look_up`, bit for bit."""
    num_tables, num_channels, _ = tables.shape
    first = jnp.arange(num_channels) * NUM_BYTES
    if num_tables > 1:
        first = (jnp.arange(num_tables) * (num_channels * NUM_BYTES))[:, None, None, None] + first
    # "clip": the default would replace an index out of bounds by NaN, and look for one.
    images = jnp.take(tables.reshape(-1), pixels + first, mode="clip")
    if flips is None:
        return images
    return jnp.where(flips[:, None, None, None], jnp.flip(images, 2), images)
