"""What is seen of a run and a study while they go."""

import io
import threading

import pytest
from rich.console import Console

from dpcompare import Cluster, RunConfig, Workload
from dpcompare.cli.progress import RunProgress, StudyProgress, StudyView
from dpcompare.experiments.study import Study, open_study
from dpcompare.launch.remembered import remember_first_step
from dpcompare.results.events import Evaluated, EventLog, EventTail, Failed
from dpcompare.results.series import RunState
from dpcompare.system.cache import exclusive_lock
from tests.support.command import invoke
from tests.support.events import ready, trained
from tests.support.results import result
from tests.support.studies import arm


def train(rank, losses, *, step):
    return trained(losses, step=step, process_rank=rank)


def begin(rank, *, first_step=0):
    return ready(first_step=first_step, process_rank=rank)


def test_a_step_counts_when_every_process_has_made_it():
    state = RunState(range(2))
    for event in (begin(0), train(0, [8.0, 4.0], step=2), begin(1), train(1, [8.0], step=1)):
        state.add(event)
    assert (state.step, state.num_steps, state.loss) == (1, 10, 2.0)
    assert state.figures == "loss 2.0000, 80.0 images/s"
    state.add(train(1, [2.0], step=2))
    assert (state.step, state.loss) == (2, 0.75)


def test_a_first_step_that_compiles_says_so_and_for_how_long(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DPCOMPARE_CACHE_DIR", str(tmp_path))
    workload = Workload(model="mlp", image_size=8, steps=10, profile="native")
    cluster = Cluster.partition(1, 1, device="cpu")

    def said(**tune):
        config = RunConfig(framework="torch", mode="single", workload=workload, cluster=cluster, tune=tune)
        with RunProgress(config, tmp_path) as progress:
            progress.observe(begin(0))
        remember_first_step(config, 141.6)
        return capsys.readouterr().err

    assert "compiling" not in said()
    assert "compiling: the first step takes some minutes" in said(compilation="torch.compile")
    assert "compiling: the first step takes about 142 s, as the last time here" in said(compilation="torch.compile")


def test_processes_that_begin_again_forget_what_was_half_told():
    state = RunState(range(2))
    for event in (begin(0), begin(1), train(0, [8.0, 8.0, 8.0], step=3), train(1, [8.0], step=1)):
        state.add(event)
    for event in (begin(0, first_step=2), begin(1, first_step=2), train(0, [4.0], step=3), train(1, [4.0], step=3)):
        state.add(event)
    assert (state.step, state.loss) == (3, 1.0)


@pytest.mark.parametrize(
    "changes", [{"step_seconds": [0.0, 0.0]}, {"step_seconds": []}, {"global_counts": []}, {"global_counts": [0, 0]}]
)
def test_steps_that_make_no_sense_are_refused_or_not_counted(begun, changes):
    folder, log = begun
    log.append(trained([8.0, 4.0], **{"step": 4} | changes))
    shown = invoke("watch", folder, "--once")
    assert "Traceback" not in shown.stderr
    if changes == {"global_counts": []}:
        assert (shown.code, "interrupted after step 2" in shown.stdout) == (0, True)
    else:
        assert (shown.code, "an event of kind 'train' has" in shown.stderr) == (2, True)


def test_empty_evaluations_and_steps_of_servers_are_no_progress():
    state = RunState(range(1))
    for event in (Evaluated(step=0, epoch=1, loss_sum=0.0, correct=0, count=0), train(1, [8.0], step=1)):
        state.add(event)
    assert (state.evaluated, state.step, state.figures) == ([], 0, "")


@pytest.fixture
def begun(tmp_path):
    """A study of two arms and two rounds with one run done and one on its way."""
    folder = tmp_path / "study"
    study = open_study(Study(arms=(arm(name="one"), arm(name="two")), repeats=2), folder)
    first, second = study.order(1)
    done, running = study.run_dir(folder, 1, first), study.run_dir(folder, 1, second)
    done.mkdir(parents=True)
    result(images_per_second=99.9, steady_images_per_second=123.4).save(done)  # a stall shows in the first alone
    log = EventLog(running, 0)
    log.append(ready(steps=4))
    log.append(trained([8.0, 4.0], step=2))
    yield folder, log
    log.close()


def cells(view):
    table, _ = view.look()
    return [[str(cell) for cell in column.cells] for column in table.columns], str(table.caption)


def test_a_view_of_a_study_tells_what_is_done_and_how_far_it_is(begun):
    folder, log = begun
    view = StudyView(folder)
    with exclusive_lock(folder, ""):
        columns, caption = cells(view)
        assert sorted(columns[1]) == ["0/2", "1/2"]
        assert "123.4" in columns[2]
        assert "round 1: step 2/4, loss 0.5000, 80.0 images/s" in columns[3]
        assert caption.startswith("3 runs left, about ")
        log.append(trained([2.0], step=3))
        assert "round 1: step 3/4, loss 0.2500, 80.0 images/s" in cells(view)[0][3]


def test_a_view_shows_the_run_that_took_the_place_of_the_first(begun):
    folder, _ = begun
    view = StudyView(folder)
    assert "123.4" in cells(view)[0][2]
    (ended,) = folder.glob("runs/*/*/result.json")
    ended.parent.rename(ended.parent.with_name(f"{ended.parent.name}.disturbed-1"))
    assert cells(view)[0][1] == ["0/2", "0/2"]
    ended.parent.mkdir()
    result(images_per_second=99.5, steady_images_per_second=None).save(ended.parent)  # as 0.1.0 left it
    assert "99.5" in cells(view)[0][2]


def test_a_study_that_nobody_runs_is_not_shown_as_running(begun):
    folder, _ = begun
    shown = invoke("watch", folder)
    assert shown.code == 0
    assert "interrupted after step 2" in shown.stdout
    assert "no process runs this study now" in shown.stdout


def test_an_unreadable_study_is_shown_as_it_was(begun):
    folder, _ = begun
    view, console = StudyView(folder), Console(width=200, record=True, file=io.StringIO())
    console.print(view)
    (folder / "study.json").rename(folder / "away")
    console.print(view)
    (folder / "away").rename(folder / "study.json")
    console.print(view)
    shown = console.export_text()
    assert (shown.count("123.4"), shown.count("holds no readable study.json"), shown.count("runs left")) == (3, 1, 2)


def test_a_progress_that_fails_is_given_up_and_the_study_goes_on(begun, monkeypatch, caplog):
    folder, _ = begun
    progress, lines = StudyProgress(Study.load(folder), folder), []

    def fail(line, **options):
        lines.append(line)
        raise ValueError("no\x1bsuch style")

    monkeypatch.setattr(progress._console, "print", fail)
    progress.run_says("one")
    progress.run_says("two")
    assert lines == ["one"]
    assert caplog.messages == [
        r"the progress display was turned off after an error (ValueError: no\x1bsuch style); the run continues"
    ]


def test_a_view_may_be_asked_by_several_threads(begun):
    folder, log = begun
    view, errors = StudyView(folder), []

    def ask():
        try:
            for _ in range(20):
                view.look()
        except Exception as error:
            errors.append(error)

    with exclusive_lock(folder, ""):
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for step in range(3, 5):
            log.append(trained([2.0], step=step))
        for thread in threads:
            thread.join()
        assert errors == []
        assert any("step 4/4" in cell for cell in cells(view)[0][3])


def test_a_tail_notices_that_a_run_has_begun_again(tmp_path):
    tail = EventTail(tmp_path, range(1))
    for message in ("first", "second"):
        log = EventLog(tmp_path, 0)
        for number in range(3):
            log.append(Failed(message=f"{message} {number}", traceback=""))
        log.close()
        assert [event.message for event in tail.new_events()] == [f"{message} {number}" for number in range(3)]
        (tmp_path / "events").rename(tmp_path / message)
