"""`dpcompare compare` as a user meets it: what it prints and keeps, what it refuses, and how it goes on."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpcompare.cli.live_page import LivePage
from dpcompare.cli.next_commands import steps_after_study
from dpcompare.experiments.analysis import analyse
from dpcompare.experiments.collection import collect
from dpcompare.experiments.study import Study, open_study
from dpcompare.results.result import RunResult
from tests.support.command import dpcompare, invoke, start
from tests.support.learning import ddp, multiworker, saved
from tests.support.studies import arm, counted_runs

TINY = ["--model", "mlp", "--image-size", "8", "--steps", "4", "--warmup-steps", "1", "--device", "cpu"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A study of two arms and two rounds; and what the command printed."""
    folder = tmp_path_factory.mktemp("study") / "out"
    arms = ["--arm", "torch:single", "--arm", "torch:single,seed=0"]
    command = ["compare", *arms, *TINY, "--repeats", "2", "--no-late-step"]
    done = dpcompare(*command, "--out", folder)
    assert done.code == 0, done.stderr
    return folder, command, done


@pytest.mark.torch
def test_a_study_leaves_every_run_and_prints_what_may_be_claimed(finished):
    folder, _, done = finished
    runs = [run.relative_to(folder) for run in counted_runs(folder)]
    names = ("torch-single-1x1", "torch-single-1x1-seed=0")
    assert runs == [Path("runs") / number / name for number in ("round-01", "round-02") for name in names]
    assert "FIRST LOOK: 2 of 6 rounds, nothing is ranked yet." in done.stdout
    assert "All are comparable." in done.stdout
    told = re.findall(r"round \d: torch single.*: ([\d.]+) images/s in", done.stderr)  # while it ran, as in the table
    assert sorted(told) == sorted(f"{RunResult.load(folder / run).compared_speed:.1f}" for run in runs)
    assert f"settle it   dpcompare compare --resume {folder} --repeats 6   (about " in done.stderr
    assert f"details     dpcompare report {folder} --full" in done.stderr
    full = invoke("report", folder, "--full").stdout
    assert "too few rounds to claim anything, 2 rounds of 6 (measured ratio" in full
    assert "COMPARABLE (" in full


@pytest.mark.torch
def test_a_finished_study_runs_nothing_again_and_says_the_same(finished):
    folder, _, done = finished
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("result.json")}
    again = dpcompare("compare", "--resume", folder)
    assert again.code == 0, again.stderr
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("result.json")} == before
    assert again.stdout == done.stdout
    assert again.stderr.count("not run again, made before: completed") == 4


@pytest.mark.torch
@pytest.mark.slow
def test_a_study_whose_table_nobody_reads_is_no_failed_one(finished):
    again = start("compare", "--resume", finished[0])
    again.stdout.close()
    assert (again.wait(600), "page        " in again.stderr.read()) == (0, True)
    again.stderr.close()


@pytest.mark.torch
def test_a_resumed_study_may_have_more_rounds_and_nothing_else(finished):
    folder, _, _ = finished
    longer = invoke("compare", "--resume", folder, "--repeats", "3", "--dry-run", "--json")
    assert len(longer.json["runs"]) == 6
    refused = invoke("compare", "torch:dp", "--resume", folder, "--arm", "torch:ddp", "--epochs", "3")
    assert refused.code == 2
    assert "--resume: received torch:dp, --arm, --epochs with it" in refused.stderr
    nowhere = invoke("compare", "--resume", folder / "runs")
    assert nowhere.code == 2
    assert "expected the directory of a study" in nowhere.stderr


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_what_was_interrupted_is_kept_and_made_again(finished, tmp_path, monkeypatch):
    folder, command, _ = finished
    shutil.copytree(folder, tmp_path / "out")
    run_dir = tmp_path / "out" / "runs" / "round-02" / "torch-single-1x1"
    result = json.loads((run_dir / "result.json").read_text())
    (run_dir / "result.json").write_text(json.dumps(result | {"status": "interrupted"}))
    shown = invoke("report", tmp_path / "out")
    assert "PARTIAL (1 of 2 rounds are complete)." in shown.stdout
    page, seen = tmp_path / "out" / "page.html", []

    def update_and_look(self, update=LivePage.update):
        seen.append(page.read_text())
        update(self)
        seen.append(page.read_text())

    monkeypatch.setattr(LivePage, "update", update_and_look)
    again = invoke(*command, "--out", tmp_path / "out", "--html", page)
    assert again.code == 0, again.stderr
    seen.append(page.read_text())
    assert ["PARTIAL (1 of 2 rounds" in text for text in seen] == [True, False, False]
    assert ["The study is running" in text for text in seen] == [True, True, False]
    assert all("2 of 6 rounds" in text for text in seen[1:])
    assert json.loads((run_dir / "result.json").read_text())["status"] == "completed"
    assert (run_dir.with_name("torch-single-1x1.interrupted-1") / "result.json").is_file()


@pytest.mark.torch
@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("-", "received '-', expected a file with a name such as page.html"),
        ("out/study.json", "expected a file with a name such as page.html"),
        (".", "expected a file with a name such as page.html"),
        ("nowhere/page.html", "expected a file in a directory that can be written to"),
    ],
)
def test_a_page_that_cannot_be_written_is_refused_first(tmp_path, monkeypatch, file, expected):
    monkeypatch.chdir(tmp_path)
    refused = invoke("compare", "--arm", "torch:single", *TINY, "--out", "out", "--html", file)
    assert (refused.code, refused.stdout) == (2, "")
    assert expected in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_page_of_a_study_without_a_completed_run_says_so(tmp_path, capsys):
    open_study(Study(arms=(arm(),), repeats=1), tmp_path / "study")
    page = tmp_path / "page.html"
    with LivePage(tmp_path / "study", page) as live:
        assert "is running" in page.read_text()
        live.update()
        assert 'http-equiv="refresh"' in page.read_text()
    assert "has ended" in page.read_text()
    assert "refresh" not in page.read_text()
    assert capsys.readouterr().err == ""


def test_a_study_outlives_its_page(tmp_path, monkeypatch, capsys):
    open_study(Study(arms=(arm(),), repeats=1), tmp_path / "study")

    def broken(*arguments, **options):
        raise KeyError("encoding")

    monkeypatch.setattr("dpcompare.report.page.empty_page", broken)
    with LivePage(tmp_path / "study", tmp_path / "page.html") as live:
        live.update()
    assert capsys.readouterr().err.count("page.html was not written: KeyError: 'encoding'") == 3


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_study_whose_cache_disappears_prepares_it_again(tmp_path, monkeypatch):
    monkeypatch.setenv("DPCOMPARE_CACHE_DIR", str(tmp_path / "cache"))
    made = []

    def empty_the_cache(watcher, number, arm, result):
        made.append(result.status)
        shutil.rmtree(tmp_path / "cache")

    monkeypatch.setattr("dpcompare.cli.progress.StudyProgress.run_ended", empty_the_cache)
    done = invoke("compare", "--arm", "torch:single", *TINY, "--repeats", "3", "--out", tmp_path / "out")
    assert (done.code, made) == (0, ["completed"] * 3), done.stderr


@pytest.mark.torch
@pytest.mark.slow
def test_ctrl_c_keeps_the_runs_that_are_done(tmp_path):
    arguments = ["--arm", "torch:single", *TINY, "--repeats", "50", "--no-late-step", "--out", tmp_path / "out"]
    process = start("compare", *arguments)
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("out/runs/*/*/result.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=600)
    assert process.returncode == 130, stderr
    assert "PARTIAL (" in stdout
    assert f"interrupted; to continue: dpcompare compare --resume {tmp_path / 'out'}\n" in stderr
    report = invoke("report", tmp_path / "out")
    assert report.code == 0
    assert "of 50 rounds are complete" in report.stdout


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_an_arm_that_fails_is_reported_and_the_others_go_on(tmp_path):
    arguments = ["compare", "--arm", "torch:single", "--arm", "torch:ddp", *TINY, "--nodes", "2", "--repeats", "2"]
    done = invoke(*arguments, "--out", tmp_path / "out", PYTHONPATH=str(_broken_ddp(tmp_path)))
    assert done.code == 1
    assert "error: some runs failed: torch ddp 2x1" in done.stderr
    assert "FAILED torch ddp 2x1: round 1: " in done.stdout
    assert "round 2: torch ddp 2x1: not run again, its arm has failed" in done.stderr
    assert len(list(tmp_path.glob("out/runs/*/torch-single-1x1/result.json"))) == 2
    again = invoke(*arguments, "--out", tmp_path / "out", "--json")
    assert again.code == 1
    assert [bool(row["failures"]) for row in again.json["arms"]] == [False, True]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_failed_run_can_be_made_again(tmp_path):
    arguments = ["compare", "--arm", "torch:ddp", *TINY, "--nodes", "2", "--out", tmp_path / "out"]
    assert invoke(*arguments, PYTHONPATH=str(_broken_ddp(tmp_path))).code == 1
    assert "every run failed, so nothing can be compared" in invoke(*arguments).stderr
    again = invoke(*arguments, "--retry-failed")
    assert again.code == 0, again.stderr
    (counted,) = counted_runs(tmp_path / "out")
    assert counted.name == "torch-ddp-2x1"
    assert counted.with_name("torch-ddp-2x1.failed-1").is_dir()


def _broken_ddp(folder):
    (folder / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'dpcompare.worker' in sys.argv[0:1] + sys.orig_argv and 'LOCAL_RANK' in os.environ:\n"
        "    raise SystemExit('broken on purpose')\n"
    )
    return folder


@pytest.mark.torch
def test_a_dry_run_lists_every_run_and_starts_none(tmp_path):
    named_otherwise = "torch:single,lr=0.01,precision=bf16"
    arms = ("torch:single", named_otherwise, "--nodes", "1,2", "--arm", "torch:ddp", "--repeats", "3")
    done = invoke("compare", *arms, *TINY, "--out", tmp_path / "out", "--dry-run", "--json")
    assert done.code == 0, done.stderr
    changed = "torch single 1x1 learning_rate=0.01 precision=bfloat16"
    assert {run["arm"] for run in done.json["runs"]} == {"torch single 1x1", changed, "torch ddp 1x1", "torch ddp 2x1"}
    assert len(done.json["runs"]) == 12
    assert done.json["estimated_seconds"] > 0
    assert not (tmp_path / "out").exists()


@pytest.mark.torch
def test_several_models_are_each_trained_by_every_arm(tmp_path):
    arms = ("torch:single", "torch:ddp,precision=bf16", "torch:single,model=toy-bn")
    done = invoke("compare", *arms, *TINY, "--model", "mlp, toy-cnn", "--image-size", "32", "--dry-run", "--json")
    assert done.code == 0, done.stderr
    assert sorted({run["arm"] for run in done.json["runs"]}) == [
        "torch ddp 2x1 precision=bfloat16 model=mlp",
        "torch ddp 2x1 precision=bfloat16 model=toy-cnn",
        "torch single 1x1 model=mlp",
        "torch single 1x1 model=toy-bn",
        "torch single 1x1 model=toy-cnn",
    ]
    models = {run["arm"]: run["workload"]["model"] for run in done.json["runs"]}
    assert all(name.endswith(f"model={model}") for name, model in models.items())


@pytest.mark.torch
def test_arms_that_are_compared_with_nothing_are_said_to_be(tmp_path):
    asked = ("compare", "torch:single", *TINY, "--model", "mlp,toy-bn", "--image-size", "32", "--dry-run")
    says = "one arm of each model: arms of different models are not compared; add an arm, or pass --subject model"
    assert says in invoke(*asked).stderr
    assert says not in invoke(*asked, "--subject", "model").stderr
    pair = ("--pair", "torch:single,model=mlp", "--pair", "torch:single,model=toy-bn")
    refused = invoke(*asked, *pair)
    assert refused.code == 2
    assert (
        "--pair: received arms of mlp and toy-bn, expected two of one model; or pass --subject model" in refused.stderr
    )
    assert invoke(*asked, *pair, "--subject", "model").code == 0
    twice = invoke(*asked[:2], *asked[1:])
    assert "received the arm torch single 1x1 model=mlp twice" in twice.stderr


@pytest.mark.torch
@pytest.mark.parametrize(
    ("arms", "says"),
    [
        (["torch:single", "torch:single,accumulate=2"], "--subject accumulate"),
        (
            ["torch:single,lr=0.1", "torch:single,lr=0.2,precision=bfloat16"],
            "--subject learning_rate --subject precision",
        ),
        (["torch:single", "torch:single,accumulate=2", "--subject", "accumulate"], None),
        (["torch:single", "torch:ddp,nodes=2,batch_size=64"], None),  # more devices may have a larger batch
    ],
)
def test_arms_that_will_not_be_comparable_are_named_first(arms, says, tmp_path):
    planned = invoke("compare", *arms, *TINY, "--dry-run", "--out", tmp_path / "out")
    assert planned.code == 0, planned.stderr
    asked = re.findall(r"will be NOT COMPARABLE, unless that is the question: (.+)", planned.stderr)
    assert asked == ([says] if says else [])


@pytest.mark.torch
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("mlp,,toy-cnn", "--model: received 'mlp,,toy-cnn', expected each model once, such as resnet18,vit-ti16"),
        ("mlp,mlp", "--model: received 'mlp,mlp', expected each model once"),
        ("mlp,toy-cn", "unknown model 'toy-cn'"),
    ],
)
def test_wrong_lists_of_models_are_refused(asked, says):
    refused = invoke("compare", "torch:single", *TINY, "--model", asked, "--dry-run")
    assert (refused.code, says in refused.stderr) == (2, True), refused.stderr
    assert invoke("run", "-f", "torch", "-m", "single", *TINY, "--model", asked).code == 2


@pytest.mark.torch
@pytest.mark.parametrize("weights", ["imagenet", "of/this.safetensors"])
def test_what_varies_with_weights_of_a_file_is_said(weights):
    arguments = ["--arm", "torch:single", "--model", "efficientnet-b0", "--device", "cpu", "--vary-seed", "--repeats=2"]
    done = invoke("compare", *arguments, "--weights", weights, "--augment", "flip", "--dry-run", "--json")
    assert done.code == 0, done.stderr
    assert (
        "--vary-seed: Each round uses its own seed, shared by all arms; it determines the classifier (where the "
        "weights file has none for these classes), the sample order and the augmentation. Every round starts from "
        f"the weights of {weights}."
    ) in done.stderr
    assert [run["workload"]["seed"] for run in done.json["runs"]] == [1, 2]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_study_of_accuracy(tmp_path):
    learning = ["--vary-seed", "--evaluate-every", "2", "--target-accuracy", "0.01", "--keep-predictions"]
    command = ["compare", "--arm", "torch:single", "--arm", "torch:single,seed=0", *TINY, *learning, "--repeats", "2"]
    done = invoke(*command, "--out", tmp_path / "out", "--json")
    assert done.code == 0, done.stderr
    shown = done.json
    assert [made["outcome"] for made in shown["learning"]["claims"]] == ["too few rounds"] * 2
    seeds = [[each["seed"] for each in row["rounds_shown"]] for row in shown["arms"]]
    assert seeds == [[1, 2], [1, 2]]
    accuracies = [[each["accuracy"] for each in row["rounds_shown"]] for row in shown["arms"]]
    assert accuracies[0] == accuracies[1]  # the same training twice
    assert shown["predictions"]["agreements"][0]["agreement"] == 1.0
    assert shown["predictions"]["samples"] == 359
    (row, _) = shown["arms"]
    right = sum(row[number] for number, row in enumerate(shown["predictions"]["arms"][0]["confusion"]))
    assert right == pytest.approx(359 * sum(accuracies[0]))
    assert [point["step"] for point in row["accuracy_curve"]] == [2, 4]
    assert row["to_target"]["steps"] == 2
    run_dir = tmp_path / "out" / "runs" / "round-02" / "torch-single-1x1"
    lines = (run_dir / "predictions" / "process-0.csv").read_text().splitlines()
    assert (lines[0], len(lines)) == ("index,label,prediction", 360)


def test_accuracies_that_lack_rounds_are_settled_by_more(tmp_path):
    """Also where speeds are not comparable."""
    folder = saved(tmp_path, ddp(), multiworker(profile="native"), rounds=2)
    comparison = analyse(collect([folder]))
    assert [made.outcome for made in comparison.claims] == ["NOT COMPARABLE"]
    assert f"settle it   dpcompare compare --resume {folder} --repeats 6   (" in " ".join(
        steps_after_study(comparison, folder)
    )


def test_an_option_that_parts_the_arms_can_be_the_question(tmp_path):
    folder = saved(tmp_path, ddp(), multiworker(profile="native"), rounds=2)
    assert f"as subject  dpcompare report {folder} --subject profile" in list(
        steps_after_study(analyse(collect([folder])), folder)
    )
    asked = analyse(collect([folder], ["profile"]))
    assert asked.claims[0].outcome != "NOT COMPARABLE"
    assert "--subject" not in " ".join(steps_after_study(asked, folder))


def test_where_no_difference_is_shown_more_rounds_are_proposed(tmp_path):
    folder = saved(tmp_path, ddp(), multiworker())
    comparison = analyse(collect([folder]))
    assert comparison.claims[0].outcome == "no difference shown"
    assert comparison.headline.startswith(comparison.claims[0].sentence)
    assert re.search(
        r"\. 8 rounds like these would show a difference of [\d.]+% four times out of five\.$", comparison.headline
    )
    steps = list(steps_after_study(comparison, folder))
    assert steps[0].startswith(f"more rounds dpcompare compare --resume {folder} --repeats 16   (about ")
    Study.load(folder).changed(stopped_by="every interval was within 2%").save(folder)
    assert "--repeats" not in " ".join(steps_after_study(analyse(collect([folder])), folder))


@pytest.mark.torch
@pytest.mark.root
def test_a_disk_that_fills_up_keeps_what_is_done(tmp_path):
    """In a mount namespace of its own, on a disk of 100 KiB."""
    command = f"{sys.executable} -m dpcompare"
    script = f"""
        mount -t tmpfs -o size=100k none {tmp_path} || exit 77
        {command} compare --arm torch:single {" ".join(TINY)} --repeats 9 --out {tmp_path}/out
        echo "exit code $?"
        {command} report {tmp_path}/out
    """
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=300)
    if done.returncode == 77:
        pytest.skip("no file system may be mounted here")
    assert "exit code 1" in done.stdout, done.stderr
    assert "error: the study has stopped: " in done.stderr
    assert "No space left on device" in done.stderr
    assert f"to continue: dpcompare compare --resume {tmp_path}/out" in done.stderr
    (whole,) = re.findall(r"PARTIAL \((\d) of 9 rounds are complete\)", done.stdout)
    assert int(whole) >= 2


@pytest.mark.torch
def test_a_dry_run_counts_images_without_preparing_them(tmp_path, photos, monkeypatch):
    monkeypatch.setenv("DPCOMPARE_CACHE_DIR", str(tmp_path / "cache"))
    arguments = ["compare", "--arm", "torch:single", *TINY[:4], "--device", "cpu", "--dataset", photos, "--dry-run"]
    done = invoke(*arguments, "--global-batch-size", "4")
    assert done.code == 0, done.stderr
    assert "1 run, about" in done.stdout
    assert not (tmp_path / "cache").exists()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    assert "holds other files" in invoke(*arguments, "--out", tmp_path / "taken").stderr


@pytest.mark.torch
def test_a_study_file_gives_options_by_their_names(tmp_path):
    (tmp_path / "study.toml").write_text(
        'arm = ["torch:single", "torch:ddp,profile=native"]\nnodes = [1, 2]\nrepeats = 2\nmodel = "mlp"\n'
        'pair = ["torch:single", "torch ddp 2x1 profile=native"]\n'
        'image_size = 8\nsteps = 4\nwarmup_steps = 1\ndevice = "cpu"\n'
    )
    done = invoke("compare", tmp_path / "study.toml", "--dry-run", "--json")
    assert done.code == 0, done.stderr
    assert {run["arm"] for run in done.json["runs"]} == {
        "torch single 1x1",
        "torch ddp 1x1 profile=native",
        "torch ddp 2x1 profile=native",
    }
    assert len(done.json["runs"]) == 6
    named = ("torch:dp", "torch:single", "--pair", "torch:dp", "--pair", "torch:single", "--nodes", "1")
    other = invoke("compare", tmp_path / "study.toml", *named, "--dry-run", "--json")
    assert {run["arm"] for run in other.json["runs"]} == {"torch single 1x1", "torch dp 1x1"}, other.stderr


REFUSED = {
    "a framework without mode": (["torch"], "received torch; expected arms such as torch:ddp, or one STUDY.toml"),
    "a mode in two words": (["torch", "ddp"], "received torch, ddp; expected torch:ddp"),
    "two files": (["a.toml", "b.toml"], r"received a\.toml, b\.toml; expected arms"),
    "an unknown mode": (["--arm", "torch:ddpp"], "unknown mode 'ddpp' of torch.*Did you mean 'ddp'"),
    "an arm that is there twice": (["--arm", "torch:single", "--arm", "torch:single"], "torch single 1x1 twice"),
    "an arm without mode": (["--arm", "torch"], "expected FRAMEWORK:MODE"),
    "an unknown option of an arm": (["--arm", "torch:ddp,precison=float64"], "Did you mean 'precision'"),
    "an option of all arms": (
        ["--arm", "torch:ddp,target_accuracy=0.9"],
        "which all arms of a study share; expected --target-accuracy next to the arms",
    ),
    "a value that does not exist": (["--arm", "torch:ddp,precision=double"], "precision: 'double' is not one of"),
    "a precision that cannot be": (
        ["--arm", "torch:ddp,precision=half"],
        "precision: received half; float16 needs scaled",
    ),
    "nodes that are no numbers": (["--nodes", "two"], "received 'two', expected positive numbers"),
    "no second arm to be compared with": (
        ["--arm", "torch:single", "--until", "2%"],
        "expected at least 2: an interval is that of a ratio",
    ),
    "evaluations further apart than the run is long": (
        ["--arm", "torch:single", *TINY, "--evaluate-every", "5", "--dry-run"],
        "evaluate_every: received 5, but the run has only 4 steps",
    ),
    "a pair of one": (["--arm", "torch:single", "--pair", "torch:single"], "--pair: received .*expected two arms"),
    "a pair that is not of the arms": (
        ["--arm", "torch:single", "--arm", "torch:ddp", "--pair", "torch:single", "--pair", "torch:dp"],
        "--pair: received 'torch:dp', which is none of the arms; expected one of torch single 1x1, torch ddp 2x1",
    ),
    "a pair with an unknown option": (
        [
            "--arm",
            "torch:single",
            "--arm",
            "torch:ddp",
            "--pair",
            "torch:single",
            "--pair",
            "torch:ddp,precison=float64",
        ],
        "error: --pair: received 'precison=float64' in 'torch:ddp,precison=float64'.*Did you mean 'precision'",
    ),
    "a pair of which one is several arms": (
        ["--arm=torch:single", "--arm=torch:ddp", "--nodes=1,2", "--pair=torch:single", "--pair=torch:ddp"],
        "--pair: received 'torch:ddp', which names 2 arms",
    ),
    "seeds of one round": (
        ["--arm", "torch:single", "--vary-seed"],
        "--vary-seed: received 1 round, expected at least 2",
    ),
    "a margin of 0": (
        ["--arm", "torch:single", "--vary-seed", "--repeats", "6", "--margin", "0"],
        "--margin: received 0, expected points of accuracy above 0",
    ),
    "a margin without seeds": (["--arm", "torch:single", "--margin", "2"], "--margin: received without --vary-seed"),
    "seeds beyond the last": (
        ["--arm", "torch:single", "--vary-seed", "--repeats", "6", "--seed", str(2**63 - 3)],
        "--seed: received 9223372036854775805 with --vary-seed",
    ),
    "an unknown augmentation of an arm": (["--arm", "torch:ddp,augment=flip+turn"], "unknown augmentation"),
    "an unknown subject": (["--subject", "colour"], "--subject: received colour, expected an option"),
    "a subject of one arm": (
        ["--arm", "torch:single", "--subject", "batch"],
        "--subject: received one arm .* at least 2",
    ),
    "a batch that does not divide": (
        ["--arm", "torch:ddp", "--nodes", "3", "--global-batch-size", "32", "--device", "cpu"],
        "torch:ddp on 3 nodes x 1 device: .*does not divide",
    ),
    "a wrong request of all modes": (
        ["--global-batch-size", "33", "--device", "cpu"],
        "received 33, which does not divide",
    ),
    "devices that do not divide": (
        ["torch:ddp", "--devices", "3", "--nodes", "2"],
        "--devices: received 3, which do not divide among 2 nodes; expected a multiple of 2",
    ),
    "devices in two ways": (
        ["torch:ddp", "--devices", "2", "--devices-per-node", "2"],
        "--devices: received with --devices-per-node; expected one of them",
    ),
    "nodes of an arm that are no number": (
        ["torch:ddp,nodes=two"],
        "received 'nodes=two' in 'torch:ddp,nodes=two'; expected a number such as nodes=2",
    ),
    "nodes of an arm on one node": (
        ["tensorflow:mirrored,nodes=2", "--device", "cpu"],
        "mode mirrored of tensorflow trains on one node, received 2 nodes",
    ),
    "a topology that no arm has": (
        ["--arm", "torch:dp", "--nodes", "2", "--device", "cpu"],
        "torch:dp: received --nodes 2, expected 1",
    ),
}


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["torch:ddp", "tensorflow:mirrored", "--devices", "2"], ["torch ddp 1x2", "tensorflow mirrored 1x2"]),
        (["torch:ddp", "--devices", "4", "--nodes", "1,2"], ["torch ddp 1x4", "torch ddp 2x2"]),
        (["torch:ddp,nodes=2", "torch:ddp,devices_per_node=2"], ["torch ddp 2x1", "torch ddp 1x2"]),
        (
            ["torch:ddp,nodes=1", "torch:ddp", "--nodes", "2", "--devices-per-node", "2"],
            ["torch ddp 1x2", "torch ddp 2x2"],
        ),
    ],
)
def test_devices_in_all_and_topologies_of_arms(given, expected):
    planned = invoke("compare", *given, "--device", "cpu", "--dry-run", "--json")
    assert planned.code == 0, planned.stderr
    assert sorted(run["arm"] for run in planned.json["runs"]) == sorted(expected)


@pytest.mark.torch
def test_an_arm_alone_is_told(tmp_path):
    planned = invoke("compare", "--arm", "torch:single", "--device", "cpu", "--dry-run", "--out", tmp_path / "out")
    assert planned.code == 0
    assert "one arm alone, torch single 1x1: its speed is measured, and compared with nothing" in planned.stderr


@pytest.mark.torch
@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_wrong_requests_are_refused_before_anything_starts(arguments, message, tmp_path):
    refused = invoke("compare", *arguments, "--out", tmp_path / "out")
    assert refused.code == 2
    with pytest.raises(AssertionError, match=f"(?s){message}"):
        raise AssertionError(refused.stderr)
    assert not (tmp_path / "out").exists()


@pytest.mark.torch
def test_arms_that_cannot_run_can_be_skipped():
    arguments = ["compare", "--arm", "torch:single", "--arm", "torch:ddp", "--nodes", "3", *TINY, "--dry-run"]
    refused = invoke(*arguments)
    assert (refused.code, "or pass --skip-unusable" in refused.stderr) == (2, True)
    none_left = invoke("compare", "--arm", "torch:single", *TINY, "--target-accuracy", "95", "--dry-run")
    assert (none_left.code, "--skip-unusable" in none_left.stderr) == (2, False)
    done = invoke(*arguments, "--skip-unusable")
    assert done.code == 0
    assert "left out: torch:ddp on 3 nodes x 1 device" in done.stderr


def test_every_mistake_in_a_study_file_is_named(tmp_path):
    (tmp_path / "study.toml").write_text('arms = ["torch:ddp"]\nrepeats = "six"\nnodes = "two"\nprecision = "half"\n')
    refused = invoke("compare", tmp_path / "study.toml")
    assert refused.code == 2
    for part in (
        "study.toml:1: key 'arms' is unknown",
        "study.toml:2: key 'repeats': received 'six'",
        "study.toml:3: key 'nodes': received 'two'",
        "study.toml:4: key 'precision': received 'half'",
    ):
        assert part in refused.stderr


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_by_default_every_mode_is_compared(tmp_path):
    """The first command of the README, with a tiny model."""
    tiny = ["--model", "toy-cnn", "--image-size", "32", "--steps", "7", "--device", "cpu"]
    done = invoke("compare", *tiny, "--out", tmp_path / "out", "--json")
    assert done.code == 0, done.stderr
    assert [row["name"] for row in done.json["arms"]] == [
        "torch single 1x1",
        "torch ddp 2x1",
        "tensorflow single 1x1",
        "tensorflow mirrored 1x2",
        "tensorflow multiworker 2x1",
        "jax single 1x1",
        "jax spmd 1x2",
        "jax multiprocess 2x1",
    ]
    outcomes = {(made["first"], made["second"]): made["outcome"] for made in done.json["claims"]}
    assert outcomes["torch ddp 2x1", "tensorflow multiworker 2x1"] == "too few rounds"
    assert outcomes["torch single 1x1", "tensorflow single 1x1"] == "too few rounds"
    assert outcomes["torch single 1x1", "tensorflow mirrored 1x2"] == "NOT COMPARABLE"
    assert "left out: torch:dp: it is emulated here, so its speed says nothing about the mode; to" in done.stderr


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_leaving_out_the_exchange_tells_its_cost(tmp_path):
    arguments = ["--arm", "torch:ddp", "--nodes", "2", *TINY, "--ablate", "--repeats", "2"]
    done = invoke("compare", *arguments, "--out", tmp_path / "out", "--json")
    assert done.code == 0, done.stderr
    (row,) = done.json["arms"]
    assert row["communication_ms"] is not None
    assert set(row["step_parts_ms"]) == {"waiting for data", "communication", "computing", "other"}


@pytest.mark.torch
def test_another_terminal_can_watch(finished):
    folder, _, _ = finished
    shown = invoke("watch", folder, "--once")
    assert shown.code == 0
    assert shown.stdout.count("2/2") == 2
    assert "every run has ended" in shown.stdout
    assert "torch single 1x1 seed=0" in shown.stdout
    assert dpcompare("watch", folder.parent).code == 2


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_rounds_are_added_until_precise_or_the_time_is_up(tmp_path):
    arguments = ["--arm", "torch:single", "--arm", "torch:single,seed=0", *TINY, "--out", tmp_path / "out", "--json"]
    done = invoke("compare", *arguments, "--until", "0.0001%", "--budget", "0.001s")  # less than any round takes
    assert done.code == 0, done.stderr
    assert done.json["repeats"] == 1
    assert done.json["stopped_by"].startswith("the time is up (")
    assert "there are too few for an interval" in done.json["stopped_by"]
    shown = invoke("report", tmp_path / "out")
    assert "Rounds were added until the time is up" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--until", "2"], "--until: received '2', expected a percentage"),
        (["--until", "2%", "--budget", "soon"], "--budget: received 'soon', expected a time"),
        (["--budget", "30m"], "without --until"),
    ],
)
def test_wrong_limits_are_refused(arguments, message):
    refused = invoke("compare", *arguments)
    assert refused.code == 2
    assert message in refused.stderr


@pytest.mark.torch
@pytest.mark.slow
def test_event_files_hold_every_loss(finished, tmp_path):
    folder, _, _ = finished
    assert invoke("report", folder, "--tensorboard", tmp_path / "events").code == 0
    files = sorted(tmp_path.glob("events/*/events*"))
    assert len(files) == 4
    assert files[0].read_bytes().count(b"train/loss") == 4
    assert b"evaluation/accuracy" in files[0].read_bytes()
