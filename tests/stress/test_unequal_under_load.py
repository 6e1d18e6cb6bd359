"""Unequal arms under loads: rounds that are kept and continued, the truth, the table and its figures."""

from pathlib import Path

import pytest

from benchmarks.evidence import load
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.experiments.study import Arm, Study, open_study
from dpcompare.results.clock import MachineLoad
from dpcompare.results.result import NodeRecord, StepSeconds
from stress import unequal_runs, unequal_under_load
from stress.unequal_runs import FRAMEWORKS, arms_kept, has_ended, kept_at, make_runs, order, rounds_kept, study_dir
from tests.support.results import result

TORCH = [130.0, 129.0, 131.0, 130.5, 129.5, 130.0, 130.2, 129.7]
JAX = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2, 100.1, 99.9]
FOLDER = Path("calibration")


def run_of(framework, speed, *, busy=False):
    """The result of a run that is long enough for a claim, on a busy machine or on one that is left alone."""
    load = MachineLoad(
        seconds=4.0,
        cores=2,
        planned_cores=2,
        run_cores=0.4 if busy else 2.0,
        other_cores=1.6 if busy else 0.0,
        stolen_cores=0.0,
        waiting_fraction=None,
        heat_throttles=0,
    )
    return result(
        framework,
        "single",
        num_nodes=1,
        num_processes=1,
        num_replicas=1,
        device_names=["cpu:0"],
        collective=None,
        workload={"steps": 200},
        steady_images_per_second=speed,
        measured_steps=60,
        step_seconds=StepSeconds(median=3 / speed, p95=3 / speed, mean=3 / speed, mad=0.0),
        nodes=[NodeRecord(node_rank=0, host="here", device_names=["cpu:0"], versions={}, load=load)],
    )


def keep(load, torch, jax, *, busy=False):
    """Keep a round per speed, as `runs` does."""
    for number, speeds in enumerate(zip(torch, jax, strict=True), start=1):
        for framework, speed in zip(FRAMEWORKS, speeds, strict=True):
            run_dir = kept_at(FOLDER, load, framework, number)
            run_dir.mkdir(parents=True)
            run_of(framework, speed, busy=busy).save(run_dir)


def keep_study(load, number, torch, jax, *, busy=False):
    """Keep a study with a round per speed, as `compare` does."""
    speeds = dict(zip(FRAMEWORKS, (torch, jax), strict=True))
    arms = [
        Arm(name=f"{name} single 1x1", config=RunConfig.model_validate(run_of(name, 1.0).config)) for name in FRAMEWORKS
    ]
    study = Study(arms=tuple(arms), repeats=len(torch))
    folder = study_dir(FOLDER, load, number)
    open_study(study, folder)
    for arm in arms:
        for index, speed in enumerate(speeds[arm.config.framework], start=1):
            run_dir = study.run_dir(folder, index, arm)
            run_dir.mkdir(parents=True)
            run_of(arm.config.framework, speed, busy=busy).save(run_dir)
    return folder


def command(monkeypatch, *arguments):
    """The exit code of the script."""
    monkeypatch.setattr("sys.argv", ["unequal_under_load", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        unequal_under_load.main()
    return end.value.code


@pytest.fixture
def runs_made(monkeypatch):
    """(load, framework) of each run that is asked for, in place of the run."""
    asked = []

    def run(config, run_dir):
        asked.append((config.framework, run_dir.parent.parent))
        run_dir.mkdir()
        run = run_of(config.framework, 100.0)
        run.save(run_dir)
        return run

    monkeypatch.setattr(unequal_runs.dp, "run", run)
    configs = [run_of(framework, 100.0).config for framework in FRAMEWORKS]
    monkeypatch.setattr(unequal_runs, "configs", lambda steps: [RunConfig.model_validate(config) for config in configs])
    return asked


def test_runs_alternate_in_random_order_and_are_continued(runs_made):
    make_runs(FOLDER, ["none"], 2, 60.0, 200)
    assert rounds_kept(FOLDER, "none") == [1, 2]
    kept_at(FOLDER, "none", "jax", 1).joinpath("result.json").unlink()
    assert rounds_kept(FOLDER, "none") == [2]
    make_runs(FOLDER, ["none"], 3, 60.0, 200)
    assert rounds_kept(FOLDER, "none") == [1, 2, 3]
    asked = [framework for framework, _ in runs_made]
    assert asked == [name for number in (1, 2, 1, 3) for name in order("none", number)]
    assert {tuple(order("none", number)) for number in range(20)} == {FRAMEWORKS, FRAMEWORKS[::-1]}
    assert sorted(path.name for path in FOLDER.iterdir()) == ["environment.key", "runs"]


def test_no_round_begins_when_the_time_is_up(runs_made, capsys):
    make_runs(FOLDER, ["none"], 2, -1.0, 200)
    assert runs_made == []
    assert "the time is up; the same command makes none 1 of 2 next" in capsys.readouterr().err


def test_runs_of_other_steps_are_not_mixed_within_a_load(runs_made, monkeypatch, capsys):
    keep("smt", TORCH, JAX)
    assert command(monkeypatch, "runs", FOLDER, "--load", "smt", "--steps", "300") == 2
    assert "--steps: received 300, but the runs of the load smt have 200" in capsys.readouterr().err
    assert runs_made == []
    make_runs(FOLDER, ["none"], 1, 60.0, 300)
    assert rounds_kept(FOLDER, "none") == [1]


def test_arms_have_the_runs_of_complete_rounds_in_their_order():
    keep("none", TORCH, JAX)
    kept_at(FOLDER, "none", "torch", 2).joinpath("result.json").unlink()
    torch, jax = arms_kept(FOLDER, "none")
    assert torch.steady_speeds == [TORCH[0], *TORCH[2:]]
    assert jax.steady_speeds == [JAX[0], *JAX[2:]]
    assert {first + second for first, second in zip(torch.positions, jax.positions, strict=True)} == {3}


def test_too_few_rounds_are_no_truth():
    keep("none", TORCH[:5], JAX[:5])
    with pytest.raises(RequestError, match="has 5 rounds of the load none, expected at least 6"):
        arms_kept(FOLDER, "none")


@pytest.mark.parametrize(
    ("torch", "jax", "busy"),
    [(TORCH, TORCH[::-1], False), (TORCH, JAX, True)],
    ids=["equal arms", "a busy machine"],
)
def test_a_truth_that_is_not_known_ends_everything(torch, jax, busy, monkeypatch, capsys):
    keep("none", torch, jax, busy=busy)
    assert command(monkeypatch, "drawn", FOLDER) == 3
    assert "The truth is not known" in capsys.readouterr().err


def test_a_truth_that_is_assumed_is_said_to_be(monkeypatch, capsys):
    keep("none", TORCH, JAX, busy=True)
    assert command(monkeypatch, "drawn", FOLDER, "--assume", "torch", "--studies", 1) == 0
    printed = capsys.readouterr().out
    assert "ASSUMED to try the script: torch is the faster one. These figures do not count." in printed
    assert "| 1 | 0 | - | 1 | DISTURBED 1 | 0 | 1 | 0 |" in printed


@pytest.mark.seconds
def test_real_studies_that_have_ended_are_counted(monkeypatch, capsys):
    keep("none", TORCH, JAX)
    keep_study("none", 1, TORCH[:6], JAX[:6])
    keep_study("smt", 1, JAX[:6], TORCH[:6], busy=True)
    interrupted = keep_study("smt", 2, JAX[:6], TORCH[:6])
    next(interrupted.glob("runs/round-06/*/result.json")).unlink()
    assert not has_ended(interrupted)
    assert command(monkeypatch, "studies", FOLDER, "--studies", 1, "--load", "none", "--load", "smt") == 0
    printed = capsys.readouterr().out
    few = "real studies, of 6 rounds: too few to count"
    assert f"| nothing but the runs | {few} | 1 | 1 | 1 | 0 |  | 0 | 1 | 0 |" in printed
    assert (
        f"| a busy loop bound to each core of the runs | {few} | 1 | 0 | - | 1 | DISTURBED 1 | 0 | 1 | 1 |" in printed
    )


@pytest.mark.process  # git says of which commit the figures are
def test_the_report_counts_each_load_against_the_quiet_machine(monkeypatch, capsys):
    keep("none", TORCH, JAX)
    keep("eight-loops", [speed / 10 for speed in TORCH], JAX, busy=True)
    assert command(monkeypatch, "report", FOLDER, "--studies", 5, "--write", "results") == 0
    printed = capsys.readouterr().out
    few = "of 8 rounds: too few to count"
    assert "torch single is 1.300 times as fast as jax single" in printed
    assert f"| nothing but the runs | drawn, runs apart, {few} | 5 | 5 | 5 | 0 |  | 0 | 5 | 0 |" in printed
    assert f"| eight busy loops | drawn, runs apart, {few} | 5 | 0 | - | 5 | DISTURBED 5 | 0 | 5 | 5 |" in printed
    assert "drawn, runs apart: 100.0% of studies make a right claim, 100.0% without the rule" in printed
    kept = load(Path("results") / "unequal-under-load.json")
    assert (kept.status, kept.figures["claims_wrong"]) == ("open", 0)
    assert [(row[0], *row[2:4]) for row in kept.tables[0].rows] == [
        *[("nothing but the runs", 5, 5)] * 2,
        *[("eight busy loops", 5, 0)] * 2,
        ("nothing but the runs", 1, 1),  # the rounds in their order: six, and two are left
        ("eight busy loops", 1, 0),
    ]


@pytest.mark.seconds
def test_a_claim_of_the_wrong_sign_is_exit_code_3(monkeypatch, capsys):
    """A load that no run notices, so that nothing is withheld."""
    keep("none", TORCH, JAX)
    keep("memory", JAX, TORCH)
    assert command(monkeypatch, "drawn", FOLDER, "--studies", 5) == 3
    assert "WRONG: memory, drawn, runs apart: fewer than 97.5% of the claims are right" in capsys.readouterr().err
