"""The fairness sheet: what is equal, what is not, and what follows."""

import pytest

from dpcompare.backends.description import speed_variables
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError
from dpcompare.experiments.fairness import checks_named, compare, fields_that_differ
from dpcompare.experiments.fairness_checks import CHECKS
from dpcompare.results.result import Evaluation, NodeRecord
from dpcompare.system.gpu_state import GpuReading
from dpcompare.system.machine import Machine
from tests.support.results import gpu, on_gpus, result


def test_one_rule_for_warm_up_may_find_other_steps_in_each_run():
    by_rule, fixed = (
        [result(workload={"warmup_steps": warmup}, measured_steps=steps) for steps in (35, 40)]
        for warmup in ("auto", 5)
    )
    assert compare(by_rule).verdict == "COMPARABLE"
    assert compare(fixed).reasons == ["measured steps: 35 against 40; use the same --steps or --epochs"]
    assert compare([by_rule[0], fixed[0]]).verdict == "NOT COMPARABLE"


def test_a_strict_pair_of_both_frameworks_is_comparable():
    sheet = compare([result(), result("tensorflow", "multiworker")])
    assert sheet.verdict == "COMPARABLE"
    assert sheet.reasons == []
    differing = {row.setting for row in sheet.rows if not row.equal}
    assert differing == {"framework", "mode", "collective", "memory layout", "versions"}
    assert sheet.summary == f"COMPARABLE (of {len(CHECKS)} settings, all that must match do)"


@pytest.mark.parametrize(
    ("model", "setting", "old", "now", "values"),
    [
        ("mlp", "convolutions", {"depthwise_convolution": "kernel"}, {"convolutions": "kernel"}, ["kernel"] * 2),
        ("mlp", "attention", {}, {"attention": "none"}, ["none"] * 2),
        ("vit-ti16", "attention", {}, {"attention": "products"}, ["not known", "products"]),
    ],
)
def test_results_of_a_release_that_said_less_are_read(model, setting, old, now, values):
    pair = [result(settings=settings, model=model, image_size=64) for settings in (old, now)]
    row = next(row for row in compare(pair).rows if row.setting == setting)
    assert (row.values, row.equal, row.reason) == (values, len(set(values)) == 1, False)


def test_replicas_on_one_gpu_are_compared_with_nothing():
    shared = result()
    shared = shared.model_copy(
        update={"config": shared.config | {"cluster": shared.config["cluster"] | {"shared": True}}}
    )
    for others in ([shared, shared], [result(), shared]):
        sheet = compare(others)
        assert sheet.verdict == "NOT COMPARABLE"
        (reason,) = sheet.reasons
        assert reason.startswith("emulation: ")
        assert "use GPUs, one for each replica" in reason


# One change of one side -> the settings that must be named.
CHANGES = {
    "precision": ({"precision": "bfloat16"}, {"precision"}),
    "profile": ({"profile": "native", "settings": {"tf32": True}}, {"profile", "TF32"}),
    "learning rate": ({"workload": {"learning_rate": 0.1}}, {"learning rate"}),
    "BatchNorm": ({"workload": {"batchnorm": "sync"}}, {"BatchNorm scope"}),
    "accumulation": ({"workload": {"accumulate": 2}}, {"micro-batches per step"}),
    "data": ({"store_sha256": "other"}, {"data"}),
    "order": ({"sample_order_sha256": "other"}, {"sample order"}),
    "replicas": ({"num_replicas": 4}, {"replicas", "batch per replica"}),
    "emulation": ({"emulated": True}, {"emulation"}),
    "cores": ({"settings": {"cores": 4}}, {"cores"}),
    "autotuning": ({"settings": {"convolution_algorithms": "measured"}}, {"convolution algorithms"}),
    "regularization": (
        {"workload": {"regularization": "shared"}, "settings": {"dropout": 0.3, "stochastic_depth": 0.19}},
        {"regularization", "dropout", "stochastic depth"},
    ),
    "weights": ({"weights_sha256": "other"}, {"initial weights"}),
    "devices": (
        {"device_names": ["NVIDIA H200"], "device_type": "gpu"},
        {"devices", "device names", "device type", "GPU settings"},
    ),
    "release": ({"dpcompare_version": "9.9.1"}, {"dpcompare"}),
    "warm-up": ({"workload": {"warmup_steps": 0}, "measured_steps": 45}, {"warm-up steps", "measured steps"}),
    "nodes": (
        {
            "nodes": [
                {"node_rank": rank, "host": f"h{rank}", "device_names": ["cpu:0"], "versions": {"torch": version}}
                for rank, version in enumerate(("2.15.0", "2.14.1"))
            ]
        },
        {"versions that differ between nodes"},
    ),
    "one batch again and again": ({"reuse_batch": True}, {"input"}),
    "engine": ({"placement": {"engine": "namespaces", "link": "1gbit"}}, {"engine", "link"}),
    "variable": ({"settings": {"environment": {"NVIDIA_TF32_OVERRIDE": "1"}}}, {"environment variables"}),
    "window": ({"settings": {"steps_per_window": 10}}, {"steps per window of the clock"}),
    "optimizer": ({"settings": {"optimizer": {"name": "adam", "epsilon": 1e-8}}}, {"optimizer"}),
    "another model, computed": ({"train_loss": [2.001] * 45}, {"first loss"}),
    "another update, made": ({"train_loss": [2.0, 2.1] + [2.0] * 43}, {"second loss"}),
    "another pixel, trained": ({"computed": {"batch_digests": {1: "ab", 45: "ef"}}}, {"batches"}),
    "a step without update": ({"computed": {"optimizer_steps": 44}}, {"optimizer steps"}),
    "half of the rows": ({"computed": {"images": 719}}, {"images computed"}),
    "more claimed than trained": ({"computed": {"images_claimed": 1440}}, {"images computed"}),
    "another gradient": ({"computed": {"first_gradient_norm": 0.501}}, {"first gradient norm"}),
    "another evaluation": ({"computed": {"first_evaluation_loss": 2.3}}, {"first evaluation loss"}),
    "no number": ({"train_loss": [None] + [2.0] * 44}, {"first loss"}),
}


@pytest.mark.parametrize(("changes", "named"), CHANGES.values(), ids=CHANGES)
def test_one_knob_that_differs_is_named(changes, named):
    sheet = compare([result(), result("tensorflow", "multiworker", **changes)])
    assert sheet.verdict == "NOT COMPARABLE"
    assert {row.setting for row in sheet.rows if row.reason} == named
    for setting, reason in zip([row.setting for row in sheet.rows if row.reason], sheet.reasons, strict=True):
        assert reason.startswith(f"{setting}: ")
        assert reason.endswith(f"; {CHECKS[setting].fix}")


def inherited(**variables):
    """The settings of a process that was started from a shell with these variables."""
    return {"environment": speed_variables(variables | {"OMP_NUM_THREADS": "1", "PATH": "/bin"}, threads=1)}


@pytest.mark.parametrize(
    "other",
    [
        result("tensorflow", "multiworker"),
        result(),
        # One shell for both: it slows down TensorFlow alone.
        result(settings=inherited(TF_ENABLE_ONEDNN_OPTS="0")),
    ],
)
def test_a_variable_inherited_from_the_shell_is_named(other):
    slowed = result("tensorflow", "multiworker", settings=inherited(TF_ENABLE_ONEDNN_OPTS="0"))
    sheet = compare([other, slowed])
    assert sheet.reasons == [
        "environment variables: none against TF_ENABLE_ONEDNN_OPTS=0; unset them, or set the same for both; what only "
        "one framework reads can only be unset"
    ]


def test_variables_of_both_sides_or_without_effect_are_no_reason():
    both = inherited(OMP_DYNAMIC="FALSE")
    quiet = inherited(OMP_DYNAMIC="FALSE", TF_CPP_MIN_LOG_LEVEL="3", TORCH_HOME="/data")
    assert compare([result(settings=both), result("tensorflow", "multiworker", settings=quiet)]).reasons == []
    slowed = inherited(TF_ENABLE_ONEDNN_OPTS="0")
    alike = [result("tensorflow", "multiworker", settings=slowed) for _ in range(2)]
    assert compare(alike).reasons == []


@pytest.mark.parametrize(
    ("losses", "changes"),
    [
        ([2.0001, 2.009], {}),  # rounding
        ([0.1, 0.1], {"num_replicas": 4}),  # BatchNorm of fewer rows
        ([2.03, 2.08], {"precision": "bfloat16"}),
        ([2.0, 2.5], {"workload": {"learning_rate": 0.1}}),
    ],
)
def test_losses_that_differ_as_they_may_are_no_reason(losses, changes):
    sheet = compare([result(), result("tensorflow", "multiworker", train_loss=losses + [2.0] * 43, **changes)])
    assert not {"first loss", "second loss"} & {row.setting for row in sheet.rows if row.reason}


def test_the_losses_of_float64_agree_more_closely():
    double = {"workload": {"precision": "float64"}, "precision": "float64"}
    pair = [result(**double), result("tensorflow", "multiworker", **double, train_loss=[2.00000001] + [2.0] * 44)]
    assert [row.setting for row in compare(pair).rows if row.reason] == ["first loss"]


def test_a_schedule_that_ends_elsewhere_changes_later_losses():
    cosine = {"workload": {"precision": "float64", "schedule": "cosine"}, "precision": "float64"}
    pair = [result(**cosine), result(**cosine, train_loss=[2.0, 2.0, 2.1, 2.1])]
    assert "later losses" not in {row.setting for row in compare(pair).rows if row.reason}


DOUBLE = {"workload": {"precision": "float64", "steps": 6}, "precision": "float64", "train_loss": [2.0] * 6}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, []),
        ({"train_loss": [2.0] * 5 + [2.00001]}, ["later losses"]),
        ({"evaluations": [Evaluation(epoch=1, step=6, loss=1.00001, accuracy=0.5, count=359)]}, ["evaluation loss"]),
        ({"computed": {"first_gradient_norm": 0.500000001}}, ["first gradient norm"]),
        ({"computed": {"first_evaluation_loss": 2.20001}}, ["first evaluation loss"]),
    ],
)
def test_in_float64_few_steps_agree_to_their_end(changes, named):
    pair = [result(**DOUBLE), result("tensorflow", "multiworker", **DOUBLE | changes)]
    assert [row.setting for row in compare(pair).rows if row.reason] == named


@pytest.mark.parametrize(
    ("both", "same_losses"),
    [({}, 2), ({"precision": "bfloat16"}, 2), ({"workload": {"precision": "float64"}, "precision": "float64"}, 6)],
)
def test_what_is_chaotic_later_on_is_shown_and_no_reason(both, same_losses):
    """In float32 from the third step on, and in float64 after many steps."""
    losses = [2.0] * same_losses + [2.5] * (45 - same_losses)
    evaluations = [Evaluation(epoch=1, step=45, loss=1.5, accuracy=0.5, count=359)]
    other = result("tensorflow", "multiworker", **both, train_loss=losses, evaluations=evaluations)
    assert compare([result(**both), other]).verdict == "COMPARABLE"


def test_what_is_not_known_is_no_reason():
    unknown = {
        "optimizer_steps": None,
        "images": None,
        "batch_digests": {7: "resumed"},
        "first_gradient_norm": None,
        "first_evaluation_loss": None,
    }
    for other in (result(computed=unknown), result().model_copy(update={"computed": None})):
        sheet = compare([result(), other])
        assert sheet.verdict == "COMPARABLE"
        assert {row.values[1] for row in sheet.rows if row.setting == "first gradient norm"} == {"not known"}


def test_digests_by_another_rule_are_not_compared():
    pair = [result(), result(dpcompare_version="9.9.1", computed={"batch_digests": {1: "other"}})]
    assert {row.setting for row in compare(pair).rows if row.reason} == {"dpcompare"}


@pytest.mark.parametrize(
    ("contradiction", "setting", "shown"),
    [
        ({"optimizer_steps": 40}, "optimizer steps", "40, 45 asked"),
        ({"images": 719}, "images computed", "719, 1438 asked, 1438 claimed"),
    ],
)
def test_a_run_that_contradicts_its_claim_is_named_alone(contradiction, setting, shown):
    (reason,) = compare([result(computed=contradiction)]).reasons
    assert reason.startswith(f"{setting}: {shown}; ")


def test_the_confounds_of_the_article_are_each_named():
    """DataParallel with 8 loader workers against DDP with 0; dropout in TensorFlow only; brightness that did nothing
    in TensorFlow; the accuracy of rank 0's padded shard."""
    padded = [Evaluation(epoch=1, step=45, loss=1.0, accuracy=0.5, count=180)]
    torch = result(settings={"input_threads": 8}, workload={"augment": ["brightness"]}, evaluations=padded)
    tensorflow = result("tensorflow", "multiworker", settings={"input_threads": 0, "dropout": 0.5})
    sheet = compare([torch, tensorflow])
    assert sheet.verdict == "NOT COMPARABLE"
    named = {row.setting for row in sheet.rows if row.reason}
    assert named == {"input threads per replica", "dropout", "augmentation", "evaluated samples"}


@pytest.mark.parametrize("changes", [{"status": "failed"}, {"settings": {"dropout": None}}, {"store_sha256": None}])
def test_what_failed_or_was_not_recorded_is_not_comparable(changes):
    assert compare([result(**changes), result(**changes)]).verdict == "NOT COMPARABLE"


def test_the_subject_of_a_comparison_may_differ():
    pair = [result(), result(precision="bfloat16")]
    assert compare(pair, subject=["precision"]).verdict == "COMPARABLE"
    with pytest.raises(RequestError, match=r"received precison, expected an option .*, such as precision"):
        compare(pair, subject=["precison"])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, set()),
        ({"persistence_mode": True, "name": "NVIDIA H100", "numa_nodes": [1]}, set()),
        ({"watts": 350.0}, {"GPU settings"}),
        ({"after": GpuReading(power_limit_watts=350)}, {"GPU settings"}),
        ({"max_sm_clock_mhz": 1980}, {"GPU settings"}),
        ({"ecc": False}, {"GPU settings"}),
        ({"link": "PCIe across one NUMA node, through the host"}, {"links between GPUs"}),
        ({"unread": "NVML: nvidia-ml-py is not installed"}, {"GPU settings"}),
    ],
)
def test_gpus_that_may_not_run_equally_fast_are_not_compared(changes, named):
    sheet = compare([on_gpus(gpu()), on_gpus(gpu(), gpu(**changes))])
    assert {row.setting for row in sheet.rows if row.reason} == named


def test_gpus_that_were_never_read_are_not_called_equal():
    sheet = compare([on_gpus(), on_gpus()])
    assert [row.setting for row in sheet.rows if row.reason] == ["GPU settings"]


@pytest.mark.parametrize("epsilon", [None, 1e-3])
def test_a_model_without_batchnorm_has_no_epsilon_to_compare(epsilon):
    """Older releases wrote that of EfficientNet for every model."""
    one, other = (result(workload={"model": "mlp"}, settings={"batchnorm_epsilon": each}) for each in ("none", epsilon))
    assert "BatchNorm epsilon" not in {row.setting for row in compare([one, other]).rows if row.reason}


def test_evaluated_rows_are_shown_as_one_checksum():
    """A long run has thousands of evaluations."""
    evaluated = [
        Evaluation(epoch=number, step=10 * number, loss=1.0, accuracy=0.5, count=40, rows=f"{number:016x}")
        for number in range(1, 4)
    ]
    others = [*evaluated[:1], evaluated[1].model_copy(update={"rows": "f" * 16}), evaluated[2]]
    one, other = (result(evaluations=rows) for rows in (evaluated, others))
    same, different = (compare([one, second]) for second in (one, other))
    (row,) = (row for row in same.rows if row.setting == "evaluated rows")
    assert (row.equal, len(row.values[0])) == (True, 64)
    (reason,) = (reason for reason in different.reasons if reason.startswith("evaluated rows"))
    assert reason.startswith("evaluated rows: first differ in the evaluation after step 20; ")


@pytest.mark.parametrize(
    ("precision", "more", "is_reason"),
    [("float32", 1, False), ("float32", 2, True), ("bfloat16", 1, False), ("float64", 1, True)],
)
def test_rounding_may_decide_about_one_sample_of_few(precision, more, is_reason):
    def of(correct):
        return result(precision=precision, global_batch_size=8, computed={"first_evaluation_accuracy": correct / 8})

    named = {row.setting for row in compare([of(3), of(3 + more)]).rows if row.reason}
    assert ("first evaluation accuracy" in named) == is_reason


def of_replicas(*cpu_models):
    """A run whose second replica has other weights, on nodes with these processors."""
    nodes = [
        NodeRecord(node_rank=rank, host=f"n{rank}", device_names=[], versions={}, machine=Machine(cpu_model=model))
        for rank, model in enumerate(cpu_models)
    ]
    return result(nodes=nodes, computed={"replica_difference": "replica 1 differs from replica 0 in conv.bias"})


@pytest.mark.parametrize(("cpu_models", "is_reason"), [(("A", "A"), True), (("A", "B"), False)])
def test_replicas_must_be_equal_on_processors_of_one_kind(cpu_models, is_reason):
    (row,) = (
        row
        for row in compare([of_replicas(*cpu_models), of_replicas(*cpu_models)]).rows
        if row.setting == "equality of replicas"
    )
    assert (row.reason, row.equal) == (is_reason, False)


def test_a_batch_is_a_subject_with_all_that_follows_from_it():
    assert checks_named(["precision", "batch", "precision"]) == (
        *("precision", "batch per replica", "global batch size", "measured steps", "sample order", "steps trained"),
    )
    arms = [result(), result(global_batch_size=64, workload={"global_batch_size": 64}, measured_steps=20)]
    assert compare(arms, subject=["batch"]).verdict == "COMPARABLE"
    assert "use the same --global-batch-size" in " ".join(compare(arms).reasons)
    with pytest.raises(RequestError, match=r"--subject: received batch size, expected .* such as .*batch"):
        checks_named(["batch size"])


@pytest.mark.parametrize(
    ("option", "checks"),
    [
        ("accumulate", ("micro-batches per step",)),
        ("batchnorm", ("BatchNorm scope",)),
        ("scale-lr", ("learning-rate scaling",)),
        ("precision", ("precision",)),
    ],
)
def test_an_option_of_arms_is_a_subject(option, checks):
    assert checks_named([option]) == checks


def test_a_batch_is_a_subject_by_the_names_of_its_option():
    assert checks_named(["batch_size"]) == checks_named(["global-batch-size"]) == checks_named(["batch"])


def test_fields_that_must_be_equal_are_found_before_runs():
    first = Workload(accumulate=1, learning_rate=0.1)
    assert fields_that_differ([first, first], []) == []
    other = first.changed(accumulate=2, learning_rate=0.2, weights="published")
    assert fields_that_differ([first, other], []) == ["accumulate", "learning_rate"]  # of weights, files may be equal
    assert fields_that_differ([first, other], checks_named(["accumulate"])) == ["learning_rate"]
