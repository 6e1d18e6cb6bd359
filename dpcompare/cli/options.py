"""The table of the options of a run, from which the rules of resumed runs and of arms follow too."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource

from dpcompare.cli import completed_values
from dpcompare.cli.config_file import read_config_file
from dpcompare.cli.option_table import Command, Part, add_options, option, rows_of
from dpcompare.cli.option_values import (
    Number,
    Precisions,
    WarmupSteps,
    listed,
    parse_augmentations,
    parse_steps,
    parse_tuning,
)
from dpcompare.config.optimizers import OPTIMIZERS

_workload = partial(option, part="workload")
_placement = partial(option, part="placement", resumable=True)
_run = partial(option, part="run", resumable=True)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a run as they were given; None where one was not given and has no default here.

    The defaults in the help are those of the config, which a test compares with them.
    """

    framework: str | None = option(
        flags=("--framework", "-f"),
        resumable=True,
        scope="run",
        shell_complete=completed_values.frameworks,
        help="torch, tensorflow or jax.",
    )
    mode: str | None = option(
        flags=("--mode", "-m"),
        resumable=True,
        scope="run",
        shell_complete=completed_values.modes,
        help="Such as ddp or mirrored; `dpcompare modes` lists them.",
    )
    nodes: int | None = option(
        type=int,
        resumable=True,
        scope="run",
        help="How many nodes to simulate.  [default: 1; on the CPU as many as 2 replicas need]",
    )
    devices_per_node: int | None = option(
        type=int,
        resumable=True,
        scope="run",
        help="Default: the visible GPUs shared out evenly; on the CPU 1, or 2 without --nodes in a mode of one node.",
    )
    device: Literal["auto", "cpu", "gpu", "tpu"] = option(
        type=click.Choice(["auto", "cpu", "gpu", "tpu"]),
        default="auto",
        resumable=True,
        help="auto: GPUs where there are any. cpu: simulated devices.  [default: auto]",
    )
    engine: str | None = _placement(
        shell_complete=completed_values.engines,
        help="local: simulated nodes of this machine. namespaces: each with a network of its own. hosts, slurm: "
        "nodes that are machines; kubernetes: only with `plan`.  [default: local]",
    )
    hosts: str | None = _placement(
        metavar="A,B,...", parse=listed, help="With --engine hosts: one host per node, in the order of the ranks."
    )
    ssh: bool = _placement(
        is_flag=True, help="With --engine hosts: start their commands by ssh instead of printing them."
    )
    link: str | None = _placement(
        metavar="RATE", help="With --engine namespaces: rate of each node's link, such as 1gbit.  [default: no limit]"
    )
    partition: str | None = _placement(help="With --engine slurm: its partition.  [default: Slurm's]")
    time: str | None = _placement(metavar="LIMIT", help="With --engine slurm: the time limit, as sbatch takes it.")
    account: str | None = _placement(help="With --engine slurm: the account to charge.")
    gres: str | None = _placement(
        help="With --engine slurm: GPUs are asked for as --gres=GRES:COUNT, such as gpu:a100, not by --gpus-per-node."
    )
    sbatch: tuple[str, ...] = _placement(
        multiple=True, metavar="OPTION", help="With --engine slurm: one more option of sbatch, such as --qos=high."
    )
    image: str | None = _placement(help="With --engine kubernetes: the container image of all pods.")
    volume_claim: str | None = _placement(
        help="With --engine kubernetes: the claim of a volume that all pods can write."
    )
    cores_per_node: int | None = option(
        type=int, resumable=True, help="Cores of each machine.  [default: those of the partition, or of this machine]"
    )
    gpus: str | None = option(
        metavar="0,1,...", resumable=True, scope="study", help="The GPUs to use; with `plan` they need not exist here."
    )
    share_gpu: bool = option(
        is_flag=True,
        resumable=True,
        help="Put several replicas of ddp, fabric or accelerate on one GPU, over gloo: emulated, never ranked.",
    )
    model: str | None = _workload(
        shell_complete=completed_values.models,
        help="efficientnet-b0 to -b7, toy-cnn, toy-bn, mlp, or package.module:NAME.  [default: efficientnet-b2]",
    )
    weights: str | None = _workload(
        metavar="random|imagenet|FILE",
        help="FILE: safetensors of a timm tf_efficientnet, or a Keras file; a classifier for other classes is drawn "
        "afresh.  [default: random]",
    )
    dataset: str | None = _workload(
        shell_complete=completed_values.datasets,
        help="digits, synthetic, a prepared store, a folder of images, hf:NAME of Hugging Face, or "
        "package.module:NAME.  [default: digits; on GPUs synthetic]",
    )
    image_size: int | None = _workload(
        type=int, help="Side of the square input in pixels.  [default: 64; on GPUs the model's own]"
    )
    global_batch_size: int | None = _workload(
        flags=("--global-batch-size", "--batch-size"),
        type=int,
        help="Images per step over all replicas.  [default: 32; on GPUs 64 per replica, 128 from 40 GB on]",
    )
    epochs: int | None = _workload(
        type=int, resumable=True, help="Passes over the training split.  [default: 1; on GPUs 200 steps]"
    )
    steps: int | None = _workload(type=int, resumable=True, help="Optimizer steps, instead of --epochs.")
    warmup_steps: int | str | None = _workload(
        type=WarmupSteps(),
        resumable=True,
        help="Steps at the start that are left out of the measured speed; of fewer steps, all but one. auto: 5, and as "
        "many more as it took the steps to settle, a third at most.  [default: 5; on GPUs without --epochs 30, "
        "at most a quarter of --steps]",
    )
    optimizer: str | None = _workload(type=click.Choice(list(OPTIMIZERS)), help="[default: adam]")
    learning_rate: float | None = _workload(flags=("--learning-rate", "--lr"), type=Number(), help="[default: 0.001]")
    schedule: str | None = _workload(
        type=click.Choice(["constant", "cosine"]), help="Schedule of the learning rate.  [default: constant]"
    )
    lr_warmup_steps: int | None = _workload(
        type=int, help="First steps in which the learning rate rises linearly.  [default: 0]"
    )
    scale_lr: str | None = _workload(
        type=click.Choice(["none", "linear"]),
        help="linear: --learning-rate is that of a global batch of 256 and grows with the batch.  [default: none]",
    )
    label_smoothing: float | None = _workload(
        type=Number(),
        metavar="FRACTION",
        help="Fraction of each label's weight spread evenly over all classes.  [default: 0.0]",
    )
    weight_decay: float | None = _workload(
        type=Number(),
        metavar="RATE",
        help="Decoupled: each step multiplies kernels by 1 - learning rate x RATE; with adam this is AdamW.  "
        "[default: 0.0]",
    )
    clip_norm: float | None = _workload(
        type=Number(), metavar="NORM", help="A gradient of a larger norm, over all parameters, is scaled down to it."
    )
    weight_average: float | None = _workload(
        type=Number(), metavar="DECAY", help="Evaluate an exponential moving average of the weights."
    )
    accumulate: int | None = _workload(
        type=int,
        flags=("--accumulate", "--microbatches"),
        help="Micro-batches per step and replica, gradients added up.  [default: 1]",
    )
    batchnorm: str | None = _workload(
        type=click.Choice(["local", "sync"]),
        help="local: statistics of each replica's part of a batch. sync: of the whole batch.  [default: local]",
    )
    batchnorm_momentum: float | None = _workload(
        type=Number(), help="Fraction of the running statistics that a step keeps.  [default: 0.9]"
    )
    batchnorm_recompute: int | None = _workload(
        type=int,
        metavar="BATCHES",
        help="Recompute the running statistics over so many training batches before each evaluation.  [default: 0]",
    )
    regularization: str | None = _workload(
        type=click.Choice(["off", "shared"]),
        help="shared: dropout and stochastic depth, drawn once on the host for all frameworks.  [default: off]",
    )
    precision: str | None = _workload(type=Precisions(["float32", "bfloat16", "float64"]), help="[default: float32]")
    profile: str | None = _workload(
        type=click.Choice(["strict", "native"]),
        help="strict: the same in all frameworks. native: each framework's faster settings.  [default: strict]",
    )
    tune: tuple[str, ...] = _run(
        multiple=True,
        metavar="NAME=VALUE",
        parse=parse_tuning,
        help="A setting of the native profile, such as compilation=torch.compile; `modes --json` lists them.",
    )
    seed: int | None = _workload(
        type=int, help="Seed of initial weights, sample order, augmentation and regularization.  [default: 0]"
    )
    augment: str | None = _workload(
        metavar="LIST",
        parse=parse_augmentations,
        help="Some of flip,brightness,contrast,crop, separated by commas.  [default: none]",
    )
    skip_corrupt: bool = _workload(
        is_flag=True, scope="study", help="Leave out images that cannot be decoded, and count them."
    )
    follow_links: bool = _workload(
        is_flag=True, scope="study", help="Read images to which links lead that leave the dataset's folder."
    )
    python: tuple[str, ...] = option(
        multiple=True,
        metavar="FRAMEWORK=PATH",
        resumable=True,
        scope="study",
        help="Interpreter of the environment that holds a framework; also DPCOMPARE_TORCH_PYTHON and the like.",
    )
    stages: int | None = _run(
        type=int, help="Devices over which each replica's model is split.  [default: 1; 2 with pipeline]"
    )
    pipeline_schedule: str | None = _run(
        type=click.Choice(["gpipe", "1f1b"]), help="Schedule of mode pipeline.  [default: gpipe]"
    )
    launcher: str | None = _run(
        type=click.Choice(["torchrun", "spawn"]),
        help="How ddp, fsdp and pipeline start processes; spawn: from inside a program.  [default: torchrun]",
    )
    steps_per_window: int | None = _run(
        type=int,
        metavar="STEPS",
        help="Steps that are timed together, with one wait for the devices.  [default: 1 on the CPU, 10 on GPUs]",
    )
    input_threads: int | None = _run(
        type=int, help="Threads per replica that read batches ahead of training.  [default: 1]"
    )
    profile_steps: str | None = _run(
        metavar="A:B",
        parse=parse_steps,
        resumable=False,
        help="Keep a trace of steps A to B, for Chrome's viewer or Perfetto, of each process (multiworker: process 0).",
    )
    checkpoint_every: int | None = _run(
        type=int, metavar="STEPS", help="Write a checkpoint every so many steps, and at the end."
    )
    keep_checkpoints: int | None = _run(type=int, help="How many of the newest checkpoints are kept.  [default: 2]")
    evaluate_every: int | None = _run(
        type=int, metavar="STEPS", help="Evaluate every so many steps, and at the end.  [default: after every epoch]"
    )
    target_accuracy: float | None = _run(
        type=Number(),
        scope="study",
        metavar="FRACTION",
        help="Target validation accuracy, such as 0.9; reports the training time, steps and energy until an evaluation "
        "first reaches it.",
    )
    stop_at_target: bool = _run(
        is_flag=True, scope="study", help="End training as soon as the target accuracy is reached."
    )
    keep_predictions: bool = _run(
        is_flag=True, scope="study", help="Keep the trained model's prediction for each validation sample."
    )
    on_nan: str | None = _run(
        type=click.Choice(["stop", "continue"]), help="What to do when a loss is not finite.  [default: stop]"
    )
    max_restarts: int | None = _run(
        type=int, help="How often a run that fails is restarted from its newest checkpoint.  [default: 0]"
    )
    isolate: bool | None = _run(
        flags=("--isolate/--no-isolate",),
        default=None,
        help="Run in a network of its own, so that nothing outside reaches the ports of the run.  [default: where "
        "TensorFlow's servers would serve your files, and this machine permits it]",
    )
    start_timeout: float | None = _run(
        type=Number(), metavar="SECONDS", help="Longest time until the first step.  [default: 600; on GPUs 1800]"
    )
    progress_timeout: float | None = _run(
        type=Number(), metavar="SECONDS", help="Longest time without progress after that.  [default: 600]"
    )
    run_dir: Path | None = option(
        type=click.Path(path_type=Path), scope="run", help="A new directory for the run.  [default: below runs/]"
    )


OPTIONS = rows_of(RunOptions)


def values_of(part: Part, options: RunOptions, given: Container[str] | None = None) -> dict[str, Any]:
    """Field -> value of a part of the config.

    Args:
        given: names of the options to take; default: all that have a value.

    Raises:
        RequestError: a value cannot be parsed.
    """
    values = {}
    for row in OPTIONS:
        value = getattr(options, row.name)
        if row.part == part and value is not None and (given is None or row.name in given):
            values[row.name] = row.parse(value) if row.parse else value
    return values


def is_given(context: click.Context, name: str) -> bool:
    """Whether an option stands on the command line, or in the file of --config."""
    return context.get_parameter_source(name) in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)


def run_options(command: Command) -> Command:
    """All options of a run; each is also read from DPCOMPARE_<NAME> and from the file given by --config."""
    command = add_options(OPTIONS, from_environment=True)(command)
    return click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="DPCOMPARE_CONFIG",
        is_eager=True,
        expose_value=False,
        callback=read_config_file,
        help="TOML file with options by their names, such as global_batch_size = 32.",
    )(command)


def study_options(command: Command) -> Command:
    """The options of a run that a study gives to all of its arms."""
    return add_options([row for row in OPTIONS if row.scope != "run"], from_environment=True)(command)
