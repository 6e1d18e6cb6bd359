"""The models of papers against the libraries that publish them: names and shapes of tensors, and what is computed."""

import pytest

from tests.support.command import python

pytestmark = [pytest.mark.torch, pytest.mark.slow]

NAMES = """
import timm, torch, torchvision
from dpcompare.models.architectures import MODELS

of_timm = {"vit-ti16": "deit_tiny_patch16_224", "vit-s16": "deit_small_patch16_224", "vit-b16": "deit_base_patch16_224"}
with torch.device("meta"):
    made = {name: getattr(torchvision.models, name)() for name in ("resnet18", "resnet50", "vgg16")}
    made |= {name: timm.create_model(of_timm[name]) for name in of_timm}
for name, model in made.items():
    theirs = [(key, tuple(t.shape)) for key, t in model.state_dict().items() if not key.endswith("batches_tracked")]
    assert list(MODELS[name].shapes(224, 1000).items()) == theirs, name
"""

LOGITS = """
import torch, torchvision
from dpcompare import Workload
from dpcompare.backends.torch.model import build_model

torch.manual_seed(0)
# VGG at the size where torchvision averages nothing away.
for name, size in (("resnet18", 64), ("resnet50", 64), ("vgg16", 224)):
    theirs = getattr(torchvision.models, name)(num_classes=10).eval()
    ours = build_model(Workload(model=name, image_size=size), 10).eval()
    ours.load_state_dict(theirs.state_dict())
    images = torch.rand(2, 3, size, size)
    with torch.no_grad():
        largest = (ours(images) - theirs(images)).abs().max() / theirs(images).abs().max()
    assert largest < 1e-5, (name, largest)
"""


def test_tensors_have_names_shapes_and_order_of_published_files():
    python("-c", NAMES)


def test_torchvision_computes_the_same_from_its_own_weights():
    python("-c", LOGITS)
