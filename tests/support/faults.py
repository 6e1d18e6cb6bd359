"""Faults to put into one side of a comparison: each breaks just one alignment, in worker processes only.

They travel as stress/injection.py says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stress.clock_faults import LATE_TIMER
from stress.injection import injected, write_sitecustomize


@dataclass(frozen=True, kw_only=True)
class Fault:
    framework: str
    """The side that is broken."""
    optimizer: str = "sgd"
    """The optimizer with which it shows."""
    module: str = ""
    """Below dpcompare."""
    inject: str = ""
    """Body of `inject(module)`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What the side inherits from the shell instead."""
    changes_numbers: bool = True
    """Whether other numbers are computed, beyond rounding; where not, only the sheet can see it."""
    caught_by: str | None = None
    """The check of verify that must fail; "run" where the run itself does. None for what changes no number."""
    on_sheet: tuple[str, ...] = ()
    """Settings of the fairness sheet that name it, perhaps among others; none where it names nothing."""
    is_near_the_limit: bool = False
    """Whether rounding decides if the sheet names it: what it moves is hardly more than the sheet allows."""
    replicas: int = 1
    workload: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the workload without which it does not show, in addition to those of verify's small groups."""
    resumed: bool = False
    """Whether it shows in a run that is resumed only."""

    def install(self, folder: Path) -> None:
        """Write the sitecustomize module into a folder that PYTHONPATH will name."""
        if self.inject:
            write_sitecustomize(folder, f"dpcompare.{self.module}", injected(self.inject))


LOSSES = ("first loss", "second loss")

FAULTS = {
    "Adam's epsilon": Fault(
        framework="torch",
        optimizer="adam",
        module="backends.torch.optimizer",
        inject="import torch; module.Adam.step = torch.optim.Adam.step",
        caught_by="one step of adam",
        on_sheet=("first evaluation loss",),
    ),
    "Adam's betas rounded to float32": Fault(
        framework="tensorflow",
        optimizer="adam",
        module="backends.tensorflow.optimizer",
        inject="import numpy; module.ADAM_BETAS = tuple(float(numpy.float32(beta)) for beta in module.ADAM_BETAS)",
        caught_by="one step of adam",
        on_sheet=("first gradient norm",),
    ),
    "learning rate inside SGD's momentum, as Keras has it": Fault(
        framework="tensorflow",
        optimizer="sgd",
        module="backends.tensorflow.optimizer",
        inject="""
tf = module.tf
def update(self, variable, slots, gradient, arguments):
    tf.raw_ops.ResourceApplyMomentum(var=variable, accum=slots[0], lr=tf.ones_like(arguments["lr"]),
        grad=gradient * arguments["lr"], momentum=arguments["momentum"])
module.Sgd.update = update
""",
        caught_by="losses over sgd steps",
        on_sheet=("first gradient norm",),
    ),
    "SGD's momentum": Fault(
        framework="torch",
        optimizer="sgd",
        module="backends.torch.optimizer",
        inject="module.SGD_MOMENTUM = 0.8",
        caught_by="losses over sgd steps",
        on_sheet=("later losses", "evaluation loss"),
    ),
    "BatchNorm's momentum": Fault(
        framework="torch",
        optimizer="sgd",
        module="backends.torch.model",
        inject="""
shared = module._aligned
def other(model, workload):
    for norm in module.batch_norms(shared(model, workload)).values():
        norm.momentum = 0.01
    return model
module._aligned = other
""",
        caught_by="BatchNorm statistics",
        on_sheet=("first evaluation loss",),
    ),
    "BatchNorm's epsilon": Fault(
        framework="torch",
        optimizer="sgd",
        module="backends.torch.model",
        inject="""
from dataclasses import replace
model_of = module.model_of
module.model_of = lambda name: replace(model_of(name), batchnorm_epsilon=1e-5)
""",
        caught_by="evaluation logits",
        on_sheet=LOSSES,
    ),
    "unbiased running variance": Fault(
        framework="torch",
        optimizer="sgd",
        module="backends.torch.batchnorm",
        inject="""
def unconverted(self):
    self._torchs_own = [norm.running_var.clone() for norm in self._norms]
module.RunningVariance.use_for_evaluation = unconverted
""",
        caught_by="BatchNorm statistics",
        on_sheet=("first evaluation loss",),
    ),
    "symmetric padding": Fault(
        framework="torch",
        optimizer="sgd",
        module="backends.torch.model",
        inject="""
from torch import nn
from dpcompare.models.toys import in_torch
in_torch.Conv2dSame = lambda *sizes, **options: nn.Conv2d(*sizes, **options, padding=1)
""",
        caught_by="evaluation logits",
        on_sheet=LOSSES,
    ),
    "weights changed by one rounding": Fault(
        framework="tensorflow",
        optimizer="sgd",
        module="backends.tensorflow.backend",
        inject="""
load = module.TensorFlowBackend.initial_state
module.TensorFlowBackend.initial_state = lambda self: {
    name: array * module.np.float32(1 + 2**-23) if name == "classifier.weight" else array
    for name, array in load(self).items()
}
""",
        caught_by="weight round trip",
        on_sheet=("first loss",),
    ),
    "one swapped pair of samples": Fault(
        framework="torch",
        optimizer="sgd",
        module="backends.torch.backend",
        inject="""
from dpcompare.training import loop
batches = loop.training_batches
def swapped(*arguments, **options):
    for number, batch in enumerate(batches(*arguments, **options)):
        if number == 2:
            batch.indices[[3, 11]] = batch.indices[[11, 3]]
        yield batch
loop.training_batches = swapped
""",
        caught_by="sample order",
        on_sheet=("sample order",),
    ),
    "pixels resized differently": Fault(
        framework="torch",
        optimizer="sgd",
        module="backends.torch.backend",
        inject="""
from dpcompare.data import batches
read = batches.BatchReader._read
def blurred(self, batch, rows):
    host = read(self, batch, rows)
    host.pixels[:, 1:] = (host.pixels[:, 1:].astype(int) + host.pixels[:, :-1]) // 2
    return host
batches.BatchReader._read = blurred
""",
        caught_by="pixels and augmentation",
        on_sheet=("batches", *LOSSES),
    ),
    "normalisation inside the model": Fault(
        framework="tensorflow",
        optimizer="sgd",
        module="backends.tensorflow.backend",
        inject="""
import dataclasses
from dpcompare.data.pixels import PIXEL_MEAN, PIXEL_STD
place = module.TensorFlowBackend._to_device
def normalise_there(self, batch):
    raw = batch.tables * PIXEL_STD[:, None] + PIXEL_MEAN[:, None]
    again = (raw.astype("float64") - PIXEL_MEAN[:, None]) / PIXEL_STD[:, None]
    return place(self, dataclasses.replace(batch, tables=again))
module.TensorFlowBackend._to_device = normalise_there
""",
        caught_by="pixels and augmentation",
        on_sheet=("batches",),
    ),
    "augmentation left out": Fault(
        framework="tensorflow",
        optimizer="sgd",
        module="backends.tensorflow.backend",
        inject="""
from dpcompare.data import augmentation
augmentation.Augmentation.__call__ = lambda self, *, epoch, indices, means: augmentation.UNCHANGED
""",
        caught_by="pixels and augmentation",
        on_sheet=("batches", *LOSSES),
    ),
    "padding rows count": Fault(
        framework="torch",
        optimizer="sgd",
        module="backends.torch.feed",
        inject="""
import dataclasses
place = module.DeviceFeed.place
module.DeviceFeed.place = lambda self, batch: place(
    self, batch if batch.global_count == 16 else dataclasses.replace(batch, global_count=16))
""",
        caught_by="losses over sgd steps",
        on_sheet=("images computed",),
    ),
    "a sample dropped in evaluation": Fault(
        framework="torch",
        optimizer="sgd",
        module="backends.torch.backend",
        inject="""
from dpcompare.training import evaluated
batches = evaluated.evaluation_batches
def dropping(*arguments):
    for batch in batches(*arguments):
        batch.weights[0] = 0
        yield batch
evaluated.evaluation_batches = dropping
""",
        caught_by="run",
    ),
    "dropout of another step": Fault(
        framework="torch",
        optimizer="adam",
        workload={"regularization": "shared"},
        module="backends.torch.backend",
        inject="""
from dpcompare.data.augmentation import Regularization
draw = Regularization.__call__
Regularization.__call__ = lambda self, *, step, indices: draw(self, step=step + 1, indices=indices)
""",
        caught_by="regularization",
        on_sheet=("batches", *LOSSES),
    ),
    "dropout that does not scale up what it keeps": Fault(
        framework="tensorflow",
        optimizer="adam",
        workload={"regularization": "shared"},
        module="backends.tensorflow.model",
        inject="""
apply = module.SharedDrop.call
module.SharedDrop.call = lambda self, features, factors, training=False: apply(
    self, features, module.keras.ops.sign(factors), training)
""",
        caught_by="training logits",
        on_sheet=LOSSES,
    ),
    "stochastic depth of other samples": Fault(
        framework="torch",
        optimizer="adam",
        workload={"regularization": "shared"},
        module="backends.torch.model",
        inject="""
apply = module.SharedDrop.forward
def other_rows(self, features):
    if features.dim() != 4 or not self.training:
        return apply(self, features)
    return apply(self, features.flip(0)).flip(0)
module.SharedDrop.forward = other_rows
""",
        caught_by="training logits",
        on_sheet=LOSSES,
    ),
    "mean of replica means": Fault(
        framework="torch",
        optimizer="sgd",
        replicas=2,
        module="backends.torch.backend",
        inject="""
losses = module.TorchBackend._losses
def mean_of_replica(self, model, batch):
    logits, per_row = losses(self, model, batch)
    if model is self.replicated and batch.weights.sum() > 0:
        own = batch.weights.sum() / batch.global_count * self.num_replicas
        scaled = per_row / own
        per_row = per_row.detach() + scaled - scaled.detach()
    return logits, per_row
module.TorchBackend._losses = mean_of_replica
""",
        caught_by="losses over sgd steps",
        on_sheet=("later losses",),
    ),
    "evaluation with each replica's own statistics": Fault(
        framework="torch",
        optimizer="sgd",
        replicas=2,
        module="backends.torch.ddp",
        inject="module.DistributedDataParallel.broadcast_buffers = lambda self, model: None",
        caught_by="evaluation loss",
        on_sheet=("first evaluation loss",),
    ),
    "wrong padding at odd sizes": Fault(
        framework="torch",
        module="backends.torch.model",
        inject="""
from torch import nn
from torch.nn import functional
from dpcompare.models.layers.in_torch import Conv2dSame
def forward(self, images):
    height, width = (
        max((-(-side // stride) - 1) * stride + kernel - side, 0)
        for side, stride, kernel in zip(images.shape[2:], self.stride, self.kernel_size, strict=True)
    )
    return nn.Conv2d.forward(self, functional.pad(images, (0, width, 0, height)))
Conv2dSame.forward = forward
""",
        caught_by="evaluation logits",
        on_sheet=LOSSES,
    ),
    "BatchNorm's momentum 0.9 whatever is asked for": Fault(
        framework="tensorflow",
        module="backends.keras.build",
        inject="""
shared = module._built_in
module._built_in = lambda workload, *rest: shared(workload.model_copy(update={"batchnorm_momentum": 0.9}), *rest)
""",
        caught_by="BatchNorm statistics",
        on_sheet=("first evaluation loss",),
    ),
    "synchronized BatchNorm that averages the replicas' variances": Fault(
        framework="torch",
        optimizer="adam",
        replicas=2,
        workload={"regularization": "shared", "batchnorm": "sync"},
        module="backends.torch.batchnorm",
        inject="""
def moments(self, x):
    own = torch.cat([x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)])
    return (self._all_reduce_sum(own) / self._num_replicas).chunk(2)
import torch
module.GlobalBatchNorm._moments = moments
""",
        caught_by="training logits",
        on_sheet=LOSSES,
    ),
    "accumulation that exchanges no gradients": Fault(
        framework="torch",
        replicas=2,
        workload={"model": "mlp", "image_size": 16, "accumulate": 2},
        module="backends.torch.ddp",
        inject="""
sync = module.DistributedDataParallel.gradient_sync
module.DistributedDataParallel.gradient_sync = lambda self, *, enabled: sync(
    self, enabled=enabled and self.config.workload.accumulate == 1)
""",
        caught_by="accumulation = replicas = one batch",
        on_sheet=("first gradient norm",),
    ),
    "augmentation's seed ignored": Fault(
        framework="torch",
        module="backends.torch.backend",
        inject="""
from dpcompare.training import schedule as reader
seeded = reader.Augmentation
reader.Augmentation = lambda names, *, seed, **others: seeded(names, seed=0, **others)
""",
        caught_by="pixels and augmentation",
        on_sheet=("batches", *LOSSES),
    ),
    "a layer frozen in the native profile": Fault(
        framework="tensorflow",
        replicas=2,
        workload={"profile": "native"},
        module="backends.tensorflow.backend",
        inject="""
update = module.TensorFlowBackend._update
def frozen(self, gradients, constants):
    if self.workload.profile == "native":
        gradients = [module.tf.zeros_like(gradients[0]), *gradients[1:]]
    update(self, gradients, constants)
module.TensorFlowBackend._update = frozen
""",
        caught_by="gradient of each tensor",
        on_sheet=("first gradient norm",),
    ),
    "clipped gradients": Fault(
        framework="tensorflow",
        module="backends.tensorflow.optimizer",
        inject="""
tf, apply = module.tf, module.Optimizer.apply
module.Optimizer.apply = lambda self, gradients, constants: apply(
    self, tf.clip_by_global_norm(gradients, 0.1)[0], constants)
""",
        caught_by="gradient",
        on_sheet=("later losses",),
    ),
    "Adam's steps lost by a resume": Fault(
        framework="torch",
        optimizer="adam",
        resumed=True,
        workload={"regularization": "shared"},
        module="backends.torch.backend",
        inject="""
from dpcompare.training import loop
resume = loop._resume
def forgetful(backend):
    step = resume(backend)
    if step:
        backend.optimizer.steps_taken = 0
        for memory in backend.optimizer.state.values():
            memory["step"].zero_()
    return step
loop._resume = forgetful
""",
        caught_by="losses over adam steps",
        on_sheet=("evaluation loss",),
    ),
    "smoothed labels that give the other classes all that is taken": Fault(
        framework="tensorflow",
        module="backends.tensorflow.loss",
        inject="""
tf, exact = module.tf, module.cross_entropies
def other(labels, logits, smoothing=0.0):
    if not smoothing:
        return exact(labels, logits)
    others = logits.shape[-1] - 1
    targets = tf.one_hot(labels, others + 1, 1 - smoothing, smoothing / others, dtype=logits.dtype)
    return tf.nn.softmax_cross_entropy_with_logits(labels=targets, logits=logits)
module.cross_entropies = other
""",
        caught_by="first loss",
        on_sheet=LOSSES,
    ),
    "weight decay as a part of the gradient": Fault(
        framework="torch",
        module="backends.torch.optimizer",
        inject="""
torch = module.torch
def coupled(self, optimizer, *_):
    for weights in module._parameters(optimizer):
        if module.decays(weights.dim()):
            weights.grad.add_(weights.detach(), alpha=self._rules.weight_decay)
module.RuledUpdates._decay = coupled
""",
        caught_by="gradient",
        on_sheet=("first gradient norm",),
    ),
    "weight decay of biases and BatchNorm too": Fault(
        framework="tensorflow",
        optimizer="adam",
        module="backends.tensorflow.optimizer",
        inject="module.decays = lambda dimensions: True",
        caught_by="one step of adam",
        on_sheet=("later losses",),
    ),
    "gradients clipped one tensor at a time": Fault(
        framework="torch",
        module="backends.torch.optimizer",
        inject="""
def each(self, optimizer, *_):
    for weights in module._parameters(optimizer):
        weights.grad.mul_(self._rules.clip_norm / weights.grad.norm().clamp(min=self._rules.clip_norm))
module.RuledUpdates._clip = each
""",
        caught_by="losses over sgd steps",
        on_sheet=("later losses",),
    ),
    "gradients clipped before replicas sum them": Fault(
        framework="tensorflow",
        replicas=2,
        module="backends.tensorflow.backend",
        inject="""
tf, update = module.tf, module.TensorFlowBackend._update
def clipped_first(self, gradients, constants):
    share = self.workload.clip_norm / self.num_replicas
    update(self, tf.clip_by_global_norm(gradients, share)[0], constants)
module.TensorFlowBackend._update = clipped_first
""",
        caught_by="losses over sgd steps",
        on_sheet=("later losses",),
    ),
    "a mean of the weights that begins with zeros": Fault(
        framework="torch",
        module="backends.update_rules",
        inject="module.UpdateRules.ema_weight = lambda self, step: 1 - self.weight_average",
        caught_by="weight average",
        on_sheet=("evaluation loss",),
    ),
    "the mean of the weights lost by a resume": Fault(
        framework="torch",
        optimizer="adam",
        resumed=True,
        workload={"regularization": "shared"},
        module="backends.torch.backend",
        inject="""
from dpcompare.training import loop
resume = loop._resume
def forgetful(backend):
    step = resume(backend)
    for memory in backend.optimizer.state.values():
        del memory["average"]
    return step
loop._resume = forgetful
""",
        caught_by="weight average",
        on_sheet=("evaluation loss",),
    ),
    "statistics recomputed over a batch too few": Fault(
        framework="tensorflow",
        module="backends.tensorflow.backend",
        inject="""
from itertools import islice
from dpcompare.training import evaluated
loaders = evaluated.statistics_loaders
evaluated.statistics_loaders = lambda *arguments: islice(loaders(*arguments), 1, None)
""",
        caught_by="evaluation loss",
        on_sheet=("evaluation loss",),
    ),
    "crops of the centre": Fault(
        framework="torch",
        module="backends.torch.backend",
        inject="""
from dpcompare.data.store import Split
pixels = Split.pixels
Split.pixels = lambda self, indices, corners=None: pixels(self, indices)
""",
        caught_by="pixels and augmentation",
        on_sheet=("batches", *LOSSES),
    ),
    "half of the rows never computed": Fault(
        framework="torch",
        module="backends.torch.backend",
        inject="""
losses = module.TorchBackend._losses
def of_half(self, model, batch):
    if model is not self.replicated or not self.model.training:
        return losses(self, model, batch)
    half = len(batch.labels) // 2
    drop_masks = None if batch.drop_masks is None else batch.drop_masks[:half]
    logits, per_row = losses(self, model, module.replace(
        batch, images=batch.images[:half], labels=batch.labels[:half], weights=batch.weights[:half],
        drop_masks=drop_masks))
    return logits.repeat(2, 1), per_row.repeat(2)
module.TorchBackend._losses = of_half
""",
        caught_by="first loss",
        on_sheet=("images computed", *LOSSES),
    ),
    "a timer that starts after the forward pass": Fault(
        framework="torch",
        changes_numbers=False,
        module="backends.torch.backend",
        inject=LATE_TIMER,
        on_sheet=("clock",),
    ),
    "oneDNN switched off by the shell": Fault(
        framework="tensorflow",
        changes_numbers=False,
        environment={"TF_ENABLE_ONEDNN_OPTS": "0"},
        on_sheet=("environment variables",),
    ),
    # The same mistakes made by JAX, whose loop and data are those of the others.
    "Adam's epsilon, in JAX": Fault(
        framework="jax",
        optimizer="adam",
        module="backends.jax.optimizer",
        inject="module.ADAM_EPSILON = 1e-8",
        caught_by="one step of adam",
        on_sheet=("first evaluation loss",),
    ),
    "SGD's momentum, in JAX": Fault(
        framework="jax",
        module="backends.jax.optimizer",
        inject="module.SGD_MOMENTUM = 0.8",
        caught_by="losses over sgd steps",
        on_sheet=("later losses", "evaluation loss"),
    ),
    "BatchNorm's epsilon, in JAX": Fault(
        framework="jax",
        module="backends.jax.model",
        inject="""
from dataclasses import replace
model_of = module.model_of
module.model_of = lambda name: replace(model_of(name), batchnorm_epsilon=1e-5)
""",
        caught_by="evaluation logits",
        on_sheet=LOSSES,
    ),
    "unbiased running variance, in JAX": Fault(
        framework="jax",
        module="backends.jax.model",
        inject="""
exact = module.Layers.batch_norm
def unbiased(self, name, features):
    normalised = exact(self, name, features)
    if self._training:
        n, before = features.size // features.shape[-1], self._tensors[f"{name}.running_var"] * self._momentum
        of_batch = self.made[f"{name}.running_var"] - before
        self.made[f"{name}.running_var"] = before + of_batch * n / (n - 1)
    return normalised
module.Layers.batch_norm = unbiased
""",
        caught_by="BatchNorm statistics",
        on_sheet=("first evaluation loss",),
    ),
    "symmetric padding, in JAX": Fault(
        framework="jax",
        module="backends.jax.model",
        inject="""
from dpcompare.models.layers import in_jax
jnp, exact = module.jnp, in_jax.by_shifts
def shifted(x, weight, **asked):
    missing = jnp.pad(x, ((0, 0), (1, 0), (1, 0), (0, 0)))[:, :-1, :-1]
    return exact(missing, weight, **asked)
in_jax.by_shifts = shifted
""",
        caught_by="evaluation logits",
        on_sheet=LOSSES,
    ),
    "weights changed by one rounding, in JAX": Fault(
        framework="jax",
        module="backends.jax.backend",
        inject="""
load = module.JaxBackend.initial_state
module.JaxBackend.initial_state = lambda self: {
    name: array * module.np.float32(1 + 2**-23) if name == "classifier.weight" else array
    for name, array in load(self).items()
}
""",
        caught_by="weight round trip",
        on_sheet=("first loss",),
    ),
    "dropout that does not scale up what it keeps, in JAX": Fault(
        framework="jax",
        optimizer="adam",
        workload={"regularization": "shared"},
        module="backends.jax.model",
        inject="""
init = module.Layers.__init__
def unscaled(self, workload, tensors, drop_masks, **options):
    init(self, workload, tensors, None if drop_masks is None else module.jnp.sign(drop_masks), **options)
module.Layers.__init__ = unscaled
""",
        caught_by="training logits",
        on_sheet=LOSSES,
    ),
    "mean of replica means, in JAX": Fault(
        framework="jax",
        replicas=2,
        module="backends.jax.backend",
        inject="""
gradients = module.JaxBackend._gradients
def mean_of_replica(self, trained, rows, count):
    own = module.jnp.maximum(rows.weights.sum(), 1) * self.num_replicas
    loss_sum, of_own, moved = gradients(self, trained, rows, own)
    return loss_sum, of_own, moved
module.JaxBackend._gradients = mean_of_replica
""",
        caught_by="losses over sgd steps",
        on_sheet=("later losses",),
    ),
    "evaluation with each replica's own statistics, in JAX": Fault(
        framework="jax",
        replicas=2,
        # Either has the process give all of its replicas the first one's tensors before it evaluates.
        workload={"weight_average": None, "batchnorm_recompute": 0},
        module="backends.jax.backend",
        inject="module.JaxBackend._copy_statistics_of_replica_0 = lambda self, statistics: statistics",
        caught_by="evaluation loss",
        on_sheet=("first evaluation loss",),
    ),
    "synchronized BatchNorm that averages the replicas' variances, in JAX": Fault(
        framework="jax",
        optimizer="adam",
        replicas=2,
        workload={"regularization": "shared", "batchnorm": "sync"},
        module="backends.jax.model",
        inject="""
from jax import lax
def moments(self, x):
    own = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return own if self._axis_name is None else lax.pmean(own, self._axis_name)
module.Layers._moments = moments
""",
        caught_by="training logits",
        on_sheet=LOSSES,
    ),
    "accumulation that exchanges no gradients, in JAX": Fault(
        framework="jax",
        replicas=2,
        workload={"model": "mlp", "image_size": 16, "accumulate": 2},
        module="backends.jax.backend",
        inject="""
apply = module.JaxBackend._apply_replica
def alone(self, *arguments):
    num_replicas, self.num_replicas = self.num_replicas, 1
    try:
        return apply(self, *arguments)
    finally:
        self.num_replicas = num_replicas
module.JaxBackend._apply_replica = alone
""",
        caught_by="accumulation = replicas = one batch",
        on_sheet=("first gradient norm",),
    ),
    "gradients that replicas sum twice, in JAX": Fault(
        framework="jax",
        replicas=2,
        module="backends.jax.backend",
        inject="""
update = module.JaxBackend._update
module.JaxBackend._update = lambda self, trained, gradients, constants: update(
    self, trained, module.lax.psum(gradients, module.REPLICAS), constants)
""",
        caught_by="one step of sgd",
        on_sheet=("second loss",),
    ),
    "smoothed labels that give the other classes all that is taken, in JAX": Fault(
        framework="jax",
        module="backends.jax.loss",
        inject="""
exact = module.cross_entropies
def other(labels, logits, smoothing=0.0):
    if not smoothing:
        return exact(labels, logits)
    classes = logits.shape[-1]
    return exact(labels, logits, smoothing * classes / (classes - 1))
module.cross_entropies = other
""",
        caught_by="first loss",
        on_sheet=LOSSES,
    ),
    "weight decay of biases and BatchNorm too, in JAX": Fault(
        framework="jax",
        optimizer="adam",
        module="backends.jax.optimizer",
        inject="module.decays = lambda dimensions: True",
        caught_by="one step of adam",
        on_sheet=("later losses",),
    ),
    "gradients clipped before replicas sum them, in JAX": Fault(
        framework="jax",
        replicas=2,
        module="backends.jax.backend",
        inject="""
from dpcompare.backends.jax.optimizer import _clipped
update = module.JaxBackend._update
def clipped_first(self, trained, gradients, constants):
    return update(self, trained, _clipped(gradients, self.workload.clip_norm / self.num_replicas), constants)
module.JaxBackend._update = clipped_first
""",
        caught_by="losses over sgd steps",
        on_sheet=("later losses",),
    ),
    "half of the learning rate in a later step": Fault(
        framework="torch",
        module="training.loop",
        inject="""
exact = module.learning_rate
module.learning_rate = lambda workload, step, num_steps: exact(workload, step, num_steps) / (2 if step == 4 else 1)
""",
        caught_by="decisions of each step",
        on_sheet=("learning rate of each step",),
    ),
    "one label of a later step": Fault(
        framework="tensorflow",
        module="data.batches",
        inject="""
read = module.BatchReader._read
def other(self, batch, rows):
    whole = read(self, batch, rows)
    if self._augmentation is not None and batch.step == 4:
        whole.labels[0] = (whole.labels[0] + 1) % 10
    return whole
module.BatchReader._read = other
""",
        caught_by="decisions of each step",
        on_sheet=("labels of each step",),
    ),
    "evaluated pixels, mirrored": Fault(
        framework="tensorflow",
        module="data.batches",
        inject="""
read = module.BatchReader._read
def other(self, batch, rows):
    whole = read(self, batch, rows)
    return whole if self._augmentation is not None else module.replace(whole, pixels=whole.pixels[:, :, ::-1])
from dataclasses import replace
module.replace = replace
module.BatchReader._read = other
""",
        caught_by="decisions of each step",
        on_sheet=("evaluated rows",),
    ),
    "other weights on the second replica": Fault(
        framework="torch",
        replicas=2,
        module="backends.torch.ddp",
        inject="""
replicate = module.DistributedDataParallel.replicate
def other(self, computation, model):
    replicated = replicate(self, computation, model)
    if self.process_rank == 1:
        model.classifier.bias.data += 1e-6
    return replicated
module.DistributedDataParallel.replicate = other
""",
        caught_by="equality of replicas",
        on_sheet=("equality of replicas",),
    ),
    "what the optimizer remembers lost on the second replica by a resume": Fault(
        framework="torch",
        replicas=2,
        optimizer="adam",
        resumed=True,
        workload={"regularization": "shared", "batchnorm": "sync"},
        module="backends.torch.backend",
        inject="""
load_state = module.TorchBackend.load_state
def forgetful(self, state):
    load_state(self, state)
    if self.process_rank == 1 and self.config.resume:
        for memory in self.optimizer.state.values():
            memory["exp_avg"].zero_()
module.TorchBackend.load_state = forgetful
""",
        caught_by="equality of replicas",
        on_sheet=("equality of replicas",),
    ),
    "Adam's steps lost by a resume, in JAX": Fault(
        framework="jax",
        optimizer="adam",
        resumed=True,
        workload={"regularization": "shared"},
        module="backends.jax.optimizer",
        inject="""
constants = module.Adam.kernel_constants
begun = []
def forgetful(self, step, learning_rate):
    begun.append(step)
    return constants(self, step - begun[0] + 1, learning_rate)
module.Adam.kernel_constants = forgetful
""",
        caught_by="losses over adam steps",
        on_sheet=("evaluation loss",),
    ),
    "half of the rows never computed, in JAX": Fault(
        framework="jax",
        module="backends.jax.backend",
        inject="""
losses, jnp = module.JaxBackend._losses, module.jnp
def of_half(self, parameters, statistics, rows, *, training):
    if not training:
        return losses(self, parameters, statistics, rows, training=training)
    half = module.jax.tree.map(lambda each: each[: len(each) // 2], rows)
    logits, per_row, moved = losses(self, parameters, statistics, half, training=True)
    return jnp.concatenate([logits, logits]), jnp.concatenate([per_row, per_row]), moved
module.JaxBackend._losses = of_half
""",
        caught_by="first loss",
        on_sheet=LOSSES,
    ),
}
