"""Python's arguments become those of a command, and are refused in the command's own words."""

import pytest

import dpcompare as dp
from dpcompare.api.command_line import read_by
from dpcompare.cli.compare import compare as command

WORKLOAD = dp.Workload(model="mlp", image_size=32, dataset="synthetic-mini", global_batch_size=16, steps=4)


def test_a_workload_and_options_are_read_as_if_they_were_typed():
    options = {"arm": ["torch:ddp", "torch:dp"], "nodes": [1, 2], "repeats": 3, "vary_seed": True, "python": None}
    workload = WORKLOAD.changed(augment=("flip", "crop"), learning_rate=1e-05)
    with read_by(command, (), workload, options) as context:
        values = context.params
    assert values["arm"] == ("torch:ddp", "torch:dp")
    assert (values["nodes"], values["repeats"], values["vary_seed"]) == ((1, 2), 3, True)
    assert (values["model"], values["learning_rate"]) == ("mlp", 1e-05)
    assert values["augment"] == "flip,crop"
    assert values["precision"] is None  # a field that was not set


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: dp.Workload(steps="five"), "steps: received 'five', expected a valid integer"),
        (lambda: dp.compare(["torch"], WORKLOAD), "--arm: received 'torch', expected FRAMEWORK:MODE"),
        (
            lambda: dp.compare(["torch:ddp"], WORKLOAD, rounds="six"),
            "rounds: received 'six', expected a value of the type int",
        ),
        (lambda: dp.compare(["torch:ddp"], {"steps": 3}), "workload: received {'steps': 3}, expected a value of the"),
        (lambda: dp.compare(["torch:ddp"], WORKLOAD, steps=3), "steps: received in the workload and as an option"),
        (lambda: dp.compare(["torch:ddp"], WORKLOAD, subjekt=["x"]), "no such option. Did you mean 'subject'?"),
        (lambda: dp.compare(["torch:ddp"], WORKLOAD, vary_seed="yes"), "vary_seed: received 'yes', expected True or F"),
        (lambda: dp.compare([dp.Arm("torch:ddp", precison="x")], WORKLOAD), "Did you mean 'precision'?"),
        (lambda: dp.compare(5, WORKLOAD), "arms: received 5, expected a value of the type list or tuple"),
        (
            lambda: dp.compare(["torch:ddp"], WORKLOAD, subject="profile"),
            "subject: received 'profile', expected",
        ),
        (
            lambda: dp.compare(["torch:ddp"], WORKLOAD, dry_run=True),
            "dry_run: received by compare, which prints nothing",
        ),
        (
            lambda: dp.gate("torch:ddp", "env=x", junit="a.xml"),
            'expected it of a report, such as study.report().save("',
        ),
        (lambda: dp.gate(3, "env=x"), "arm: received 3, expected a value of the type str or Arm"),
        (lambda: dp.gate("torch:ddp", None), "baseline: received None, expected a value of the type str or Arm"),
        (lambda: dp.gate("torch:ddp", "env=x", allow=0.02), "allow: received 0.02, expected a value of the type str"),
        (lambda: dp.gate("torch:ddp", "env=x", budget=None), "budget: received None, expected a value of the type str"),
        (lambda: dp.gate("torch:ddp", "env=x", allow="two"), "--allow: received 'two', expected a percentage"),
        (lambda: dp.gate("torch:ddp", "env=x", subject="profile"), "subject: received 'profile', expected"),
        (lambda: dp.gate("torch:ddp", "env=x", WORKLOAD, steps=3), "steps: received in the workload and as an option"),
        (lambda: dp.compare(["torch:ddp"], repeats=2), "repeats: received 2, expected it as rounds=2"),
        (lambda: dp.compare(["torch:ddp"], rounds=None), "rounds: received None, expected a value of the type int"),
        (lambda: dp.compare([3]), "arms: received 3, expected a value of the type str or Arm"),
        (lambda: dp.Arm(3), "mode: received 3, expected a value of the type str"),
        (lambda: dp.backend("torch:ddp"), "expected two arguments: backend('torch', 'ddp')"),
        (
            lambda: dp.backend("torch", optimizer=lambda a, b, c, d, e: a),
            "expected CustomOptimizer(update=that fun",
        ),
        (
            lambda: dp.backend("torch", optimizer="sgd"),
            "optimizer: received 'sgd', expected a CustomOptimizer or a function; to use one of dpcompare's own, pass "
            "Workload(optimizer=...)",
        ),
        (lambda: dp.backend("tensorflow", "keras-fit", optimizer=print), "which trains with its own"),
        (lambda: dp.load("nowhere"), "'nowhere' holds no readable study.json"),
        (lambda: dp.verify(precision="float16"), "expected float32 and/or float64"),
        (lambda: dp.verify(replicas=[3], frameworks=[]), "--replicas: received 3"),
        (lambda: dp.explain("nowhere"), "ARM_OR_RUN: received 'nowhere', which is not a directory"),
        (lambda: dp.run(5), "config: received 5, expected a value of the type RunConfig"),
        (lambda: dp.resume(5, 5), "run_dir: received 5, expected a value of the type str or Path"),
        (lambda: dp.Cluster.partition("2"), "nodes: received '2', expected a whole number"),
        (lambda: dp.Cluster.partition(device="gpus"), "device: received 'gpus', expected one of auto, cpu, gpu, tpu"),
        (lambda: dp.backend("torch", "dpp"), "Did you mean 'torch ddp'?"),
        (lambda: dp.backend("tensorflow", "parameter-server"), "some of whose processes only serve others"),
        (lambda: dp.backend("torch", workload=5), "workload: received 5, expected a value of the type Workload"),
        (lambda: dp.backend("torch", model=5), "model: received a int, expected a name, a CustomModel"),
        (lambda: dp.backend("torch", "ddp"), "received in a process without WORLD_SIZE; expected torchrun"),
        (lambda: next(dp.batches(WORKLOAD, steps=0)), "steps: received 0, expected a whole number of at least 1"),
        (lambda: dp.run_script("nowhere.py", "torch:ddp"), "script: received 'nowhere.py', which is not a file"),
        (lambda: dp.run_script(__file__, "ddp"), "mode: received 'ddp', expected FRAMEWORK:MODE"),
        (lambda: dp.verify_saved("a"), "verify_saved: received 1 folder"),
    ],
)
def test_what_is_wrong_is_refused_in_words(call, says, tmp_path):
    with pytest.raises(dp.RequestError) as refused:
        call()
    assert says in str(refused.value)
    assert not {"pydantic", "Traceback"} & set(str(refused.value).split())
    assert not list(tmp_path.iterdir())  # nothing was started


def test_arms_are_written_as_the_command_line_takes_them():
    arm = dp.Arm("torch:ddp", precision="bfloat16", augment=["flip", "crop"], tune={"compilation": "torch.compile"})
    assert str(arm) == "torch:ddp,precision=bfloat16,augment=flip+crop,tune=compilation=torch.compile"
    assert repr(dp.Arm("jax:spmd", steps=3)) == "Arm('jax:spmd', steps=3)"


def test_all_public_names_are_there_and_documented():
    assert set(dp.__all__) == {"__version__", *dp._DEFINED_IN}
    for name in dp._DEFINED_IN:
        assert getattr(dp, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'load_backend'"):
        dp.load_backend  # noqa: B018  # the look-up is the point
