"""The check of a trace, on spans as a GPU writes them."""

from types import SimpleNamespace

import pytest

from stress import gpu_figures
from stress.gpu_session import CheckFailedError


def kernel(start, stream=7):
    return {"cat": "kernel", "name": "gemm", "tid": stream, "ts": start, "dur": 10, "args": {}}


def copy(start, num_bytes, stream, name="Memcpy HtoD (Pinned -> Device)"):
    return {"cat": "gpu_memcpy", "name": name, "tid": stream, "ts": start, "dur": 5, "args": {"bytes": num_bytes}}


BATCH = gpu_figures.LARGE_COPY + 1
KERNELS = [kernel(start) for start in (0, 10, 30)]


def traced(monkeypatch, spans):
    session = SimpleNamespace(
        on_gpu=True, warmup_steps=2, steps=12, run=lambda *arguments: None, run_dir=lambda name: None
    )
    monkeypatch.setattr(gpu_figures, "spans", lambda run_dir: spans)
    return gpu_figures.trace(session)


def test_batches_that_are_copied_on_the_side_pass(monkeypatch):
    figures = traced(monkeypatch, [*KERNELS, copy(0, BATCH, 20), copy(9, 64, 7)])
    assert figures == {"copies of batches": 1, "computing": 0.75, "kernels per step": 3 / 5}


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        (KERNELS, "3 kernels and 0 copies of batches"),
        ([*KERNELS, copy(0, 64, 20)], "3 kernels and 0 copies of batches"),
        ([*KERNELS, copy(0, BATCH, 20, "Memcpy DtoH")], "3 kernels and 0 copies of batches"),
        ([copy(0, BATCH, 20)], "0 kernels and 1 copies of batches"),
        ([*KERNELS, copy(0, BATCH, 7)], "on the stream that computes"),
    ],
)
def test_a_trace_that_shows_no_copies_on_the_side_fails(monkeypatch, spans, message):
    with pytest.raises(CheckFailedError, match=message):
        traced(monkeypatch, spans)
