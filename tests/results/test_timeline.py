"""The timeline of a traced run: which events are which part of a step, and what overlaps."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpcompare.report import timelines as shown
from dpcompare.results import timeline
from dpcompare.results.run_dir import TRACES_DIR
from dpcompare.results.timeline import TimelineError, operators_of, timeline_of, traced_processes
from tests.support.arms import FAST, SLOW, compared, runs


def event(name, start, duration, **fields):
    return {"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": 5_000_000 + start, "dur": duration} | fields


TRACES = {
    # A kernel of the optimizer lies within its step, and operators of the backward pass within what autograd calls.
    "torch": [
        event("aten::conv2d", 0, 2_000),
        event("autograd::engine::evaluate_function: ConvolutionBackward0", 2_000, 4_000),
        event("aten::convolution_backward", 2_100, 3_000),
        event("gloo:all_reduce", 4_000, 5_000, tid=2),
        event("Optimizer.step#Adam.step", 9_000, 1_000),
        event("aten::add_", 9_100, 200),
    ],
    "tensorflow": [
        event("functional_1/conv/convolution:_MklNativeConv2D", 0, 2_000),
        event("gradient_tape/functional_1/conv/Conv2DBackpropFilter:Conv2DBackpropFilter", 2_000, 4_000, tid=3),
        event("CollectiveReduceV2_1:CollectiveReduceV2", 4_000, 5_000, tid=2),
        event("ResourceApplyAdam_10:ResourceApplyAdam", 9_000, 1_000),
        event("ExecutorState::Process", 0, 60_000),
        event("EagerLocalExecute: __inference__train_global_batch_920", 0, 60_000),
    ],
    "jax": [
        event("fusion", 0, 2_000, args={"hlo_op": "fusion", "op_name": "jit(step)/jvp(net)/conv"}),
        event("dot.1", 2_000, 4_000, args={"hlo_op": "dot.1", "op_name": "jit(step)/transpose(jvp(net))/dot"}),
        event("all-reduce.2", 4_000, 5_000, tid=2, args={"hlo_op": "all-reduce.2", "op_name": "jit(step)/psum"}),
        event("fusion.3", 9_000, 1_000, args={"hlo_op": "fusion.3", "op_name": "jit(step)/mul"}),
        event("PjitFunction(step)", 0, 60_000),
    ],
    # Kernels run after the calls that launch them have returned.
    "torch on a GPU": [
        event("aten::conv2d", 0, 100),
        event("cudaLaunchKernel", 10, 5, cat="cuda_runtime", args={"correlation": 1}),
        event("autograd::engine::evaluate_function: ConvolutionBackward0", 200, 100, tid=2),
        event("cudaLaunchKernel", 210, 5, cat="cuda_runtime", tid=2, args={"correlation": 2}),
        event("Optimizer.step#Adam.step", 400, 100),
        event("cudaLaunchKernel", 410, 5, cat="cuda_runtime", args={"correlation": 3}),
        event("sm90_xmma_fprop", 0, 2_000, cat="kernel", pid=0, tid=7, args={"correlation": 1}),
        event("sm90_xmma_wgrad", 2_000, 4_000, cat="kernel", pid=0, tid=7, args={"correlation": 2}),
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 4_000, 5_000, cat="kernel", pid=0, tid=20, args={}),
        event("multi_tensor_apply_kernel", 9_000, 1_000, cat="kernel", pid=0, tid=7, args={"correlation": 3}),
    ],
}


def written(folder, events, rank=0):
    (folder / TRACES_DIR).mkdir(parents=True, exist_ok=True)
    text = events if isinstance(events, str) else json.dumps({"traceEvents": events})
    (folder / TRACES_DIR / f"process-{rank}.json").write_text(text, errors="surrogateescape")
    return folder


@pytest.mark.parametrize("kind", TRACES)
def test_the_parts_of_a_step_are_found(tmp_path, kind):
    found = timeline_of(written(tmp_path, TRACES[kind]), 0, kind.partition(" ")[0])
    expected = {"exchange": 5.0, "backward": 4.0, "update": 1.0, "forward": 2.0, "other": 0.0}
    assert {phase: found.total(phase) for phase in found.parts} == expected
    assert (found.milliseconds, found.overlapped, found.idle) == (10.0, 2.0, 0.0)
    assert found.parts["backward"] == [(2.0, 6.0)]


def test_gaps_are_neither_computing_nor_exchange(tmp_path):
    gap = [event("aten::conv2d", 0, 1_000), event("Optimizer.step#SGD.step", 3_000, 1_000)]
    for rank in (10, 2):
        written(tmp_path, gap, rank)
    (tmp_path / TRACES_DIR / "process-2-old.json").touch()
    assert traced_processes(tmp_path) == [2, 10]
    assert timeline_of(tmp_path, 2, "torch").idle == 2.0
    assert traced_processes(tmp_path / "without traces") == []


def test_a_thread_that_waits_for_an_exchange_does_not_compute(tmp_path):
    # FSDP reduces gradients within the backward pass, on the thread that goes through it.
    waits = event("FSDP::post_backward_reduce (module.conv)", 4_500, 1_000)
    found = timeline_of(written(tmp_path, [*TRACES["torch"], waits]), 0, "torch")
    assert (found.total("backward"), found.overlapped) == (3.0, 1.0)


def test_instructions_of_no_known_origin_are_computed_too(tmp_path):
    copied = event("copy.7", 9_500, 2_000, args={"hlo_op": "copy.7"})
    found = timeline_of(written(tmp_path, [*TRACES["jax"], copied]), 0, "jax")
    assert (found.total("other"), found.idle) == (1.5, 0.0)
    old = [each | {"args": {"hlo_op": each["name"]}} for each in TRACES["jax"]]
    with pytest.raises(TimelineError, match="does not say which operations its instructions came from"):
        timeline_of(written(tmp_path, old), 0, "jax")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "process-0.json is no trace in Chrome's format"),
        ('{"traceEvents": [3]}', "is no trace in Chrome's format"),
        ('{"traceEvents": []}', "process-0.json has no event of a known kind"),
        ('{"traceEvents": [{"ph": "X", "dur": 3}]}', "is no trace in Chrome's format"),
        ('{"traceEvents": [{"ph": "X", "name": "aten::add", "ts": "abc", "dur": 3}]}', "no trace in Chrome's format"),
        ('{"traceEvents": [{"ph": "X", "name": "aten::add", "ts": 1e999, "dur": 3}]}', "no trace in Chrome's format"),
        ('{"traceEvents": [{"ph": "X", "name": "aten::add", "ts": 1, "dur": 3, "args": [1]}]}', "no trace in Chrome's"),
        ('{"traceEvents": [{"ph": "M", "name": "process_name", "args": null}]}', "is no trace in Chrome's format"),
        ("[" * 200_000, "is no trace in Chrome's format"),
        ("\udcff", "is no trace in Chrome's format"),
    ],
)
def test_what_is_no_trace_is_named(tmp_path, text, expected):
    with pytest.raises(TimelineError, match=expected):
        timeline_of(written(tmp_path, text), 0, "torch")


def test_kernels_without_an_operation_are_not_guessed(tmp_path):
    plane = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/device:GPU:0"}}
    folder = written(tmp_path, [plane, *TRACES["tensorflow"]])
    with pytest.raises(TimelineError, match="is a trace of GPUs, which does not tie kernels"):
        timeline_of(folder, 0, "tensorflow")
    assert timeline_of(written(tmp_path, [plane, *TRACES["jax"]]), 0, "jax")


def test_a_trace_that_is_too_long_is_left_to_a_viewer(tmp_path, monkeypatch):
    monkeypatch.setattr(timeline, "LARGEST_TRACE", 10)
    with pytest.raises(TimelineError, match="more than the 0 that are read"):
        timeline_of(written(tmp_path, TRACES["torch"]), 0, "torch")


INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)).map(lambda one: (one[0], one[0] + one[1])))


@given(INTERVALS, INTERVALS)
@pytest.mark.slow
def test_intervals_cover_what_they_are_made_of(ones, others):
    def cells(intervals):
        return {cell for start, end in intervals for cell in range(start, end)}

    ones, others = timeline._union(ones), timeline._union(others)
    left = timeline._without(ones, others)
    assert cells(left) == cells(ones) - cells(others)
    assert timeline._length(left) == len(cells(left))  # without overlaps


def test_a_process_of_several_devices_has_no_overlap(tmp_path):
    row, other = arms_of(written(tmp_path / "a", TRACES["torch"]), written(tmp_path / "b", TRACES["tensorflow"]))
    (cells,) = shown.table_of(shown.traced([other.model_copy(update={"mode": "mirrored", "devices_per_node": 2})]))
    assert cells[6] == "-"
    (failed,) = [row.rounds_shown[0].model_copy(update={"failure": "it failed"})]
    assert shown.traced([row.model_copy(update={"rounds_shown": [failed]})]) == []


def arms_of(*folders):
    """The rows of two arms whose first runs are in these folders."""
    rows = compared(runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW)).arms
    for row, folder in zip(rows, folders, strict=True):
        row.rounds_shown[0] = row.rounds_shown[0].model_copy(update={"run_dir": str(folder)})
        for other in range(1, len(row.rounds_shown)):
            row.rounds_shown[other] = row.rounds_shown[other].model_copy(update={"run_dir": str(folder / "absent")})
    return rows


def test_a_page_says_which_processes_are_left_out(tmp_path):
    for rank in range(6):
        written(tmp_path / "a", TRACES["torch"], rank)
    found = shown.traced(arms_of(tmp_path / "a", written(tmp_path / "b", "{")))
    table = shown.table_of(found)
    assert len(table) == shown.MOST_PROCESSES
    assert table[0] == ("torch ddp 2x1, process 0", "2.0", "4.0", "1.0", "0.0", "5.0", "2.0", "0.0", "10.0")
    problem, left_out = shown.notes_on(found)
    assert problem.startswith("tensorflow multiworker 2x1: no timeline, process-0.json is no trace in Chrome's format")
    assert left_out == "torch ddp 2x1: 4 of 6 traced processes are shown."


def call(name, start, duration, thread=1, **fields):
    return {"ph": "X", "name": name, "ts": start, "dur": duration, "pid": 1, "tid": thread, **fields}


def test_an_operator_is_given_what_it_takes_by_itself(tmp_path):
    events = [
        call("aten::linear", 0, 10_000),
        call("aten::addmm", 2_000, 6_000),
        call("aten::copy_", 3_000, 1_000),
        call("Optimizer.step#Adam.step", 10_000, 9_000),
        call("aten::addmm", 20_000, 1_000),
        call("aten::addmm", 0, 4_000, thread=2),
    ]
    found = operators_of(written(tmp_path / "cpu", events), 0, "torch")
    assert found == pytest.approx({"aten::linear": 4, "aten::addmm": 5 + 1 + 4, "aten::copy_": 1})
    kernel = call("void gemm<float>", 5, 3_000, cat="kernel", args={"correlation": 1})
    on_gpu = operators_of(written(tmp_path / "gpu", [*events, kernel]), 0, "torch")
    assert on_gpu == pytest.approx({"void gemm<float>": 3})


def test_operators_have_the_names_of_their_framework(tmp_path):
    of_tensorflow = [call("model/conv/Conv2D:Conv2D", 0, 2_000), call("EagerExecute", 0, 9_000)]
    assert operators_of(written(tmp_path / "tf", of_tensorflow), 0, "tensorflow") == pytest.approx({"Conv2D": 2})
    of_jax = [
        call("a", number, 500, args={"hlo_op": f"fusion.{number}", "op_name": "jit(step)/add"}) for number in (1, 2_000)
    ]
    assert operators_of(written(tmp_path / "jax", of_jax), 0, "jax") == pytest.approx({"fusion": 1})
