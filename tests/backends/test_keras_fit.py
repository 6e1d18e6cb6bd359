"""Keras's own `fit`, which runs in a thread next to the loop."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from dpcompare import Cluster, RunConfig, RunFailedError, Workload, run
from dpcompare.experiments.check_row import Differs
from dpcompare.experiments.fairness import compare
from dpcompare.experiments.fairness_checks import names_that_differ
from stress.injection import write_sitecustomize
from tests.support.marks import KERAS

pytestmark = pytest.mark.slow

OF_DEVICES = names_that_differ(Differs.DEVICES | Differs.SPLIT_BATCH)
"""What differs between two devices and one."""


def trained(mode, run_dir, workload, framework="tensorflow", devices=2, **changes):
    cluster = Cluster.partition(1, devices, device="cpu")
    return run(RunConfig(framework=framework, mode=mode, workload=workload, cluster=cluster, **changes), run_dir)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("framework", "devices", "model", "recomputed"),
    [
        pytest.param("torch", 1, "toy-bn", 1, marks=KERAS),
        pytest.param("torch", 1, "vit-narrow", 0, marks=KERAS),
        pytest.param("jax", 2, "toy-bn", 0, marks=[pytest.mark.jax, KERAS]),
        pytest.param("jax", 1, "vit-narrow", 0, marks=[pytest.mark.jax, KERAS, pytest.mark.long]),
        pytest.param("tensorflow", 2, "toy-bn", 0, marks=pytest.mark.tensorflow),
    ],
)
@pytest.mark.usefixtures("warm")
def test_in_float64_fit_computes_what_the_loop_does(tmp_path, framework, devices, model, recomputed):
    """Also after an evaluation, whose loss shows the running statistics that `fit` has written, and a checkpoint.

    Where the evaluation recomputes statistics, Keras's variables are written too.
    """
    workload = Workload(
        model=model, image_size=32, global_batch_size=16, dataset="synthetic-mini", steps=7, warmup_steps=0,
        precision="float64", schedule="cosine", lr_warmup_steps=3, label_smoothing=0.2,
        **{"batchnorm": "sync"} if model == "toy-bn" else {}, batchnorm_recompute=recomputed,
    )  # fmt: skip
    changes = {"checkpoint_every": 4, "evaluate_every": 7, "steps_per_window": 3}  # losses are read three steps later
    fit = trained("keras-fit", tmp_path / "fit", workload, framework, devices, **changes)
    loop = trained("single", tmp_path / "loop", workload, "torch", 1, **changes)
    assert np.abs(np.array(fit.train_loss) - loop.train_loss).max() < 1e-12
    assert [each.loss for each in fit.evaluations] == pytest.approx([each.loss for each in loop.evaluations], abs=1e-12)
    assert compare([fit, loop], subject=sorted(OF_DEVICES)).reasons == []
    assert fit.computed.first_update_norms.keys() == loop.computed.first_update_norms.keys()
    assert fit.computed.first_gradient_norm == pytest.approx(loop.computed.first_gradient_norm, rel=1e-12)
    assert (fit.computed.optimizer_steps, fit.computed.images) == (7, loop.computed.images)
    assert fit.computed.replica_difference is None
    assert fit.compiled_steps == ([1] if framework == "jax" else [])
    assert fit.settings["loop"] == "Keras fit"
    found = {name: fit.settings.get(name) for name in ("convolutions", "optimizer_kernels", "memory_layout")}
    assert found == {
        "convolutions": "kernel" if framework == "jax" else None, "optimizer_kernels": "Keras", "memory_layout": "NHWC"
    }  # fmt: skip


@KERAS
def test_this_keras_has_no_data_parallelism_in_torch():
    """As soon as one has: train with it in several processes, and take `multi_device=False` from the mode's row."""
    (package,) = find_spec("keras").submodule_search_locations
    assert not (Path(package) / "src" / "backend" / "torch" / "distribution_lib.py").exists()


WITHOUT_INPUT = """
import keras

def net(num_classes):
    return keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(num_classes)])
"""


@pytest.mark.jax
@KERAS
@pytest.mark.usefixtures("warm")
def test_a_model_without_an_input_is_built_where_it_trains(tmp_path, monkeypatch):
    """Variables that are made outside the distribution would have no place in it."""
    (tmp_path / "nets.py").write_text(WITHOUT_INPUT)
    monkeypatch.chdir(tmp_path)
    workload = Workload(
        model="nets:net", image_size=8, dataset="synthetic-mini", global_batch_size=16, steps=4, warmup_steps=0,
        batchnorm="sync",
    )  # fmt: skip
    fit, loop = (trained(mode, tmp_path / mode, workload, "jax", late_step=True) for mode in ("keras-fit", "jit"))
    assert (fit.late_step.left_out, fit.late_step.problem) == (None, None)
    assert fit.train_loss == pytest.approx(loop.train_loss, rel=1e-6)


@pytest.mark.tensorflow
@pytest.mark.usefixtures("warm")
def test_each_step_has_its_own_learning_rate(tmp_path):
    """Where `fit` waits for data inside a step, it has read the rate of the one before; the third loss shows it."""
    workload = Workload(
        model="toy-cnn", image_size=32, global_batch_size=16, dataset="synthetic-mini", steps=10, warmup_steps=0,
        learning_rate=0.01, schedule="cosine", lr_warmup_steps=4, label_smoothing=0.2,
    )  # fmt: skip
    fit, mirrored = (trained(mode, tmp_path / mode, workload, late_step=True) for mode in ("keras-fit", "mirrored"))
    assert (fit.late_step.left_out, fit.late_step.problem) == (None, None)
    assert np.abs(np.array(fit.train_loss) - mirrored.train_loss).max() < 1e-4


@pytest.mark.tensorflow
def test_the_loop_may_use_the_devices_between_steps(tmp_path):
    """A `fit` that has entered the next step has collectives under way; in ten steps they deadlock with the loop's."""
    workload = Workload(
        model="toy-bn", image_size=16, global_batch_size=16, dataset="synthetic-mini", steps=20, warmup_steps=0,
        batchnorm_recompute=1,
    )  # fmt: skip
    result = trained("keras-fit", tmp_path / "run", workload, checkpoint_every=1, progress_timeout=300)
    assert len(result.train_loss) == 20


# Notes what Keras is given in its first step, and where that is.
WHERE = """
def inject(module):
    import json, pathlib
    import tensorflow as tf
    fit = module.Fit._fit

    def noted(self):
        self._model.make_train_function()
        steps, strategy = self._model.train_function, self._model.distribute_strategy
        def function(batches):
            parts = [strategy.experimental_local_results(part) for part in tf.nest.flatten(next(batches))]
            noted = [[(type(each).__name__, tf.DeviceSpec.from_string(each.device).to_string()) for each in part]
                     for part in parts]
            pathlib.Path({path!r}).write_text(json.dumps(noted))
            self._model.train_function = steps
            return steps(batches)
        self._model.train_function = function
        fit(self)

    module.Fit._fit = noted
"""


@pytest.mark.tensorflow
def test_keras_gets_batches_on_devices_whatever_limits_its_steps(tmp_path, monkeypatch):
    """Keras reads this variable of the caller's, and would end its `fit` after three of the loop's steps."""
    monkeypatch.setenv("KERAS_MAX_STEPS_PER_EPOCH", "3")
    where = WHERE.format(path=str(tmp_path / "given.json"))
    write_sitecustomize(tmp_path / "spy", "dpcompare.backends.keras.fit", where)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'spy'}:{os.environ.get('PYTHONPATH', '')}")
    workload = Workload(
        model="toy-bn", image_size=16, global_batch_size=16, dataset="synthetic-mini", steps=8, warmup_steps=0
    )
    result = trained("keras-fit", tmp_path / "run", workload, progress_timeout=300)
    assert len(result.train_loss) == 8
    on_devices = [["EagerTensor", f"/job:localhost/replica:0/task:0/device:CPU:{index}"] for index in range(2)]
    assert json.loads((tmp_path / "given.json").read_text()) == [on_devices] * 3  # images, labels, weights


ENDS = """
def inject(module):
    def ended(self):
        self._model.fit = lambda *arguments, **options: None
        fit(self)
    fit, module.Fit._fit = module.Fit._fit, ended
"""


@pytest.mark.torch
@KERAS
def test_a_step_does_not_wait_for_a_fit_that_has_ended(tmp_path, monkeypatch):
    write_sitecustomize(tmp_path / "fault", "dpcompare.backends.keras.fit", ENDS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'fault'}:{os.environ.get('PYTHONPATH', '')}")
    workload = Workload(model="mlp", image_size=8, dataset="synthetic-mini", global_batch_size=16, steps=4)
    with pytest.raises(RunFailedError, match="Keras ended its fit, and the loop has more steps to make"):
        trained("keras-fit", tmp_path / "run", workload, "torch", 1, progress_timeout=300)
