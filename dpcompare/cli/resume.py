"""The config of a resumed run, and the study that is continued."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dpcompare._version import __version__
from dpcompare.cli.build_arms import WORDS
from dpcompare.cli.build_config import cluster_of_machines
from dpcompare.cli.option_values import (
    interpreters,
    listed,
    named_interpreters,
    refuse_other_names,
    require_trusted_interpreter,
)
from dpcompare.cli.options import OPTIONS, RunOptions, engine_option_names, placement_values, values_of
from dpcompare.config.cluster import Cluster
from dpcompare.config.frameworks import python_variable
from dpcompare.config.modes import MODES
from dpcompare.config.placement import Placement
from dpcompare.config.run import RunConfig
from dpcompare.config.run_fields import RunFields
from dpcompare.config.tuning import tuning_options
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError

if TYPE_CHECKING:
    from dpcompare.experiments.study import Study

_OF_THE_CLUSTER = {"nodes", "devices_per_node", "device", "gpus", "share_gpu", "cores_per_node", "hosts", "engine"}
_OF_THE_MODE = {"launcher", "stages", "pipeline_schedule", "backend"}
"""Fields that a run does not keep in another mode."""
_OF_THE_ATTEMPT = {"profile_steps", "resume", "inputs"}
"""Fields that a run does not keep when it is resumed."""


def changed_config(config: RunConfig, options: RunOptions, given: Set[str]) -> RunConfig:
    """The config with which a run is resumed.

    Args:
        config: that of the run so far.
        options: all values.
        given: names of those that were given, on the command line or in a file.

    Raises:
        RequestError: an option was given that a resumed run cannot change, or they make no run.
    """
    _refuse_fixed(given)
    if "engine_option" in given:
        given = given | engine_option_names(options)
    workload = _changed_workload(config.workload, options, given)
    if "framework" in given and "mode" not in given and options.framework != config.framework:
        raise RequestError("--framework: received without --mode; name a mode of that framework too")
    placement = _changed_placement(config.placement, options, given)
    changes: dict[str, Any] = {
        "framework": options.framework if "framework" in given else config.framework,
        "mode": options.mode if "mode" in given else config.mode,
        "workload": workload,
        "cluster": _changed_cluster(config.cluster, placement, options, given),
        "placement": placement,
    }
    framework, mode = changes["framework"], changes["mode"]
    is_other_mode = (framework, mode) != (config.framework, config.mode)
    if is_other_mode and (framework, mode) in MODES:
        changes["stages"] = MODES[framework, mode].default_stages
    changes |= values_of(RunFields, options, given)
    kept = _kept_tuning(config.tune, framework, mode, changes["cluster"].device_type, workload)
    changes["tune"] = kept | changes.get("tune", {})
    # The environment that `setup` has made since is not that of a run which had another.
    choose = named_interpreters if framework == config.framework else interpreters
    if framework != config.framework:
        changes["environment"] = None
    own = {config.environment.name} if config.environment and framework == config.framework else set()
    refuse_other_names(options.env, own, "the environment of the run, or none")
    if config.environment and framework == config.framework:
        require_trusted_interpreter(config, interpreters(options.python), options.env, named_by="--resume: the run")
    elif python := choose(options.python).get(framework):
        changes["python"] = python
    elif framework != config.framework:
        changes["python"] = sys.executable
    else:
        require_trusted_interpreter(config, interpreters(()), (), named_by="--resume: the run")
    dropped = {*changes, *_OF_THE_ATTEMPT, *(_OF_THE_MODE if is_other_mode else ())}
    return RunConfig(**config.model_dump(exclude=dropped), **changes)


def _refuse_fixed(given: Set[str]) -> None:
    if fixed := sorted(given - {row.name for row in OPTIONS if row.resumable}):
        raise RequestError(
            f"--resume: received {', '.join('--' + name.replace('_', '-') for name in fixed)}, but a resumed run "
            "keeps its workload; expected none of these, or a new run"
        )


def _changed_workload(workload: Workload, options: RunOptions, given: Set[str]) -> Workload:

    changes = values_of(Workload, options, given)
    if not changes:
        return workload
    dropped = {
        *changes,
        *(("epochs", "steps") if changes.keys() & {"epochs", "steps"} else ()),
    }  # one excludes the other
    return Workload(**workload.model_dump(exclude=dropped), **changes)


def _kept_tuning(
    tune: dict[str, str], framework: str, mode: str, device_type: str, workload: Workload
) -> dict[str, str]:
    """The settings that the mode has too, there."""
    known = tuning_options(framework, mode, device_type, workload) if (framework, mode) in MODES else {}
    return {
        name: value for name, value in tune.items() if name in known and value in known[name].values_on(device_type)
    }


def _changed_placement(placement: Placement, options: RunOptions, given: Set[str]) -> Placement:
    """What was given; the rest is kept if the engine is."""
    values = placement_values(options, given, engine=placement.engine)
    kept = {} if values.get("engine", placement.engine) != placement.engine else placement.model_dump()
    return Placement(**kept | values)


def _changed_cluster(cluster: Cluster, placement: Placement, options: RunOptions, given: Set[str]) -> Cluster:
    if not given & _OF_THE_CLUSTER:
        return cluster
    if placement.row.simulated:
        return _changed_simulated_nodes(cluster, options, given)
    kept = {
        "nodes": len(placement.hosts) or cluster.num_nodes,
        "devices_per_node": cluster.devices_per_node,
        "device": cluster.device_type,
        "cores_per_node": None if cluster.simulated else cluster.nodes[0].num_cores,
        "gpus": None,
    }
    changes: dict[str, Any] = {name: value for name, value in kept.items() if name not in given}
    return cluster_of_machines(placement, options.changed(**changes))


def _changed_simulated_nodes(cluster: Cluster, options: RunOptions, given: Set[str]) -> Cluster:

    gpus = None
    if "gpus" in given:
        gpus = listed(options.gpus or "")
    elif "device" not in given and cluster.device_type == "gpu" and cluster.simulated:
        gpus = list(cluster.devices)
    device = options.device if "device" in given else "auto" if gpus else cluster.device_type
    # GPUs are split again; simulated devices stay as many per node unless asked for.
    share_gpu = options.share_gpu if "share_gpu" in given else cluster.shared and not given & {"gpus", "device"}
    stays = device == cluster.device_type == "cpu" or share_gpu
    per_node = cluster.devices_per_node if stays else None
    return Cluster.partition(
        cluster.num_nodes if options.nodes is None else options.nodes,
        options.devices_per_node if "devices_per_node" in given else per_node,
        device=device,
        gpus=gpus,
        share_gpu=share_gpu,
    )


_ALLOWED_WITH_RESUME = frozenset(
    {
        "resume",
        "repeats",
        "until",
        "budget",
        "retry_failed",
        "accept_changed",
        "html",
        "dry_run",
        "as_json",
        "python",
        "env",
    }
)
"""Options that are allowed with --resume: the study itself has the others."""


def resumed_study(
    context: click.Context, study_dir: Path, *, repeats: int, adding: bool, known: Mapping[str, str]
) -> Study:
    """The study in a directory, with the rounds that are asked for, if they are more.

    Args:
        context: of the command.
        study_dir: of the study.
        repeats: rounds that are asked for.
        adding: whether more are to be added until intervals are narrow.
        known: framework -> interpreter, of --python or made by `dpcompare setup`.

    Raises:
        RequestError: there is none, options were given or left out that would make it another one, it names an
            interpreter of somebody else, or --python or a variable names another one than it uses.
    """
    from dpcompare.experiments.study import Study

    given = list(context.meta[WORDS]) + [
        parameter.opts[0]
        for parameter in context.command.params
        if isinstance(parameter, click.Option)
        and parameter.name not in _ALLOWED_WITH_RESUME
        and context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise RequestError(
            f"--resume: received {', '.join(given)} with it, but a study that is resumed stays as it was asked for; "
            "expected none of these, or a new study"
        )
    study = Study.load(study_dir)
    if study.allowed_loss is not None:
        raise RequestError(
            f"--resume: {str(study_dir)!r} is a gate; to continue it, repeat its own command: dpcompare gate ARM "
            f"--baseline ... --out {study_dir}"
        )
    if study.adding and not adding:
        raise RequestError(
            "--resume: the study was adding rounds until its intervals are narrow; give --until PERCENT (and --budget) "
            "again, or it would end here, as another look at its claims"
        )
    named = named_interpreters(context.params["python"])
    own = {arm.config.environment.name for arm in study.arms if arm.config.environment}
    refuse_other_names(context.params["env"], own, "environments of the study, or none")
    for arm in study.arms:
        if arm.config.environment is None:
            _require_same_interpreter(arm.config, named)
        require_trusted_interpreter(arm.config, known, context.params["env"], named_by=f"--resume: arm {arm.name}")
    # The cache may have been emptied since, so the inputs are looked for again.
    arms = tuple(arm.changed(config=arm.config.without_inputs()) for arm in study.arms)
    repeats = max(study.repeats, repeats)
    return study.changed(arms=arms, repeats=repeats, adding=adding, dpcompare_version=__version__)


def _require_same_interpreter(config: RunConfig, named: Mapping[str, str]) -> None:
    """Refuse an interpreter that is named and would not be used, since the study has its own."""
    python = named.get(config.framework, config.python)
    # Not by what they resolve to: interpreters of several environments are links to one.
    if Path(python).absolute() != Path(config.python).absolute():
        raise RequestError(
            f"--resume: received the interpreter {python!r} for {config.framework}, from --python or "
            f"{python_variable(config.framework)}, but the study uses {config.python!r} in all of its rounds; "
            "expected the same or none: leave it out, or start a new study with it"
        )
