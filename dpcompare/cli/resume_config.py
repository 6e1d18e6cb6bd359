"""What may be asked for anew of a run that goes on, and the config that it then has."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dpcompare.cli.build_config import DEFAULT_PIPELINE_STAGES, interpreters, listed, machines, parse_tuning
from dpcompare.cli.options import PLACEMENT_OPTIONS, RUN_CONFIG_OPTIONS
from dpcompare.errors import RequestError

if TYPE_CHECKING:
    from dpcompare.config.cluster import Cluster
    from dpcompare.config.placement import Placement
    from dpcompare.config.run import RunConfig

_MAY_CHANGE = (
    "epochs",
    "steps",
    "warmup_steps",
    "framework",
    "mode",
    "nodes",
    "devices_per_node",
    "device",
    "gpus",
    "python",
    "tune",
    *PLACEMENT_OPTIONS,
    "cores_per_node",
    *RUN_CONFIG_OPTIONS,
)
"""Of a run that goes on from a checkpoint."""


def changed_config(config: RunConfig, options: dict[str, Any], given: set[str]) -> RunConfig:
    """The config of a run that goes on, with what may be asked for anew.

    Args:
        config: as the run has had it.
        options: all values of `run_options`.
        given: names of those that were given, on the command line or in a file.

    Raises:
        RequestError: something else was given, or they make no run.
    """
    from dpcompare.config.modes import MODES
    from dpcompare.config.run import RunConfig
    from dpcompare.config.tuning import settings_of
    from dpcompare.config.validation import request
    from dpcompare.config.workload import Workload

    if fixed := sorted(given - set(_MAY_CHANGE)):
        raise RequestError(
            f"--resume: received {', '.join('--' + name.replace('_', '-') for name in fixed)}, but a run that goes on keeps "
            "its workload; expected none of these, or a new run"
        )
    cluster, workload = config.cluster, config.workload
    length = {name: options[name] for name in ("epochs", "steps") if name in given}
    changed_workload = length | ({"warmup_steps": options["warmup_steps"]} if "warmup_steps" in given else {})
    if changed_workload:
        kept = workload.model_dump(exclude={*changed_workload, *(("epochs", "steps") if length else ())})
        workload = request(Workload, **kept, **changed_workload)
    if "framework" in given and "mode" not in given and options["framework"] != config.framework:
        raise RequestError("--framework: received without --mode; name the mode of the other framework too")
    placement = _changed_placement(config.placement, options, given)
    if given & {"nodes", "devices_per_node", "device", "gpus", "cores_per_node", "hosts", "engine"}:
        cluster = _changed_cluster(cluster, placement, options, given)
    framework = options["framework"] if "framework" in given else config.framework
    chosen = {name: options[name] for name in RUN_CONFIG_OPTIONS if name in given}
    mode = options["mode"] if "mode" in given else config.mode
    if (
        (framework, mode) in MODES
        and MODES[framework, mode].is_pipeline
        and (framework, mode) != (config.framework, config.mode)
    ):
        chosen.setdefault("stages", DEFAULT_PIPELINE_STAGES)
    asked = parse_tuning(options["tune"]) if "tune" in given else {}
    known = settings_of(framework, mode) if (framework, mode) in MODES else {}
    kept = {name: value for name, value in config.tune.items() if name in known and value in known[name].values}
    chosen["tune"] = kept | asked
    if python := interpreters(options["python"]).get(framework):
        chosen["python"] = python
    elif framework != config.framework:
        chosen["python"] = sys.executable
    of_mode = (
        {"launcher", "stages", "pipeline_schedule"} if (framework, mode) != (config.framework, config.mode) else set()
    )
    changed: RunConfig = request(
        RunConfig,
        **{
            **config.model_dump(
                exclude={
                    *of_mode,
                    "workload",
                    "cluster",
                    "placement",
                    "profile_steps",
                    "resume",
                    "inputs",
                    "framework",
                    "mode",
                }
            ),
            "framework": framework,
            "mode": mode,
            "workload": workload,
            "cluster": cluster,
            "placement": placement,
            **chosen,
        },
    )
    return changed


def _changed_placement(placement: Placement, options: dict[str, Any], given: set[str]) -> Placement:
    """What was given, and of the rest what the same engine has had."""
    from dpcompare.config.placement import Placement
    from dpcompare.config.validation import request

    values = {name: options[name] for name in given & set(PLACEMENT_OPTIONS)}
    if "hosts" in values:
        values["hosts"] = listed(values["hosts"])
    kept = {} if values.get("engine", placement.engine) != placement.engine else placement.model_dump()
    changed: Placement = request(Placement, **kept | values)
    return changed


def _changed_cluster(cluster: Cluster, placement: Placement, options: dict[str, Any], given: set[str]) -> Cluster:
    from dpcompare.config.cluster import Cluster
    from dpcompare.config.engines import ENGINES

    if not ENGINES[placement.engine].simulated:
        had = {
            "nodes": len(placement.hosts) or cluster.num_nodes,
            "devices_per_node": cluster.devices_per_node,
            "device": cluster.device_type,
            "cores_per_node": None if cluster.simulated else cluster.nodes[0].num_cores,
        }
        return machines(placement, {name: options[name] if name in given else had.get(name) for name in (*had, "gpus")})
    gpus = None
    if "gpus" in given:
        gpus = listed(options["gpus"])
    elif "device" not in given and cluster.device_type == "gpu" and cluster.simulated:
        gpus = list(cluster.devices)
    device = options["device"] if "device" in given else "auto" if gpus else cluster.device_type
    # GPUs are shared out anew; simulated devices stay as many per node unless asked for.
    per_node = cluster.devices_per_node if device == cluster.device_type == "cpu" else None
    return Cluster.partition(
        options["nodes"] if "nodes" in given else cluster.num_nodes,
        options["devices_per_node"] if "devices_per_node" in given else per_node,
        device=device,
        gpus=gpus,
    )
