"""Settings that change a framework's speed alone: by profile, chosen, and found by trying."""

import json

import pytest

from dpcompare import Cluster, RunConfig, Workload
from dpcompare.backends import MODES
from dpcompare.config import request
from dpcompare.errors import RequestError
from dpcompare.tuning import SETTINGS, settings_of, tuning_of
from tests.command import dpcompare


def config(profile="native", mode="ddp", **tune):
    cluster = Cluster.partition(1, device="cpu")
    return request(
        RunConfig, framework="torch", mode=mode, workload=Workload(profile=profile), cluster=cluster, tune=tune
    )


@pytest.mark.parametrize(("framework", "mode"), MODES)
@pytest.mark.parametrize("profile", ["strict", "native"])
@pytest.mark.parametrize("device_type", ["cpu", "gpu"])
def test_every_profile_has_a_known_value_of_every_setting(framework, mode, profile, device_type):
    tuning = tuning_of(framework, mode, profile, device_type, {})
    assert tuning.keys() == settings_of(framework, mode).keys()
    assert all(value in SETTINGS[framework][name].values for name, value in tuning.items())


def test_strict_neither_compiles_nor_rounds():
    for framework, mode in MODES:
        tuning = tuning_of(framework, mode, "strict", "gpu", {})
        assert tuning.get("compilation", "none") == "none"
        assert tuning["tf32"] == "off"


def test_a_chosen_setting_takes_the_place_of_the_profiles():
    assert config(optimizer_kernels="foreach").tuning["optimizer_kernels"] == "foreach"
    assert config().tuning["optimizer_kernels"] == "fused"


@pytest.mark.parametrize(
    ("profile", "mode", "tune", "says"),
    [
        ("strict", "ddp", {"compilation": "torch.compile"}, "with profile strict; expected profile native"),
        ("native", "ddp", {"warp": "9"}, "received 'warp', expected a setting of torch ddp: memory_layout"),
        ("native", "single", {"gradient_buckets": "views"}, "expected a setting of torch single"),
        ("native", "ddp", {"memory_layout": "NHCW"}, "received memory_layout=NHCW, expected one of NCHW, NHWC"),
    ],
)
def test_what_cannot_be_tuned_is_refused(profile, mode, tune, says):
    with pytest.raises(RequestError, match=says):
        config(profile, mode, **tune)


def test_a_pair_that_is_none_is_refused():
    refused = dpcompare("plan", "--framework", "torch", "--mode", "ddp", "--tune", "fused")
    assert refused.code == 2
    assert "--tune: received 'fused', expected NAME=VALUE" in refused.stderr


TINY = [
    "--model",
    "mlp",
    "--image-size",
    "8",
    "--dataset",
    "synthetic-mini",
    "--steps",
    "8",
    "--global-batch-size",
    "16",
]


@pytest.mark.torch
@pytest.mark.slow
def test_autotune_tries_every_setting_and_a_study_that_goes_on_keeps_what_was_found(tmp_path):
    study = ["compare", "--arm", "torch:single,profile=native,tune=compilation=none", "--device", "cpu", *TINY]
    study += ["--out", tmp_path / "study", "--autotune", "--json"]
    first = dpcompare(*study)
    assert first.code == 0, first.stderr
    (tried,) = json.loads((tmp_path / "study" / "autotune.json").read_text())["arms"].values()
    assert next(one["tune"] for one in tried) == {"compilation": "none"}
    changes = {name: value for one in tried for name, value in one["tune"].items()}
    assert changes.keys() == {"memory_layout", "optimizer_kernels", "compilation"}
    assert len(tried) == 1 + 1 + 2 + 1
    (arm,) = json.loads((tmp_path / "study" / "study.json").read_text())["arms"]
    assert arm["config"]["tune"] == [one["tune"] for one in tried if one["kept"]][-1]
    again = dpcompare(*study, "--repeats", "2")
    assert again.code == 0, again.stderr
    assert "autotune:" not in again.stderr
    assert "not run again" in again.stderr


def test_there_must_be_something_to_tune(tmp_path):
    refused = dpcompare(
        "compare", "--arm", "torch:ddp", "--autotune", "--out", tmp_path / "study", "--device", "cpu", *TINY
    )
    if "not installed" not in refused.stderr:
        assert refused.code == 2
        assert "--autotune: received arms of the strict profile only" in refused.stderr
