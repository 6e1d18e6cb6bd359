"""Runs given to TensorBoard, MLflow and Weights & Biases: read back by what their own libraries wrote."""

import json
import struct
import sys

import pytest

from dpcompare.experiments.analysis import analyse
from dpcompare.experiments.collection import collect
from dpcompare.report.trackers import tracked_runs
from tests.support.command import invoke
from tests.support.recorded import recorded_config, recorded_run

SERIES = {
    1: {"train/loss": 4.0, "train/step_seconds": 1.0},
    2: {"train/loss": 2.0, "train/step_seconds": 0.1},
    3: {"train/loss": 1.0, "train/step_seconds": 0.1},
    4: {"train/loss": 0.5, "train/step_seconds": 0.1, "evaluation/loss": 2.0, "evaluation/accuracy": 180 / 359},
}


@pytest.fixture
def run_dir(tmp_path):
    return recorded_run(recorded_config(), tmp_path / "run")


@pytest.fixture
def tracked(run_dir):
    collection = collect([run_dir])
    (only,) = tracked_runs(collection, analyse(collection))
    return only


def test_a_run_is_given_with_its_steps_and_its_figures(tracked):
    assert tracked.series == SERIES
    assert tracked.name == "torch-ddp-2x1-round-01"
    assert tracked.config["workload"]["model"] == "mlp"
    assert tracked.figures["images_per_second"] == pytest.approx(80)
    assert tracked.record["status"] == "completed"
    assert "gpu_memory_bytes" not in tracked.figures


def test_a_run_without_events_has_no_seconds_of_steps(run_dir):
    for path in (run_dir / "events").iterdir():
        path.unlink()
    (run_dir / "events").rmdir()
    collection = collect([run_dir])
    (only,) = tracked_runs(collection, analyse(collection))
    assert only.series[1] == {"train/loss": 4.0}


@pytest.mark.parametrize(
    ("option", "package", "extra"),
    [("--tensorboard", "tensorboardX", "report"), ("--mlflow", "mlflow", "mlflow"), ("--wandb", "wandb", "wandb")],
)
def test_without_its_library_a_tracker_is_refused(run_dir, monkeypatch, tmp_path, option, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    refused = invoke("report", run_dir, option, tmp_path / "tracked")
    assert refused.code == 2
    assert f"{option} needs {package}, which is not installed; install the extra" in refused.stderr
    assert f"'dpcompare[{extra}]'" in refused.stderr
    assert not (tmp_path / "tracked").exists()


@pytest.mark.process
@pytest.mark.slow
def test_tensorboard(run_dir, tmp_path):
    assert invoke("report", run_dir, "--tensorboard", tmp_path / "events").code == 0
    (file,) = tmp_path.glob("events/torch-ddp-2x1-round-01/events*")
    content = file.read_bytes()
    assert content.count(b"train/loss") == content.count(b"train/step_seconds") == 4
    assert content.count(b"evaluation/accuracy") == 1
    assert b"figures/steady_images_per_second" in content
    assert b'"model": "mlp"' in content


@pytest.mark.seconds
def test_an_mlflow_server_that_is_not_there_is_refused(run_dir):
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    refused = invoke("report", run_dir, "--mlflow", "http://127.0.0.1:9", MLFLOW_HTTP_REQUEST_MAX_RETRIES="0")
    assert refused.code == 2
    assert "--mlflow: 'http://127.0.0.1:9' cannot be written" in refused.stderr


@pytest.mark.seconds
@pytest.mark.slow
def test_mlflow(run_dir, tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="needs the extra mlflow")
    for _ in range(2):
        assert invoke("report", run_dir, "--mlflow", tmp_path / "tracking").code == 0
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/tracking/mlflow.db")
    experiment = client.get_experiment_by_name("dpcompare")
    runs = client.search_runs([experiment.experiment_id])
    assert [run.info.run_name for run in runs] == ["torch-ddp-2x1-round-01"] * 2
    assert runs[0].info.status == "FINISHED"
    assert runs[0].data.params["workload.model"] == "mlp"
    assert runs[0].data.tags["framework"] == "torch"
    assert runs[0].data.metrics["figures/images_per_second"] == pytest.approx(80)
    found = {step: {} for step in SERIES}
    for name in ("train/loss", "train/step_seconds", "evaluation/loss", "evaluation/accuracy"):
        for metric in client.get_metric_history(runs[0].info.run_id, name):
            found[metric.step][name] = metric.value
    assert found == SERIES


def wandb_records(path):
    """The records of a .wandb file, which is a log of LevelDB after a header of 7 bytes: (crc, length, kind), data."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, position, data = path.read_bytes(), 7, b""
    while position < len(content):
        left = 32768 - position % 32768
        if left < 7:  # the end of a block, too short for the head of a part
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        data += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(data)
            data = b""


def values_of(items):
    return {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}


@pytest.mark.process
@pytest.mark.slow
def test_wandb(run_dir, tmp_path, monkeypatch):
    """Written offline, and read back from the file that `wandb sync` would send."""
    pytest.importorskip("wandb", reason="needs the extra wandb")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "tracking"))  # where it logs that it has started
    assert invoke("report", run_dir, "--wandb", tmp_path / "tracking").code == 0
    (file,) = (tmp_path / "tracking").glob("wandb/offline-run-*/*.wandb")
    found, summary = {}, {}
    for each in wandb_records(file):
        match each.WhichOneof("record_type"):
            case "history":
                values = values_of(each.history.item)
                found[values["_step"]] = {name: value for name, value in values.items() if "/" in name}
            case "summary":
                summary |= values_of(each.summary.update)
            case "run":
                run = each.run
    assert found == SERIES
    assert (run.project, run.display_name, run.run_group) == ("dpcompare", "torch-ddp-2x1-round-01", "torch ddp 2x1")
    assert values_of(run.config.update)["workload"]["model"] == "mlp"
    assert summary["images_per_second"] == pytest.approx(80)
    assert summary["status"] == "completed"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "tracking"]
