"""Settings that change a framework's speed alone: by profile, chosen, and found by trying."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from dpcompare import Cluster, RunConfig, RunFailedError, Workload, run
from dpcompare.cli.build_config import as_remembered
from dpcompare.config.modes import MODES
from dpcompare.config.tuning import SETTINGS, tuning_of, tuning_options
from dpcompare.errors import RequestError
from dpcompare.experiments.autotune import tuned
from dpcompare.experiments.study import Arm, Study
from dpcompare.launch.remembered import Settings, remember_settings, remembered_first_step, remembered_settings
from tests.support.command import invoke


def config(profile="native", mode="ddp", **tune):
    cluster = Cluster.partition(1, device="cpu")
    return RunConfig(framework="torch", mode=mode, workload=Workload(profile=profile), cluster=cluster, tune=tune)


@pytest.mark.parametrize(("framework", "mode"), MODES)
@pytest.mark.parametrize("profile", ["strict", "native"])
@pytest.mark.parametrize("device_type", ["cpu", "gpu"])
def test_every_profile_has_a_known_value_of_every_setting(framework, mode, profile, device_type):
    workload = Workload(profile=profile)
    tuning = tuning_of(framework, mode, device_type, workload, {})
    assert tuning.keys() == tuning_options(framework, mode, device_type, workload).keys()
    assert all(value in SETTINGS[framework][name].values_on(device_type) for name, value in tuning.items())


@pytest.mark.parametrize("profile", ["strict", "native"])
@pytest.mark.parametrize("device_type", ["cpu", "gpu"])
def test_no_profile_compiles_by_itself(profile, device_type):
    """What pays is found by autotune: compiling took minutes for 0.9 to 1.3 times the speed."""
    for framework, mode in MODES:
        tuning = tuning_of(framework, mode, device_type, Workload(profile=profile), {})
        assert tuning.get("compilation", "none") == "none"


def test_the_cpu_has_no_setting_and_no_value_of_gpus():
    """What `modes --json` lists and autotune tries on the CPU."""
    common = {"memory_layout": ("NCHW", "NHWC"), "optimizer_kernels": ("default", "foreach", "fused")}
    compiled = {"compilation": ("none", "torch.compile")}
    buckets = {"gradient_buckets": ("copies", "views")}
    expected = {
        ("torch", "single"): common | compiled,
        ("torch", "dp"): common,
        ("torch", "ddp"): common | buckets | compiled,
        ("tensorflow", "single"): {"compilation": ("none", "XLA")},
        ("tensorflow", "mirrored"): {},
    }
    for (framework, mode), settings in expected.items():
        found = {name: row.values_on("cpu") for name, row in tuning_options(framework, mode, "cpu").items()}
        assert list(found.items()) == list(settings.items())


def tuning_on_gpus(mode="ddp", framework="torch", **workload):
    """Setting -> its value of the native profile and the others that it can have."""
    made = Workload(profile="native", **workload)
    native = tuning_of(framework, mode, "gpu", made, {})
    settings = tuning_options(framework, mode, "gpu", made)
    return {name: (native[name], {*row.values_on("gpu")} - {native[name]}) for name, row in settings.items()}


def test_on_gpus_there_is_more_to_try():
    tried = tuning_on_gpus()
    assert tried["tf32"] == ("on", {"off"})
    assert tried["compilation"] == ("none", {"torch.compile", "reduce-overhead"})
    assert "batchnorm_kernels" not in tried
    assert tuning_on_gpus(batchnorm="sync")["batchnorm_kernels"] == ("default", {"SyncBatchNorm"})
    assert "batchnorm_kernels" not in tuning_on_gpus("fsdp", batchnorm="sync")
    assert tuning_on_gpus("single", "tensorflow") == {"tf32": ("on", {"off"}), "compilation": ("none", {"XLA"})}


@pytest.mark.parametrize(
    ("precision", "profile", "tune", "allowed"),
    [
        ("float32", "strict", {}, False),
        ("float32", "native", {}, True),
        ("float32", "native", {"tf32": "off"}, False),
        ("bfloat16", "strict", {}, False),
        ("bfloat16", "native", {}, True),
    ],
)
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_tf32_is_a_setting_of_gpus_in_float32_alone(framework, precision, profile, tune, allowed):
    workload = Workload(profile=profile, precision=precision)
    gpus = Cluster.partition(1, 1, gpus=["0"])
    made = RunConfig(framework=framework, mode="single", workload=workload, cluster=gpus, tune=tune)
    assert made.allows_tf32 == allowed
    assert ("tf32" in made.tuning) == (precision == "float32")
    on_cpu = RunConfig(
        framework=framework, mode="single", workload=workload, cluster=Cluster.partition(1, 1, device="cpu")
    )
    assert on_cpu.allows_tf32 == (profile == "native")
    assert "tf32" not in on_cpu.tuning


@pytest.mark.torch
@pytest.mark.parametrize(
    "command",
    [
        ["run", "--framework", "torch", "--mode", "ddp", "--profile", "native", "--tune", "compilation=torch.compile"],
        ["compare", "--arm", "torch:ddp,profile=native,tune=compilation=torch.compile"],
    ],
    ids=["run", "compare"],
)  # fmt: skip
def test_without_a_compiler_compilation_is_refused_at_once(tmp_path, monkeypatch, command):
    monkeypatch.setenv("CXX", "no-such-compiler")
    refused = invoke(
        *command, "--device", "cpu", *TINY, "--run-dir" if command[0] == "run" else "--out", tmp_path / "out"
    )
    assert refused.code == 2
    assert "torch.compile needs a C++ compiler, and 'no-such-compiler' is not found" in refused.stderr
    assert "--tune compilation=none" in refused.stderr
    assert not (tmp_path / "out").exists()


def test_a_chosen_setting_takes_the_place_of_the_profiles():
    assert config(optimizer_kernels="foreach").tuning["optimizer_kernels"] == "foreach"
    assert config().tuning["optimizer_kernels"] == "fused"


@pytest.mark.parametrize(
    ("profile", "mode", "tune", "says"),
    [
        ("strict", "ddp", {"compilation": "torch.compile"}, "with profile strict; expected profile native"),
        ("native", "ddp", {"warp": "9"}, "received 'warp', expected a setting of torch ddp: memory_layout"),
        ("native", "ddp", {"compile": "on"}, "received 'compile', expected a setting .*Did you mean 'compilation'"),
        ("strict", "ddp", {"compile": "on"}, "expected profile native; tune: .*Did you mean 'compilation'"),
        ("native", "single", {"gradient_buckets": "views"}, "expected a setting of torch single"),
        ("native", "ddp", {"memory_layout": "NHCW"}, "received memory_layout=NHCW, expected one of NCHW, NHWC"),
        (
            "native",
            "ddp",
            {"compilation": "reduce-overhead"},
            "received compilation=reduce-overhead, which GPUs alone have, on cpu devices, expected one of none, torch",
        ),
        ("native", "ddp", {"tf32": "off"}, r"received 'tf32', expected a setting .* \(tf32 is one of GPUs alone\)"),
    ],
)
def test_what_cannot_be_tuned_is_refused(profile, mode, tune, says):
    with pytest.raises(RequestError, match=says):
        config(profile, mode, **tune)


@pytest.mark.parametrize(
    ("tune", "workload", "says"),
    [
        (
            {"batchnorm_kernels": "SyncBatchNorm"},
            {},
            r"received 'batchnorm_kernels', .* \(batchnorm_kernels needs batchnorm sync\)",
        ),
        ({"tf32": "on"}, {"precision": "bfloat16"}, r"\(tf32 needs precision float32\)"),
        ({"tf32": "maybe"}, {}, "received tf32=maybe, expected one of off, on"),
        (
            {"compilation": "reduce-overhead"},
            {"accumulate": 2},
            "received compilation=reduce-overhead with accumulate 2: .*; expected torch.compile, or accumulate 1",
        ),
    ],
)
def test_what_cannot_be_tuned_on_gpus_is_refused(tune, workload, says):
    made = Workload(profile="native", **workload)
    gpus = Cluster.partition(1, 2, gpus=["0", "1"])
    with pytest.raises(RequestError, match=says):
        RunConfig(framework="torch", mode="ddp", workload=made, cluster=gpus, tune=tune)


def test_a_setting_by_its_old_name_is_the_one_of_now():
    cluster = Cluster.partition(1, device="cpu")
    old = {"depthwise_convolution": "kernel"}
    made = RunConfig(framework="jax", mode="spmd", workload=Workload(profile="native"), cluster=cluster, tune=old)
    assert made.tune == {"convolutions": "kernel"}


def test_a_pair_that_is_none_is_refused():
    refused = invoke("plan", "--framework", "torch", "--mode", "ddp", "--tune", "fused")
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
@pytest.mark.usefixtures("warm")
def test_autotune_tries_what_was_not_chosen_once_per_study(tmp_path):
    study = ["compare", "--arm", "torch:single,profile=native,tune=optimizer_kernels=foreach", "--device", "cpu", *TINY]
    study += ["--out", tmp_path / "study", "--autotune", "--json"]
    first = invoke(*study)
    assert first.code == 0, first.stderr
    saved = json.loads((tmp_path / "study" / "study.json").read_text())
    (tried,) = saved["tried"].values()
    assert all(one["images_per_second"] for one in tried)
    assert [one["tune"]["optimizer_kernels"] for one in tried] == ["foreach"] * 3
    changes = [{"memory_layout": "NCHW"}, {"compilation": "torch.compile"}]
    assert [change.items() <= one["tune"].items() for change, one in zip(changes, tried[1:], strict=True)] == [True] * 2
    (arm,) = saved["arms"]
    assert arm["name"] == "torch single 1x1 profile=native tune=optimizer_kernels=foreach"
    assert arm["config"]["tune"] == [one["tune"] for one in tried if one["kept"]][-1]
    assert arm["config"]["autotuned"]
    again = invoke(*study, "--repeats", "2")
    assert again.code == 0, again.stderr
    assert "autotune:" not in again.stderr
    assert "not run again" in again.stderr


def test_a_setting_that_fails_does_not_end_autotune(tmp_path, monkeypatch):
    """A lucky run whose repetition fails is not a gain, and one that cannot be made here is not either."""
    speeds = iter([100.0, 130.0, None, "refused"])

    def run(config, run_dir, report):
        speed = next(speeds)
        if speed is None:
            raise RunFailedError("it failed", str(run_dir))
        if speed == "refused":
            raise RequestError("no compiler")
        return SimpleNamespace(compared_speed=speed, first_step_seconds=1.0)

    monkeypatch.setattr("dpcompare.experiments.autotune.run", run)
    workload = Workload(model="mlp", image_size=8, dataset="synthetic-mini", steps=8, warmup_steps=0, profile="native")
    tune = {"optimizer_kernels": "fused"}
    config = RunConfig(
        framework="torch", mode="single", workload=workload, cluster=Cluster.partition(1, 1, device="cpu"), tune=tune
    )
    study = Study(arms=(Arm(name="arm", config=config),), repeats=1)
    said = []
    (tried,) = tuned(study, tmp_path / "study", said.append).tried.values()
    assert [(one.images_per_second, one.kept) for one in tried] == [(100.0, True), (None, False), (None, False)]
    assert "autotune: refused: no compiler" in said


@pytest.mark.torch
@pytest.mark.usefixtures("warm")
def test_a_native_run_takes_what_autotune_found_if_it_pays(tmp_path, monkeypatch):
    """Compiling is faster, but the 8 steps that are asked for are over before it is done."""
    monkeypatch.setenv("DPCOMPARE_CACHE_DIR", str(tmp_path / "cache"))

    def run(config, run_dir, report):
        speed = 100.0 + 20 * (config.tune.get("optimizer_kernels") == "foreach") + 50 * config.compiles
        return SimpleNamespace(compared_speed=speed, first_step_seconds=150.0 if config.compiles else 0.1)

    monkeypatch.setattr("dpcompare.experiments.autotune.run", run)
    workload = Workload(
        model="mlp", image_size=8, dataset="synthetic-mini", steps=8, global_batch_size=16, profile="native"
    )
    config = RunConfig(
        framework="torch", mode="single", workload=workload, cluster=Cluster.partition(1, 1, device="cpu")
    )
    assert remembered_settings(config) == ()
    tuned(Study(arms=(Arm(name="arm", config=config),), repeats=1), tmp_path / "study", lambda line: None)
    found = [each.tune for each in remembered_settings(config)]
    foreach = {"optimizer_kernels": "foreach"}
    assert found == [{}, foreach, foreach | {"compilation": "torch.compile"}]
    command = ["run", "--framework", "torch", "--mode", "single", "--profile", "native", "--device", "cpu", *TINY]
    done = invoke(*command, "--run-dir", tmp_path / "run", "--json")
    assert done.code == 0, done.stderr
    assert "native: optimizer_kernels=foreach, which autotune found on this machine: 120.0 images/s" in done.stderr
    assert "170.0 images/s on this machine, but its first step takes 150 s, more than a run of this" in done.stderr
    assert (done.json["settings"]["optimizer_kernels"], done.json["settings"]["compilation"]) == ("foreach", "none")
    assert done.json["config"]["autotuned"]
    longer = config.model_copy(update={"workload": workload.model_copy(update={"steps": 10_000})})
    assert remembered_settings(longer) == remembered_settings(config)
    other = config.model_copy(update={"workload": workload.model_copy(update={"global_batch_size": 32})})
    assert remembered_settings(other) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"images_per_second": 0},
        {"first_step_seconds": -1},
        {"tune": {"compilation": "\x1b]0;evil\x07"}},
        {"tune": {"\x1b[31m": "none"}},
    ],
)
def test_impossible_settings_are_not_taken_from_a_cache(tmp_path, monkeypatch, changes):
    monkeypatch.setenv("DPCOMPARE_CACHE_DIR", str(tmp_path))
    workload = Workload(model="mlp", image_size=8, steps=8, profile="native")
    config = RunConfig(
        framework="torch", mode="single", workload=workload, cluster=Cluster.partition(1, 1, device="cpu")
    )
    remember_settings(config, [Settings(tune={}, images_per_second=100.0, first_step_seconds=1.0)])
    assert remembered_settings(config)
    (path,) = (tmp_path / "autotuned").iterdir()
    content = json.loads(path.read_text())
    content["kept"][0] |= changes
    path.write_text(json.dumps(content))
    assert as_remembered(config) == config


def test_autotune_tries_what_gpus_have_and_the_workload_admits(tmp_path, monkeypatch):
    tried = []

    def run(config, run_dir, report):
        tried.append(config.tune)
        return SimpleNamespace(compared_speed=100.0, first_step_seconds=1.0)

    monkeypatch.setattr("dpcompare.experiments.autotune.run", run)
    workload = Workload(
        model="mlp", image_size=8, dataset="synthetic-mini", steps=8, warmup_steps=0, profile="native", accumulate=2
    )
    gpu = Cluster.partition(1, 1, gpus=["0"])
    config = RunConfig(framework="torch", mode="single", workload=workload, cluster=gpu)
    said = []
    tuned(Study(arms=(Arm(name="arm", config=config),), repeats=1), tmp_path / "study", said.append)
    assert tried == [
        {},
        {"memory_layout": "NCHW"},
        {"optimizer_kernels": "default"},
        {"optimizer_kernels": "foreach"},
        {"compilation": "torch.compile"},
    ]
    assert [line for line in said if "refused: tune: received compilation=reduce-overhead with accumulate 2" in line]
    (left,) = [line for line in said if "tf32" in line]  # one arm with it and one without could not be compared
    assert left.startswith("autotune: arm: tf32=on is left as it is, since it changes the precision")


def losses(tmp_path, framework, mode, nodes=1, model="toy-bn", **tune):
    """Losses and settings of a short run in float64, where a setting must not show."""
    workload = Workload(
        model=model, image_size=16, dataset="synthetic-mini", global_batch_size=16, steps=6, warmup_steps=0,
        precision="float64", profile="native", regularization="shared",
    )  # fmt: skip
    cluster = Cluster.partition(nodes, 1, device="cpu")
    made = RunConfig(framework=framework, mode=mode, workload=workload, cluster=cluster, tune=tune)
    result = run(made, tmp_path / "-".join(["run", *tune]))
    assert tune.items() <= result.settings.items()
    if made.compiles and framework == "torch":
        assert remembered_first_step(made) == result.first_step_seconds
    return [*result.train_loss, result.evaluations[-1].loss]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arm", "tune"),
    [
        pytest.param(
            ("torch", "ddp", 2), {"compilation": "torch.compile", "gradient_buckets": "copies"}, marks=pytest.mark.torch
        ),
        pytest.param(
            ("torch", "single"), {"memory_layout": "NCHW", "optimizer_kernels": "foreach"}, marks=pytest.mark.torch
        ),
        pytest.param(("tensorflow", "single"), {"compilation": "XLA"}, marks=pytest.mark.tensorflow),
    ],
    ids=["compiled", "kernels", "XLA"],
)
@pytest.mark.usefixtures("warm")
def test_a_setting_changes_nothing_of_what_is_trained(tmp_path, arm, tune):
    assert np.abs(np.subtract(losses(tmp_path, *arm, **tune), losses(tmp_path, *arm))).max() < 1e-10


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_run_that_goes_on_keeps_the_settings_that_its_mode_has(tmp_path):
    tiny = ["--device", "cpu", "--profile", "native", *TINY, "--checkpoint-every", "4"]
    started = invoke("run", "--framework", "torch", "--mode", "single", "--tune", "optimizer_kernels=foreach", *tiny,
                      "--run-dir", tmp_path / "run")  # fmt: skip
    assert started.code == 0, started.stderr
    done = invoke("run", "--resume", tmp_path / "run", "--mode", "ddp", "--steps", "12", "--tune",
                     "gradient_buckets=copies", "--json")  # fmt: skip
    assert done.code == 0, done.stderr
    settings = done.json["settings"]
    assert (settings["optimizer_kernels"], settings["gradient_buckets"]) == ("foreach", "copies")


def test_there_must_be_something_to_tune(tmp_path):
    refused = invoke(
        "compare", "--arm", "torch:ddp", "--autotune", "--out", tmp_path / "study", "--device", "cpu", *TINY
    )
    if "not installed" not in refused.stderr:
        assert refused.code == 2
        assert "--autotune: received arms of the strict profile only" in refused.stderr
