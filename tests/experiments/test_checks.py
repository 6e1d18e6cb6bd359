"""The comparisons of `verify`, each on sides of which one figure or array was changed."""

from dataclasses import replace

import numpy as np
import pytest

from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.data.order import OrderDigest, training_batches
from dpcompare.data.store import open_store
from dpcompare.experiments.checks import Side, detail_of, differences, first_layer_that_differs
from dpcompare.experiments.contenders import Contender
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.models.sealed import read_weights
from dpcompare.models.state import is_statistic
from dpcompare.results.computed import Evaluation
from dpcompare.results.decisions import Decisions
from dpcompare.training.schedule import training_reader
from tests.support.results import result

STEPS = 4
LEARNING_RATE = 0.125
WORKLOAD = Workload(
    model="toy-bn",
    image_size=8,
    global_batch_size=8,
    dataset="synthetic-mini",
    steps=STEPS,
    warmup_steps=0,
    optimizer="sgd",
    regularization="shared",
)


@pytest.fixture(scope="module")
def side():
    """What a contender leaves that computes what it should; its gradient is the weights themselves."""
    cluster = Cluster.partition(device="cpu")
    config = prepare_inputs(RunConfig(framework="torch", mode="single", workload=WORKLOAD, cluster=cluster))
    digest = OrderDigest()
    for batch in training_batches(config.inputs.num_train, 8, seed=WORKLOAD.seed, num_steps=STEPS):
        digest.update(batch)
    made = result(
        train_loss=[2.0, 1.5, 1.25, 1.0],
        evaluations=[Evaluation(epoch=1, step=STEPS, loss=1.0, accuracy=0.5, count=40, rows="0" * 16)],
        decisions=Decisions.of({0: {"learning rate": [1, 2, 3, 4]}}, first_step=0, num_steps=STEPS),
        sample_order_sha256=digest.hexdigest(),
    )
    return Side(
        contender=Contender(framework="torch", mode="single", num_nodes=1, devices_per_node=1),
        config=config,
        result=made,
        arrays=arrays_of(config),
    )


def arrays_of(config):
    initial = read_weights(config.inputs.weights)
    trained = {name: array for name, array in initial.items() if not is_statistic(name)}
    split = open_store(config.inputs.store).split("train")
    reader = training_reader(WORKLOAD, split, config.drops, data_parallel_rank=0, data_parallel_size=1)
    (batch,) = reader.read(training_batches(len(split), 8, seed=WORKLOAD.seed, num_steps=1))
    logits = np.arange(80.0).reshape(8, 10)
    return {
        **{f"initial.{name}": array for name, array in initial.items()},
        **{f"stepped.{name}": array - LEARNING_RATE * trained.get(name, 0) for name, array in initial.items()},
        **{f"slots.momentum.{name}": array for name, array in trained.items()},
        **{f"trained.{name}": array for name, array in initial.items()},
        **{f"rows.{name}": getattr(batch, name) for name in ("images", "labels", "weights", "drop_masks")},
        "evaluation_logits": logits,
        "training_logits": logits,
    }


def with_array(name, change):
    """A side of which one array is another."""

    def changed(side):
        return replace(side, arrays=side.arrays | {name: change(side.arrays[name].copy())})

    return changed


def with_result(**update):
    return lambda side: replace(side, result=side.result.model_copy(update=update))


def evaluated(**update):
    fields = {"epoch": 1, "step": STEPS, "loss": 1.0, "accuracy": 0.5, "count": 40, "rows": "0" * 16}
    return with_result(evaluations=[Evaluation(**fields | update)])


def found_by(a, b):
    """The checks that find a difference, or no number."""
    return {name for name, difference in differences(WORKLOAD).items() if difference(a, b) != 0}


def test_a_side_does_not_differ_from_itself(side):
    assert found_by(side, side) == set()


def test_a_residue_of_a_gradient_of_0_is_no_difference(side):
    one, two = (
        with_array("slots.momentum.classifier.bias", lambda array, left=left: array * 0 + left)(side)
        for left in (1e-14, -3e-14)
    )
    assert found_by(one, two) == {"gradient"}  # of all tensors, within its tolerance
    three = with_array("slots.momentum.classifier.bias", lambda array: array * 0 + 1e-2)(side)
    assert "gradient of each tensor" in found_by(one, three)


def last_row_wrong(array):
    array[-1] = array[-1] + 1
    return array


CHANGES = {
    "a weight that is not the file's": (
        with_array("initial.classifier.bias", lambda array: array + 1),
        {"weight round trip", "one step of sgd", "update of all steps"},
    ),
    "another order": (with_result(sample_order_sha256="another"), {"sample order"}),
    "a rate of a later step": (
        with_result(decisions=Decisions.of({0: {"learning rate": [1, 2, 3, 5]}}, first_step=0, num_steps=STEPS)),
        {"decisions of each step"},
    ),
    "other rows of an evaluation": (evaluated(rows="0000000000000001"), {"decisions of each step"}),
    "a replica of its own": (
        lambda side: with_result(
            computed=side.result.computed.model_copy(update={"replica_difference": "replica 1 differs in its bias"})
        )(side),
        {"equality of replicas"},
    ),
    "a row of other pixels": (with_array("rows.images", last_row_wrong), {"pixels and augmentation"}),
    "a row of another class": (with_array("rows.labels", last_row_wrong), {"pixels and augmentation"}),
    "rows that are missing": (with_array("rows.images", lambda array: array[:-1]), {"pixels and augmentation"}),
    "features dropped elsewhere": (with_array("rows.drop_masks", lambda array: 1 - array), {"regularization"}),
    "logits": (with_array("evaluation_logits", lambda array: array * 1.5), {"evaluation logits"}),
    "logits of fewer rows": (with_array("training_logits", lambda array: array[:-1]), {"training logits"}),
    "a gradient": (
        with_array("slots.momentum.classifier.bias", lambda array: array + 1),
        {"gradient", "gradient of each tensor"},
    ),
    "a gradient of another shape": (
        with_array("slots.momentum.classifier.bias", lambda array: array[:-1]),
        {"gradient", "gradient of each tensor"},
    ),
    "an update": (with_array("stepped.classifier.bias", lambda array: array + 1), {"one step of sgd"}),
    "a weight after the last step": (
        with_array("trained.classifier.bias", lambda array: array + 1),
        {"update of all steps"},
    ),
    "a running statistic": (with_array("trained.bn2.running_var", lambda array: array * 2), {"BatchNorm statistics"}),
    "a statistic that is not a number": (
        with_array("trained.bn2.running_var", lambda array: array * np.nan),
        {"BatchNorm statistics"},
    ),
    "the first loss": (
        with_result(train_loss=[2.5, 1.5, 1.25, 1.0]),
        {"first loss", "losses over 2 steps", "losses over sgd steps"},
    ),
    "the second loss": (
        with_result(train_loss=[2.0, 2.5, 1.25, 1.0]),
        {"losses over 2 steps", "losses over sgd steps"},
    ),
    "the last loss": (with_result(train_loss=[2.0, 1.5, 1.25, 2.5]), {"losses over sgd steps"}),
    "a last loss that is not a number": (with_result(train_loss=[2.0, 1.5, 1.25, None]), {"losses over sgd steps"}),
    "a sample more that is right": (evaluated(accuracy=0.525), {"accuracy (samples)"}),
    "another evaluation loss": (evaluated(loss=1.5), {"evaluation loss"}),
    "an evaluation loss that is not a number": (evaluated(loss=None), {"evaluation loss"}),
}


@pytest.mark.parametrize(("change", "expected"), CHANGES.values(), ids=CHANGES)
def test_a_difference_is_found_by_its_own_checks_alone(side, change, expected):
    assert found_by(side, change(side)) == expected


def test_every_check_finds_one_of_these_differences():
    assert set().union(*(expected for _, expected in CHANGES.values())) == set(differences(WORKLOAD))


def test_differences_are_counted_in_rows_tensors_and_samples(side):
    checks = differences(WORKLOAD)
    one_row = with_array("rows.images", last_row_wrong)(side)
    assert checks["pixels and augmentation"](side, one_row) == 1
    assert checks["pixels and augmentation"](side, with_array("rows.images", lambda rows: rows[:-1])(side)) == 8
    one_tensor = with_array("initial.classifier.bias", lambda array: array + 1)(side)
    assert checks["weight round trip"](side, one_tensor) == 1
    named = "tensors that differ from those in the file: classifier.bias"
    assert detail_of("weight round trip", side, one_tensor, 0.0) == named
    assert checks["accuracy (samples)"](side, evaluated(accuracy=0.525)(side)) == 1


def test_a_difference_of_logits_is_relative_to_the_largest(side):
    larger = with_array("evaluation_logits", lambda array: array + 0.79)(side)
    assert differences(WORKLOAD)["evaluation logits"](side, larger) == pytest.approx(0.01)


FEATURES = np.ones((2, 4, 4, 3))


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ([("conv", FEATURES), ("pool", FEATURES)], [("conv", FEATURES), ("pool", FEATURES + 1e-6)], ""),
        (
            [("conv", FEATURES), ("pool", FEATURES)],
            [("conv", FEATURES * 1.5), ("pool", FEATURES * 3)],
            "the first layer that differs is conv: by 5.0e-01 of its largest value",
        ),
        (
            [("conv", FEATURES), ("pool", FEATURES)],
            [("conv", FEATURES), ("pool", FEATURES * np.nan)],
            "the first layer that differs is pool: by nan of its largest value",
        ),
        (
            [("conv", FEATURES)],
            [("conv", FEATURES[:, :2])],
            "the first layer that differs is conv: (2, 4, 4, 3) in torch single, (2, 2, 4, 3) in torch single",
        ),
        (
            [("conv", FEATURES), ("pool", FEATURES)],
            [("conv", FEATURES), ("mean", FEATURES)],
            "pool is in torch single alone; torch single has conv, mean",
        ),
        (
            [("hidden", FEATURES), ("conv", FEATURES)],
            [("conv", FEATURES * 2)],
            "the first layer that differs is conv: by 1.0e+00 of its largest value; not compared before it: hidden",
        ),
    ],
)
def test_the_first_layer_that_differs_is_named(side, first, second, said):
    """Both have the layer `hidden`, whose features are not known everywhere."""
    a, b = (
        replace(
            side,
            arrays={"initial.hidden.weight": np.ones(1)}
            | {f"activation.{number:04d}.{name}": array for number, (name, array) in enumerate(layers)},
        )
        for layers in (first, second)
    )
    assert first_layer_that_differs(a, b) == said


def test_what_differs_leads_to_the_cause(side):
    later = Decisions.of({0: {"learning rate": [1, 2, 3, 5]}}, first_step=0, num_steps=STEPS)
    changed = evaluated(rows="0000000000000001")(with_result(decisions=later)(side))
    assert detail_of("decisions of each step", side, changed, 0.0) == (
        "learning rate of each step first differs at step 4; rows of the evaluation after step 4 differ"
    )
    computed = side.result.computed.model_copy(update={"replica_difference": "replica 1 differs in its bias"})
    assert (
        detail_of("equality of replicas", side, with_result(computed=computed)(side), 0.0)
        == "replica 1 differs in its bias"
    )


def test_the_first_step_whose_loss_differs_is_named(side):
    said = "the first loss that differs is that of step 3, after the update of step 2"
    for later in ([2.0, 1.5, 1.26, 1.5], [2.0, 1.5, None, 1.0]):
        assert detail_of("losses over sgd steps", side, with_result(train_loss=later)(side), 1e-3) == said
    first = with_result(train_loss=[2.5, 1.5, 1.25, 1.0])(side)
    assert detail_of("losses over sgd steps", side, first, 1e-3) == ""  # no update came before it


def test_results_without_digests_differ_in_none_of_them(side):
    old = evaluated(rows=None)(with_result(decisions=None, computed=None)(side))
    assert found_by(side, old) == set()
