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
import io
import timm, torch, torchvision
from safetensors.torch import save
from dpcompare import Workload
from dpcompare.backends.torch.model import build_model
from dpcompare.models.initial_weights import initial_weights
from dpcompare.models.weights import fit, read_source

torch.manual_seed(0)
# VGG at the size where torchvision averages nothing away.
sizes = {"resnet18": 64, "resnet50": 64, "vgg16": 224, "vit-ti16": 64}
of_torchvision = ((name, getattr(torchvision.models, name)(num_classes=10)) for name in list(sizes)[:3])

def by_torch(state):
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()

of_timm = (
    (name, timm.create_model(theirs, num_classes=10, **more))
    for name, theirs, more in (
        ("resnet18", "resnet18", {}),
        ("resnet50", "resnet50", {}),
        ("vit-ti16", "deit_tiny_patch16_224", {"img_size": 64}),
    )
)
for name, theirs in (*of_torchvision, *of_timm):
    theirs, size = theirs.eval(), sizes[name]
    ours = build_model(Workload(model=name, image_size=size), 10).eval()
    state = {key: value.contiguous() for key, value in theirs.state_dict().items()}
    for written in (save, by_torch):
        file = read_source(written(state), "theirs")
        tensors, classifier = fit(file, initial_weights(name, size, 10, 0), name)
        assert classifier == "from file"
    tensors = {key: torch.from_numpy(value) for key, value in tensors.items()}
    missing = ours.load_state_dict(tensors, strict=False).missing_keys
    assert all(key.endswith("num_batches_tracked") for key in missing), missing
    images = torch.rand(2, 3, size, size)
    with torch.no_grad():
        largest = (ours(images) - theirs(images)).abs().max() / theirs(images).abs().max()
    assert largest < 1e-5, (name, largest)
"""


def test_tensors_have_names_shapes_and_order_of_published_files():
    python("-c", NAMES)


def test_files_of_torchvision_and_timm_compute_the_same_here():
    python("-c", LOGITS)
