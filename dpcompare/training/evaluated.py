"""The model as it is evaluated: with the mean of its weights, and with running statistics of the last weights alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from dpcompare.backends.base import Backend
from dpcompare.data.batches import HostRead
from dpcompare.data.order import training_batches
from dpcompare.data.store import Split
from dpcompare.models.state import is_statistic
from dpcompare.training.reader import training_reader


def reads_of_statistics(backend: Backend, split: Split) -> Iterator[HostRead]:
    """The first training batches, over which an evaluation recomputes BatchNorm's statistics."""
    workload = backend.workload
    reader = training_reader(
        workload,
        split,
        data_parallel_rank=backend.data_parallel_rank,
        data_parallel_size=backend.data_parallel_size,
        replicas_per_process=backend.config.topology.replicas_per_process,
        accumulate=workload.accumulate,
    )
    return reader.reads(
        training_batches(
            len(split), workload.global_batch_size, seed=workload.seed, num_steps=workload.batchnorm_recompute
        )
    )


@contextmanager
def evaluated_model(
    backend: Backend, reads: Callable[[], Iterable[HostRead]], alive: Callable[[], None]
) -> Iterator[None]:
    """Within it a backend has the model that the workload says is evaluated; then it trains on with its own.

    By what every mode has for checkpoints and logits, on the host in names of neither framework, so that the rules are
    the same for all.

    With `weight_average` the parameters are their mean over the steps so far. BatchNorm's running statistics have no
    mean: they are one themselves.

    With `batchnorm_recompute` the running statistics begin anew: they are 0, each batch of `reads` moves them in a
    forward pass of training with the weights that are evaluated, and they are divided by the share
    1 - momentum^batches that these batches then have of them. So neither the initial statistics count nor those of
    earlier weights. Those of replica 0 hold, as in any evaluation.

    Args:
        backend: which all processes evaluate.
        reads: the micro-batches over which running statistics are recomputed.
        alive: called after each of them.
    """
    workload = backend.workload
    if workload.weight_average is None and not workload.batchnorm_recompute:
        yield
        return
    trained = backend.state()
    evaluated = replace(trained, model=trained.model | trained.average)
    statistics = [name for name in trained.model if is_statistic(name)]
    if workload.batchnorm_recompute and statistics:
        zeros = {name: np.zeros_like(trained.model[name]) for name in statistics}
        backend.load_state(replace(evaluated, model=evaluated.model | zeros))
        num_batches = 0
        for batch in backend.feed(reads()):
            backend.logits(batch, training=True)
            num_batches += 1
            alive()
        moved = backend.state().model
        share = 1 - workload.batchnorm_momentum**num_batches
        recomputed = {name: (moved[name] / share).astype(moved[name].dtype) for name in statistics}
        evaluated = replace(evaluated, model=evaluated.model | recomputed)
    backend.load_state(evaluated)
    yield
    backend.load_state(trained)
