"""Numeric faults of TensorFlow's backend."""

from __future__ import annotations

from stress.planted_row import MIRRORED, MULTIWORKER, OF_GRADIENT, OF_STATISTICS, OF_UPDATE, TENSORFLOW, Planted

ADAM = {"optimizer": "adam", "learning_rate": 1e-3}

TENSORFLOW_FAULTS = {
    "Nesterov's momentum": Planted(
        place=TENSORFLOW,
        module="backends.tensorflow.optimizer",
        inject="""
tf = module.tf
def nesterov(self, variable, slots, gradient, arguments):
    return tf.raw_ops.ResourceApplyMomentum(
        var=variable, accum=slots[0], grad=gradient, use_nesterov=True, **arguments)
module.Sgd.update = nesterov
""",
        leads=OF_UPDATE,
    ),
    "no correction of Adam's second moment": Planted(
        place=TENSORFLOW,
        module="backends.tensorflow.optimizer",
        inject="""
exact = module.Adam.kernel_constants
module.Adam.kernel_constants = lambda self, step, rate: [*exact(self, step, rate)[:2], 0.0]
""",
        workload=ADAM,
        leads=OF_UPDATE,
    ),
    "another beta of Adam's second moment": Planted(
        place=TENSORFLOW,
        module="backends.tensorflow.optimizer",
        inject="module.ADAM_BETAS = (0.9, 0.99)",
        workload=ADAM,
        leads=("exp_avg_sq", "losses over adam steps"),
    ),
    "Adam's correction a step ahead": Planted(
        place=TENSORFLOW,
        module="backends.tensorflow.optimizer",
        inject="""
exact = module.Adam.kernel_constants
module.Adam.kernel_constants = lambda self, step, rate: exact(self, step + 1, rate)
""",
        workload=ADAM,
        leads=OF_UPDATE,
    ),
    "Adam's moments corrected from step 2 on alone": Planted(
        place=TENSORFLOW,
        module="backends.tensorflow.optimizer",
        inject="""
exact = module.Adam.kernel_constants
module.Adam.kernel_constants = lambda self, step, rate: exact(self, step, rate) if step > 1 else [rate, 0.0, 0.0]
""",
        workload=ADAM,
        leads=OF_UPDATE,
    ),
    "decay after the update": Planted(
        place=TENSORFLOW,
        module="backends.tensorflow.optimizer",
        inject="""
tf, apply = module.tf, module.Optimizer.apply
def late(self, gradients, constants):
    decay, self.rules = self.rules.weight_decay, module.NO_RULES
    updates = apply(self, gradients, constants)
    for variable in self.variables:
        if decay and len(variable.shape) > 1:
            factor = tf.cast(constants, variable.dtype)[module.DECAY_FACTOR]
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=module._value(variable) * factor)
    return updates
module.Optimizer.apply = late
""",
        workload={"weight_decay": 5.0, "learning_rate": 0.02},
        leads=("decay", *OF_UPDATE),
    ),
    "decay of biases and BatchNorm too": Planted(
        place=TENSORFLOW,
        module="backends.tensorflow.optimizer",
        inject="module.decays = lambda dimensions: True",
        workload={"weight_decay": 0.1},
        leads=("decay", *OF_UPDATE),
    ),
    "no learning rate in every second step from step 22 on": Planted(
        place=TENSORFLOW,
        module="backends.tensorflow.optimizer",
        inject="""
exact = module.Sgd.kernel_constants
module.Sgd.kernel_constants = lambda self, step, rate: exact(self, step, 0.0 if step >= 22 and step % 2 else rate)
""",
        leads=("learning rate", *OF_UPDATE),
    ),
    "twice the learning rate in steps 12 to 16": Planted(
        place=TENSORFLOW,
        module="backends.tensorflow.optimizer",
        inject="""
exact = module.Sgd.kernel_constants
module.Sgd.kernel_constants = lambda self, step, rate: exact(self, step, 2 * rate if 12 <= step <= 16 else rate)
""",
        leads=("learning rate", *OF_UPDATE),
    ),
    "the last replica's gradients lost from step 25 on": Planted(
        place=MULTIWORKER,
        module="backends.tensorflow.backend",
        inject="""
tf, step, gradients = module.tf, module.TensorFlowBackend.train_step, module.TensorFlowBackend._gradients
def lost(self, *batch):
    loss_sum, own = gradients(self, *batch)
    return loss_sum, [gradient * (1 - self.process_rank) for gradient in own]
def later(self, batches, rate):
    if self._step == 24:
        module.TensorFlowBackend._gradients = lost
        self._make_functions()
    return step(self, batches, rate)
module.TensorFlowBackend.train_step = later
""",
        leads=OF_GRADIENT,
    ),
    "gradients of replicas averaged": Planted(
        place=MIRRORED,
        module="backends.tensorflow.backend",
        inject="""
tf = module.tf
def averaged(self, gradients, constants):
    replica = tf.distribute.get_replica_context()
    self.optimizer.apply(replica.all_reduce(tf.distribute.ReduceOp.MEAN, gradients), constants)
module.TensorFlowBackend._update = averaged
""",
        leads=OF_GRADIENT,
    ),
    "gradients rounded to bfloat16": Planted(
        place=TENSORFLOW,
        module="backends.tensorflow.optimizer",
        inject="""
tf, apply = module.tf, module.Optimizer.apply
module.Optimizer.apply = lambda self, gradients, constants: apply(
    self, [tf.cast(tf.cast(gradient, tf.bfloat16), gradient.dtype) for gradient in gradients], constants)
""",
        leads=OF_GRADIENT,
    ),
    "softmax in bfloat16": Planted(
        place=TENSORFLOW,
        module="backends.tensorflow.loss",
        inject="""
tf, exact = module.tf, module.cross_entropies
def coarse(labels, logits, smoothing=0.0):
    return tf.cast(exact(labels, tf.cast(logits, tf.bfloat16), smoothing), logits.dtype)
module.cross_entropies = coarse
""",
        workload={"precision": "bfloat16"},
        leads=("loss",),
    ),
    "evaluation with smoothed labels": Planted(
        place=TENSORFLOW,
        module="backends.tensorflow.backend",
        inject="""
def smoothed(self, logits, labels, *, training):
    return module.cross_entropies(labels, logits, self.workload.label_smoothing)
module.TensorFlowBackend.row_losses = smoothed
""",
        workload={"label_smoothing": 0.1},
        leads=("evaluation",),
    ),
    "BatchNorm's momentum of 0.99 from step 15 on": Planted(
        place=TENSORFLOW,
        module="backends.tensorflow.backend",
        inject="""
step = module.TensorFlowBackend.train_step
def later(self, batches, rate):
    if self._step == 14:
        for layer in self.model.layers:
            if hasattr(layer, "moving_mean"):
                layer.momentum = 0.99
        self._make_functions()
    return step(self, batches, rate)
module.TensorFlowBackend.train_step = later
""",
        leads=OF_STATISTICS,
    ),
    "momentum lost by a resume": Planted(
        place=TENSORFLOW,
        module="training.loop",
        inject="""
resume = module._resume
def forgetful(backend):
    step = resume(backend)
    for name in backend.optimizer.slot_names if step else ():
        for slot in backend.optimizer.slots[name]:
            slot.assign(slot * 0)
    return step
module._resume = forgetful
""",
        resumed=True,
        leads=("momentum", "resume"),
    ),
    "gradients clipped by value": Planted(
        place=TENSORFLOW,
        module="backends.tensorflow.optimizer",
        inject="""
tf = module.tf
module._clipped = lambda gradients, limit: [tf.clip_by_value(gradient, -limit, limit) for gradient in gradients]
""",
        workload={"clip_norm": 0.1},
        leads=(*OF_GRADIENT, *OF_UPDATE),
    ),
    "other weights on the second replica": Planted(
        place=MIRRORED,
        module="backends.tensorflow.backend",
        inject="""
load = module.TensorFlowBackend._load_model
def apart(self, state):
    load(self, state)
    copies = self.strategy.experimental_local_results(self._parameters[-1])
    copies[-1].assign(copies[-1] + 1e-3)
module.TensorFlowBackend._load_model = apart
""",
        leads=("replica",),
    ),
    "rows of the first replica for both in steps 10 to 20": Planted(
        place=MIRRORED,
        module="backends.tensorflow.feed",
        inject="""
from dataclasses import replace
place = module.DeviceFeed.place
def twice(self, batch):
    if 10 <= batch.step <= 20 and len(batch.labels) == 16 and batch.drop_masks is None:
        half = [0, 1, 2, 3, 4, 5, 6, 7] * 2
        batch = replace(batch, pixels=batch.pixels[half], tables=batch.tables[half], flips=batch.flips[half])
    return place(self, batch)
module.DeviceFeed.place = twice
""",
        leads=("batches", "images"),
    ),
    "micro-batches' sums that stay from step 20 on": Planted(
        place=TENSORFLOW,
        module="backends.tensorflow.backend",
        inject="""
tf, step = module.tf, module.TensorFlowBackend.train_step
def kept(self, constants):
    self.strategy.run(lambda: self._update([tf.identity(total) * 0.5 for total in self._gradient_sums], constants))
def later(self, batches, rate):
    if self._step == 19:
        module.TensorFlowBackend._apply_accumulated = kept
        self._make_functions()
    return step(self, batches, rate)
module.TensorFlowBackend.train_step = later
""",
        workload={"accumulate": 2, "model": "mlp"},
        leads=OF_GRADIENT,
    ),
    "statistics recomputed over the first batch twice": Planted(
        place=TENSORFLOW,
        module="training.evaluated",
        inject="""
loaders = module.statistics_loaders
def twice_the_first(backend, split):
    first, *others = list(loaders(backend, split))
    return [first, first, *others[:-1]]
module.statistics_loaders = twice_the_first
""",
        workload={"batchnorm_recompute": 3},
        leads=OF_STATISTICS,
    ),
    "another epsilon of BatchNorm in evaluations": Planted(
        place=TENSORFLOW,
        module="backends.tensorflow.backend",
        inject="""
forward = module.TensorFlowBackend._forward
def other(self, images, drop_masks, *, training):
    norms = [layer for layer in self.model.layers if hasattr(layer, "moving_mean")]
    kept = [layer.epsilon for layer in norms]
    for layer in norms:
        layer.epsilon = layer.epsilon if training else 1e-5
    try:
        return forward(self, images, drop_masks, training=training)
    finally:
        for layer, epsilon in zip(norms, kept):
            layer.epsilon = epsilon
module.TensorFlowBackend._forward = other
""",
        leads=("evaluation",),
    ),
    "drop masks of the next row": Planted(
        place=TENSORFLOW,
        module="backends.tensorflow.backend",
        inject="""
tf, forward = module.tf, module.TensorFlowBackend._forward
def shifted(self, images, drop_masks, *, training):
    moved = None if drop_masks is None else tf.roll(drop_masks, 1, axis=0)
    return forward(self, images, moved, training=training)
module.TensorFlowBackend._forward = shifted
""",
        workload={"model": "mlp", "regularization": "shared", "precision": "bfloat16"},
        leads=("training logits", "regularization", "drop"),
    ),
}
