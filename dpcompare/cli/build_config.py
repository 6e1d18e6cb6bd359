"""The builder of a run config from the options of a command line or of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

from dpcompare.cli import completion
from dpcompare.cli.option_values import environment_called, interpreters, listed, only_environment, refuse_own_backend
from dpcompare.cli.options import RunOptions, placement_values, values_of
from dpcompare.config.cluster import Cluster, Topology
from dpcompare.config.environment import Environment
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.gpu_defaults import gpu_defaults
from dpcompare.config.modes import DEFAULT_REPLICAS, MODES
from dpcompare.config.placement import Placement
from dpcompare.config.run import RunConfig
from dpcompare.config.run_fields import RunFields
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError
from dpcompare.system.devices import available_cores, gpu_memory, installed_gpus, visible_gpus
from dpcompare.system.terminal_text import hint
from dpcompare.system.type_names import FieldValue


def _one_mode(context: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> str | None:
    if len(words) > 1:
        expected = ":".join(words) if words in MODES else "one FRAMEWORK:MODE such as torch:ddp"
        raise click.UsageError(f"received {' '.join(words)}; expected {expected}", context)
    return words[0] if words else None


mode_argument = click.argument(
    "named_mode", nargs=-1, metavar="[FRAMEWORK:MODE]", callback=_one_mode, shell_complete=completion.named_modes
)
"""The mode of a run as the arms of a study name it."""


def with_named_mode(context: click.Context, named: str | None, values: dict[str, FieldValue]) -> RunOptions:
    """The options of a command that also takes its mode as the arms of a study do, such as `torch:ddp`.

    Args:
        context: of the command.
        named: the argument, which goes before the environment and the config file.
        values: of the options.

    Raises:
        RequestError: it names no mode, or the options name another.
    """
    options = RunOptions.of(values)
    options = options.changed(environment=only_environment(options.env))
    if named is None:
        return options
    framework, _, mode = named.partition(":")
    if not framework or not mode:
        raise RequestError(f"received {named!r}, expected FRAMEWORK:MODE such as torch:ddp")
    if "," in mode:  # as of an arm
        mode, *changes = mode.split(",")
        flags = [part for change in changes for part in f"--{change.strip().replace('_', '-')}".split("=", 1)]
        raise RequestError(
            f"received {named!r}, as an arm of a study; expected options of their own: "
            f"{hint(str(context.info_name), f'{framework}:{mode}', *flags)}"
        )
    refuse_own_backend(named, f"received {named!r}", "torch:ddp --backend {}")
    for name, value in (("framework", framework), ("mode", mode)):
        given = getattr(options, name)
        if given != value and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise RequestError(f"received {named} and --{name} {given}; name the mode once")
    return options.changed(framework=framework, mode=mode)


def build_config(options: RunOptions, compared_with: Sequence[RunConfig] = ()) -> RunConfig:
    """The config of a new run.

    Args:
        options: as they were given.
        compared_with: the configs of all runs that it is compared with, itself included, whose defaults it is to share.

    Raises:
        RequestError: the options make no run.
    """
    if options.framework is None:
        names = ", ".join(FRAMEWORKS)
        raise RequestError(f"--framework is required: one of {names}, such as --framework torch --mode ddp")
    if options.mode is None:
        modes = ", ".join(mode for framework, mode in MODES if framework == options.framework)
        raise RequestError(f"--mode is required: {modes or 'one of those that `dpcompare modes` lists'}")
    placement = Placement(**placement_values(options))
    options = _with_defaults_of_mode(options, placement)
    cluster = _cluster(placement, options)
    workload = Workload(**_workload_values(options, cluster, compared_with))
    fields: dict[str, Any] = {"framework": options.framework, "mode": options.mode, "workload": workload}
    fields |= {"cluster": cluster, "placement": placement, **values_of(RunFields, options)}
    return RunConfig(**fields, **environment_values(options, interpreters(options.python).get(options.framework or "")))


def environment_values(options: RunOptions, usual: str | None) -> dict[str, Any]:
    """The fields of a config that say in which environment it runs.

    Args:
        options: as they were given.
        usual: the interpreter of the framework; None: this one.

    Raises:
        RequestError: there is no environment of the name that was chosen.
    """
    values: dict[str, Any] = {} if usual is None else {"python": usual}
    if options.environment is None:
        return values
    named = environment_called(options.environment, options.env)
    if named.python is not None:
        values["python"] = named.python
    return values | {"environment": Environment(name=options.environment, variables=dict(named.variables))}


def _with_defaults_of_mode(options: RunOptions, placement: Placement) -> RunOptions:
    """The options with what the mode decides where nothing was asked for."""
    mode = MODES.get((str(options.framework), str(options.mode)))
    if mode is None:  # refused with its name when the config is built
        return options
    changes: dict[str, Any] = {}
    if not mode.multi_device and options.devices_per_node is None and options.gpus is None:
        changes["devices_per_node"] = 1  # the baseline is one device, however many are visible
    if options.device == "auto" and mode.default_device is not None and placement.row.simulated:
        changes["device"] = mode.default_device
    may_be_cpus = mode.default_device is None and options.device in ("auto", *mode.device_types)
    simulates_cpus = placement.row.simulated and may_be_cpus
    if mode.multi_device and simulates_cpus and not _names_devices(options) and not _on_gpus(options):
        changes["nodes"], changes["devices_per_node"] = mode.default_topology(DEFAULT_REPLICAS)
    if options.stages is None and mode.default_stages > 1:
        changes["stages"] = mode.default_stages
    return options.changed(**changes)


def chosen_topology(options: RunOptions, config: RunConfig) -> str | None:
    """A line about simulated devices that were not asked for; None if they were, or there is only one."""
    cluster = config.cluster
    if _names_devices(options) or (cluster.device_type, cluster.simulated) != ("cpu", True) or cluster.num_devices == 1:
        return None
    return (
        f"on {cluster.in_words}, simulated: {config.mode} on one device would exchange nothing; choose others with "
        "--nodes and --devices-per-node"
    )


def _names_devices(options: RunOptions) -> bool:
    return any(each is not None for each in (options.nodes, options.devices_per_node, options.gpus, options.stages))


def _workload_values(options: RunOptions, cluster: Cluster, compared_with: Sequence[RunConfig]) -> dict[str, Any]:
    """What was given and, where all devices are GPUs, the defaults on GPUs."""
    given = values_of(Workload, options)
    mode = MODES.get((str(options.framework), str(options.mode)))
    if mode is None or {cluster.device_type, *(config.cluster.device_type for config in compared_with)} != {"gpu"}:
        return given
    if compared_with:
        models = [config.workload.model for config in compared_with]
        replicas = [config.topology.num_replicas for config in compared_with]
    else:
        topology = Topology(mode=mode, cluster=cluster, devices_per_replica=max(1, options.stages or 1))
        # A cluster that is too small for the mode is refused with the config.
        models, replicas = [given.get("model", Workload().model)], [max(1, topology.num_replicas)]
    clusters = [cluster, *(config.cluster for config in compared_with)]
    here = [gpu for each in clusters if each.simulated for gpu in each.devices]
    decides = "global_batch_size" not in given and here and all(each.simulated for each in clusters)
    memory = gpu_memory(here) if decides else None
    if memory is not None:
        memory //= max(each.num_devices if each.shared else 1 for each in clusters)
    return given | gpu_defaults(given, models=models, replicas=replicas, memory=memory)


def _cluster(placement: Placement, options: RunOptions) -> Cluster:

    is_simulated = placement.row.simulated
    if options.stages is not None and options.devices_per_node is None and not (is_simulated and _on_gpus(options)):
        options = options.changed(devices_per_node=options.stages)  # one replica per node
    if not is_simulated:
        return cluster_of_machines(placement, options)
    if options.cores_per_node is not None:
        raise RequestError(
            f"--cores-per-node: received with engine {placement.engine}, whose nodes share the cores of this machine"
        )
    return Cluster.partition(
        1 if options.nodes is None else options.nodes,
        options.devices_per_node,
        device=options.device,
        gpus=None if options.gpus is None else listed(options.gpus),
        share_gpu=options.share_gpu,
    )


def _on_gpus(options: RunOptions) -> bool:

    if options.device == "auto" and options.gpus is None:
        return bool(visible_gpus(installed_gpus()))
    return options.device == "gpu" or options.gpus is not None


def cluster_of_machines(placement: Placement, options: RunOptions) -> Cluster:
    """The nodes of an engine whose nodes are machines.

    Raises:
        RequestError: the options do not suit machines that this process does not see.
    """
    if options.share_gpu:
        raise RequestError(
            f"--share-gpu: received with engine {placement.engine}, whose nodes have GPUs of their own; expected "
            "engine local"
        )
    if options.gpus is not None:
        raise RequestError(
            f"--gpus: received with engine {placement.engine}; each machine has its own: give their number with "
            "--devices-per-node"
        )
    device = options.device
    if device == "auto" and placement.row.is_elsewhere:
        raise RequestError(
            f"--device: received auto with engine {placement.engine}, whose nodes are elsewhere; expected cpu or gpu"
        )
    if device == "auto":
        device = "gpu" if installed_gpus() else "cpu"
    cores = options.cores_per_node
    if cores is None:
        from dpcompare.launch.engines import load_engine

        cores = load_engine(placement.engine).cores_per_node(placement.options)
    num_nodes = options.nodes
    if num_nodes is None:
        num_nodes = len(placement.hosts) or 1
    return Cluster.of_machines(num_nodes, options.devices_per_node or 1, device, cores or available_cores())


def as_remembered(config: RunConfig) -> RunConfig:
    """The config with what autotune found on this machine for a run like this, if that pays off within its steps."""
    from dpcompare.launch.inputs import num_training_images
    from dpcompare.launch.remembered import remembered_settings

    workload = config.workload
    if workload.profile != "native" or config.tune or not (kept := remembered_settings(config)):
        return config
    num_images = workload.total_steps(num_training_images(config)) * workload.global_batch_size
    best, fastest, untuned = min(kept, key=lambda each: each.seconds(num_images)), kept[-1], kept[0]
    if best.tune:
        click.echo(
            f"native: {_in_words(best.tune)}, which autotune found on this machine: {best.images_per_second:.1f} "
            f"images/s instead of {untuned.images_per_second:.1f}; --tune NAME=VALUE chooses others",
            err=True,
        )
    if best is not fastest:
        click.echo(
            f"native: not {_in_words(fastest.tune)}: {fastest.images_per_second:.1f} images/s on this machine, but its "
            f"first step takes {fastest.first_step_seconds:.0f} s, more than a run of this length gains",
            err=True,
        )
    return config.changed(tune=best.tune, autotuned=True)


def _in_words(tune: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in tune.items())
