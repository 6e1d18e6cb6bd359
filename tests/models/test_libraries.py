"""Models of libraries by their names: built in their frameworks, refused in others, corrected where misspelt."""

import sys

import pytest

from dpcompare import Cluster, RunConfig, Workload
from dpcompare.backends.custom_model import described_layers
from dpcompare.cli.next_commands import _counterpart
from dpcompare.errors import RequestError
from dpcompare.models.custom import custom_model
from tests.support.command import invoke


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(("library", "head"), [("torchvision", "fc"), ("timm", "fc")])
def test_a_model_of_a_library_of_torch_is_taken_by_its_name(library, head):
    layers = described_layers(f"{library}:resnet18", "torch", sys.executable, 32, 4)
    assert (layers[0].name, layers[0].tensors) == ("conv1", {"weight": (64, 3, 7, 7)})
    assert (layers[-1].name, layers[-1].tensors) == (head, {"weight": (4, 512), "bias": (4,)})


@pytest.mark.tensorflow
@pytest.mark.slow
def test_pixels_are_scaled_once():
    """Those of a batch are normalised; some models of Keras would scale them again."""
    layers = described_layers("keras:MobileNetV3Small", "tensorflow", sys.executable, 32, 4)
    assert not [layer for layer in layers if "rescaling" in layer.name]


@pytest.mark.torch
@pytest.mark.slow
def test_a_misspelt_name_is_corrected():
    with pytest.raises(RequestError, match=r"received 'resnet_18', which is none of the \d+ models of timm .*resnet18"):
        described_layers("timm:resnet_18", "torch", sys.executable, 32, 4)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_model_of_torch_alone_is_refused_elsewhere(library):
    for framework in ("tensorflow", "jax"):
        with pytest.raises(RequestError, match="is a model of torch alone; expected arms of torch, or a model that"):
            custom_model(f"{library}:any").build(framework, 32, 4)


def test_a_run_of_a_library_is_followed_by_its_frameworks():
    def config(model):
        cluster = Cluster.partition(1, 1, device="cpu", num_cores=1)
        return RunConfig(framework="torch", mode="single", workload=Workload(model=model), cluster=cluster)

    assert _counterpart(config("toy-cnn")) is not None
    assert _counterpart(config("timm:resnet18")) is None
    assert _counterpart(config("keras:MobileNet")) is not None


@pytest.mark.torch
def test_the_name_that_people_type_is_answered():
    refused = invoke("run", "torch:single", "--model", "ResNet101")
    assert refused.code == 2
    assert "it is not built in; torchvision:resnet101 trains it in torch alone" in refused.stderr
