"""Loops of one's own: own models, losses, optimizers and datasets in all frameworks, in one or several processes."""

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import dpcompare as dp
from dpcompare.api import launchers
from dpcompare.api.saved import save
from dpcompare.config.modes import MODES
from tests.support.runs import held

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "own_loop.py"
WORKLOAD = dp.Workload(model="mlp", image_size=32, dataset="synthetic-mini", global_batch_size=16, steps=4)


def python(code, folder):
    (folder / "script.py").write_text(code)
    return subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, text=True)


def trained(folder, framework, mode, **where):
    """The example, in a process of its own or in several."""
    name = folder / f"{framework}-{mode}"
    if where:
        done = dp.run_script(EXAMPLE, f"{framework}:{mode}", framework, mode, name, folder=folder / "logs", **where)
        return name, [done.output(node) for node in range(done.num_nodes)]
    done = subprocess.run([sys.executable, EXAMPLE, framework, mode, name], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return name, [done.stdout]


@pytest.fixture(scope="module")
def alone(session_folder):
    """What the example saved in torch on one device, and what it printed; trained once per session."""
    folder = session_folder / "own-loop"
    with held(folder.with_suffix(".lock"), fcntl.LOCK_EX):
        if not (folder / "said").exists():
            folder.mkdir(exist_ok=True)
            _, (said,) = trained(folder, "torch", "single")
            (folder / "said").write_text(said)
    return folder / "torch-single", (folder / "said").read_text()


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.jax
def test_own_parts_compute_the_same_in_all_frameworks(alone, tmp_path):
    reference, said = alone
    losses = [float(loss) for loss in re.findall(r"step \d: (\S+)", said)]
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    others = [("tensorflow", "single"), ("jax", "spmd")]
    proof = dp.verify_saved(reference, *[trained(tmp_path, *mode)[0] for mode in others])
    assert proof.passed, str(proof)
    assert max(check.measured for check in proof.checks) < 1e-11


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.jax
@pytest.mark.parametrize(  # with ddp, test_torchrun_starts_it_too and an example of docs/python.md train, too
    "mode", [pytest.param("torch:ddp", marks=pytest.mark.long), "tensorflow:multiworker", "jax:multiprocess"]
)
def test_a_script_runs_once_per_process_of_a_mode(alone, tmp_path, mode):
    framework, _, name = mode.partition(":")
    several, said = trained(tmp_path, framework, name, nodes=2, devices_per_node=1, device="cpu")
    assert [f"process {rank}, step 6" in output for rank, output in enumerate(said)] == [True, True]
    proof = dp.verify_saved(alone[0], several)
    assert proof.passed, str(proof)


@pytest.mark.torch
@pytest.mark.slow
def test_torchrun_starts_it_too(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", EXAMPLE, "torch", "ddp", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "out").glob("process-*.safetensors"))) == 2


@pytest.mark.torch
@pytest.mark.slow
def test_the_life_of_a_training(tmp_path):
    """One process of torch shows all of it: use before and after, schedule, states, another framework, wrong losses."""
    done = python(
        """
import dpcompare as dp, numpy as np, torch

def refused(call):
    try:
        call()
    except dp.RequestError as error:
        return str(error)
    raise AssertionError("it was not refused")

here = dp.Cluster.partition(device="cpu")
workload = dp.Workload(
    model="mlp", image_size=32, dataset="synthetic-mini", global_batch_size=16, steps=4, warmup_steps=1
)
training = dp.backend("torch", "single", workload, cluster=here)
assert "before its `with` statement" in refused(training.state)
with training:
    before = training.state()
    losses = [training.step(batch) for batch in training.batches(steps=2)]
    losses += [training.step(batch) for batch in training.batches()]
    assert len(losses) == training.num_steps == 4 and training.num_replicas == 1
    assert f"{losses[0]:.3f}" == f"{float(losses[0]):.3f}"
    assert training.evaluate().count == training.backend.inputs.num_validation
    after = training.state()
    training.load_state(before)
    again = [training.step(batch) for batch in training.batches()]
    assert [float(loss) for loss in again] == [float(loss) for loss in losses]
    assert "expected a whole number" in refused(lambda: next(training.batches(steps=0)))
    assert "batch: received 3, expected a value of the type Batch" in refused(lambda: training.step(3))
    left = training.batches(steps=2)
    batch = next(left)
    for rate in ("x", True, float("nan")):
        told = refused(lambda: training.step(batch, lr=rate))
        assert f"lr: received {rate!r}, expected a learning rate: a finite number, or None" in told
assert "after the end of its `with` statement" in refused(training.state)
assert "after the end of its `with` statement" in refused(lambda: next(left))
assert "entered before" in refused(training.__enter__)

run = dp.run(dp.RunConfig(framework="torch", mode="single", workload=workload, cluster=here), "run")
assert np.allclose(run.train_loss, [float(loss) for loss in losses], rtol=1e-5, atol=0)  # a run trains the same

images = [batch.images for batch in dp.batches(workload)]
assert len(images) == 4 and images[0].shape == (16, 32, 32, 3)

mean = lambda logits, labels: torch.nn.functional.cross_entropy(logits, labels)
with dp.backend("torch", "single", workload, cluster=here, loss=mean, optimizer=torch.optim.RMSprop) as training:
    (batch,) = training.batches(steps=1)
    told = refused(lambda: training.step(batch))
    assert "a loss of the shape () for 16 rows, expected that of each row, (16,)" in told

rows = lambda logits, labels: torch.nn.functional.cross_entropy(logits, labels, reduction="none")
net = lambda size, classes: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * size * size, classes))
with dp.backend("torch", "single", workload, cluster=here, model=net, loss=rows, optimizer=torch.optim.RMSprop,
                own_weights=True) as training:
    first, *_, last = [float(training.step(batch, lr=1e-3)) for batch in training.batches()]
    assert first > 0 and list(training.state().optimizer) == []
    assert "memory has no names" in refused(lambda: training.load_state(training.state()))

wrong = dp.CustomOptimizer(update=lambda parameter, gradient, slots, rate, step: parameter - rate * gradient)
with dp.backend("torch", "single", workload, cluster=here, optimizer=wrong) as training:
    (batch,) = training.batches(steps=1)
    assert "its update gave a Tensor; expected the parameter and a list of 0 slots" in refused(
        lambda: training.step(batch))

def previous(parameter, gradient, slots, rate, step):  # heavy ball by positions: a slot that is the parameter itself
    return parameter - rate * gradient + 0.9 * (parameter - slots[0]) * (step > 1), [parameter]

def velocity(parameter, gradient, slots, rate, step):
    change = 0.9 * slots[0] - rate * gradient
    return parameter + change, [change]

def losses_of(**formula):
    with dp.backend("torch", "single", workload.changed(precision="float64"), cluster=here,
                    optimizer=dp.CustomOptimizer(**formula)) as training:
        return [float(training.step(batch, lr=0.1)) for batch in training.batches()]

by_positions, by_changes = losses_of(slots=["position"], update=previous), losses_of(slots=["change"], update=velocity)
assert np.allclose(by_positions, by_changes, rtol=1e-12)

with dp.backend("torch", "single", workload.changed(weight_average=0.9), cluster=here) as training:
    [training.step(batch) for batch in training.batches()]
    part = training.evaluate()
    assert part + part == dp.Evaluation(loss_sum=2 * part.loss_sum, correct=2 * part.correct, count=2 * part.count)
    assert "lr: received None at step 5 of a workload that has 4" in refused(
        lambda: training.step(next(training.batches(steps=1))))
    training.save("saved")
    assert "another training already" in refused(lambda: training.save("saved"))
    training.save("saved", overwrite=True)
averaged = dp.backend("torch", "single", workload.changed(weight_average=0.9), cluster=here, optimizer=torch.optim.SGD)
assert "memory has no names" in refused(averaged.__enter__)
module = torch.nn.Linear(1, 1)
assert "received a Linear, expected a name" in refused(lambda: dp.backend("torch", model=module))

assert "trains with torch already; expected one framework per process" in refused(
    lambda: dp.backend("jax", "single", workload, cluster=here))
print("all of it")
""",
        tmp_path,
    )
    assert done.stdout.endswith("all of it\n"), done.stderr


def saved(folder, losses, *, offset=0.0, part=(0, 1), precision="float64"):
    backend = SimpleNamespace(
        workload=WORKLOAD.changed(precision=precision),
        config=SimpleNamespace(framework="torch", mode="single"),
        data_parallel_rank=part[0],
        data_parallel_size=part[1],
        process_rank=part[0],
        num_processes=part[1],
    )
    initial = {"head.weight": np.arange(6.0).reshape(2, 3)}
    trained = {"head.weight": initial["head.weight"] + 1 + offset}
    save(folder, backend, losses=np.array(losses), initial=initial, trained=trained)
    return folder


def test_saved_trainings_differ_by_their_losses_and_updates(tmp_path):
    one, two = saved(tmp_path / "a", [1.0, 0.5]), saved(tmp_path / "b", [1.0, 0.5])
    assert dp.verify_saved(one, two).passed
    (failed,) = [c for c in dp.verify_saved(one, saved(tmp_path / "c", [1, 0.6])).checks if not c.passed]
    assert (failed.name, failed.detail) == ("losses", "step 2")
    proof = dp.verify_saved(one, two, saved(tmp_path / "d", [1.0, 0.5], offset=1e-3))
    assert [c.name for c in proof.checks if not c.passed] == ["updates"]
    assert "FAIL updates: 1.0e-03 (at most 1e-06), head.weight" in str(proof)


def test_float32_is_judged_at_its_first_step_only(tmp_path):
    one = saved(tmp_path / "a", [1.0, 0.5], precision="float32")
    proof = dp.verify_saved(one, saved(tmp_path / "b", [1.0, 0.6], precision="float32"))
    assert proof.passed
    assert "losses: 2.0e-01 (not judged in this precision)" in str(proof)
    assert not dp.verify_saved(one, saved(tmp_path / "c", [1.1, 0.5], precision="float32")).passed


def test_trainings_of_nothing_and_of_zeros_are_judged(tmp_path):
    one = saved(tmp_path / "a", [0.0, 0.0])
    assert dp.verify_saved(one, saved(tmp_path / "b", [0.0, 0.0])).passed
    proof = dp.verify_saved(one, saved(tmp_path / "c", [0.0, 0.5]))
    assert [(check.name, check.measured) for check in proof.failed] == [("losses", float("inf"))]
    assert [check.name for check in dp.verify_saved(one, saved(tmp_path / "d", [0.0, float("nan")])).failed] == [
        "losses"
    ]
    with pytest.raises(dp.RequestError, match="a training without a step"):
        saved(tmp_path / "e", [])


def test_bfloat16_is_judged_too(tmp_path):
    one = saved(tmp_path / "a", [1.0, 0.5], precision="bfloat16")
    assert dp.verify_saved(one, saved(tmp_path / "b", [1.01, 0.7], precision="bfloat16")).passed
    assert not dp.verify_saved(one, saved(tmp_path / "c", [1.5, 0.5], precision="bfloat16")).passed


def updated(*given):
    return dp.CustomOptimizer(update=lambda *_: given).updated(np.zeros(2), np.zeros(2), [], 0.1, 1)


@pytest.mark.parametrize(
    ("optimizer", "says"),
    [
        (lambda: dp.CustomOptimizer(update=5), "expected a function"),
        (lambda: dp.CustomOptimizer(update=print, slots="velocity"), "slots: received 'velocity', expected a value of"),
        (lambda: dp.CustomOptimizer(update=print, slots=["a", "a"]), "expected different names"),
        (lambda: dp.CustomOptimizer(update=print, slots=["a.b"]), "expected different names"),
        (
            lambda: dp.CustomOptimizer(update=lambda *_: (np.zeros(2), None)).updated(np.zeros(2), 0, [], 0, 1),
            "gave a t",
        ),
        (
            lambda: dp.CustomOptimizer(update=lambda *_: (np.zeros(1), [])).updated(np.zeros(2), 0, [], 0, 1),
            "shape (1,)",
        ),
    ],
)
def test_wrong_formulas_are_refused_in_words(optimizer, says):
    with pytest.raises(dp.RequestError, match=re.escape(says)):
        optimizer()


@pytest.mark.parametrize(
    ("variables", "mode", "expected"),
    [
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}, ("torch", "ddp"), (1, 4, True)),
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, ("torch", "ddp"), (2, 8, False)),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}}'}, ("tensorflow", "multiworker"), (2, 1, False)),
        ({"JAX_NUM_PROCESSES": "3"}, ("jax", "multiprocess"), (3, 1, False)),
        ({}, ("torch", "dp"), (1, 2, True)),
        ({}, ("torch", "single"), (1, 1, True)),
    ],
)
def test_the_launcher_says_how_many_there_are(monkeypatch, variables, mode, expected):
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "TF_CONFIG", "JAX_NUM_PROCESSES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    cluster = launchers.cluster_here(*mode, MODES[mode])
    assert (cluster.num_nodes, cluster.devices_per_node, cluster.simulated) == expected


@pytest.mark.parametrize("described", ["{", '{"cluster": {"chief": []}}', "[]"])
def test_a_wrong_launcher_is_named(monkeypatch, described):
    monkeypatch.setenv("TF_CONFIG", described)
    with pytest.raises(dp.RequestError, match=r"TF_CONFIG: received .*expected"):
        launchers.cluster_here("tensorflow", "multiworker", MODES["tensorflow", "multiworker"])


@pytest.mark.parametrize(
    ("cluster", "mask"),
    [
        (lambda: dp.Cluster.partition(1, 2, gpus=["3", "1"]), "3,1"),
        (lambda: dp.Cluster.partition(device="cpu"), ""),
        (lambda: dp.Cluster.partition(1, 1), "0"),
    ],
)
def test_a_training_sees_the_gpus_of_its_cluster(monkeypatch, install_gpus, cluster, mask):
    install_gpus()
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.setenv(name, "as it was")  # or what the training sets would stay
        monkeypatch.delenv(name)
    config = dp.RunConfig(framework="torch", mode="dp", workload=WORKLOAD, cluster=cluster())
    launchers.show_devices(config)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == mask


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: saved(folder, [1.0]), "has 1 step,"),
        (lambda folder: saved(folder, [1.0, 0.5], precision="float32"), "is in float32"),
        (lambda folder: saved(folder, [1.0, 0.5], part=(0, 2)), "the losses of 1 of 2 parts"),
        (lambda folder: (folder.mkdir(), folder)[1], "has no training"),
    ],
)
def test_trainings_of_other_work_are_not_compared(tmp_path, make, says):
    with pytest.raises(dp.RequestError, match=says):
        dp.verify_saved(saved(tmp_path / "a", [1.0, 0.5]), make(tmp_path / "b"))


def test_a_folder_keeps_one_training(tmp_path):
    saved(tmp_path / "a", [1.0])
    with pytest.raises(dp.RequestError, match="has another training already"):
        saved(tmp_path / "a", [1.0])


def test_a_damaged_file_is_named(tmp_path):
    saved(tmp_path / "a", [1.0])
    next((tmp_path / "a").glob("*.safetensors")).write_bytes(b"x")
    with pytest.raises(dp.RequestError, match=r"process-0-of-1.safetensors' is damaged"):
        dp.verify_saved(tmp_path / "a", tmp_path / "a")
