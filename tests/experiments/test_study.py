"""Studies as documents: their order, their folders, and how they go on."""

import pytest

from dpcompare.errors import RequestError
from dpcompare.experiments.arms import estimate_seconds
from dpcompare.experiments.collection import collect
from dpcompare.experiments.statistics import Plan
from dpcompare.experiments.study import Study, ablated, hold, open_study
from tests.support.recorded import INPUTS
from tests.support.results import result
from tests.support.studies import arm, study


@pytest.mark.seconds
def test_every_arm_runs_once_in_a_round_in_an_order_of_its_own():
    orders = [tuple(each.name for each in study().order(number)) for number in range(1, 41)]
    assert all(sorted(order) == ["arm a", "arm b", "arm c", "arm d"] for order in orders)
    assert len(set(orders)) > 10
    first = [order.index("arm a") for order in orders]
    assert all(3 <= first.count(position) <= 20 for position in range(4))
    assert orders == [tuple(each.name for each in study().order(number)) for number in range(1, 41)]
    assert orders[0:9] != [tuple(each.name for each in study(order_seed=1).order(n)) for n in range(1, 10)]


def test_every_arm_has_a_folder_of_its_own():
    names = [
        "torch ddp 2x1",
        "torch ddp 2x1 dataset=a_b",
        "torch ddp 2x1 dataset=a-b",
        f"torch ddp dataset={'x' * 400}",
    ]
    folders = [arm(name=name).folder for name in names]
    assert folders[0] == "torch-ddp-2x1"
    assert len(set(folders)) == 4
    assert max(map(len, folders)) < 100
    with pytest.raises(RequestError, match="names of their own"):
        Study(arms=(arm(name="same"), arm(name="same")), repeats=1)


def test_a_study_is_run_by_one_process_at_a_time(tmp_path):
    open_study(study(), tmp_path / "study")
    with hold(tmp_path / "study"), pytest.raises(RequestError, match="is being run by another process"):
        hold(tmp_path / "study").__enter__()
    with hold(tmp_path / "study"):
        pass


def test_only_what_exchanges_gradients_can_be_tried_without():
    ddp = arm("torch ddp 2x1", "ddp", nodes=2)
    assert ablated(ddp).config.sync_gradients is False
    assert ablated(ddp).ablation_of == ddp.name
    assert ablated(arm()) is None
    assert ablated(arm("torch dp 1x2", "dp", devices=2)) is None
    with pytest.raises(RequestError, match="weight_average, batchnorm_recompute: received without gradient sync"):
        ablated(arm("torch ddp 2x1", "ddp", nodes=2, weight_average=0.9))


def test_a_study_of_prepared_runs_goes_on_as_the_one_in_its_file(tmp_path):
    prepared = study(arms=tuple(each.changed(config=each.config.prepared(INPUTS)) for each in study().arms))
    open_study(prepared, tmp_path / "study")
    assert open_study(prepared, tmp_path / "study") == Study.load(tmp_path / "study") == prepared


def test_a_study_goes_on_only_as_the_same_study(tmp_path):
    open_study(study(repeats=3), tmp_path / "study")
    assert open_study(study(repeats=5), tmp_path / "study").repeats == 5
    assert open_study(study(repeats=2), tmp_path / "study").repeats == 5
    with pytest.raises(RequestError, match="holds another study, which differs in its margin"):
        open_study(study(margin=2.0), tmp_path / "study")
    changed = study(arms=(arm(name="arm a", seed=1), *study().arms[1:]))
    with pytest.raises(
        RequestError, match=r"holds another study, which differs in its arms \(arm a: seed 1 instead of 0\)"
    ):
        open_study(changed, tmp_path / "study")
    first, *others = study().arms
    elsewhere = first.model_copy(update={"config": first.config.model_copy(update={"python": "/other/python"})})
    named = rf"its arms \(arm a: python /other/python instead of {first.config.python}\);"
    with pytest.raises(RequestError, match=named):
        open_study(study(arms=(elsewhere, *others)), tmp_path / "study")
    with pytest.raises(RequestError, match=r"its arms \(arm a\);"):
        open_study(study(arms=tuple(others)), tmp_path / "study")
    with pytest.raises(RequestError, match="holds another study, which differs in its order_seed"):
        open_study(study(order_seed=1), tmp_path / "study")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(RequestError, match="holds other files"):
        open_study(study(), tmp_path / "other")


def test_a_study_keeps_the_commands_that_made_it(tmp_path):
    first, more = "dpcompare compare --repeats 6", "dpcompare compare --resume a --repeats 12"
    begun = open_study(study(repeats=6, commands=(first,)), tmp_path)
    assert open_study(begun.changed(repeats=12, commands=(more,)), tmp_path).commands == (first, more)
    assert open_study(begun.changed(repeats=12, commands=(more,)), tmp_path).commands == (first, more)
    assert Study.load(tmp_path).commands == (first, more)


def test_the_estimate_grows_with_the_rounds():
    one, _ = estimate_seconds(study(repeats=1), [])
    three, source = estimate_seconds(study(repeats=3), [])
    assert three == pytest.approx(3 * one)
    assert "rough guess" in source


def test_a_pair_is_named_at_the_start_of_a_study_or_never(tmp_path):
    two = (arm(), arm("torch ddp 2x1", "ddp", nodes=2))
    open_study(study(arms=two, pair=("torch single 1x1", "torch ddp 2x1")), tmp_path)
    assert [each.is_named for each in _collected(Study.load(tmp_path), tmp_path)] == [True, True]
    with pytest.raises(RequestError, match="holds another study, which differs in its pair"):
        open_study(study(arms=two), tmp_path)
    open_study(study(arms=two), tmp_path / "unnamed")
    with pytest.raises(RequestError, match="holds another study, which differs in its pair"):
        open_study(study(arms=two, pair=("torch single 1x1", "torch ddp 2x1")), tmp_path / "unnamed")


def _collected(begun, folder):
    for each in begun.arms:
        begun.run_dir(folder, 1, each).mkdir(parents=True)
        result().save(begun.run_dir(folder, 1, each))
    return collect([folder]).arms


def test_intervals_that_ended_rounds_are_judged_more_strictly(tmp_path):
    begun = study(repeats=8, stopped_by="every interval is within 2%")
    begun.save(tmp_path)
    plan = _collected(begun, tmp_path)[0].plan
    assert plan == Plan(rounds=8, until=True)
    assert plan.level < Plan(rounds=8).level


def test_more_rounds_by_hand_are_another_look(tmp_path):
    open_study(study(repeats=3), tmp_path)
    assert open_study(study(repeats=6), tmp_path).looks == ()  # three rounds claim nothing
    assert open_study(study(repeats=6), tmp_path).looks == ()  # continued, not extended
    assert open_study(study(repeats=12), tmp_path).looks == (6,)
    assert open_study(study(repeats=13), tmp_path).looks == (6, 12)
    assert Study.load(tmp_path).looks == (6, 12)


def test_adding_rounds_is_one_look_unless_it_is_broken_off(tmp_path):
    open_study(study(repeats=7, adding=True), tmp_path)
    resumed = open_study(study(repeats=6, adding=True), tmp_path)
    assert (resumed.repeats, resumed.adding, resumed.looks) == (7, True, ())
    broken_off = open_study(study(repeats=6), tmp_path)
    assert (broken_off.repeats, broken_off.adding, broken_off.looks) == (7, False, (7,))


def test_a_study_claims_nothing_before_its_rounds_are_made(tmp_path):
    begun = study(repeats=8, looks=(6,))
    begun.save(tmp_path)
    begun.run_dir(tmp_path, 1, begun.arms[0]).mkdir(parents=True)
    result().save(begun.run_dir(tmp_path, 1, begun.arms[0]))
    assert collect([tmp_path]).arms[0].plan == Plan(rounds=8, looks=1)
