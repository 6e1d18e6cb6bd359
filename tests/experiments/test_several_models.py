"""A study of several models: what is compared within a model, and nothing across them."""

import pytest

from dpcompare.cli.report import _not_in_headline
from dpcompare.experiments.next_steps import _more_nodes
from dpcompare.report.formats import as_markdown
from dpcompare.report.page import as_html
from dpcompare.report.text import as_text, within
from tests.support.arms import FAST, SLOW, compared, renamed, runs, single
from tests.support.learning import BETTER, SEEDS, SPEEDS, varied

FASTER = [1.2 * speed for speed in FAST]


def of_model(model, arm, *, weights="random", **changes):
    """The arm as if another model had been trained."""
    workload = arm.config.workload.changed(model=model, weights=weights)
    arm.config = arm.config.changed(workload=workload)
    arm.runs = [
        run.model_copy(update={"model": model, "config": run.config | {"workload": workload.model_dump()}, **changes})
        for run in arm.runs
    ]
    return renamed(f"{arm.name} model={model}", arm)


def two_arms():
    return runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW)


def two_models(*more, subject=()):
    first, second = (
        [of_model(model, arm) for arm in (runs("torch", "ddp", fast), runs("tensorflow", "multiworker", SLOW))]
        for model, fast in (("resnet18", FAST), ("mlp", FASTER))
    )
    return compared(*first, *second, *more, subject=subject)


def test_pairs_are_judged_within_a_model():
    shown = two_models()
    assert [(claim.first.split()[0], claim.second, claim.outcome) for claim in shown.claims] == [
        ("torch", "tensorflow multiworker 2x1 model=resnet18", "faster"),
        ("torch", "tensorflow multiworker 2x1 model=mlp", "faster"),
    ]
    resnet, mlp = (claim.sentence for claim in shown.claims)
    assert shown.headline == f"resnet18: {resnet} mlp: {mlp}"
    assert (shown.verdict, shown.reasons) == ("COMPARABLE", [])
    model = next(row for row in shown.settings if row.setting == "model")
    assert (model.values, model.equal, model.reason) == (["resnet18"] * 2 + ["mlp"] * 2, False, False)


def test_what_differs_within_a_model_is_a_reason_with_its_name():
    other = of_model("mlp", runs("torch", "fabric", SLOW, store_sha256="other"))
    shown = two_models(other)
    (reason,) = (reason for reason in shown.reasons if reason.startswith("data"))
    assert reason.startswith("data: with mlp, ")
    assert "resnet18" not in reason
    assert [within(group, shown) for group in shown.groups] == [
        "resnet18 on 2 devices: all are comparable.",
        "mlp on 2 devices: all but torch fabric 2x1 model=mlp are comparable.",
    ]


def test_a_study_about_models_judges_them_against_each_other():
    shown = two_models(subject=("model",))
    assert len(shown.claims) == 6
    assert [group.model for group in shown.groups] == [None]


@pytest.mark.parametrize(
    ("first", "second", "reasons"),
    [
        ("a.safetensors", "b.safetensors", []),
        ("random", "zero-init", ["origin of the weights"]),
        ("random", "imagenet", ["origin of the weights"]),
    ],
)
def test_models_compared_begin_from_weights_of_one_origin(first, second, reasons):
    arms = [
        of_model("resnet18", runs("torch", "ddp", FAST), weights=first),
        of_model("resnet50", runs("torch", "ddp", FASTER), weights=second, weights_sha256="others"),
    ]
    shown = compared(*arms, subject=("model",))
    assert [reason.partition(":")[0] for reason in shown.reasons] == reasons


@pytest.mark.parametrize(
    ("checksum", "subject", "reasons"),
    [
        ({}, (), []),
        ({"weights_sha256": "others"}, (), ["origin of the weights", "initial weights"]),
        ({"weights_sha256": "others"}, ("initial weights",), []),
        ({"weights_sha256": "others"}, ("weights",), []),
    ],
    ids=["a file of what was drawn", "another file", "named by its row", "named as a whole"],
)
def test_weights_of_a_file_may_be_those_drawn_or_the_subject(checksum, subject, reasons):
    arms = [
        of_model("resnet18", runs("torch", "ddp", FAST)),
        of_model("resnet18", runs("torch", "ddp", FASTER), weights="a.safetensors", **checksum),
    ]
    shown = compared(*arms, subject=subject)
    assert [reason.partition(":")[0] for reason in shown.reasons] == reasons


def test_arms_of_different_models_alone_are_not_comparable():
    arms = [of_model(model, runs("torch", "ddp", FAST)) for model in ("resnet18", "mlp")]
    (claim,) = compared(*arms).claims
    assert claim.outcome == "NOT COMPARABLE"
    assert "model" in claim.sentence


def test_one_device_is_the_baseline_of_its_own_model():
    arms = [of_model(model, arm) for model in ("resnet18", "mlp") for arm in (single(SLOW), runs("torch", "ddp", FAST))]
    shown = compared(*arms)
    assert [row.scaling.baseline for row in shown.arms if row.scaling] == [
        "torch single 1x1 model=resnet18",
        "torch single 1x1 model=mlp",
    ]
    assert [(group.model, group.num_devices) for group in shown.groups] == [
        *(("resnet18", devices) for devices in (1, 2)),
        *(("mlp", devices) for devices in (1, 2)),
    ]


def test_accuracies_are_compared_within_a_model():
    arms = []
    for model in ("resnet18", "mlp"):
        for framework, mode, accuracies in (("torch", "ddp", BETTER), ("tensorflow", "multiworker", SEEDS)):
            made = of_model(model, runs(framework, mode, SPEEDS))
            arms.append(varied(made, accuracies, workload={"model": model}))
    learning = compared(*arms, repeats=8).learning
    assert len(learning.claims) == 4  # accuracy and loss of two pairs
    assert all(claim.first.split("model=")[1] == claim.second.split("model=")[1] for claim in learning.claims)
    assert learning.headline.startswith("resnet18: torch ddp 2x1 model=resnet18 is 2.87 points more accurate")
    assert " mlp: torch ddp 2x1 model=mlp is 2.87 points more accurate" in learning.headline


def test_what_has_failed_does_not_make_one_set_of_two_models():
    arms = []
    for model in ("resnet18", "mlp"):
        failed = of_model(model, runs("tensorflow", "multiworker", [1.0] * 6))
        failed.runs, failed.failures = [None] * 6, [f"round {number}: no memory" for number in range(1, 7)]
        arms += [of_model(model, runs("torch", "ddp", FAST)), failed]
    shown = compared(*arms)
    assert shown.claims == []
    assert shown.headline.startswith("resnet18: One arm alone: torch ddp 2x1 model=resnet18.")


def test_a_named_pair_of_one_model_leaves_the_others_exploratory():
    arms = [of_model(model, arm) for model in ("resnet18", "mlp") for arm in two_arms()]
    for arm in arms:
        arm.is_named = arm.config.workload.model == "resnet18"
    shown = compared(*arms)
    assert shown.headline.endswith(" mlp: exploratory, since a pair of another model was named beforehand.")
    assert " is 1.300 times as fast" in shown.headline


def test_studies_are_reported_together_whatever_models_they_have():
    arms = [of_model(model, arm) for model in ("resnet18", "mlp") for arm in two_arms()]
    other = of_model("resnet18", runs("torch", "fabric", SLOW))
    other.source = "other"
    shown = compared(*arms, renamed("other: fabric", other))
    (study,) = (row for row in shown.settings if row.setting == "study")
    assert study.values == ["", "", "", "", "other"]
    assert any(reason.startswith("study: with resnet18, ") for reason in shown.reasons)


def test_a_study_about_models_keeps_its_claims():
    about = [of_model(model, runs("torch", "ddp", speeds)) for model, speeds in (("resnet18", SLOW), ("mlp", FAST))]
    for arm in about:
        arm.source, arm.subject = "about", ("model",)
        arm.name = f"about: {arm.name}"
    by_model = [of_model(model, arm) for model in ("resnet18", "mlp") for arm in two_arms()]
    about.append(of_model("toy-bn", runs("torch", "ddp", SLOW)))
    about[-1].source, about[-1].subject, about[-1].name = "about", ("model",), "about: third"
    for arms in ((*about, *by_model), (*by_model, *about)):
        shown = compared(*arms)
        assert len(shown.claims) == 5
        for label in ("about", "resnet18", "mlp"):
            assert f"{label}: " in shown.headline
        assert {group.model for group in shown.groups} == {"about", "resnet18", "mlp"}


def test_what_other_models_show_is_said_next_to_a_named_pair():
    arms = [
        of_model(model, arm)
        for model in ("resnet18", "mlp")
        for arm in (single(SLOW), runs("torch", "ddp", FAST), runs("torch", "fabric", SLOW))
    ]
    for arm in arms:
        arm.is_named = arm.config.workload.model == "resnet18" and "single" not in arm.name
    shown = compared(*arms)
    assert " mlp: torch ddp 2x1 model=mlp on 2 devices: 1.300 times the speed of one device" in shown.headline
    assert "mlp: Where arms are comparable" in shown.agreement


def test_what_differs_between_rounds_alone_is_equal():
    arms = []
    for model in ("resnet18", "mlp"):
        for arm in two_arms():
            made = varied(of_model(model, arm), SEEDS[:6], workload={"model": model})
            for number, run in enumerate(made.runs, start=1):
                made.runs[number - 1] = run.model_copy(update={"weights_sha256": f"{model} {number}"})
            arms.append(made)
    rows = {row.setting: row for row in compared(*arms).settings}
    assert rows["sample order"].equal
    assert not rows["initial weights"].equal  # another file for each model
    assert not rows["initial weights"].reason


def test_more_nodes_are_predicted_model_by_model(tmp_path):
    rows = [of_model(model, arm) for model in ("resnet18", "mlp") for arm in two_arms()]
    shown = compared(*rows)
    assert list(_more_nodes(shown, tmp_path)) == []
    measured = [row.model_copy(update={"communication_ms": 1.0}) for row in shown.arms]
    commands = [step.command for step in _more_nodes(shown.model_copy(update={"arms": measured}), tmp_path)]
    assert len(commands) == 2
    assert all(command.count("--arm") == 2 for command in commands)
    assert ("model=mlp" in commands[0], "model=mlp" in commands[1]) == (False, True)


def test_pairs_beyond_those_of_the_headlines_are_counted():
    shown = two_models()
    assert _not_in_headline(shown) == 0
    assert _not_in_headline(two_models(of_model("mlp", runs("torch", "fabric", SLOW)))) == 1


@pytest.mark.seconds
@pytest.mark.slow
def test_reports_show_the_arms_model_by_model():
    shown = two_models()
    text = as_text(shown, 100)
    assert text.index("resnet18 on 2 devices") < text.index("mlp on 2 devices")
    assert "mlp on 2 devices: all are comparable." in as_html(shown)
    assert shown.headline in as_markdown(shown)
