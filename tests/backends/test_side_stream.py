"""What a GPU is asked for when batches are placed on it, in which order: with streams that only keep a record."""

from contextlib import contextmanager

import numpy as np
import pytest

from dpcompare.data.augmentation import UNCHANGED
from dpcompare.data.batches import HostBatch
from dpcompare.data.pixels import normalised

pytestmark = pytest.mark.torch


@pytest.fixture
def asked(monkeypatch):
    """The calls that torch.cuda and the tensors get, in their order; tensors stay on the host."""
    import torch

    calls = []
    side, computing = RecordedStream("side", calls), RecordedStream("computing", calls)
    entered = ["computing"]

    @contextmanager
    def stream(inner):
        entered.append(inner.name)
        yield
        entered.pop()

    def to(tensor, *arguments, **options):
        if options.get("non_blocking"):
            calls.append(("copy", entered[-1]))
            return tensor
        return original_to(tensor, *arguments, **options)

    def pin_memory(tensor):
        calls.append(("pin", entered[-1]))
        return tensor

    original_to = torch.Tensor.to
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: computing)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append(("set_device", str(device))))
    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda tensor, inner: calls.append(("record_stream", inner.name))
    )
    return calls


class RecordedStream:
    def __init__(self, name, calls):
        self.name, self._calls = name, calls

    def record_event(self):
        self._calls.append(("record_event", self.name))
        return "event of " + self.name

    def wait_event(self, event):
        self._calls.append(("wait", self.name, event))

    def synchronize(self):
        self._calls.append(("synchronize", self.name))


class OnGpu:
    """A GPU that has the memory of the host."""

    type = "cuda"

    def __str__(self):
        return "cuda:3"


def backend_on(device):
    import torch

    from dpcompare.backends.torch.single import SingleDevice

    backend = object.__new__(SingleDevice)  # without a run: only what places batches is called
    backend.device = device
    backend._dtype, backend._memory_format = torch.float32, torch.contiguous_format
    return backend


def host_batch(flips):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 5, 3), dtype=np.uint8)
    return HostBatch(
        pixels=pixels,
        tables=normalised(UNCHANGED.brightnesses),
        flips=flips,
        labels=np.arange(4, dtype=np.int32),
        weights=np.ones(4, np.float32),
        global_count=4,
    )


def test_a_batch_is_copied_on_the_side_and_waited_for_by_the_device_alone(asked, monkeypatch):
    monkeypatch.setattr("dpcompare.backends.torch.backend.TorchBackend.input_threads", 1)
    given = host_batch(np.array([True, False, False, True]))
    (placed,) = backend_on(OnGpu()).feed([lambda: given])
    assert asked[0] == ("set_device", "cuda:3")  # before anything touches a GPU in that thread
    copies = [call for call in asked if call[0] == "copy"]
    assert copies == [("copy", "side")] * 5  # pixels, their table, flips, labels, weights
    assert asked.index(("record_event", "side")) > max(i for i, call in enumerate(asked) if call[0] == "copy")
    assert asked.index(("wait", "computing", "event of side")) > asked.index(("record_event", "side"))
    assert asked.count(("record_stream", "computing")) == 3  # images, labels, weights: what the step reads
    assert ("synchronize", "side") not in asked
    assert placed.images.shape == (4, 3, 5, 5)
    assert np.array_equal(placed.images.permute(0, 2, 3, 1).numpy(), given.images)


def test_bytes_go_over_the_bus_not_floats(asked, monkeypatch):
    import torch

    monkeypatch.setattr("dpcompare.backends.torch.backend.TorchBackend.input_threads", 1)
    copied = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: copied.append(tensor) or tensor)
    given = host_batch(None)
    list(backend_on(OnGpu()).feed([lambda: given]))
    assert (torch.uint8, given.pixels.nbytes) in [(tensor.dtype, tensor.nbytes) for tensor in copied]
    assert "images" not in vars(given)  # the host has looked nothing up


def test_the_clock_waits_for_the_computing_and_not_for_the_copies_of_the_next_batch(asked):
    backend = backend_on(OnGpu())
    backend.local_devices = lambda: [OnGpu()]
    backend.synchronize()
    assert asked == [("synchronize", "computing")]
