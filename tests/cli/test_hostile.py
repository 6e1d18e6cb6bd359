"""An untrusted run and study, read by every command under an audit hook: nothing executed, nothing written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.run_fields import Inputs
from dpcompare.config.workload import Workload
from dpcompare.experiments.study import Arm, Study, ablated
from dpcompare.models.state import Gradients
from dpcompare.results.run_dir import checkpoint_path
from tests.support.recorded import aggregated, events, record

REPOSITORY = Path(__file__).parents[2]

GRADIENTS = Gradients(num_bytes=30, messages=(10, 20), ready=((10, 0.5), (30, 0.9)), backward_ends=0.95)

# Python's own code is imported and compiled; what would be the untrusted code is recognised by its name.
WATCHED = """
import json, sys
from stress.audit import violation
allowed, commands = sys.argv[1], json.loads(sys.argv[2])
seen, asleep = [], [True]

def hook(event, arguments):
    if asleep[0]:
        return
    if found := violation(event, arguments, allowed):
        seen.append(found)
    elif event == "import" and arguments[0].split(".")[0] == "evil":
        seen.append(f"import {arguments[0]}")

from dpcompare.cli import main
for module in sys.argv[3].split():  # what is imported once opens and executes its own files
    __import__(module)
import dpcompare.cli.progress, dpcompare.experiments.analysis, dpcompare.launch.run, dpcompare.report.page
sys.addaudithook(hook)
codes = []
for command in commands:
    asleep[0] = False
    try:
        main(command)
    except SystemExit as ended:
        codes.append(ended.code)
    asleep[0] = True
print()
print(json.dumps([codes, seen]))
"""


def hostile_config(folder):
    """Whatever can be named in a config names something untrusted."""
    inputs = Inputs(
        store=folder / "store",
        store_sha256="0" * 64,
        weights=folder / "weights",
        weights_sha256="0" * 64,
        num_classes=10,
        num_train=32,
        num_validation=359,
        num_skipped=0,
    )
    workload = Workload(model="evil:Net", dataset="evil:Data", global_batch_size=8, steps=4, warmup_steps=1)
    cluster = Cluster.partition(2, device="cpu", num_cores=2)
    return RunConfig(
        framework="torch", mode="ddp", workload=workload, cluster=cluster, python=str(folder / "python"), inputs=inputs
    )


def fill(run_dir, config):
    run_dir.mkdir(parents=True)
    config.save(run_dir / "config.json")
    for rank in range(2):
        recorded = {"settings": {"<script>": "\x1b[31m"}, "host": "$(touch F)", "gradients": GRADIENTS}
        record(rank, **recorded).save(run_dir)
    aggregated(config, run_dir, events(0) + events(1)).save(run_dir)
    (run_dir / "checkpoints").mkdir()
    checkpoint_path(run_dir, 4).write_bytes(b"\x80\x04cposix\nsystem\n(S'touch executed'\ntR.")


@pytest.fixture
def hostile(tmp_path):
    """A folder with a run and a study, and what must never be executed."""
    folder = tmp_path / "untrusted"
    folder.mkdir()
    for name, text in (("evil.py", "open('executed', 'w')\n"), ("python", "#!/bin/sh\ntouch executed\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    for module in ("altair", "jinja2", "rich", "numpy"):  # next to the study, where the user works
        (folder / f"{module}.py").write_text("open('executed', 'w')\n")
    config = hostile_config(folder)
    fill(folder / "run", config)
    names = ("..", "../../outside", "=cmd|'x'!A1", "</script><script>alert(1)</script>\x1b]0;evil\x07")
    study = Study(arms=tuple(Arm(name=name, config=config) for name in names), repeats=1)
    for arm in study.arms:
        fill(study.run_dir(folder / "study", 1, arm), config)
    study.save(folder / "study")
    projected = Study(arms=(arm, ablated(arm)), repeats=1)
    for each in projected.arms:
        fill(projected.run_dir(folder / "projected", 1, each), each.config)
    projected.save(folder / "projected")
    return folder


def read_under_watch(hostile, allowed, commands, imported):
    """The exit codes of commands where the untrusted files are, what they did that no reader may, and their output."""
    argv = [sys.executable, "-P", "-c", WATCHED, str(allowed), json.dumps(commands), imported]
    process = subprocess.run(
        argv,
        cwd=hostile,
        env=os.environ
        | {"PYTHONDONTWRITEBYTECODE": "1", "DPCOMPARE_CACHE_DIR": str(allowed), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    assert "Traceback" not in process.stderr
    assert not set("\x1b\x07") & set(process.stdout + process.stderr)
    codes, seen = json.loads(process.stdout.splitlines()[-1])
    return codes, seen, process.stderr


def listing(folder):
    return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in folder.rglob("*")}


@pytest.mark.slow
def test_commands_that_read_execute_nothing_and_write_no_more(hostile, tmp_path):
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    study, run_dir, projected = (str(hostile / name) for name in ("study", "run", "projected"))
    formats = [
        *("--html", f"{allowed}/page.html", "--markdown", f"{allowed}/page.md", "--csv", f"{allowed}/rounds.csv"),
        *("--plots", f"{allowed}/plots", "--tensorboard", f"{allowed}/events", "--json", f"{allowed}/all.json"),
    ]
    named = ["--framework", "torch", "--mode", "ddp", "--nodes", "2", "--device", "cpu", "--model", "mlp"]
    expected = [
        (["report", study, *formats], 0),
        (["report", study, "--json"], 0),
        (["report", run_dir, study], 0),
        (["report", run_dir, "--fail-if", "images_per_second<1"], 0),
        (["watch", study], 0),
        (["project", projected, "--html", f"{allowed}/more.html", "--plots", f"{allowed}/plots"], 0),
        (["project", projected, "--json"], 0),
        (["project", study], 2),
        (["plan", *named, "--study", projected], 2),
        (["explain", run_dir], 2),
        (["explain", study], 2),
        (["run", "--resume", run_dir], 2),
        (["run", "--resume", study], 2),
        (["compare", "--resume", study], 2),
        (["compare", "--resume", run_dir], 2),
        (["verify", "--like", run_dir], 2),
        (["run", *named, "--run-dir", run_dir], 2),
        (["compare", "--arm", "torch:single", "--device", "cpu", "--out", run_dir], 2),
        (["node", run_dir, "--node-rank", "0"], 2),
        (["node", study], 2),
    ]
    before = listing(hostile)
    imported = "altair jinja2 markupsafe tensorboardX vl_convert"
    codes, seen, said = read_under_watch(hostile, allowed, [command for command, _ in expected], imported)
    assert seen == [], seen
    assert dict(enumerate(codes)) == dict(enumerate(code for _, code in expected)), said
    assert listing(hostile) == before
    assert {path.parent for path in allowed.rglob("*.svg")} == {allowed / "plots"}
    assert not any("<script>alert" in Path(allowed, page).read_text() for page in ("page.html", "more.html"))


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "imported"),
    [
        ("--parquet", "pyarrow.parquet"),
        pytest.param("--mlflow", "mlflow sqlalchemy alembic", marks=pytest.mark.slow),
        pytest.param("--wandb", "wandb", marks=pytest.mark.slow),
    ],
)
def test_nothing_of_a_stranger_is_executed_by_other_programs(hostile, tmp_path, option, imported):
    for module in imported.split():
        pytest.importorskip(module, reason="needs an extra")
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    before = listing(hostile)
    command = ["report", str(hostile / "study"), option, str(allowed / "tracked")]
    codes, seen, said = read_under_watch(hostile, allowed, [command], imported)
    assert codes == [0], said
    if option == "--wandb":  # which starts a process of its own, and talks to it
        seen = [each for each in seen if str(hostile) in each or each.startswith("import")]
    assert seen == [], seen
    assert listing(hostile) == before
