"""Numeric faults of what all frameworks share: order, labels, pixels, schedule, rules, evaluation, resume."""

from __future__ import annotations

from stress.planted_row import DDP, JAX, OF_GRADIENT, OF_STATISTICS, SPMD, TENSORFLOW, TORCH, Planted

HOST_FAULTS = {
    "one label of step 28": Planted(
        place=TORCH,
        module="data.batches",
        inject="""
read = module.BatchReader._read
def other(self, batch, rows):
    whole = read(self, batch, rows)
    if self._augmentation is not None and batch.step == 27:
        whole.labels[0] = (whole.labels[0] + 1) % 10
    return whole
module.BatchReader._read = other
""",
        leads=("label",),
    ),
    "a schedule a step ahead after its warm-up": Planted(
        place=TENSORFLOW,
        module="training.loop",
        inject="""
exact = module.learning_rate
module.learning_rate = lambda workload, step, steps: exact(workload, step + (step >= 8), steps)
""",
        workload={"schedule": "cosine", "lr_warmup_steps": 8},
        leads=("learning rate",),
    ),
    "a warm-up that begins at 0": Planted(
        place=JAX,
        module="training.schedule",
        inject="""
exact = module.learning_rate
def from_0(workload, step, steps):
    return exact(workload, step, steps) * (step / (step + 1) if step < workload.lr_warmup_steps else 1)
module.learning_rate = from_0
""",
        workload={"lr_warmup_steps": 6},
        leads=("learning rate",),
    ),
    "a warm-up that ends a step late": Planted(
        place=TORCH,
        module="training.schedule",
        inject="""
exact = module.learning_rate
def late(workload, step, steps):
    warmup = workload.lr_warmup_steps
    return exact(workload, step, steps) * (warmup / (warmup + 1) if step < warmup else 1)
module.learning_rate = late
""",
        workload={"lr_warmup_steps": 6},
        leads=("learning rate",),
    ),
    "a learning rate that does not grow with the batch": Planted(
        place=TENSORFLOW,
        module="training.schedule",
        inject="module.peak_learning_rate = lambda workload: workload.learning_rate",
        workload={"scale_lr": "linear", "learning_rate": 0.1},
        leads=("learning rate",),
    ),
    "a cosine of which the last step is not 0 but the one after": Planted(
        place=JAX,
        module="training.schedule",
        inject="""
exact = module.learning_rate
module.learning_rate = lambda workload, step, steps: exact(workload, step, steps + 1)
""",
        workload={"schedule": "cosine"},
        leads=("learning rate",),
    ),
    "a cosine that begins again after a resume": Planted(
        place=TORCH,
        module="training.loop",
        inject="""
exact, resume, begun = module.learning_rate, module._resume, [0]
def remembered(backend):
    begun[0] = resume(backend)
    return begun[0]
module._resume = remembered
module.learning_rate = lambda workload, step, steps: exact(workload, step - begun[0], steps - begun[0])
""",
        workload={"schedule": "cosine"},
        resumed=True,
        leads=("learning rate",),
    ),
    "a seed cut to 31 bits": Planted(
        place=TORCH,
        module="data.order",
        inject="""
exact = module.epoch_order
module.epoch_order = lambda seed, epoch, samples: exact(seed & (2**31 - 1), epoch, samples)
""",
        workload={"seed": 2**31 + 5},
        leads=("order",),
    ),
    "the same order in every epoch": Planted(
        place=JAX,
        module="data.order",
        inject="""
exact = module.epoch_order
module.epoch_order = lambda seed, epoch, samples: exact(seed, 0, samples)
""",
        leads=("order",),
    ),
    "two samples swapped between steps 17 and 18": Planted(
        place=TENSORFLOW,
        module="training.loop",
        inject="""
batches = module.training_batches
def swapped(*arguments, **options):
    last = None
    for batch in batches(*arguments, **options):
        if batch.step == 16:
            last = batch
            continue
        if batch.step == 17:
            last.indices[0], batch.indices[0] = batch.indices[0], last.indices[0]
            yield last
        yield batch
module.training_batches = swapped
""",
        leads=("order",),
    ),
    "an order that begins again after a resume": Planted(
        place=TORCH,
        module="training.loop",
        inject="""
from dataclasses import replace
read, resume = module.training_reader, module._resume
begun = [0]
def remembered(backend):
    begun[0] = resume(backend)
    return begun[0]
module._resume = remembered
def reader(workload, split, **options):
    made = read(workload, split, **options)
    exact = made._read
    orders = list(module.training_batches(
        len(split), workload.global_batch_size, seed=workload.seed, num_steps=workload.total_steps(len(split))))
    def again(batch, rows):
        first = orders[batch.step - begun[0]]
        return exact(replace(batch, indices=first.indices, weights=first.weights), rows)
    made._read = again
    return made
module.training_reader = reader
""",
        resumed=True,
        leads=("order", "images"),
    ),
    "augmentation that begins again after a resume": Planted(
        place=TENSORFLOW,
        module="training.loop",
        inject="""
from dpcompare.data.augmentation import Augmentation
resume, begun, draw = module._resume, [0], Augmentation.__call__
def remembered(backend):
    step = resume(backend)
    begun[0] = step // 5
    return step
module._resume = remembered
Augmentation.__call__ = lambda self, *, epoch, **samples: draw(self, epoch=max(epoch - begun[0], 0), **samples)
""",
        resumed=True,
        leads=("augmentation",),
    ),
    "no flips from epoch 3 on": Planted(
        place=JAX,
        module="data.augmentation",
        inject="""
from dataclasses import replace
draw = module.Augmentation.__call__
def unflipped(self, *, epoch, **samples):
    augmented = draw(self, epoch=epoch, **samples)
    return augmented if epoch < 3 else replace(augmented, flips=augmented.flips & False)
module.Augmentation.__call__ = unflipped
""",
        leads=("augmentation", "flip"),
    ),
    "contrast around grey instead of the image's mean": Planted(
        place=TORCH,
        module="data.augmentation",
        inject="""
draw = module.Augmentation.__call__
def grey(self, *, means, **samples):
    return draw(self, means=means * 0 + 0.5, **samples)
module.Augmentation.__call__ = grey
""",
        leads=("augmentation",),
    ),
    "pixels without their standard deviation": Planted(
        place=JAX,
        module="data.batches",
        inject="""
from dpcompare.data.pixels import PIXEL_STD
exact = module.normalised
module.normalised = lambda brightnesses: exact(brightnesses) * PIXEL_STD[:, None].astype("float32")
""",
        workload={"augment": ()},
        leads=("pixels", "batches"),
    ),
    "evaluated pixels without their standard deviation": Planted(
        place=TENSORFLOW,
        module="data.batches",
        inject="""
from dataclasses import replace
from dpcompare.data.pixels import PIXEL_STD
read = module.BatchReader._read
def other(self, batch, rows):
    whole = read(self, batch, rows)
    if self._augmentation is not None:
        return whole
    return replace(whole, tables=whole.tables * PIXEL_STD[:, None].astype("float32"))
module.BatchReader._read = other
""",
        leads=("evaluated", "pixels"),
    ),
    "two labels swapped in evaluations": Planted(
        place=TENSORFLOW,
        module="data.batches",
        inject="""
read = module.BatchReader._read
def other(self, batch, rows):
    whole = read(self, batch, rows)
    if self._augmentation is None:
        whole.labels[[0, 1]] = whole.labels[[1, 0]]
    return whole
module.BatchReader._read = other
""",
        leads=("evaluated",),
    ),
    "the first samples evaluated again for the last": Planted(
        place=JAX,
        module="training.evaluated",
        inject="""
batches = module.evaluation_batches
def again(*sizes):
    *whole, last = batches(*sizes)
    last.indices[:] = whole[0].indices
    return [*whole, last]
module.evaluation_batches = again
""",
        leads=("evaluated",),
    ),
    "drop masks of the first replica's rows on all": Planted(
        place=DDP,
        module="data.batches",
        inject="""
from dataclasses import replace
read = module.BatchReader._read
def shared(self, batch, rows):
    whole = read(self, batch, rows)
    if self._regularization is None:
        return whole
    first = batch.indices[: len(rows)]
    return replace(whole, drop_masks=self._regularization(step=batch.step, indices=first))
module.BatchReader._read = shared
""",
        workload={"model": "mlp", "regularization": "shared"},
        leads=("drop", "regularization", "batches"),
    ),
    "decay by the largest learning rate": Planted(
        place=JAX,
        module="backends.update_rules",
        inject="""
exact = module.UpdateRules.decay_factor
module.UpdateRules.decay_factor = lambda self, rate: exact(self, 0.01)
""",
        workload={"weight_decay": 0.5, "schedule": "cosine"},
        leads=("decay",),
    ),
    "the trained weights evaluated instead of their mean": Planted(
        place=TENSORFLOW,
        module="models.state",
        inject="module.TrainingState.average = property(lambda self: {})",
        workload={"weight_average": 0.9},
        leads=("average", "evaluation"),
    ),
    "an uneven batch divided by a whole one": Planted(
        place=TENSORFLOW,
        module="backends.tensorflow.backend",
        inject="""
step = module.TensorFlowBackend.train_step
module.TensorFlowBackend.train_step = lambda self, batches, rate: step(
    self, [module.replace(batch, global_count=16) for batch in batches], rate)
""",
        leads=OF_GRADIENT,
    ),
    "momentum lost on the last replica by a resume": Planted(
        place=DDP,
        module="training.loop",
        inject="""
resume = module._resume
def forgetful(backend):
    step = resume(backend)
    for memory in backend.optimizer.state.values() if step and backend.process_rank == 1 else ():
        for name in backend.optimizer.slots:
            memory[name].zero_()
    return step
module._resume = forgetful
""",
        resumed=True,
        leads=("replica",),
    ),
    "statistics of the last replica evaluated": Planted(
        place=SPMD,
        module="backends.jax.backend",
        inject="""
jax, jnp, lax = module.jax, module.jnp, module.lax
def of_last(self, statistics):
    is_last = lax.axis_index(module.REPLICAS) == self.num_replicas - 1
    return lax.psum(jax.tree.map(lambda value: jnp.where(is_last, value, 0), statistics), module.REPLICAS)
module.JaxBackend._copy_statistics_of_replica_0 = of_last
""",
        leads=OF_STATISTICS,
    ),
}
