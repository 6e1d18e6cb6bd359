"""The options that `run`, `plan` and `compare` share, and how they become a run config."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dpcompare.errors import RequestError, did_you_mean

if TYPE_CHECKING:
    from dpcompare.cluster import Cluster
    from dpcompare.config import Placement, RunConfig

Command = TypeVar("Command", bound=Callable[..., Any])

# Defaults are those of Workload and Cluster.partition; a test compares them with the texts here.
_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("--framework",), {"help": "torch or tensorflow."}),
    (
        ("--mode",),
        {"help": "torch: single, dp, ddp. tensorflow: single, mirrored, multiworker."},
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
    (("--model",), {"help": "efficientnet-b0 to -b7, toy-cnn, toy-bn or mlp.  [default: efficientnet-b2]"}),
    (
        ("--weights",),
        {
            "metavar": "random|imagenet|FILE",
            "help": "FILE: safetensors of a timm tf_efficientnet, or a Keras file; a classifier for other classes is drawn anew.  [default: random]",
        },
    ),
    (
        ("--dataset",),
        {"help": "digits, synthetic, a prepared store or a folder of images.  [default: digits]"},
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
            "help": "Of ddp and fsdp. spawn: the processes are started from inside a program.  [default: torchrun]",
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

_WORKLOAD_OPTIONS = (
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


DEFAULT_PIPELINE_STAGES = 2

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


class Numbers(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.3
    """One or more positive numbers, by commas; in TOML also a number or a list."""

    name = "numbers"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> tuple[int, ...]:
        parts = value.split(",") if isinstance(value, str) else value
        try:
            parts = parts if isinstance(parts, (list, tuple)) else [parts]
            if not all(type(part) in (int, str) for part in parts):  # a bool is an int, and 1.9 would become 1
                raise TypeError
            numbers = tuple(map(int, parts))
        except (TypeError, ValueError):
            numbers = ()
        if not numbers or min(numbers) < 1:
            self.fail(f"received {value!r}, expected positive numbers such as 1,2", parameter, context)
        return numbers


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
    for names, settings in reversed(_OPTIONS):
        if names[0] in without:
            continue
        variable = "DPCOMPARE_" + names[0].removeprefix("--").replace("-", "_").upper()
        command = click.option(*names, envvar=variable, **settings)(command)
    return command


def read_config_file(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """Make the values of a TOML file the defaults of the other options."""
    if path is None:
        return
    try:
        text = path.read_text()
        content = tomllib.loads(text)
    except OSError as error:
        raise RequestError(f"{str(path)!r} cannot be read: {error.strerror}; expected a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{str(path)!r} is not valid TOML: {error}") from None
    options = {
        option.name: option
        for option in context.command.params
        if isinstance(option, click.Option) and option.name not in (None, "config", "as_json", "dry_run", "out")
    }
    problems = []
    for key, value in content.items():
        where = f"{path}{_line_of(key, text)}: key {key!r}"
        if key not in options:
            known = sorted(str(name) for name in options)
            problems.append(f"{where} is unknown; expected one of {', '.join(known)}.{did_you_mean(key, known)}")
        elif problem := _type_problem(options[key], value, context):
            problems.append(f"{where}: received {value!r}, {problem}")
    if problems:
        raise RequestError("\n".join(problems))
    context.default_map = content


def _line_of(key: str, text: str) -> str:
    """`:LINE` of a top-level key; tomllib keeps no positions."""
    for number, line in enumerate(text.splitlines(), start=1):
        if re.match(rf"\s*\[*\s*[\"']?{re.escape(key)}[\"']?\s*[=.\]]", line):
            return f":{number}"
    return ""


def _type_problem(option: click.Option, value: Any, context: click.Context) -> str | None:
    """Why a TOML value is no value of an option; TOML has types, so '32' is no number here."""
    if option.multiple:
        return None if isinstance(value, list) and all(isinstance(v, str) for v in value) else "expected a list"
    kinds: dict[str, tuple[tuple[type, ...], str]] = {
        "integer": ((int,), "an integer"),
        "integer range": ((int,), "an integer"),
        "float": ((int, float), "a number"),
        "boolean": ((bool,), "true or false"),
    }
    if isinstance(option.type, Numbers):
        kinds["numbers"] = ((int, str, list), "a number, or a list of them")
    types, name = kinds["boolean"] if option.is_flag else kinds.get(option.type.name, ((str,), "a string"))
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        return f"expected {name}"
    try:
        option.type.convert(value, option, context)
    except click.BadParameter as error:
        return error.message
    return None


def build_config(options: dict[str, Any]) -> RunConfig:
    """A run config from the values of `run_options`.

    Raises:
        RequestError: they make no run.
    """
    from dpcompare.cluster import Cluster, installed_gpus, visible_gpus
    from dpcompare.config import RunConfig, Workload, request
    from dpcompare.engines import ENGINES

    for name in ("framework", "mode"):
        if options[name] is None:
            raise RequestError(
                f"--{name}: received nothing; expected {'torch or tensorflow' if name == 'framework' else 'one of `dpcompare modes`'}"
            )
    given = {name: options[name] for name in _WORKLOAD_OPTIONS if options[name] is not None}
    augment = tuple(listed(options["augment"] or ""))
    workload = request(
        Workload,
        **given,
        augment=() if augment == ("none",) else augment,
        skip_corrupt=options["skip_corrupt"],
    )
    gpus = options["gpus"]
    devices_per_node = options["devices_per_node"]
    if options["mode"] == "single" and devices_per_node is None and gpus is None:
        devices_per_node = 1  # the baseline is one device, however many are visible
    device = options["device"]
    if device == "auto" and options["mode"] == "tpu":
        device = "tpu"
    stages = options["stages"]
    if stages is None and options["mode"] == "pipeline":
        stages = DEFAULT_PIPELINE_STAGES
    placement = _placement(options)
    on_gpus = device == "gpu" or gpus is not None or (device == "auto" and bool(visible_gpus(installed_gpus())))
    if stages is not None and devices_per_node is None and not (on_gpus and ENGINES[placement.engine].simulated):
        devices_per_node = stages  # one replica per node
    if ENGINES[placement.engine].simulated:
        if options["cores_per_node"] is not None:
            raise RequestError(
                f"--cores-per-node: received with engine {placement.engine}, whose nodes share the cores of this machine"
            )
        cluster = Cluster.partition(
            options["nodes"],
            devices_per_node,
            device=device,
            gpus=None if gpus is None else listed(gpus),
        )
    else:
        cluster = machines(placement, options | {"devices_per_node": devices_per_node})
    chosen: dict[str, Any] = {name: options[name] for name in RUN_CONFIG_OPTIONS if options[name] is not None}
    if stages is not None:
        chosen["stages"] = stages
    if options["profile_steps"] is not None:
        chosen["profile_steps"] = _steps(options["profile_steps"])
    if options["tune"]:
        chosen["tune"] = parse_tuning(options["tune"])
    if python := interpreters(options["python"]).get(options["framework"]):
        chosen["python"] = python
    config: RunConfig = request(
        RunConfig,
        framework=options["framework"],
        mode=options["mode"],
        workload=workload,
        cluster=cluster,
        placement=placement,
        **chosen,
    )
    return config


def _placement(options: dict[str, Any]) -> Placement:
    from dpcompare.config import Placement, request

    texts = {
        name: options[name]
        for name in ("engine", "link", "partition", "time", "account", "image", "volume_claim")
        if options[name] is not None
    }
    placement: Placement = request(
        Placement, **texts, hosts=listed(options["hosts"] or ""), ssh=options["ssh"], sbatch=options["sbatch"]
    )
    return placement


def machines(placement: Placement, options: dict[str, Any]) -> Cluster:
    """The nodes of an engine whose nodes are machines."""
    from dpcompare.cluster import Cluster, available_cores, installed_gpus

    if options["gpus"] is not None:
        raise RequestError(
            f"--gpus: received with engine {placement.engine}; each machine has its own: give their number with --devices-per-node"
        )
    device = options["device"]
    if device == "auto" and placement.engine in ("slurm", "kubernetes"):
        raise RequestError(
            f"--device: received auto with engine {placement.engine}, whose nodes are elsewhere; expected cpu or gpu"
        )
    if device == "auto":
        device = "gpu" if installed_gpus() else "cpu"
    cores = options["cores_per_node"]
    if cores is None and placement.engine == "slurm":
        from dpcompare.engines.slurm import cores_per_node

        cores = cores_per_node(placement.partition)
    num_nodes = options["nodes"]
    if num_nodes == 1:  # the default: as many as are named
        num_nodes = len(placement.hosts) or num_nodes
    return Cluster.of_machines(num_nodes, options["devices_per_node"] or 1, device, cores or available_cores())


def listed(text: str) -> list[str]:
    """`a, b` as ["a", "b"]."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _steps(text: str) -> tuple[int, int]:
    """`5:8` as (5, 8)."""
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if match is None:
        raise RequestError(f"--profile-steps: received {text!r}, expected FIRST:LAST such as 5:8")
    return int(match[1]), int(match[2])


def parse_tuning(pairs: Sequence[str]) -> dict[str, str]:
    """name -> value of --tune."""
    chosen = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name or not value:
            raise RequestError(f"--tune: received {pair!r}, expected NAME=VALUE such as compilation=none")
        chosen[name] = value
    return chosen


def interpreters(pairs: tuple[str, ...]) -> dict[str, str]:
    """framework -> interpreter, from the environment and --python."""
    import os

    from dpcompare.backends import FRAMEWORKS

    chosen = {
        framework: os.environ[variable]
        for framework in FRAMEWORKS
        if (variable := f"DPCOMPARE_{framework.upper()}_PYTHON") in os.environ
    }
    for pair in pairs:
        framework, separator, path = pair.partition("=")
        if not separator or framework not in FRAMEWORKS or not path:
            raise RequestError(
                f"--python: received {pair!r}, expected FRAMEWORK=PATH with FRAMEWORK one of {', '.join(FRAMEWORKS)}"
            )
        chosen[framework] = path
    return chosen
