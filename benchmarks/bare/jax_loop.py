"""The JAX loop by hand, on one device: a jitted step that takes its state and gives the next one.

python -m benchmarks.bare.jax_loop --mode single --variant kernel
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import numpy as jnp

from benchmarks.bare.measure import NUM_CLASSES, arguments, batches, measured, report
from dpcompare.backends.jax.model import Model, build_model
from dpcompare.config.workload import Workload
from dpcompare.models.state import is_statistic
from dpcompare.system.cache import cache_dir

VARIANTS = ["shifts", "kernel"]
"""Depthwise and very small convolutions as shifted products, as dpcompare's on the CPU, or by XLA's kernels."""
LEARNING_RATE, BETAS, EPSILON = 1e-3, (0.9, 0.999), 1e-7


def main() -> None:
    chosen = arguments(["single"], VARIANTS)
    os.environ["NPROC"] = str(chosen.threads)  # nothing else tells XLA how many threads to start
    jax.config.update("jax_default_matmul_precision", "default" if chosen.profile == "native" else "highest")
    # What is compiled is kept, as dpcompare keeps it: it takes a minute, which no speed includes, and memory, which the
    # peak of the first run does.
    jax.config.update("jax_compilation_cache_dir", str(cache_dir() / "compiled" / "jax"))
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    workload = Workload(model=chosen.model, image_size=chosen.image_size)
    model = build_model(workload, NUM_CLASSES, by_shifts=chosen.variant == "shifts")
    train, state = step_of(model), initial_state(model)
    data = [jax.device_put(batch) for batch in batches(chosen.global_batch_size, chosen.image_size)]

    def step(number: int) -> None:
        nonlocal state
        state = train(state, *data[number % len(data)])

    report(measured(step, chosen, lambda: jax.block_until_ready(state)))


def initial_state(model: Model) -> Any:
    """Parameters, running statistics, Adam's two moments, and the number of steps."""
    tensors = {name: jnp.asarray(array) for name, array in model.init().items()}
    parameters = {name: value for name, value in tensors.items() if not is_statistic(name)}
    statistics = {name: value for name, value in tensors.items() if is_statistic(name)}
    means, squares = (jax.tree.map(jnp.zeros_like, parameters) for _ in range(2))
    return parameters, statistics, means, squares, jnp.zeros(())


def step_of(model: Model) -> Callable[..., Any]:
    """A compiled step of Adam, which writes into the memory of the state that it is given."""

    def loss(parameters: Any, statistics: Any, images: Any, labels: Any) -> Any:
        logits, made = model.apply({**parameters, **statistics}, images, None, training=True, axis_name=None)
        of_labels = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)
        return -of_labels.mean(), {name: made[name] for name in statistics}

    @partial(jax.jit, donate_argnums=0)
    def train(state: Any, images: Any, labels: Any) -> Any:
        parameters, statistics, means, squares, number = state
        gradients, statistics = jax.grad(loss, has_aux=True)(parameters, statistics, images, labels)
        number = number + 1
        means = jax.tree.map(lambda mean, gradient: BETAS[0] * mean + (1 - BETAS[0]) * gradient, means, gradients)
        squares = jax.tree.map(
            lambda square, gradient: BETAS[1] * square + (1 - BETAS[1]) * gradient**2, squares, gradients
        )
        rate = LEARNING_RATE * jnp.sqrt(1 - BETAS[1] ** number) / (1 - BETAS[0] ** number)
        parameters = jax.tree.map(
            lambda parameter, mean, square: parameter - rate * mean / (jnp.sqrt(square) + EPSILON),
            parameters,
            means,
            squares,
        )
        return parameters, statistics, means, squares, number

    return train


if __name__ == "__main__":
    main()
