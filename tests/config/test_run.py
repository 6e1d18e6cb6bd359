"""Requests that make sense, and those that do not."""

import signal
from functools import partial

import pytest

from dpcompare.config.cluster import Cluster
from dpcompare.config.placement import Placement
from dpcompare.config.run import PreparedRun, RunConfig
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError
from tests.support.recorded import INPUTS


def config(framework="torch", mode="ddp", nodes=2, devices=1, num_cores=8, **workload):
    return RunConfig(
        framework=framework,
        mode=mode,
        workload=Workload(**workload),
        cluster=Cluster.partition(nodes, devices, device="cpu", num_cores=num_cores),
    )


def test_only_data_parallel_on_cpu_threads_is_emulated():
    assert config("torch", "dp", 1, 2).emulated
    assert not config("torch", "dp", 1, 1).emulated
    assert not config("tensorflow", "mirrored", 1, 2).emulated
    on_gpus = RunConfig(framework="torch", mode="dp", cluster=Cluster.partition(1, gpus=["0", "1"]))
    assert not on_gpus.emulated


def test_a_program_reads_what_the_command_line_says():
    with pytest.raises(RequestError) as refused:
        RunConfig(framework="pytorch", mode="ddp", cluster=Cluster.partition(1, device="cpu"))
    expected = "unknown framework 'pytorch'; expected one of torch, tensorflow, jax. Did you mean 'torch'?"
    assert str(refused.value) == expected
    with pytest.raises(RequestError, match=r"^image_sise is unknown, received 32\. Did you mean 'image_size'\?$"):
        Workload(image_sise=32)
    with pytest.raises(RequestError, match=r"^mode is required\ncluster is required$"):
        RunConfig(framework="torch")


def test_a_short_run_has_a_step_to_measure():
    assert [Workload(steps=steps).warmup_steps for steps in (1, 5, 6)] == [0, 4, 5]


@pytest.mark.parametrize("write", [RunConfig.model_dump, RunConfig.model_dump_json])
def test_ctrl_c_while_a_config_is_written_is_an_interrupt(monkeypatch, write):
    asked = config()
    options = type(asked.placement.options)
    monkeypatch.setattr(options, "model_dump", lambda self, **_: signal.raise_signal(signal.SIGINT) or {})
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            write(asked)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_config_survives_its_file(tmp_path):
    run = config(augment=("flip",), steps=20, learning_rate=0.1)
    run.save(tmp_path / "config.json")
    assert RunConfig.load(tmp_path / "config.json") == run


def test_a_change_is_checked_like_a_new_config():
    run = config()
    assert run.changed(stages=1, mode="fsdp") == RunConfig(framework="torch", mode="fsdp", cluster=run.cluster)
    for of, field, message in [
        (run, {"mod": "fsdp"}, r"^mod is unknown, received 'fsdp'\. Did you mean 'mode'\?$"),
        (run, {"mode": "dp"}, "^mode dp of torch trains on one node, received 2 nodes"),
        (run, {"workload": run.workload.changed(accumulate=3)}, "global_batch_size: received 32, which does not"),
        (run.workload, {"image_size": 0}, r"^image_size: received 0, expected at least 1$"),
        (run.cluster, {"nodes": (run.cluster.nodes[0],) * 2}, "^each device may be used once"),
        (run.cluster.nodes[0], {"num_cores": "all"}, "^num_cores: received 'all'"),
    ]:
        with pytest.raises(RequestError, match=message):
            of.changed(**field)


def test_a_change_leaves_the_rest_as_it_is():
    run = config().changed(placement=Placement(engine="local"))
    changed = run.changed(input_threads=2)
    assert all(getattr(changed, name) is getattr(run, name) for name in ("workload", "cluster", "placement"))
    # The usual warm-up, which was not asked for, still gives way to a short run.
    assert Workload().changed(seed=3).model_fields_set == {"seed"}
    assert Workload().changed(steps=3).warmup_steps == 2
    assert Workload(steps=3).changed(steps=200).warmup_steps == 5
    assert Workload(steps=3, warmup_steps=1).changed(steps=200).warmup_steps == 1


def test_a_prepared_run_is_the_same_run_with_its_inputs(tmp_path):
    prepared = config().prepared(INPUTS)
    assert prepared.without_inputs() == config()
    assert prepared != config()
    assert isinstance(prepared.changed(input_threads=2), PreparedRun)
    with pytest.raises(RequestError, match=r"^inputs: received None"):
        prepared.changed(inputs=None)
    with pytest.raises(RequestError, match=r"expected one of dpcompare\.launch\.inputs\.prepare_inputs"):
        config().prepared()
    prepared.save(tmp_path / "config.json")
    read = RunConfig.load(tmp_path / "config.json")
    assert (type(read), read, read.prepared().inputs) == (RunConfig, prepared, INPUTS)
    assert read.model_dump_json() == prepared.model_dump_json()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"framework": "toch"},
            "unknown framework 'toch'; expected one of torch, tensorflow, jax. Did you mean 'torch'?",
        ),
        ({"mode": "dpp"}, "Did you mean 'ddp'"),
        ({"mode": "mirrored"}, "'mirrored' is a mode of tensorflow"),
        ({"mode": "dp", "nodes": 2}, "mode dp of torch trains on one node, received 2 nodes"),
        ({"mode": "single", "nodes": 1, "devices": 2}, "mode single trains on one device, received 2"),
        ({"nodes": 3}, "global_batch_size: received 32, which does not divide evenly among 3 replicas"),
        (
            {"global_batch_size": 0},
            "global_batch_size: received 0, expected at least 1",
        ),
        ({"image_size": 0}, "image_size: received 0, expected at least 1"),
        ({"image_size": 16}, "efficientnet-b2 needs at least 32 pixels"),
        ({"image_size": "big"}, "image_size: received 'big', expected a valid integer"),
        ({"model": "efficientnet-b8"}, "unknown model 'efficientnet-b8'"),
        ({"epochs": 1, "steps": 1}, "received both epochs=1 and steps=1"),
        ({"steps": 5, "warmup_steps": 5}, "warmup_steps: received 5 of 5 steps"),
        ({"steps": 5, "warmup_steps": "auto"}, "warmup_steps: received 5 or more of 5 steps"),
        ({"warmup_steps": "soon"}, "warmup_steps: received 'soon', expected a number of steps from 0 on, or auto"),
        ({"learning_rate": float("nan")}, "learning_rate: received nan, expected a finite number"),
        ({"label_smoothing": 1.0}, "label_smoothing: received 1.0, expected a number below 1"),
        ({"weight_decay": -1.0}, "weight_decay: received -1.0, expected at least 0"),
        ({"clip_norm": 0}, "clip_norm: received 0, expected a number above 0"),
        ({"weight_average": 1.0}, "weight_average: received 1.0, expected a number below 1"),
        ({"batchnorm_recompute": -1}, "batchnorm_recompute: received -1, expected at least 0"),
        ({"model": "own:model", "batchnorm_recompute": 2}, "received with a custom model, whose momentum"),
        ({"augment": ("rotate",)}, "unknown augmentation 'rotate'"),
        ({"batch": 3}, "batch is unknown, received 3"),
    ],
)
def test_wrong_requests_say_what_was_received_and_expected(arguments, message):
    with pytest.raises(RequestError) as refused:
        config(**arguments)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("model", "batchnorm", "nodes", "devices", "is_refused"),
    [
        ("efficientnet-b2", "local", 1, 2, True),
        ("efficientnet-b2", "sync", 1, 2, False),
        ("efficientnet-b2", "local", 1, 1, False),
        ("vit-ti16", "local", 2, 1, False),
        ("own:model", "local", 2, 1, True),
    ],
)
def test_a_step_of_the_whole_batch_has_no_local_batchnorm(model, batchnorm, nodes, devices, is_refused):
    asked = partial(config, "jax", "jit", nodes, devices, model=model, batchnorm=batchnorm)
    if is_refused:
        with pytest.raises(
            RequestError, match=r"batchnorm: received local with mode jit of jax.*; expected sync, which"
        ):
            asked()
    else:
        asked()


@pytest.mark.parametrize(
    ("framework", "mode", "others"),
    [("jax", "jit", "spmd, multiprocess"), ("tensorflow", "keras-fit", "mirrored, multiworker")],
)
def test_modes_that_cannot_leave_gradient_sync_out_name_others(framework, mode, others):
    message = f"sync_gradients: received False with mode {mode} .*; expected True, or one of the modes {others}$"
    with pytest.raises(RequestError, match=message):
        config(framework, mode, 1, 2, model="mlp").changed(sync_gradients=False)


def test_what_stays_within_a_process_is_not_carried_by_gloo():
    made = [config("jax", mode, nodes, 2, model="mlp") for mode in ("multiprocess", "jit") for nodes in (1, 2)]
    assert [each.collective for each in made] == ["in process", "gloo"] * 2


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("weight_decay", 0.05, "0.0"), ("clip_norm", 1.0, "none"), ("weight_average", 0.9, "none")],
)
def test_keras_fit_updates_weights_by_an_optimizer_of_its_own(name, value, expected):
    message = f"{name}: received {value} with mode keras-fit, which can have {expected} only"
    with pytest.raises(RequestError, match=f"^{message}$"):
        config("tensorflow", "keras-fit", 1, 2, **{name: value})
    config("tensorflow", "keras-fit", 1, 2, label_smoothing=0.1, batchnorm_recompute=2, regularization="shared")


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_keras_fit_drops_nothing_in_torch_and_jax(framework):
    message = "regularization: received shared with mode keras-fit, which can have off only"
    with pytest.raises(RequestError, match=f"^{message}$"):
        config(framework, "keras-fit", 1, 1, regularization="shared")
    config(framework, "keras-fit", 1, 1, label_smoothing=0.1, batchnorm_recompute=2)


@pytest.mark.parametrize("evaluated", [{"weight_average": 0.9}, {"batchnorm_recompute": 2}])
def test_replicas_that_drift_apart_have_no_one_model_to_evaluate(evaluated):
    with pytest.raises(RequestError, match="weight_average, batchnorm_recompute: received without gradient sync"):
        RunConfig(
            framework="torch",
            mode="ddp",
            workload=Workload(**evaluated),
            cluster=Cluster.partition(2, 1, device="cpu"),
            sync_gradients=False,
        )


@pytest.mark.parametrize(
    ("framework", "mode", "nodes", "fields", "message"),
    [
        ("torch", "ddp", 2, {"checkpoint_every": 5}, "checkpoint_every: received with reuse_batch"),
        ("torch", "ddp", 2, {"keep_predictions": True}, "keep_predictions: received with reuse_batch"),
        ("tensorflow", "parameter-server", 3, {}, "sends a batch to whichever worker is free"),
    ],
)
def test_one_batch_is_refused_where_it_makes_no_sense(framework, mode, nodes, fields, message):
    cluster = Cluster.partition(nodes, 1, device="cpu")
    with pytest.raises(RequestError, match=message):
        RunConfig(framework=framework, mode=mode, cluster=cluster, reuse_batch=True, **fields)


def test_all_problems_are_reported_at_once():
    with pytest.raises(RequestError) as refused:
        Workload(image_size=0, global_batch_size=-1, optimizer="lamb")
    assert len(str(refused.value).splitlines()) == 3


def test_values_have_the_names_that_they_have_elsewhere():
    assert [Workload(precision=name).precision for name in ("bf16", "FP32", "float64")] == [
        "bfloat16",
        "float32",
        "float64",
    ]
    with pytest.raises(RequestError, match=r"^optimizer: received adamw; adam with a weight decay is AdamW"):
        Workload(optimizer="adamw")


def test_float16_is_refused_with_what_to_use():
    with pytest.raises(RequestError, match=r"^precision: received float16; .* share no rule for that; use bfloat16"):
        config(precision="float16")
    with pytest.raises(RequestError, match=r"precision: received .*, expected 'float32', 'bfloat16' or 'float64'"):
        config(precision="float8")


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\x1bb", "a\x00b", "a\u2028b", "x\udce9"])
@pytest.mark.parametrize("name", ["sbatch", "partition", "time", "account", "dataset", "weights", "python", "devices"])
def test_no_value_of_a_config_has_control_characters(name, text):
    """They would be lines of generated scripts."""
    document = RunConfig(
        framework="torch",
        mode="ddp",
        placement=Placement(engine="slurm"),
        cluster=Cluster.of_machines(2, 1, device_type="cpu", num_cores=1),
    ).model_dump()
    parts = {"dataset": "workload", "weights": "workload", "python": None, "devices": "cluster"}
    part = parts.get(name, "placement")
    holder = document[part] if part else document
    if name == "devices":
        holder["nodes"][1]["devices"] = (text,)
    else:
        holder[name] = (f"--comment={text}",) if name == "sbatch" else text
    with pytest.raises(RequestError, match=f"{name}: received .*expected text in one line"):
        RunConfig(**document)
