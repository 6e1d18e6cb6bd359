"""The mode of JAX that leaves the division of a step among devices to XLA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding

from dpcompare.backends.jax import runtime
from dpcompare.backends.jax.arrays import REPLICATED
from dpcompare.backends.jax.modes import MultiProcess


class Jit(MultiProcess):
    """A step is written for the whole batch, as for one device, and jitted over arrays whose rows are on all devices.

    XLA adds the collectives that this takes, so that no code here exchanges gradients. BatchNorm sees the whole batch.
    """

    of_step = REPLICATED

    @property
    def replicas_of_step(self) -> int:
        return self.num_replicas

    def compiled(
        self, function: Callable[..., Any], inputs: Any, outputs: Any, *, donated: tuple[int, ...] = ()
    ) -> Any:
        return jax.jit(
            function,
            in_shardings=self._placed(inputs),
            out_shardings=self._placed(outputs),
            donate_argnums=donated,
            compiler_options=runtime.compiler_options(self.config),
        )

    def _placed(self, specs: Any) -> Any:
        """The same partitions on the devices of all replicas."""
        return jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), specs)
