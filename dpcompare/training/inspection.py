"""The inspection of the start, the first and the last step: what was received and computed, while no clock runs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpcompare.backends.base import Backend
from dpcompare.data.batches import DeviceBatch
from dpcompare.data.digest import combined, digest_of_rows
from dpcompare.models.sealed import read_weights
from dpcompare.results.computed import ComputedByProcess
from dpcompare.system.type_names import Array


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
        self._evaluation: tuple[float, float, float] | None = None
        self.backlog_seconds = 0.0
        """Seconds that reading losses has taken where the loop waits for the device: it is done, or reading waits."""
        self._digests: dict[int, dict[str, list[str]]] = {}
        self._update_norms: dict[str, float] = {}

    def look_at_replicas(self, step: int) -> None:
        """Look at the tensors that every replica has after `step` steps, and at the update of the first one."""
        if not self._is_defined:
            return
        initial = read_weights(self._backend.inputs.weights) if step == 1 else {}
        digests: dict[str, list[str]] = {}
        for name, copies in self._backend.tensors_of_replicas():
            digests[name] = [_digest(copy) for copy in copies]
            if name in initial and name in self._digests.get(0, {}):
                before = initial[name].astype(copies[0].dtype)
                if (
                    _digest(before) == self._digests[0][name][0]
                ):  # or it began from other weights than those of the file
                    self._update_norms[name] = float(np.linalg.norm((copies[0] - before).astype(np.float64)))
        self._digests[step] = digests

    def inspect(self, step: int, batches: Sequence[DeviceBatch]) -> None:
        """Look at a step that the device has finished, and at the batches that it received."""
        backend = self._backend
        on_host = [(backend.to_host(batch), batch.global_count) for batch in batches]
        digests = [digest_of_rows(rows, count) for rows, count in on_host if rows is not None]
        if len(digests) == len(batches):
            self._batch_digests[step] = combined(digests)
        self.look_at_replicas(step)
        if step == 1 and self._is_defined:
            self._gradient_squares = backend.first_grad_norm_sq()
            evaluated = [backend.evaluate_step(replace(batch, drop_masks=None)) for batch in batches]
            loss_sum, correct, count = backend.read(evaluated).sum(axis=0).tolist()
            self._evaluation = loss_sum, correct, count

    def found(self) -> ComputedByProcess:
        """What was found, once training is done."""
        counters = self._backend.counters()
        loss_sum, correct, count = self._evaluation or (None, None, 0)
        return ComputedByProcess(
            optimizer_steps=counters.optimizer_steps,
            images=counters.images,
            batch_digests=self._batch_digests,
            first_grad_norm_sq=self._gradient_squares,
            first_evaluation_loss_sum=loss_sum,
            first_evaluation_correct=correct,
            first_evaluation_count=count,
            backlog_seconds=self.backlog_seconds,
            replica_digests=self._digests if self._backend.num_replicas > 1 else {},
            first_update_norms=self._update_norms,
        )


def _digest(array: Array) -> str:
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=4).hexdigest()
