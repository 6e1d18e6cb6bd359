"""TensorFlow's optimizers: as many operations as there are variables, and the numbers that they always gave."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.tensorflow

# Prints how often each operation is in the graph of a step, and whether its numbers are those of kernels each of which
# gets its own slices of the constants.
STEP = """
import json, sys
from collections import Counter
import numpy as np
import tensorflow as tf
from dpcompare.config.optimizers import ADAM_BETAS, ADAM_EPSILON, SGD_MOMENTUM
from dpcompare.backends.tensorflow.optimizer import KERNELS

name, precision, num_variables = sys.argv[1], tf.dtypes.as_dtype(sys.argv[2]), int(sys.argv[3])
generator = np.random.default_rng(0)


def some(kind=tf.constant):
    return [kind(generator.normal(size=(3, 5)).astype(precision.as_numpy_dtype)) for _ in range(num_variables)]


def alone(variable, slots, gradient, constants):
    constants = tf.cast(constants, precision)
    if name == "sgd":
        tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle, accum=slots[0].handle, lr=constants[0], grad=gradient,
            momentum=tf.constant(SGD_MOMENTUM, precision),
        )
    else:
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle, m=slots[0].handle, v=slots[1].handle, lr=constants[0], beta1_power=constants[1],
            beta2_power=constants[2], beta1=tf.constant(ADAM_BETAS[0], precision),
            beta2=tf.constant(ADAM_BETAS[1], precision), epsilon=tf.constant(ADAM_EPSILON, precision), grad=gradient,
        )


values, gradients = some(), some()
ours, others = [tf.Variable(value) for value in values], [tf.Variable(value) for value in values]
optimizer, slots_of_others = KERNELS[name](ours), KERNELS[name](others).slots


@tf.function(autograph=False)
def step(constants):
    optimizer.apply(gradients, constants)


for number in (1, 2, 3):
    constants = tf.constant(optimizer.step_constants(number, 0.01), tf.float64)
    step(constants)
    for variable, slots, gradient in zip(others, zip(*slots_of_others.values()), gradients):
        alone(variable, slots, gradient, constants)
graph = step.get_concrete_function(constants).graph
equal = all(np.array_equal(one.numpy(), other.numpy()) for one, other in zip(ours, others))
moved = not any(np.array_equal(one.numpy(), value.numpy()) for one, value in zip(ours, values))
print(json.dumps([Counter(operation.type for operation in graph.get_operations()), equal, moved]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision", "kernel"),
    [("sgd", "float32", "ResourceApplyMomentum"), ("adam", "float64", "ResourceApplyAdam")],
)
def test_constants_of_a_step_are_made_once_with_the_same_bits(name, precision, kernel):
    done = subprocess.run([sys.executable, "-c", STEP, name, precision, "50"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    operations, equal, moved = json.loads(done.stdout.splitlines()[-1])
    assert moved
    assert equal
    assert operations.pop(kernel) == 50
    made_once = {kind: count for kind, count in operations.items() if kind not in ("Const", "Placeholder", "NoOp")}
    assert made_once.get("Unpack") == 1
    assert made_once.get("AssignAddVariableOp") == 1  # the count of updates
    assert sum(made_once.values()) <= 3  # and a cast, in float32
    assert operations["Const"] <= 50 + 4  # the gradients, which are constants here, and what never changes
