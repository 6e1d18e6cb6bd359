"""Keras's own `fit`, which runs in a thread next to the loop."""

import json
import os

import numpy as np
import pytest

from dpcompare import Cluster, RunConfig, RunFailedError, Workload, run
from stress.injection import write_sitecustomize

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


def trained(mode, run_dir, workload, **changes):
    cluster = Cluster.partition(1, 2, device="cpu")
    return run(RunConfig(framework="tensorflow", mode=mode, workload=workload, cluster=cluster, **changes), run_dir)


@pytest.mark.usefixtures("warm")
def test_each_step_has_its_own_learning_rate(tmp_path):
    """Where `fit` waits for data inside a step, it has read the rate of the one before; the third loss shows it."""
    workload = Workload(
        model="toy-cnn", image_size=32, global_batch_size=16, dataset="synthetic-mini", steps=10, warmup_steps=0,
        learning_rate=0.01, schedule="cosine", lr_warmup_steps=4, label_smoothing=0.2,
    )  # fmt: skip
    fit, mirrored = (trained(mode, tmp_path / mode, workload) for mode in ("keras-fit", "mirrored"))
    assert np.abs(np.array(fit.train_loss) - mirrored.train_loss).max() < 1e-4


def test_the_loop_may_use_the_devices_between_steps(tmp_path):
    """A `fit` that has entered the next step has collectives under way; in ten steps they deadlock with the loop's."""
    workload = Workload(
        model="toy-bn", image_size=16, global_batch_size=16, dataset="synthetic-mini", steps=50, warmup_steps=0,
        batchnorm_recompute=1,
    )  # fmt: skip
    result = trained("keras-fit", tmp_path / "run", workload, checkpoint_every=1, progress_timeout=300)
    assert len(result.train_loss) == 50


# Notes what Keras is given in its first step, and where that is.
WHERE = """
def inject(module):
    import json, pathlib
    tf, fit = module.tf, module.KerasFit._fit

    def noted(self):
        self.model.make_train_function()
        steps = self.model.train_function
        def function(batches):
            parts = [self.strategy.experimental_local_results(part) for part in tf.nest.flatten(next(batches))]
            noted = [[(type(each).__name__, tf.DeviceSpec.from_string(each.device).to_string()) for each in part]
                     for part in parts]
            pathlib.Path({path!r}).write_text(json.dumps(noted))
            self.model.train_function = steps
            return steps(batches)
        self.model.train_function = function
        fit(self)

    module.KerasFit._fit = noted
"""


def test_keras_gets_batches_on_its_device_and_may_not_end_a_fit(tmp_path, monkeypatch):
    """Keras reads this variable of the caller's; the loop must not wait for a thread that is gone."""
    monkeypatch.setenv("KERAS_MAX_STEPS_PER_EPOCH", "3")
    where = WHERE.format(path=str(tmp_path / "given.json"))
    write_sitecustomize(tmp_path / "spy", "dpcompare.backends.tensorflow.keras_fit", where)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'spy'}:{os.environ.get('PYTHONPATH', '')}")
    workload = Workload(
        model="toy-bn", image_size=16, global_batch_size=16, dataset="synthetic-mini", steps=8, warmup_steps=0
    )
    with pytest.raises(RunFailedError, match="Keras ended its fit by itself"):
        trained("keras-fit", tmp_path / "run", workload, progress_timeout=300)
    on_devices = [["EagerTensor", f"/job:localhost/replica:0/task:0/device:CPU:{index}"] for index in range(2)]
    assert json.loads((tmp_path / "given.json").read_text()) == [on_devices] * 3  # images, labels, weights
