"""Numeric faults of JAX's backend."""

from __future__ import annotations

from stress.planted_row import JAX, JIT, MULTIPROCESS, OF_GRADIENT, OF_STATISTICS, OF_UPDATE, SPMD, Planted

JAX_FAULTS = {
    "Nesterov's momentum": Planted(
        place=JAX,
        module="backends.jax.optimizer",
        inject="""
def nesterov(self, parameter, slots, gradient, constants):
    momentum = module.SGD_MOMENTUM * slots[0] + gradient
    return parameter - constants[0] * (gradient + module.SGD_MOMENTUM * momentum), [momentum]
module.Sgd.update = nesterov
""",
        leads=OF_UPDATE,
    ),
    "the learning rate within the momentum": Planted(
        place=JAX,
        module="backends.jax.optimizer",
        inject="""
def inside(self, parameter, slots, gradient, constants):
    momentum = module.SGD_MOMENTUM * slots[0] + constants[0] * gradient
    return parameter - momentum, [momentum]
module.Sgd.update = inside
""",
        workload={"schedule": "cosine"},
        leads=(*OF_UPDATE, "momentum", "gradient"),
    ),
    "epsilon within Adam's root": Planted(
        place=JAX,
        module="backends.jax.optimizer",
        inject="""
jnp, betas = module.jnp, module.ADAM_BETAS
def within(self, parameter, slots, gradient, constants):
    mean = betas[0] * slots[0] + (1 - betas[0]) * gradient
    square = betas[1] * slots[1] + (1 - betas[1]) * jnp.square(gradient)
    return parameter - constants[0] * mean / jnp.sqrt(square + module.ADAM_EPSILON), [mean, square]
module.Adam.update = within
""",
        workload={"optimizer": "adam", "learning_rate": 1e-3},
        leads=OF_UPDATE,
    ),
    "Adam's mean taken before the gradient enters": Planted(
        place=JAX,
        module="backends.jax.optimizer",
        inject="""
update = module.Adam.update
def stale(self, parameter, slots, gradient, constants):
    _, moved = update(self, parameter, slots, gradient, constants)
    changed, _ = update(self, parameter, [slots[0] / module.ADAM_BETAS[0], slots[1]], 0.9 * gradient, constants)
    return changed, moved
module.Adam.update = stale
""",
        workload={"optimizer": "adam", "learning_rate": 1e-3},
        leads=OF_UPDATE,
    ),
    "a limit of the gradient's norm, squared": Planted(
        place=JAX,
        module="backends.jax.optimizer",
        inject="""
jnp = module.jnp
def squared(gradients, limit):
    norm = sum(jnp.square(gradient).sum() for gradient in gradients.values())
    return {name: gradient * (limit / jnp.maximum(norm, limit)) for name, gradient in gradients.items()}
module._clipped = squared
""",
        workload={"clip_norm": 0.1},
        leads=OF_GRADIENT,
    ),
    "gradients of replicas averaged": Planted(
        place=SPMD,
        module="backends.jax.backend",
        inject="""
update = module.JaxBackend._update
def averaged(self, train_state, gradients, constants):
    halves = {name: gradient / self.num_replicas for name, gradient in gradients.items()}
    return update(self, train_state, halves, constants)
module.JaxBackend._update = averaged
""",
        leads=OF_GRADIENT,
    ),
    # As in the program of jax#14433, where pjit seemed two to three times as slow as pmap.
    "the sum of gradients over replicas forgotten": Planted(
        place=SPMD,
        module="backends.jax.backend",
        inject="""
def alone(self, train_state, gradients, constants):
    parameters, slots = self.optimizer.apply(train_state.parameters, gradients, train_state.slots, constants)
    steps = train_state.optimizer_steps + 1
    return train_state._replace(parameters=parameters, slots=slots, optimizer_steps=steps)
module.JaxBackend._update = alone
""",
        leads=(*OF_GRADIENT, "replica"),
    ),
    "rows of the second device without weight": Planted(
        place=JIT,
        module="backends.jax.jit",
        inject="""
jnp, gradients = module.jax.numpy, module.Jit._gradients
def of_the_first(self, train_state, rows, count):
    half = len(rows.weights) // 2
    return gradients(self, train_state, rows._replace(weights=rows.weights.at[half:].set(0)), count)
module.Jit._gradients = of_the_first
""",
        workload={"batchnorm": "sync"},
        leads=(*OF_GRADIENT, "loss", "images"),
    ),
    "running statistics of replicas added up": Planted(
        place=SPMD,
        module="backends.jax.backend",
        inject="""
def added(self, statistics):
    return module.lax.psum(statistics, module.REPLICAS)
module.JaxBackend._copy_statistics_of_replica_0 = added
""",
        leads=OF_STATISTICS,
    ),
    "running statistics of replicas added up in each step": Planted(
        place=SPMD,
        module="backends.jax.backend",
        inject="""
losses = module.JaxBackend._losses
def added(self, parameters, statistics, rows, *, training):
    logits, each, moved = losses(self, parameters, statistics, rows, training=training)
    changes = {name: moved[name] - statistics[name] for name in moved}
    return logits, each, {name: statistics[name] + module.lax.psum(changes[name], module.REPLICAS) for name in moved}
module.JaxBackend._losses = added
""",
        workload={"batchnorm": "sync"},
        leads=OF_STATISTICS,
    ),
    "gradients summed in bfloat16": Planted(
        place=SPMD,
        module="backends.jax.backend",
        inject="""
jnp, update = module.jnp, module.JaxBackend._update
def coarse(self, train_state, gradients, constants):
    rounded = {name: gradient.astype(jnp.bfloat16).astype(gradient.dtype) for name, gradient in gradients.items()}
    return update(self, train_state, rounded, constants)
module.JaxBackend._update = coarse
""",
        workload={"precision": "bfloat16"},
        leads=OF_GRADIENT,
    ),
    "softmax in bfloat16": Planted(
        place=JAX,
        module="backends.jax.loss",
        inject="""
jnp, exact = module.jnp, module.cross_entropies
def coarse(labels, logits, smoothing=0.0):
    return exact(labels, logits.astype(jnp.bfloat16), smoothing).astype(logits.dtype)
module.cross_entropies = coarse
""",
        workload={"precision": "bfloat16"},
        leads=("loss",),
    ),
    "a dense layer in bfloat16": Planted(
        place=JAX,
        module="models.layers.in_jax",
        inject="""
jnp = module.jnp
def dense(self, name, x):
    product = x.astype(jnp.bfloat16) @ self._tensor(f"{name}.weight").T.astype(jnp.bfloat16)
    return self._keep(name, product.astype(self._dtype) + self._tensor(f"{name}.bias"))
module.Layers.dense = dense
""",
        workload={"model": "toy-cnn", "image_size": 32},
        leads=("fc", "logits"),
    ),
    "labels smoothed over the other classes": Planted(
        place=JAX,
        module="backends.jax.loss",
        inject="""
exact = module.cross_entropies
def other(labels, logits, smoothing=0.0):
    return exact(labels, logits, smoothing * logits.shape[-1] / (logits.shape[-1] - 1))
module.cross_entropies = other
""",
        workload={"label_smoothing": 0.1},
        leads=("first loss",),
    ),
    "no update in every second step from step 22 on": Planted(
        place=JAX,
        module="backends.jax.backend",
        inject="""
step = module.JaxBackend.train_step
jax = module.jax
def skipping(self, batches, rate):
    if self._step + 1 < 22 or self._step % 2:
        return step(self, batches, rate)
    kept = jax.tree.map(lambda value: value.copy(), self._train_state.parameters)
    loss_sum = step(self, batches, rate)
    self._train_state = self._train_state._replace(parameters=kept)
    return loss_sum
module.JaxBackend.train_step = skipping
""",
        leads=OF_UPDATE,
    ),
    "the last replica's gradients lost from step 25 on": Planted(
        place=MULTIPROCESS,
        module="backends.jax.backend",
        inject="""
jnp, lax, step = module.jnp, module.lax, module.JaxBackend.train_step
gradients_of = module.JaxBackend._gradients
def lost(self, train_state, rows, count):
    loss_sum, gradients, train_state = gradients_of(self, train_state, rows, count)
    kept = (lax.axis_index(module.REPLICAS) == 0).astype(loss_sum.dtype)
    return loss_sum, {name: kept * gradient for name, gradient in gradients.items()}, train_state
def later(self, batches, rate):
    if self._step == 24:
        module.JaxBackend._gradients = lost
        self._make_functions()
    return step(self, batches, rate)
module.JaxBackend.train_step = later
""",
        leads=OF_GRADIENT,
    ),
    "the two best classes count as accurate": Planted(
        place=JAX,
        module="backends.jax.backend",
        inject="""
jnp, lax = module.jnp, module.lax
def generous(self, train_state, rows):
    logits, losses, _ = self._losses(train_state.parameters, train_state.statistics, rows, training=False)
    hits = (lax.top_k(logits, 2)[1] == rows.labels[:, None]).any(1) * rows.weights
    return jnp.stack([self._sums_of_replicas(each) for each in (losses, hits, rows.weights)], axis=1)
module.JaxBackend._evaluate_rows = generous
""",
        leads=("accuracy",),
    ),
    "momentum halved by a resume": Planted(
        place=JAX,
        module="training.loop",
        inject="""
from dataclasses import replace
resume = module._resume
def forgetful(backend):
    step = resume(backend)
    if step:
        state = backend.state()
        halved = {name: value if name.startswith("average.") else value / 2 for name, value in state.optimizer.items()}
        backend.load_state(replace(state, optimizer=halved))
    return step
module._resume = forgetful
""",
        resumed=True,
        leads=("momentum", "resume"),
    ),
    "BatchNorm's momentum the other way round": Planted(
        place=JAX,
        module="models.layers.in_jax",
        inject="""
begin = module.Layers.__init__
def swapped(self, *tensors, batchnorm_momentum, **options):
    begin(self, *tensors, batchnorm_momentum=1 - batchnorm_momentum, **options)
module.Layers.__init__ = swapped
""",
        leads=OF_STATISTICS,
    ),
    "no gradient through BatchNorm's variance": Planted(
        place=JAX,
        module="models.layers.in_jax",
        inject="""
lax, moments = module.lax, module.Layers._moments
def stopped(self, x):
    mean, variance = moments(self, x)
    return mean, lax.stop_gradient(variance)
module.Layers._moments = stopped
""",
        leads=OF_GRADIENT,
    ),
    "a mean of the weights as they were before the step": Planted(
        place=JAX,
        module="backends.jax.optimizer",
        inject="""
apply = module.Optimizer.apply
def early(self, parameters, gradients, slots, constants):
    updated, remembered = apply(self, parameters, gradients, slots, constants)
    share = constants[module.EMA_WEIGHT]
    old = slots[module.AVERAGE]
    remembered[module.AVERAGE] = {name: old[name] + share * (parameters[name] - old[name]) for name in old}
    return updated, remembered
module.Optimizer.apply = early
""",
        workload={"weight_average": 0.8},
        leads=("average",),
    ),
    "the mean instead of the largest of four": Planted(
        place=JAX,
        module="models.toys.in_jax",
        inject="""
lax = module.lax
def mean_pool(x):
    return lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
module._max_pool = mean_pool
""",
        workload={"model": "toy-cnn", "image_size": 32},
        leads=("loss", "logits"),
    ),
    "drop masks of the next row": Planted(
        place=JAX,
        module="models.layers.in_jax",
        inject="""
jnp, drop = module.jnp, module.Layers.drop
def shifted(self, name, x):
    kept, self._drop_masks = self._drop_masks, None if self._drop_masks is None else jnp.roll(self._drop_masks, 1, 0)
    dropped = drop(self, name, x)
    self._drop_masks = kept
    return dropped
module.Layers.drop = shifted
""",
        workload={"regularization": "shared"},
        leads=("training logits", "regularization", "drop"),
    ),
}
