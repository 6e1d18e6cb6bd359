"""What makes one architecture two models in two frameworks, each put into one side of a comparison of a real model."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import indent
from typing import Any

from tests.support.faults import LOSSES, Fault

RESNET: Mapping[str, Any] = {"model": "resnet50-narrow", "image_size": 32, "steps": 3}
"""One position is left behind the last stage."""
VGG: Mapping[str, Any] = {"model": "vgg16-narrow", "image_size": 64, "steps": 2}
"""With several positions to flatten."""
VIT: Mapping[str, Any] = {"model": "vit-narrow", "image_size": 32, "steps": 3}


def built_otherwise(change: str) -> str:
    """The body of an injection that changes the `model` that a family's module for torch builds."""
    body = indent(change, "    ")
    return f"""
build = module.build
def changed(*arguments):
    model = build(*arguments)
{body}
    return model
module.build = changed
"""


# Name -> the fault, which `verify` must name.
TRAPS = {
    "ResNet-50 v1: strides in the first convolution of a bottleneck": Fault(
        framework="tensorflow",
        module="models.resnet.in_tensorflow",
        inject="""
from dataclasses import replace
blocks = module.blocks
def version_1(name):
    for block in blocks(name):
        first, second, third = block.convolutions
        chain = (replace(first, stride=second.stride), replace(second, stride=1), third)
        yield replace(block, convolutions=chain)
module.blocks = version_1
""",
        workload=RESNET,
        caught_by="evaluation logits",
        on_sheet=LOSSES,
    ),
    "BatchNorm's epsilon of Keras's ResNet50, 1.001e-5": Fault(
        framework="tensorflow",
        module="backends.keras.build",
        inject="""
from dataclasses import replace
model_of = module.model_of
module.model_of = lambda name: replace(model_of(name), batchnorm_epsilon=1.001e-5)
""",
        workload=RESNET,
        caught_by="evaluation logits",
        on_sheet=("first loss",),
    ),
    "biased convolutions before BatchNorm": Fault(
        framework="tensorflow",
        module="models.resnet.in_tensorflow",
        inject="""
normed = module._normed
# In front of a convolution that sees one position, which is as good as a bias behind it.
def biased(each, x):
    return normed(each, x) if each.norm != "layer4.1.bn3" else normed(each, module.keras.layers.Rescaling(1, 0.1)(x))
module._normed = biased
""",
        workload=RESNET,
        caught_by="evaluation logits",
        on_sheet=("first evaluation loss",),
    ),
    "TensorFlow's padding of strided convolutions": Fault(
        framework="tensorflow",
        module="models.resnet.in_tensorflow",
        inject="""
layers = module.keras.layers
def normed(each, x):
    options = {"strides": each.stride, "padding": "same", "use_bias": False, "name": each.name}
    return layers.BatchNormalization(name=each.norm)(layers.Conv2D(each.channels_out, each.size, **options)(x))
module._normed = normed
""",
        workload=RESNET,
        caught_by="evaluation logits",
        on_sheet=LOSSES,
    ),
    "the last BatchNorm of a block begins with 0": Fault(
        framework="torch",
        module="backends.torch.backend",
        inject="""
load = module.TorchBackend.initial_state
module.TorchBackend.initial_state = lambda self: {
    name: array * 0 if name == "layer4.1.bn3.weight" else array for name, array in load(self).items()
}
""",
        workload=RESNET,
        caught_by="weight round trip",
        on_sheet=LOSSES,
    ),
    "convolutions drawn by the rule of torch.nn.Conv2d": Fault(
        framework="torch",
        module="backends.torch.backend",
        inject="""
load = module.TorchBackend.initial_state
# Of variance 1 / (3 fan_in), not 2 / fan_out.
module.TorchBackend.initial_state = lambda self: {
    name: array / 6**0.5 if array.ndim == 4 else array for name, array in load(self).items()
}
""",
        workload=RESNET,
        caught_by="weight round trip",
        on_sheet=LOSSES,
    ),
    "positions drawn as those of torch.nn.Embedding": Fault(
        framework="torch",
        module="backends.torch.backend",
        inject="""
load = module.TorchBackend.initial_state
# Of standard deviation 1, not 0.02.
module.TorchBackend.initial_state = lambda self: {
    name: array * 50 if name == "pos_embed" else array for name, array in load(self).items()
}
""",
        workload=VIT,
        caught_by="weight round trip",
        on_sheet=LOSSES,
    ),
    "features of VGG flattened with the channels last": Fault(
        framework="tensorflow",
        module="models.vgg.in_tensorflow",
        inject="""
module.keras.layers.Permute = lambda order: lambda x: x
""",
        workload=VGG,
        caught_by="evaluation logits",
        on_sheet=LOSSES,
    ),
    "LayerNorm's epsilon of Keras, 1e-3": Fault(
        framework="tensorflow",
        module="models.vit.in_tensorflow",
        inject="module.LAYER_NORM_EPSILON = 1e-3",
        workload=VIT,
        caught_by="evaluation logits",
        on_sheet=LOSSES,
    ),
    "LayerNorm's epsilon of torch, 1e-5": Fault(
        framework="torch",
        module="models.vit.in_torch",
        inject=built_otherwise("""
for norm in model.modules():
    if isinstance(norm, module.nn.LayerNorm):
        norm.eps = 1e-5
"""),
        workload=VIT,
        caught_by="evaluation logits",
        on_sheet=LOSSES,
    ),
    "GELU by tanh, JAX's default": Fault(
        framework="jax",
        module="models.vit.in_jax",
        inject="""
gelu = module.jax.nn.gelu
module.jax.nn.gelu = lambda x, approximate: gelu(x)
""",
        workload=VIT,
        caught_by="evaluation logits",
        on_sheet=("first loss",),
    ),
    "GELU with a root of 2 in float32, TensorFlow's own": Fault(
        framework="tensorflow",
        module="models.layers.in_tensorflow",
        inject="module.Gelu.call = lambda self, x: module.keras.ops.gelu(x, approximate=False)",
        workload=VIT,
        caught_by="evaluation logits",
        is_near_the_limit=True,
    ),
    "softmax of attention in float32, JAX's own": Fault(
        framework="jax",
        module="models.vit.in_jax",
        inject="module.jnp.promote_types = lambda one, other: module.jnp.float32",
        workload=VIT,
        caught_by="evaluation logits",
        is_near_the_limit=True,
    ),
    "LayerNorm behind the branches": Fault(
        framework="torch",
        module="models.vit.in_torch",
        inject=built_otherwise("""
def behind(block, x):
    x = block.norm1(x + block.attn(x))
    return block.norm2(x + block.mlp(x))
import functools
for block in model.blocks:
    block.forward = functools.partial(behind, block)
"""),
        workload=VIT,
        caught_by="evaluation logits",
        on_sheet=LOSSES,
    ),
    "the token of the class behind the others": Fault(
        framework="tensorflow",
        module="models.layers.in_tensorflow",
        inject="""
call = module.ClassToken.call
module.ClassToken.call = lambda self, x: module.keras.ops.roll(call(self, x), -1, axis=1)
""",
        workload=VIT,
        caught_by="evaluation logits",
        on_sheet=LOSSES,
    ),
    "no position of the class token": Fault(
        framework="tensorflow",
        module="models.layers.in_tensorflow",
        inject="""
ops = module.keras.ops
def call(self, x):
    return x + ops.concatenate([ops.zeros_like(self.embedding[:, :1]), self.embedding[:, 1:]], axis=1)
module.PositionEmbedding.call = call
""",
        workload=VIT,
        caught_by="evaluation logits",
        on_sheet=LOSSES,
    ),
    "dropout of the scores of attention": Fault(
        framework="torch",
        module="models.vit.in_torch",
        inject=built_otherwise("""
for block in model.blocks:
    block.attn.attn_drop.p = 0.1
"""),
        workload=VIT,
        caught_by="training logits",
        on_sheet=LOSSES,
    ),
}
