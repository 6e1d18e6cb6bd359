"""The JAX loop by hand: one jitted step on one device, with the model of dpcompare and Adam as in the paper.

python -m benchmarks.bare.jax_loop --mode single
"""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from benchmarks.bare.measure import NUM_CLASSES, arguments, batches, measured, report
from dpcompare.backends.jax.model import build_model
from dpcompare.config.workload import Workload
from dpcompare.models.state import is_statistic


def main() -> None:
    chosen = arguments(["single"], ["loop"])
    os.environ["NPROC"] = str(chosen.threads)
    jax.config.update("jax_default_matmul_precision", "default" if chosen.profile == "native" else "highest")
    on_cpu = jax.default_backend() == "cpu"
    workload = Workload(model=chosen.model, image_size=chosen.image_size)
    model = build_model(workload, NUM_CLASSES, depthwise_as_shifts=on_cpu)
    tensors = {name: jnp.array(value) for name, value in model.init().items()}
    parameters = {name: value for name, value in tensors.items() if not is_statistic(name)}
    statistics = {name: value for name, value in tensors.items() if is_statistic(name)}
    moments = [{name: jnp.zeros_like(value) for name, value in parameters.items()} for _ in range(2)]
    placed = [jax.device_put(batch) for batch in batches(chosen.global_batch_size, chosen.image_size)]

    @jax.jit
    def loss(parameters: Any, statistics: Any, images: Any, labels: Any) -> Any:
        logits, made = model.apply({**parameters, **statistics}, images, None, training=True, axis_name=None)
        of_labels = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)
        return -of_labels.mean(), {name: made[name] for name in statistics}

    def train(state: Any, number: Any, images: Any, labels: Any) -> Any:
        parameters, statistics, (means, squares) = state
        (value, statistics), gradients = jax.value_and_grad(loss, has_aux=True)(parameters, statistics, images, labels)
        means = jax.tree.map(lambda mean, g: 0.9 * mean + 0.1 * g, means, gradients)
        squares = jax.tree.map(lambda square, g: 0.999 * square + 0.001 * g * g, squares, gradients)
        rate = 1e-3 * jnp.sqrt(1 - 0.999**number) / (1 - 0.9**number)
        parameters = jax.tree.map(lambda p, m, s: p - rate * m / (jnp.sqrt(s) + 1e-7), parameters, means, squares)
        return (parameters, statistics, [means, squares]), value

    step = jax.jit(train, donate_argnums=0)
    state: Any = (parameters, statistics, moments)

    def trained(number: int) -> None:
        nonlocal state
        state, value = step(state, np.float32(number + 1), *placed[number % len(placed)])
        value.block_until_ready()

    report(measured(trained, chosen, lambda: jax.block_until_ready(state)))


if __name__ == "__main__":
    main()
