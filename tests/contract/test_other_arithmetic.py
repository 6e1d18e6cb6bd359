"""Arithmetic that only one of two frameworks was switched to: the fairness sheet names it, whoever switched it."""

import pytest

from dpcompare import Cluster, RunConfig, Workload, run
from dpcompare.experiments.fairness import compare
from stress.injection import write_sitecustomize
from tests.support.marks import KERAS

ONE = Cluster.partition(1, 1, device="cpu")
SWITCHED = {
    "torch": "import torch; torch.backends.cuda.matmul.allow_tf32 = True",
    "tensorflow": (
        "import tensorflow as tf; tf.config.optimizer.set_jit(True); "
        "tf.config.experimental.enable_tensor_float_32_execution(True)"
    ),
    "jax": (
        "import jax; jax.config.update('jax_enable_x64', True); "
        "jax.config.update('jax_default_matmul_precision', 'default')"
    ),
}
SAID = {
    "torch": [],
    "tensorflow": ["XLA auto-clustering of TensorFlow on"],
    "jax": ["64-bit types of JAX on"],
}
BEFORE_TRAINING = """
def inject(module):
    train = module.train
    def switched(*arguments, **options):
        {code}
        return train(*arguments, **options)
    module.train = switched
"""


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    ("framework", "mode", "code", "said"),
    [
        pytest.param(
            *("tensorflow", "single"),
            "import tensorflow as tf; arguments[0]._train = "
            "tf.function(arguments[0]._train_global_batch, autograph=False, jit_compile=True)",
            "XLA (jit_compile) of TensorFlow's step on",
            marks=pytest.mark.tensorflow,
        ),
        pytest.param(
            *("tensorflow", "keras-fit", "arguments[0].model.jit_compile = True"),
            "jit_compile of Keras's step on",
            marks=pytest.mark.tensorflow,
        ),
        pytest.param(
            *("torch", "keras-fit", "arguments[0]._keras.run_eagerly = True"),
            "eager steps of Keras on",
            marks=[pytest.mark.torch, KERAS],
        ),
        pytest.param(
            *("jax", "keras-fit", "arguments[0]._keras.jit_compile = False"),
            "jit_compile of Keras's step off",
            marks=[pytest.mark.jax, KERAS],
        ),
    ],
)
def test_a_step_that_is_compiled_on_one_side_is_named(framework, mode, code, said, tmp_path, monkeypatch):
    workload = Workload(
        model="mlp", image_size=8, dataset="synthetic-mini", global_batch_size=16, steps=4, warmup_steps=0
    )
    config = RunConfig(framework=framework, mode=mode, workload=workload, cluster=ONE)
    usual = run(config, tmp_path / "usual")
    write_sitecustomize(tmp_path / "fault", "dpcompare.training.loop", BEFORE_TRAINING.format(code=code))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fault"))
    other = run(config, tmp_path / "other")
    assert [process.switches for process in other.observed] == [[said]]
    assert "switches" in {row.setting for row in compare([usual, other]).rows if row.reason}


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("framework", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in SWITCHED])
def test_what_one_side_was_switched_to_is_named(framework, tmp_path, monkeypatch):
    workload = Workload(
        model="mlp", image_size=8, dataset="synthetic-mini", global_batch_size=16, steps=4, warmup_steps=0
    )
    config = RunConfig(framework=framework, mode="single", workload=workload, cluster=ONE)
    usual = run(config, tmp_path / "usual")
    write_sitecustomize(tmp_path / "fault", "dpcompare.training.loop", BEFORE_TRAINING.format(code=SWITCHED[framework]))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fault"))
    other = run(config, tmp_path / "other")
    assert [process.switches for process in other.observed] == [SAID[framework]]
    assert (usual.settings["tf32"], other.settings["tf32"]) == (False, True)
    named = {row.setting for row in compare([usual, other]).rows if row.reason}
    assert named >= {"TF32"} | ({"switches"} if SAID[framework] else set())
