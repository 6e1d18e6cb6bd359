"""The inspection of the first and the last step: what they received and computed, looked at while no clock runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpcompare.backends.base import Backend
from dpcompare.data.batches import DeviceBatch
from dpcompare.data.digest import combined, digest_of_rows
from dpcompare.results.computed import ComputedByProcess


class Inspection:
    """What one process finds; all processes must make it together, since evaluation may take communication."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        config = backend.config
        # Without gradient sync every replica has a gradient of its own, as where they do not make a step together.
        is_of_all = config.mode_row.steps_together or backend.num_replicas == 1
        self._is_defined = config.sync_gradients and is_of_all
        self._batch_digests: dict[int, str] = {}
        self._gradient_squares: float | None = None
        self._evaluation: tuple[float, float] | None = None

    def inspect(self, step: int, batches: Sequence[DeviceBatch]) -> None:
        """Look at a step that the device has finished, and at the batches that it received."""
        backend = self._backend
        on_host = [(backend.to_host(batch), batch.global_count) for batch in batches]
        digests = [digest_of_rows(rows, count) for rows, count in on_host if rows is not None]
        if len(digests) == len(batches):
            self._batch_digests[step] = combined(digests)
        if step == 1 and self._is_defined:
            self._gradient_squares = backend.first_grad_norm_sq()
            evaluated = [backend.evaluate_step(replace(batch, drop_masks=None)) for batch in batches]
            loss_sum, _, count = backend.read(evaluated).sum(axis=0).tolist()
            self._evaluation = loss_sum, count

    def found(self) -> ComputedByProcess:
        """What was found, once training is done."""
        counters = self._backend.counters()
        loss_sum, count = self._evaluation or (None, 0)
        return ComputedByProcess(
            optimizer_steps=counters.optimizer_steps,
            images=counters.images,
            batch_digests=self._batch_digests,
            first_grad_norm_sq=self._gradient_squares,
            first_evaluation_loss_sum=loss_sum,
            first_evaluation_count=count,
        )
