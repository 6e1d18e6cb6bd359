"""The last steps of real runs, repeated by another framework: confirmed, contradicted, left out and interrupted."""

import os

import pytest

from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.experiments.fairness import compare
from dpcompare.experiments.study import Arm, Study
from dpcompare.experiments.verify_like import late_step_of
from dpcompare.launch import late_step
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.launch.run import run
from dpcompare.results.result import RunResult
from stress.injection import injected, write_sitecustomize
from tests.support.command import invoke

WORKLOAD = {
    "model": "toy-bn",
    "dataset": "synthetic-mini",
    "global_batch_size": 8,
    "steps": 12,
    "warmup_steps": 1,
    "augment": ("flip", "brightness"),
    "weight_decay": 0.01,
    "weight_average": 0.9,
}


def config(framework="torch", mode="single", *, nodes=1, **workload):
    return RunConfig(
        framework=framework,
        mode=mode,
        workload=Workload(**WORKLOAD | workload),
        cluster=Cluster.partition(nodes, device="cpu", num_cores=2),
        late_step=True,
    )


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    ("framework", "mode", "nodes", "workload", "again"),
    [
        pytest.param(
            *("torch", "ddp", 2, {"accumulate": 2, "clip_norm": 0.5}, "tensorflow"),
            marks=[pytest.mark.torch, pytest.mark.tensorflow],
        ),
        pytest.param(
            *("jax", "single", 1, {"optimizer": "sgd", "regularization": "shared"}, "torch"),
            marks=[pytest.mark.jax, pytest.mark.torch],
        ),
    ],
)
def test_another_framework_confirms_the_last_steps(tmp_path, framework, mode, nodes, workload, again):
    result = run(config(framework, mode, nodes=nodes, **workload), tmp_path / "run")
    made = result.late_step
    assert (made.framework, made.first, made.last, made.left_out) == (again, 11, 12, None)
    assert 0 < made.part_of_tolerance < 0.5
    assert result.warnings == [] or all(warning.kind != "LATE STEP" for warning in result.warnings)
    assert RunResult.load(tmp_path / "run") == result
    assert not (tmp_path / "run" / "late-step").exists()
    check, _ = late_step_of(tmp_path / "run")
    assert check.passed
    shown = invoke("report", tmp_path / "run", "--full")
    assert shown.code == 0


# The gradient of the last steps loses a part; what came before, the losses of the run included, is as it should be.
WEAKER = """
step = module.TorchBackend.train_step
def train_step(self, batches, learning_rate):
    if self._step >= 10:
        for parameter in self.model.parameters():
            if not parameter._backward_hooks:
                parameter.register_hook(lambda gradient: gradient * 0.5)
    return step(self, batches, learning_rate)
module.TorchBackend.train_step = train_step
"""


@pytest.mark.process
@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_what_begins_late_is_named(tmp_path, monkeypatch):
    write_sitecustomize(tmp_path / "fault", "dpcompare.backends.torch.backend", injected(WEAKER))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'fault'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    result = run(config(weight_average=None, weight_decay=0), tmp_path / "run")
    made = result.late_step
    assert made.framework == "tensorflow"
    assert made.part_of_tolerance > 10
    assert made.largest.startswith(("exp_avg", "update"))
    assert [warning.sentence for warning in result.warnings if warning.kind == "LATE STEP"] == [made.problem]
    sheet = compare([result, result.model_copy(update={"late_step": None})])
    assert [reason for reason in sheet.reasons if reason.startswith("late step: tensorflow in float64")]
    check, _ = late_step_of(tmp_path / "run")
    assert (check.passed, check.detail) == (False, made.problem)


@pytest.mark.process
@pytest.mark.torch
@pytest.mark.usefixtures("warm")
def test_a_run_whose_other_framework_is_missing_says_so(tmp_path, monkeypatch):
    # Its interpreters count, wherever they are named.
    monkeypatch.setenv("DPCOMPARE_TENSORFLOW_PYTHON", "/nowhere/python")
    options = ("--model", "toy-bn", "--dataset", "synthetic-mini", "--global-batch-size", "8", "--steps", "12")
    other = ("--warmup-steps", "1", "--device", "cpu", "--late-step", "--python", "jax=/nowhere/python")
    done = invoke("run", "torch:single", *options, *other, "--run-dir", tmp_path / "run")
    assert done.code == 0, done.stderr
    result = RunResult.load(tmp_path / "run")
    assert result.late_step.left_out.startswith("no other framework can make it here: ")
    assert "tensorflow" in result.late_step.left_out
    assert "jax" in result.late_step.left_out
    assert result.status == "completed"
    assert late_step_of(tmp_path / "run") == (None, result.late_step.left_out)
    assert compare([result, result]).reasons == []


@pytest.mark.process
@pytest.mark.torch
@pytest.mark.usefixtures("warm")
def test_an_interrupted_late_step_leaves_the_result(tmp_path, monkeypatch):
    def interrupted(*arguments, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(late_step, "launch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(config(), tmp_path / "run")
    result = RunResult.load(tmp_path / "run")
    assert (result.status, result.late_step) == ("completed", None)
    assert not (tmp_path / "run" / "late-step").exists()
    assert late_step_of(tmp_path / "run") == (None, "the run was made without --late-step")


def test_a_study_makes_those_of_its_first_round(monkeypatch):
    monkeypatch.setattr("dpcompare.experiments.study.LATE_STEP_ROUND", 1)
    usual = config().changed(late_step=None)
    asked = {None: usual, True: config(), False: config().changed(late_step=False)}
    for value, expected in {None: [True, None, None], True: [True] * 3, False: [False] * 3}.items():
        arms = tuple(Arm(name=name, config=prepare_inputs(asked[value])) for name in "AB")
        study = Study(arms=arms, repeats=3)
        assert [study.config_of(number, arms[0]).late_step for number in (1, 2, 3)] == expected


def test_a_studys_late_steps_use_the_interpreters_of_its_arms(monkeypatch):
    monkeypatch.setenv("DPCOMPARE_JAX_PYTHON", "/usual/jax")
    of_arms = {"torch": "/its/torch", "tensorflow": "/its/tensorflow"}
    arms = tuple(
        Arm(name=framework, config=config(framework).changed(python=python)) for framework, python in of_arms.items()
    )
    study = Study(arms=arms, repeats=1)
    assert {name: study.interpreter_of(name) for name in (*of_arms, "jax")} == of_arms | {"jax": "/usual/jax"}


def test_what_takes_too_long_is_left_out(monkeypatch):
    monkeypatch.setattr(late_step, "FLOPS_PER_CORE", 1.0)
    assert "minutes for it" in late_step._why_too_slow(prepare_inputs(config()))
