"""What TensorFlow would compute where: its wheel registers its kernels for GPUs on machines without any."""

import json
import subprocess
import sys
from collections import Counter

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

# Prints, for every operation of a traced step, its type, types of its arguments, and whether a GPU has a kernel for it.
TRACE = """
import json, sys
from functools import cache
import tensorflow as tf
from tensorflow.python.framework import kernels
from dpcompare import Cluster, RunConfig, Workload
from dpcompare.backends import load_backend
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.backends.tensorflow.feed import look_up
from dpcompare.data.order import training_batches
from dpcompare.data.store import open_store
from dpcompare.training.schedule import training_reader


@cache
def kernels_of(operation):
    return list(kernels.get_registered_kernels_for_op(operation).kernel)


def kernel_of(node):
    for kernel in kernels_of(node.op):
        constraints = {constraint.name: constraint.allowed_values.list.type for constraint in kernel.constraint}
        fits = all(node.attr[name].type in allowed for name, allowed in constraints.items() if name in node.attr)
        if kernel.device_type in ("GPU", "DEFAULT") and fits:
            return list(kernel.host_memory_arg)
    return None


def operations(function):
    graph = function.graph.as_graph_def()
    for node in [*graph.node, *(node for inner in graph.library.function for node in inner.node_def)]:
        types = sorted(tf.dtypes.as_dtype(attr.type).name for attr in node.attr.values() if attr.type)
        yield {"type": node.op, "types": types, "host_memory": kernel_of(node)}


def traced(what, precision):
    if what == "text":  # int32 sums: registered for GPUs, computed on the host
        f = tf.function(lambda x: tf.strings.length(tf.strings.as_string(x + x)))
        return {"operations": list(operations(f.get_concrete_function(tf.TensorSpec((3,), tf.int32))))}
    if what == "lookup":
        pixels, flips = tf.TensorSpec((4, 9, 9, 3), tf.uint8), tf.TensorSpec((4,), tf.bool)
        functions = [
            look_up.get_concrete_function(pixels, tf.TensorSpec((n, 3, 256), precision), flips) for n in (1, 4)
        ]
        return {"operations": [operation for function in functions for operation in operations(function)]}
    workload = Workload(
        model=what, dataset="synthetic-mini", image_size=64, global_batch_size=8, precision=precision,
        steps=1, warmup_steps=0,
    )
    config = RunConfig(
        framework="tensorflow", mode="single", workload=workload, cluster=Cluster.partition(device="cpu")
    )
    backend = load_backend("tensorflow", "single")(prepare_inputs(config))
    backend.setup()
    split = open_store(backend.inputs.store).split("train")
    reader = training_reader(workload, split, (), data_parallel_rank=0, data_parallel_size=1)
    (batch,) = backend.prefetch_to_device(reader.batch_loaders(training_batches(len(split), 8, seed=0, num_steps=1)))
    constants = tf.constant(backend.optimizer.step_constants(1, 0.01), tf.float64)
    parts = batch.images, batch.labels, batch.weights, batch.drop_masks, tf.constant(8, backend._dtype)
    step = backend._train.get_concrete_function(*parts, constants)  # traced, not computed
    found = {"operations": list(operations(step)), "of evaluations": [], "evaluated": []}
    if (what, precision) == ("toy-bn", "float32"):
        seen, forward = [], backend._forward
        backend._forward = lambda images, *masks, training: seen.append(images.shape[0]) or forward(
            images, *masks, training=training
        )
        for rows in (8, 2):
            backend.rows_evaluated_at_once = lambda number: rows
            backend._make_functions()
            (sums,) = backend.read([backend.evaluate_step(batch)]).tolist()
            found["evaluated"].append([seen.pop(), *sums])
            found["of evaluations"] += operations(backend._evaluate.get_concrete_function(*parts[:3]))
    return found


print(json.dumps([traced(*each.split(":")) for each in sys.argv[1:]]))
"""


def traced(*what):
    """What each model or part, `NAME:PRECISION`, needs, found in one process: most of its time it starts TensorFlow."""
    done = subprocess.run([sys.executable, "-c", TRACE, *what], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def small():
    precisions = [f"{what}:{precision}" for what in ("toy-bn", "lookup") for precision in ON_THE_HOST]
    return dict(zip((*precisions, "text"), traced(*precisions, "text:"), strict=True))


@pytest.fixture
def toy_bn(small):
    return small["toy-bn:float32"]


ON_THE_HOST = {
    "float32": set(),
    "bfloat16": set(),
    # TensorFlow has no such kernel; what `verify` compares in float64 goes over the bus there.
    "float64": {"SparseSoftmaxCrossEntropyWithLogits"},
}


def looked_up_on_the_gpu(operations):
    """TensorFlow's int32 kernels "for GPUs" compute on the host."""
    assert "GatherV2" in {operation["type"] for operation in operations}
    data = [operation for operation in operations if operation["type"] in ("AddV2", "Cast", "GatherV2", "SelectV2")]
    return all(operation["host_memory"] in ([], ["axis"]) for operation in data)


def without_a_kernel(operations):
    return {operation["type"] for operation in operations if operation["host_memory"] is None} - {"Placeholder"}


@pytest.mark.parametrize("precision", ON_THE_HOST)
def test_every_operation_of_a_small_step_has_a_kernel_for_gpus(small, precision):
    operations = small[f"toy-bn:{precision}"]["operations"]
    assert "Conv2D" in {operation["type"] for operation in operations}
    assert without_a_kernel(operations) == ON_THE_HOST[precision]


@pytest.mark.long
def test_every_operation_of_a_step_has_a_kernel_for_gpus():
    models = [f"efficientnet-b0:{precision}" for precision in ON_THE_HOST]  # the operations of B2, in fewer layers
    for (precision, on_the_host), step in zip(ON_THE_HOST.items(), traced(*models), strict=True):
        operations = step["operations"]
        assert len(operations) > 1000
        assert "Conv2D" in {operation["type"] for operation in operations}
        assert without_a_kernel(operations) == on_the_host, precision


def test_constants_of_a_step_are_cast_once_for_all_variables(toy_bn):
    """On a GPU each would be a launch: EfficientNet-B2 had 903 slices and 301 casts."""
    kinds = Counter(operation["type"] for operation in toy_bn["operations"])
    assert kinds["ResourceApplyAdam"] == 11
    # One cast is of the constants, the other of the number of images, which is counted.
    assert (kinds["StridedSlice"], kinds["Unpack"], kinds["Cast"]) == (0, 1, 2)


def test_an_evaluation_in_parts_needs_less_and_finds_the_same(toy_bn):
    """Evaluation on GPUs takes as many rows at once as a micro-batch has, like torch's."""
    whole, parts = toy_bn["evaluated"]
    assert [whole[0], parts[0]] == [8, 2]
    assert parts[1] == pytest.approx(whole[1], rel=1e-6)
    assert parts[2:] == whole[2:]
    operations = {operation["type"]: operation["host_memory"] for operation in toy_bn["of evaluations"]}
    assert "StatelessWhile" in operations or "While" in operations
    assert None not in operations.values()


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_pixels_are_looked_up_on_the_gpu_and_stay_there(small, precision):
    assert looked_up_on_the_gpu(small[f"lookup:{precision}"]["operations"])


def test_an_operation_without_a_kernel_is_noticed(small):
    found = {operation["type"]: operation["host_memory"] for operation in small["text"]["operations"]}
    assert found["AsString"] is None
    assert found["AddV2"] == ["x", "y", "z"]
