"""What the host decides for each step of a training, recorded while it does: rates and rows."""

from __future__ import annotations

import threading
from collections import defaultdict

from dpcompare.backends.update_rules import UpdateRules
from dpcompare.config.workload import Workload
from dpcompare.data.batches import HostBatch
from dpcompare.data.decisions import digest_of_evaluated, digest_of_numbers, digests_of_rows
from dpcompare.data.digest import MODULUS
from dpcompare.results.decisions import RATES


class StepDecisions:
    """The decisions of the steps that are being made; several threads may read their rows."""

    def __init__(self, workload: Workload) -> None:
        self._rules = UpdateRules.of(workload)
        self._lock = threading.Lock()
        self._rows: defaultdict[int, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        """Step -> what -> digest of the rows that were read for it."""

    def add(self, batch: HostBatch) -> None:
        """Record the rows of a micro-batch that was read."""
        digests = digests_of_rows(batch)
        with self._lock:
            rows = self._rows[batch.step]
            for what, digest in digests.items():
                rows[what] = (rows[what] + digest) % MODULUS

    def of_step(self, step: int, learning_rate: float) -> dict[str, int]:
        """What was decided -> its digest, below MODULUS, of a step whose rows have all been read.

        Args:
            step: from 1.
            learning_rate: that the step is given.
        """
        with self._lock:
            rows = dict(self._rows.pop(step, {}))
        numbers = [[learning_rate], self._rules.step_constants(step, learning_rate)]
        rates = {what: digest_of_numbers(step, of) for what, of in zip(RATES, numbers, strict=True) if of}
        return rates | rows


class EvaluatedRows:
    """The samples that one evaluation has read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.digest = 0
        """The sum, modulo MODULUS, of a digest of each sample."""

    def add(self, batch: HostBatch) -> None:
        """Record the samples of a batch that was read."""
        digest = digest_of_evaluated(batch)
        with self._lock:
            self.digest = (self.digest + digest) % MODULUS
