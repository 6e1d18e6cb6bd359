"""The options that `run`, `plan` and `compare` share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from dpcompare.cli.config_file import read_config_file

Command = TypeVar("Command", bound=Callable[..., Any])

# Defaults are those of Workload and Cluster.partition; a test compares them with the texts here.
OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("--framework",), {"help": "torch or tensorflow."}),
    (
        ("--mode",),
        {"help": "Such as ddp or mirrored; `dpcompare modes` lists them."},
    ),
    (("--nodes",), {"type": int, "default": 1, "show_default": True, "help": "Nodes to simulate."}),
    (
        ("--devices-per-node",),
        {"type": int, "help": "Default: the visible GPUs shared out evenly, or one CPU device per node."},
    ),
    (
        ("--device",),
        {
            "type": click.Choice(["auto", "cpu", "gpu", "tpu"]),
            "default": "auto",
            "help": "auto: GPUs where there are any. cpu: simulated devices.  [default: auto]",
        },
    ),
    (
        ("--engine",),
        {
            "help": "local: simulated nodes of this machine. namespaces: each with a network of its own. hosts, slurm: "
            "nodes that are machines; kubernetes: only with `plan`.  [default: local]"
        },
    ),
    (("--hosts",), {"metavar": "A,B,...", "help": "With --engine hosts: one per node, in the order of the ranks."}),
    (("--ssh",), {"is_flag": True, "help": "With --engine hosts: start their part by ssh, instead of printing it."}),
    (
        ("--link",),
        {
            "metavar": "RATE",
            "help": "With --engine namespaces: of each node's wire, such as 1gbit.  [default: no limit]",
        },
    ),
    (("--partition",), {"help": "With --engine slurm.  [default: Slurm's]"}),
    (("--time",), {"metavar": "LIMIT", "help": "With --engine slurm, as sbatch takes it."}),
    (("--account",), {"help": "With --engine slurm."}),
    (
        ("--sbatch",),
        {"multiple": True, "metavar": "OPTION", "help": "With --engine slurm: one more of sbatch, such as --qos=high."},
    ),
    (("--image",), {"help": "With --engine kubernetes: of all pods."}),
    (("--volume-claim",), {"help": "With --engine kubernetes: of a volume that all pods can write."}),
    (
        ("--cores-per-node",),
        {"type": int, "help": "Of machines.  [default: as the partition has, or as this machine]"},
    ),
    (("--gpus",), {"metavar": "0,1,...", "help": "The GPUs to use; with `plan` they need not exist here."}),
    (
        ("--model",),
        {"help": "efficientnet-b0 to -b7, toy-cnn, toy-bn, mlp, or package.module:NAME.  [default: efficientnet-b2]"},
    ),
    (
        ("--weights",),
        {
            "metavar": "random|imagenet|FILE",
            "help": "FILE: safetensors of a timm tf_efficientnet, or a Keras file; a classifier for other classes is drawn anew.  [default: random]",
        },
    ),
    (
        ("--dataset",),
        {"help": "digits, synthetic, a prepared store, a folder of images, or package.module:NAME.  [default: digits]"},
    ),
    (("--image-size",), {"type": int, "help": "Side of the square input in pixels.  [default: 64]"}),
    (
        ("--global-batch-size",),
        {"type": int, "help": "Images per step over all replicas.  [default: 32]"},
    ),
    (("--epochs",), {"type": int, "help": "Passes over the training split.  [default: 1]"}),
    (("--steps",), {"type": int, "help": "Optimizer steps, instead of --epochs."}),
    (("--warmup-steps",), {"type": int, "help": "First steps left out of the measured speed.  [default: 5]"}),
    (("--optimizer",), {"type": click.Choice(["sgd", "adam"]), "help": "[default: adam]"}),
    (("--learning-rate",), {"type": float, "help": "[default: 0.001]"}),
    (
        ("--schedule",),
        {"type": click.Choice(["constant", "cosine"]), "help": "Of the learning rate.  [default: constant]"},
    ),
    (
        ("--lr-warmup-steps",),
        {"type": int, "help": "First steps in which the learning rate rises linearly.  [default: 0]"},
    ),
    (
        ("--scale-lr",),
        {
            "type": click.Choice(["none", "linear"]),
            "help": "linear: --learning-rate is that of a global batch of 256 and grows with the batch.  "
            "[default: none]",
        },
    ),
    (
        ("--accumulate", "--microbatches"),
        {"type": int, "help": "Micro-batches per step and replica, gradients added up.  [default: 1]"},
    ),
    (
        ("--batchnorm",),
        {
            "type": click.Choice(["local", "sync"]),
            "help": "Statistics of each replica's share of a batch, or of the batch of all.  [default: local]",
        },
    ),
    (
        ("--batchnorm-momentum",),
        {"type": float, "help": "Share of the running statistics that a step keeps.  [default: 0.9]"},
    ),
    (
        ("--regularization",),
        {
            "type": click.Choice(["off", "shared"]),
            "help": "shared: dropout and stochastic depth, drawn once on the host for both frameworks.  [default: off]",
        },
    ),
    (
        ("--precision",),
        {"type": click.Choice(["float32", "bfloat16", "float64"]), "help": "[default: float32]"},
    ),
    (
        ("--profile",),
        {
            "type": click.Choice(["strict", "native"]),
            "help": "strict: the same in both frameworks. native: each framework's faster settings.  [default: strict]",
        },
    ),
    (
        ("--tune",),
        {
            "multiple": True,
            "metavar": "NAME=VALUE",
            "help": "A setting of the native profile, such as compilation=none; `modes --json` lists them.",
        },
    ),
    (
        ("--seed",),
        {"type": int, "help": "Of initial weights, sample order, augmentation and regularization.  [default: 0]"},
    ),
    (
        ("--augment",),
        {"metavar": "LIST", "help": "Some of flip,brightness,contrast, by commas.  [default: none]"},
    ),
    (
        ("--skip-corrupt",),
        {"is_flag": True, "help": "Leave out images that cannot be decoded, and count them."},
    ),
    (
        ("--python",),
        {
            "multiple": True,
            "metavar": "FRAMEWORK=PATH",
            "help": "Interpreter of the environment that holds a framework; also DPCOMPARE_TORCH_PYTHON and "
            "DPCOMPARE_TENSORFLOW_PYTHON.",
        },
    ),
    (
        ("--stages",),
        {"type": int, "help": "Devices over which each replica's model is split.  [default: 1; 2 with pipeline]"},
    ),
    (
        ("--pipeline-schedule",),
        {"type": click.Choice(["gpipe", "1f1b"]), "help": "Of pipeline.  [default: gpipe]"},
    ),
    (
        ("--launcher",),
        {
            "type": click.Choice(["torchrun", "spawn"]),
            "help": "Of ddp, fsdp and pipeline. spawn: the processes are started from inside a program.  [default: torchrun]",
        },
    ),
    (
        ("--profile-steps",),
        {"metavar": "A:B", "help": "Keep a trace of steps A to B of every process, for Chrome's or Perfetto's viewer."},
    ),
    (
        ("--checkpoint-every",),
        {"type": int, "metavar": "STEPS", "help": "Write a checkpoint that often, and at the end."},
    ),
    (("--keep-checkpoints",), {"type": int, "help": "The newest ones are kept.  [default: 2]"}),
    (
        ("--on-nan",),
        {"type": click.Choice(["stop", "continue"]), "help": "At a loss that is not finite.  [default: stop]"},
    ),
    (
        ("--max-restarts",),
        {"type": int, "help": "Begin again from the newest checkpoint, all processes, that often.  [default: 0]"},
    ),
    (
        ("--isolate",),
        {"is_flag": True, "help": "In a network of its own: nothing outside reaches the ports of the run."},
    ),
    (("--start-timeout",), {"type": float, "metavar": "SECONDS", "help": "Until the first step.  [default: 600]"}),
    (
        ("--progress-timeout",),
        {"type": float, "metavar": "SECONDS", "help": "Without a sign of progress after it.  [default: 600]"},
    ),
    (
        ("--run-dir",),
        {"type": click.Path(path_type=Path), "help": "A new directory for the run.  [default: below runs/]"},
    ),
)

WORKLOAD_OPTIONS = (
    "model",
    "weights",
    "dataset",
    "image_size",
    "global_batch_size",
    "epochs",
    "steps",
    "warmup_steps",
    "optimizer",
    "learning_rate",
    "schedule",
    "lr_warmup_steps",
    "scale_lr",
    "accumulate",
    "batchnorm",
    "batchnorm_momentum",
    "regularization",
    "precision",
    "profile",
    "seed",
)


RUN_CONFIG_OPTIONS = (
    "launcher",
    "stages",
    "pipeline_schedule",
    "checkpoint_every",
    "keep_checkpoints",
    "on_nan",
    "max_restarts",
    "isolate",
    "start_timeout",
    "progress_timeout",
)

PLACEMENT_OPTIONS = (
    "engine",
    "hosts",
    "ssh",
    "link",
    "partition",
    "time",
    "account",
    "sbatch",
    "image",
    "volume_claim",
)

OF_ONE_RUN = ("--framework", "--mode", "--nodes", "--devices-per-node", "--run-dir")
"""What a study has several of."""


def run_options(command: Command) -> Command:
    """All options of a run; each is also read from DPCOMPARE_<NAME> and from the file given by --config."""
    command = _with_options(command, without=())
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
    """The options of a run that all arms of a study share."""
    return _with_options(command, without=OF_ONE_RUN)


def _with_options(command: Command, *, without: tuple[str, ...]) -> Command:
    for names, settings in reversed(OPTIONS):
        if names[0] in without:
            continue
        variable = "DPCOMPARE_" + names[0].removeprefix("--").replace("-", "_").upper()
        command = click.option(*names, envvar=variable, **settings)(command)
    return command
