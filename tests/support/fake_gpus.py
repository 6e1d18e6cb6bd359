"""GPUs below torch's Python: C functions that need a driver are replaced, tensors keep their values on the host.

What a GPU holds are tensors of the host that say `cuda:N` and refuse to be mixed with others, as on a GPU. All of
torch's own Python runs, with its checks of arguments. For processes that do nothing else: nothing is put back.

What is not as on a GPU: no kernel of CUDA runs, autocast to bfloat16 rounds nothing, everything has ended when its call
returns, NCCL is gloo, and memory is never given back.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed import distributed_c10d
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

calls: list[tuple[Any, ...]] = []
"""What the driver was asked for, as (what, where), in its order."""

_held: dict[int, tuple[torch.UntypedStorage, int]] = {}
"""Memory by its address in C -> itself, so that no other gets this address, and the GPU that holds it."""
_buckets: set[int] = set()
"""Addresses of memory that the C++ of DDP took: for it all parameters are the host's, so that it packs gradients of
several GPUs together."""
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""Kinds of tensors that have memory; others are wrappers of these."""
_of_thread = threading.local()
visible = 1
"""GPUs that torch sees: what `install` was given, or fewer, as behind another mask."""


def _gpu_of(tensor: torch.Tensor) -> int | None:
    """The GPU that holds a tensor; None for the host."""
    if type(tensor) not in _PLAIN:
        return None
    held = _held.get(tensor.untyped_storage()._cdata)
    return None if held is None else held[1]


def _put(tensor: torch.Tensor, gpu: int) -> torch.Tensor:
    storage = tensor.untyped_storage()
    _held[storage._cdata] = (storage, gpu)
    return tensor


def _take(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that the host holds."""
    copy = tensor.clone(memory_format=torch.preserve_format)
    _held.pop(copy.untyped_storage()._cdata, None)
    return copy


def _index(device: Any) -> int | None:
    """The GPU that is meant by a device in an argument; None where none is."""
    if device is None:
        return None
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if device.type != "cuda":
        return None
    return torch._C._cuda_getDevice() if device.index is None else device.index


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))


class _Kernels(TorchDispatchMode):
    """Every operation: what it makes of a GPU's tensors is that GPU's."""

    MOVES = ("aten.copy_.", "aten._to_copy.", "aten._foreach_copy_.", "aten._copy_from")
    """Operations that take tensors of several devices."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if any(type(tensor) not in _PLAIN for tensor in _tensors((args, kwargs))):
            return self._of_wrappers(func, args, kwargs)
        asked = _index(kwargs.get("device"))
        to_host = "device" in kwargs and kwargs["device"] is not None and asked is None
        if asked is not None:
            kwargs["device"] = torch.device("cpu")
        given = list(_tensors((args, kwargs)))
        gpus = {gpu for tensor in given if (gpu := _gpu_of(tensor)) is not None}
        if gpus and not str(func).startswith(self.MOVES):
            self._require_one_device(func, given)
        outputs = func(*args, **kwargs)
        of_inputs = None if to_host or not gpus else min(gpus)
        allocates_on = getattr(_of_thread, "allocates_on", None)
        where = next((gpu for gpu in (asked, of_inputs, allocates_on) if gpu is not None), None)
        if where is None:
            return outputs
        known = {*_held, *(tensor.untyped_storage()._cdata for tensor in given)}
        for tensor in _tensors(outputs):
            if type(tensor) in _PLAIN and tensor.device.type == "cpu" and tensor.untyped_storage()._cdata not in known:
                _put(tensor, where)
                if allocates_on is not None:
                    _buckets.add(tensor.untyped_storage()._cdata)
        return outputs

    def _of_wrappers(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation on DTensors: this mode is left while their own code computes with the tensors inside."""
        outputs = func(*args, **kwargs)
        inside = [tensor._local_tensor for tensor in _tensors((args, kwargs)) if hasattr(tensor, "_local_tensor")]
        gpus = {gpu for tensor in inside if (gpu := _gpu_of(tensor)) is not None}
        for tensor in _tensors(outputs):
            if gpus and hasattr(tensor, "_local_tensor") and _gpu_of(tensor._local_tensor) is None:
                _put(tensor._local_tensor, min(gpus))
        return outputs

    def _require_one_device(self, func: Any, given: Iterable[torch.Tensor]) -> None:
        """CUDA's kernels take from the host single numbers, and what says where to look; so does this."""
        given = [tensor for tensor in given if tensor.untyped_storage()._cdata not in _buckets]
        gpus = {gpu for tensor in given if (gpu := _gpu_of(tensor)) is not None}
        of_host = [
            tensor for tensor in given if _gpu_of(tensor) is None and tensor.dim() and tensor.device.type == "cpu"
        ]
        if len(gpus) > 1 or (gpus and of_host and not str(func).startswith(("aten.index", "c10d.", "aten._index"))):
            devices = [*(f"cuda:{gpu}" for gpu in sorted(gpus)), *(["cpu"] if of_host else [])]
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{' and '.join(devices)}, in {func}"
            )


class _Python(TorchFunctionMode):
    """What torch's C code would answer of a tensor from where its memory is, or do there before any kernel."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FROM_VALUES and (gpu := _index(kwargs.get("device"))) is not None:
            return _put(_take(func(*args, **{**kwargs, "device": "cpu"})), gpu)
        answer = _ANSWERS.get(func)
        if answer is not None and isinstance(args[0], torch.Tensor):
            return answer(func, *args, **kwargs)
        return func(*args, **kwargs)


def _device(func: Any, tensor: torch.Tensor) -> torch.device:
    gpu = _gpu_of(tensor)
    return func(tensor) if gpu is None else torch.device("cuda", gpu)


def _to(func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    if args and isinstance(args[0], torch.Tensor):
        args = (_device(torch.Tensor.device.__get__, args[0]), args[0].dtype, *args[1:])
    kept = {name: kwargs.pop(name) for name in ("copy",) if name in kwargs}
    device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    moved = tensor.to(dtype=dtype or tensor.dtype, memory_format=memory_format or torch.preserve_format, **kept)
    if device is None or type(tensor) not in _PLAIN or device.type == "meta":
        return moved if device is None else func(moved, device)
    target, present = _index(device), _gpu_of(tensor)
    if target == present:
        return moved
    if non_blocking and present is None:
        calls.append(("copy", torch._C._cuda_getCurrentStream(target)))
    return _Moved.apply(moved, target)


class _Moved(torch.autograd.Function):
    """A copy on another device; its gradient goes back."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, target: int | None) -> torch.Tensor:
        context.present = _gpu_of(tensor)
        copy = _take(tensor)
        return copy if target is None else _put(copy, target)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _Moved.apply(gradient, context.present), None


def _numpy(func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    gpu = _gpu_of(tensor)
    if gpu is not None:
        raise TypeError(
            f"can't convert cuda:{gpu} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory "
            "first."
        )
    return func(tensor, *args, **kwargs)


def _pin(func: Any, tensor: torch.Tensor, *args: Any) -> torch.Tensor:
    calls.append(("pin", tensor.dtype, tensor.nbytes))
    if _gpu_of(tensor) is not None:
        raise RuntimeError(f"cannot pin 'torch.cuda.{tensor.dtype}' only dense CPU tensors can be pinned")
    return _take(tensor)


def _record_stream(func: Any, tensor: torch.Tensor, stream: Any) -> None:
    assert isinstance(stream, torch.cuda.Stream), stream
    calls.append(("record_stream", (stream.stream_id, stream.device_index, 1)))


_FROM_VALUES = (torch.tensor, torch.as_tensor, torch.asarray)
"""What looks for a driver before any operation is made."""

_ANSWERS = {
    torch.Tensor.device.__get__: _device,
    torch.Tensor.is_cuda.__get__: lambda func, tensor: _gpu_of(tensor) is not None,
    torch.Tensor.is_cpu.__get__: lambda func, tensor: _gpu_of(tensor) is None and func(tensor),
    torch.Tensor.get_device: lambda func, tensor: func(tensor) if (gpu := _gpu_of(tensor)) is None else gpu,
    torch.Tensor.to: _to,
    torch.Tensor.cpu: lambda func, tensor, **options: _to(torch.Tensor.to, tensor, "cpu"),
    torch.Tensor.cuda: lambda func, tensor, device=None, **options: _to(
        torch.Tensor.to,
        tensor,
        torch.device("cuda", torch._C._cuda_getDevice() if device is None else torch.device(device).index),
    ),
    torch.Tensor.numpy: _numpy,
    torch.Tensor.pin_memory: _pin,
    torch.Tensor.record_stream: _record_stream,
}


@contextmanager
def _modes() -> Iterator[None]:
    with _Kernels(), _Python():
        yield


def install(count: int, *, name: str = "NVIDIA H100 80GB HBM3") -> None:
    """Have torch see so many GPUs, in this thread and in those that are started from now on."""
    see(count)
    _replace_driver(name)
    _replace_grouping()
    _replace_streams()
    _replace_collectives()
    for mode in (_Kernels(), _Python()):
        mode.__enter__()  # for good
    torch.autograd.Variable._execution_engine = _Engine(torch.autograd.Variable._execution_engine)
    run = threading.Thread.run

    def run_with_gpus(thread: threading.Thread) -> None:
        with _modes():
            run(thread)

    threading.Thread.run = run_with_gpus  # type: ignore[method-assign]


class _Engine:
    """What runs backward passes: the modes are left while it is called, and it calls Python too."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        with _Python():
            return self._engine.run_backward(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def see(count: int) -> None:
    """Have torch see so many GPUs from now on."""
    global visible
    visible, torch.cuda._cached_device_count = count, None
    torch.cuda.default_generators = tuple(torch.Generator() for _ in range(count))


def _replace_driver(name: str) -> None:
    def check(index: int) -> int:
        if not isinstance(index, int) or not -1 <= index < visible:
            raise RuntimeError(f"CUDA error: invalid device ordinal {index!r}")
        return index

    def set_device(index: int) -> None:
        calls.append(("set_device", check(index)))
        _of_thread.device = index

    def exchange(index: int) -> int:
        before, _of_thread.device = get_device(), check(index)
        return before

    def get_device() -> int:
        return getattr(_of_thread, "device", 0)

    def init() -> None:
        properties = SimpleNamespace(
            name=name, major=9, minor=0, total_memory=80 << 30, multi_processor_count=132, is_integrated=False,
            warp_size=32, max_threads_per_multi_processor=2048, gcnArchName="", uuid="GPU-0",
        )  # fmt: skip
        torch.cuda._get_device_properties = lambda index: (check(index), properties)[1]

    def statistics(index: int) -> dict[str, Any]:
        held = sum(storage.nbytes() for storage, gpu in _held.values() if gpu == check(index))
        return {"allocated_bytes": {"all": {"current": held, "peak": held, "allocated": held, "freed": 0}}}

    functions = {
        "_cuda_init": init,
        "_cuda_getDeviceCount": lambda: visible,
        "_cuda_setDevice": set_device,
        "_cuda_getDevice": get_device,
        "_cuda_exchangeDevice": exchange,
        "_cuda_maybeExchangeDevice": exchange,
        "_cuda_synchronize": lambda: calls.append(("synchronize device", get_device())),
        "_cuda_getArchFlags": lambda: "sm_90",
        "_cuda_emptyCache": lambda: None,
        "_cuda_canDeviceAccessPeer": lambda one, other: True,
        "_cuda_memoryStats": statistics,
        "_cuda_resetPeakMemoryStats": lambda index: calls.append(("reset_peak_memory", check(index))),
        "_cuda_cudaHostAllocator": lambda: None,
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_accelerator_getDeviceIndex": get_device,
        "_accelerator_setDeviceIndex": set_device,
        "_accelerator_exchangeDevice": exchange,
        "_accelerator_maybeExchangeDevice": exchange,
        "_accelerator_getStream": lambda index: torch.cuda.current_stream(index),
        "_accelerator_synchronizeDevice": lambda index: calls.append(("synchronize device", check(index))),
    }
    for each, function in functions.items():
        assert hasattr(torch._C, each), each
        setattr(torch._C, each, function)
    torch.cuda.graphs._cuda_isCurrentStreamCapturing = lambda: False  # taken from torch._C by its name
    torch.cuda._exchange_device = exchange
    torch.cuda._maybe_exchange_device = exchange


CUDA = 1
"""torch's numbers of types of devices, in C."""


class _StreamBase(torch.Stream):
    made = 0

    def __new__(
        cls,
        priority: int = 0,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int = CUDA,
        **given: Any,
    ) -> Any:
        if stream_id is None:
            _StreamBase.made += 1
            stream_id, device_index = _StreamBase.made, torch._C._cuda_getDevice()
        return super().__new__(cls, stream_id=stream_id, device_index=device_index, device_type=device_type)

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    def synchronize(self) -> None:
        calls.append(("synchronize", (self.stream_id, self.device_index, CUDA)))

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def __enter__(self) -> Any:
        self._before = torch._C._cuda_getCurrentStream(self.device_index), torch._C._cuda_getDevice()
        torch._C._cuda_setStream(self.stream_id, self.device_index, CUDA)
        return self

    def __exit__(self, *raised: Any) -> None:
        stream, device = self._before
        torch._C._cuda_setStream(*stream)
        torch._C._cuda_exchangeDevice(device)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, torch.Stream) and (self.stream_id, self.device_index) == (
            other.stream_id,
            other.device_index,
        )

    __hash__ = None  # type: ignore[assignment]  # as a Stream has its own


class _EventBase:
    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> Any:
        event = super().__new__(cls)
        event.times, event.at = enable_timing, None
        return event

    def record(self, stream: Any = None) -> None:
        stream = torch.cuda.current_stream() if stream is None else stream
        self.at = time.perf_counter()
        kind = "time" if self.times else "record_event"
        calls.append((kind, (stream.stream_id, stream.device_index, CUDA)))

    def wait(self, stream: Any) -> None:
        calls.append(("wait", (stream.stream_id, stream.device_index, CUDA)))

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds."""
        if not (self.times and end.times) or self.at is None or end.at is None:
            raise RuntimeError("Both events must be created with argument 'enable_timing=True' and recorded.")
        return 1000 * (end.at - self.at)


def _replace_grouping() -> None:
    def by_device_and_dtype(lists: Any, with_indices: bool = False) -> dict[Any, Any]:
        """What of each list is on one device and of one type, with the places where it stood, as C++ gives it."""
        groups: dict[Any, tuple[list[list[Any]], list[int]]] = {}
        for place, row in enumerate(zip(*(each or [None] * len(lists[0]) for each in lists), strict=True)):
            first = row[0]
            gpu = _gpu_of(first)
            device = first.device if gpu is None else torch.device("cuda", gpu)
            columns, places = groups.setdefault((device, first.dtype), ([[] for _ in lists], []))
            for column, each, tensor in zip(columns, lists, row, strict=True):
                if each:
                    column.append(tensor)
            places.append(place)
        return groups

    torch._C._group_tensors_by_device_and_dtype = by_device_and_dtype


def _replace_streams() -> None:
    def current(index: int) -> tuple[int, int, int]:
        index = torch._C._cuda_getDevice() if index < 0 else index
        return getattr(_of_thread, "streams", {}).get(index, (0, index, CUDA))

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        _of_thread.streams = {
            **getattr(_of_thread, "streams", {}),
            device_index: (stream_id, device_index, device_type),
        }
        _of_thread.device = device_index

    torch._C._cuda_getCurrentStream = current
    torch._C._cuda_getDefaultStream = lambda index: (0, index, CUDA)
    torch._C._cuda_setStream = set_stream
    torch._C._CudaStreamBase, torch._C._CudaEventBase = _StreamBase, _EventBase
    # Their Python classes are defined by these as their bases.
    streams = importlib.reload(importlib.import_module("torch.cuda.streams"))
    for each in ("Stream", "Event", "ExternalStream"):
        setattr(torch.cuda, each, getattr(streams, each))
    torch.Stream = torch.cuda.Stream


class _Nccl(distributed_c10d.ProcessGroupGloo):
    """Gloo in NCCL's place."""

    Options = distributed_c10d.ProcessGroupNCCL.Options

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        super().__init__(store, rank, size, timeout=options._timeout)

    def eager_connect_single_device(self, device: torch.device) -> None:
        calls.append(("connect", device.index))

    def perform_nocolor_split(self, device: torch.device) -> None:
        pass

    def _group_start(self) -> None:
        pass

    def _group_end(self) -> None:
        pass


class _Nccl2(_Nccl):
    """torch's `nccl` since 2.15, which a process that has several GPUs cannot use."""

    def __init__(self, store: Any, rank: int, size: int, options: Any, device: torch.device) -> None:
        if visible > int(os.environ["LOCAL_WORLD_SIZE"]):
            raise RuntimeError(f"nccl2 was given {device} in a process that has several GPUs")
        super().__init__(store, rank, size, options)


def _replace_collectives() -> None:
    distributed_c10d.ProcessGroupNCCL = _Nccl
    if hasattr(distributed_c10d, "ProcessGroupNCCL2"):
        distributed_c10d.ProcessGroupNCCL2 = _Nccl2
    register = distributed_c10d.ProcessGroup._register_backend

    def register_for_the_host_too(group: Any, device: torch.device, kind: Any, backend: Any) -> None:
        register(group, device, kind, backend)
        if device.type == "cuda":  # where the memory is
            register(group, torch.device("cpu"), kind, backend)

    distributed_c10d.ProcessGroup._register_backend = register_for_the_host_too

    def scatter(tensor: Any, devices: Any, chunk_sizes: Any, dim: int, streams: Any) -> tuple[torch.Tensor, ...]:
        parts = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(chunk_sizes, dim)
        return tuple(part.to(torch.device("cuda", gpu)) for part, gpu in zip(parts, devices, strict=False))

    def broadcast_coalesced(tensors: Any, devices: Any, buffer_size: int) -> list[list[torch.Tensor]]:
        return [[tensor.detach().to(torch.device("cuda", gpu)) for tensor in tensors] for gpu in devices]

    def gather(tensors: Any, dim: int, destination: int | None) -> torch.Tensor:
        return torch.cat([tensor.to(torch.device("cuda", destination or 0)) for tensor in tensors], dim)

    def reduce(inputs: Any, output: torch.Tensor, root: int, op: int, streams: Any, comms: Any) -> None:
        output.copy_(torch.stack([_take(tensor).cpu() for tensor in inputs]).sum(0).to(output.device))

    torch._C._scatter, torch._C._gather = scatter, gather
    torch._C._broadcast_coalesced, torch._C._nccl_reduce = broadcast_coalesced, reduce
    broadcast_bucket = torch.distributed._broadcast_coalesced

    def broadcast_by_gpu(group: Any, tensors: Any, buffer_size: int, src: int = 0) -> None:
        """What is on one device packed together, like the function in C++."""
        for gpu in {_gpu_of(tensor) for tensor in tensors}:
            broadcast_bucket(group, [tensor for tensor in tensors if _gpu_of(tensor) == gpu], buffer_size, src)

    torch.distributed._broadcast_coalesced = broadcast_by_gpu
    reducer = torch._C._distributed_c10d.Reducer

    def allocating(function: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            _of_thread.allocates_on = torch._C._cuda_getDevice()  # as C++ does where the parameters are
            try:
                return function(*args, **kwargs)
            finally:
                _of_thread.allocates_on = None

        return wrapped

    reducer.__init__ = allocating(reducer.__init__)
    reducer._rebuild_buckets = allocating(reducer._rebuild_buckets)
