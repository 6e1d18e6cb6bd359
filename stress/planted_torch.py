"""Numeric faults of torch's backend."""

from __future__ import annotations

from stress.planted_row import DDP, FSDP, OF_GRADIENT, OF_STATISTICS, OF_UPDATE, TORCH, Planted

NO_UPDATE = """
torch, make = module.torch, module.TorchBackend._make_step
def skipping(self, *arguments):
    before = [parameter.detach().clone() for parameter in self.model.parameters()]
    loss_sum = make(self, *arguments)
    if LEFT_OUT:
        with torch.no_grad():
            for parameter, value in zip(self.model.parameters(), before):
                parameter.copy_(value)
    return loss_sum
module.TorchBackend._make_step = skipping
"""
"""The update is taken back in the steps for which LEFT_OUT is true."""

TORCH_FAULTS = {
    "Nesterov's momentum": Planted(
        place=TORCH,
        module="backends.torch.optimizer",
        inject="""
exact = module.Sgd.__init__
def nesterov(self, parameters, **kernels):
    exact(self, parameters, **kernels)
    for group in self.param_groups:
        group["nesterov"] = True
module.Sgd.__init__ = nesterov
""",
        leads=OF_UPDATE,
    ),
    "momentum with dampening": Planted(
        place=TORCH,
        module="backends.torch.optimizer",
        inject="""
exact = module.Sgd.__init__
def dampened(self, parameters, **kernels):
    exact(self, parameters, **kernels)
    for group in self.param_groups:
        group["dampening"] = 0.05
module.Sgd.__init__ = dampened
""",
        leads=(*OF_UPDATE, "momentum"),
    ),
    "momentum forgotten at the end of each epoch": Planted(
        place=TORCH,
        module="backends.torch.backend",
        inject="""
make = module.TorchBackend._make_step
def forgetful(self, *arguments):
    if self._step % 5 == 1:
        for memory in self.optimizer.state.values():
            memory["momentum_buffer"].zero_()
    return make(self, *arguments)
module.TorchBackend._make_step = forgetful
""",
        leads=(*OF_UPDATE, "momentum"),
    ),
    "no update in every second step from step 22 on": Planted(
        place=TORCH,
        module="backends.torch.backend",
        inject=NO_UPDATE.replace("LEFT_OUT", "self._step >= 22 and self._step % 2"),
        leads=OF_UPDATE,
    ),
    "no update in steps 10 and 11": Planted(
        place=TORCH,
        module="backends.torch.backend",
        inject=NO_UPDATE.replace("LEFT_OUT", "self._step in (10, 11)"),
        leads=OF_UPDATE,
    ),
    "the last replica's gradients lost from step 25 on": Planted(
        place=DDP,
        module="backends.torch.backend",
        inject="""
losses = module.TorchBackend._losses
def lost(self, model, batch):
    logits, per_row = losses(self, model, batch)
    if model is self.replicated and self.process_rank == 1 and self._step >= 25:
        per_row = per_row.detach() + 0 * (per_row - per_row.detach())
    return logits, per_row
module.TorchBackend._losses = lost
""",
        leads=OF_GRADIENT,
    ),
    "weights kept in bfloat16": Planted(
        place=TORCH,
        module="backends.torch.backend",
        inject="""
torch, make = module.torch, module.TorchBackend._make_step
def rounded(self, *arguments):
    loss_sum = make(self, *arguments)
    with torch.no_grad():
        for parameter in self.model.parameters():
            parameter.copy_(parameter.bfloat16())
    return loss_sum
module.TorchBackend._make_step = rounded
""",
        workload={"precision": "bfloat16"},
        leads=OF_UPDATE,
    ),
    "softmax in bfloat16": Planted(
        place=TORCH,
        module="backends.torch.backend",
        inject="""
exact = module.TorchBackend.row_losses
def coarse(self, logits, labels, *, training):
    return exact(self, logits.bfloat16(), labels, training=training).to(self.precision.dtype)
module.TorchBackend.row_losses = coarse
""",
        workload={"precision": "bfloat16"},
        leads=("loss",),
    ),
    "gradients summed in bfloat16": Planted(
        place=DDP,
        module="backends.torch.ddp",
        inject="""
import torch
replicate = module.DistributedDataParallel.replicate
def compressed(self, computation, model):
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.bfloat16().to(gradient.dtype))
    return replicate(self, computation, model)
module.DistributedDataParallel.replicate = compressed
""",
        workload={"precision": "bfloat16"},
        leads=OF_GRADIENT,
    ),
    "decay that spares dense layers": Planted(
        place=TORCH,
        module="backends.torch.optimizer",
        inject="module.decays = lambda dimensions: dimensions > 2",
        workload={"weight_decay": 0.1},
        leads=("decay", "classifier.weight", *OF_UPDATE),
    ),
    "replicas that drift apart": Planted(
        place=DDP,
        module="backends.torch.backend",
        inject="""
torch, make = module.torch, module.TorchBackend._make_step
def drifting(self, *arguments):
    loss_sum = make(self, *arguments)
    if self.process_rank == 1:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(1 + 1e-5)
    return loss_sum
module.TorchBackend._make_step = drifting
""",
        leads=("replica",),
    ),
    "evaluation with smoothed labels": Planted(
        place=TORCH,
        module="backends.torch.backend",
        inject="""
exact = module.TorchBackend.row_losses
module.TorchBackend.row_losses = lambda self, logits, labels, *, training: exact(self, logits, labels, training=True)
""",
        workload={"label_smoothing": 0.1},
        leads=("evaluation",),
    ),
    "the two best classes count as accurate": Planted(
        place=TORCH,
        module="backends.torch.backend",
        inject="""
torch = module.torch
def generous(self, batch):
    with torch.no_grad():
        logits, losses = self._losses(self._local, batch)
        hits = (logits.topk(2, 1).indices == batch.labels[:, None]).any(1)
        return torch.stack([losses.sum(), (hits * batch.weights).sum(), batch.weights.sum()])
module.TorchBackend._evaluate = generous
""",
        leads=("accuracy",),
    ),
    "another epsilon of Adam in float32": Planted(
        place=TORCH,
        module="backends.torch.optimizer",
        inject="module.ADAM_EPSILON = 1e-5",
        workload={"optimizer": "adam", "learning_rate": 1e-3},
        leads=OF_UPDATE,
    ),
    "a layer in bfloat16": Planted(
        place=TORCH,
        module="backends.torch.model",
        inject="""
from torch.nn import functional
shared = module._aligned
def coarse(model, workload):
    def forward(features, layer=model.classifier):
        halves = [part.bfloat16() for part in (features, layer.weight, layer.bias)]
        return functional.linear(*halves).to(features.dtype)
    model.classifier.forward = forward
    return shared(model, workload)
module._aligned = coarse
""",
        leads=("classifier", "logits"),
    ),
    "gradients of micro-batches averaged again": Planted(
        place=TORCH,
        module="backends.torch.parallel",
        inject="""
def backward(self, loss):
    (loss / self.config.workload.accumulate).backward()
module.Parallel.backward = backward
""",
        workload={"model": "mlp", "accumulate": 4},
        leads=OF_GRADIENT,
    ),
    "a limit of the gradient's norm that is not kept": Planted(
        place=TORCH,
        module="backends.torch.optimizer",
        inject="module.RuledUpdates._clip = lambda self, optimizer, *_: None",
        workload={"clip_norm": 0.1},
        leads=OF_GRADIENT,
    ),
    "a limit of the gradient's norm on each replica": Planted(
        place=DDP,
        module="backends.torch.backend",
        inject="""
losses, torch = module.TorchBackend._losses, module.torch
def limited(self, model, batch):
    logits, per_row = losses(self, model, batch)
    if model is self.replicated and logits.requires_grad:
        logits.register_hook(lambda gradient: gradient * (0.1 / gradient.norm().clamp(min=0.1)))
    return logits, per_row
module.TorchBackend._losses = limited
""",
        leads=OF_GRADIENT,
    ),
    "labels smoothed by another fraction": Planted(
        place=TORCH,
        module="backends.torch.backend",
        inject="""
from torch.nn import functional
def other(self, logits, labels, *, training):
    smoothing = 0.1 if training else 0.0
    return functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
module.TorchBackend.row_losses = other
""",
        workload={"label_smoothing": 0.2},
        leads=("first loss",),
    ),
    "a mean of the weights that is a step ahead": Planted(
        place=TORCH,
        module="backends.torch.optimizer",
        inject="""
register = module.RuledUpdates.register
def ahead(self, optimizer):
    steps = self._steps_taken
    self._steps_taken = lambda: steps() + 1
    register(self, optimizer)
module.RuledUpdates.register = ahead
""",
        workload={"weight_average": 0.8},
        leads=("average",),
    ),
    "drop masks that are applied twice": Planted(
        place=TORCH,
        module="backends.torch.model",
        inject="""
apply = module.SharedDrop.forward
module.SharedDrop.forward = lambda self, features: apply(self, apply(self, features))
""",
        workload={"model": "mlp", "regularization": "shared"},
        leads=("training logits", "regularization", "drop"),
    ),
    "statistics of the last replica evaluated": Planted(
        place=DDP,
        module="backends.torch.ddp",
        inject="""
distributed = module.distributed
def of_last(self, model):
    for buffer in model.buffers():
        distributed.broadcast(buffer, src=distributed.get_world_size() - 1)
module.DistributedDataParallel.broadcast_buffers = of_last
""",
        leads=OF_STATISTICS,
    ),
    # As in keras#22638, where every buffer was summed over the replicas and divided by their number.
    "running statistics of replicas averaged in each step": Planted(
        place=DDP,
        module="backends.torch.backend",
        inject="""
distributed, step = module.torch.distributed, module.TorchBackend.train_step
def averaged(self, *arguments):
    loss = step(self, *arguments)
    for buffer in self.model.buffers() if distributed.is_initialized() else ():
        distributed.all_reduce(buffer)
        buffer.copy_(buffer / distributed.get_world_size())
    return loss
module.TorchBackend.train_step = averaged
""",
        leads=OF_STATISTICS,
    ),
    "evaluation by the statistics of its own batch": Planted(
        place=TORCH,
        module="backends.torch.backend",
        inject="""
evaluate = module.TorchBackend._evaluate
def by_own(self, batch):
    norms = [layer for layer in self.model.modules() if isinstance(layer, module.nn.BatchNorm2d)]
    kept = [(norm.momentum, norm.running_mean.clone(), norm.running_var.clone()) for norm in norms]
    for norm in norms:
        norm.train()
    sums = evaluate(self, batch)
    for norm, (momentum, mean, variance) in zip(norms, kept):
        norm.eval()
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)
    return sums
module.TorchBackend._evaluate = by_own
""",
        leads=OF_STATISTICS,
    ),
    "gradients of replicas averaged instead of summed": Planted(
        place=DDP,
        module="backends.torch.ddp",
        inject="""
connect = module.DistributedDataParallel.connect
def averaged(self):
    connect(self)
    self.gradient_average_over = 1
module.DistributedDataParallel.connect = averaged
""",
        leads=OF_GRADIENT,
    ),
    "gradients of shards averaged instead of summed": Planted(
        place=FSDP,
        module="backends.torch.fsdp",
        inject="""
from dpcompare.backends.torch.ddp import DistributedDataParallel
connect = DistributedDataParallel.connect
def averaged(self):
    connect(self)
    self.gradient_average_over = 1
DistributedDataParallel.connect = averaged
""",
        leads=OF_GRADIENT,
    ),
    "synchronized BatchNorm without its gradient": Planted(
        place=DDP,
        module="backends.torch.ddp",
        inject="module._AllReduce.backward = staticmethod(lambda context, gradient: (gradient, None))",
        workload={"batchnorm": "sync"},
        leads=OF_GRADIENT,
    ),
    "running statistics moved by the last micro-batch alone": Planted(
        place=TORCH,
        module="backends.torch.backend",
        inject="""
make = module.TorchBackend._make_step
def last_alone(self, batches, *others):
    losses = self._losses
    norms = [layer for layer in self.model.modules() if isinstance(layer, module.nn.BatchNorm2d)]
    number = 0
    def counted(model, batch):
        nonlocal number
        number += 1
        for norm in norms:
            norm.momentum = 0.1 if number == len(batches) else 0.0
        return losses(model, batch)
    self._losses = counted
    try:
        return make(self, batches, *others)
    finally:
        del self._losses
        for norm in norms:
            norm.momentum = 0.1
module.TorchBackend._make_step = last_alone
""",
        workload={"accumulate": 2},
        leads=OF_STATISTICS,
    ),
}
