"""The plan of `verify --like`: the workload of a run, by its mode, another framework's and one device."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from dpcompare._version import __version__, major_minor
from dpcompare.backends.availability import require_framework
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.optimizers import optimizers_for
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.data.built_in import batch_of_synthetic
from dpcompare.errors import RequestError
from dpcompare.experiments.contenders import Contender, Group, one_device
from dpcompare.experiments.verify import Check
from dpcompare.launch.inputs import prepare_again
from dpcompare.models.architectures import model_of
from dpcompare.results.result import RunResult
from dpcompare.results.run_dir import CONFIG_FILE
from dpcompare.system.python_environment import is_custom
from dpcompare.system.type_names import FieldValue
from dpcompare.system.user_modules import changed_modules, source_sha256

STEPS = 6
"""Steps of every contender; the learning rate follows the schedule of the run over that many."""


def run_to_prove(run_dir: Path, *, other_data: bool) -> RunConfig:
    """The config of a completed run whose model and data are still what they were.

    Args:
        run_dir: of the run.
        other_data: whether another dataset is asked for, so that the run's own need not be there.

    Raises:
        RequestError: there is no such run; what is trained would not be what it trained.
    """
    result = RunResult.load(run_dir)
    if major_minor(result.dpcompare_version) != major_minor(__version__):
        raise RequestError(
            f"--like: {str(run_dir)!r} is a run of dpcompare {result.dpcompare_version}, whose figures are not those "
            f"of {__version__}; expected a run of {major_minor(__version__)}: run it again, or verify with that version"
        )
    if result.status != "completed":
        raise RequestError(
            f"--like: the run {str(run_dir)!r} {'was' if result.status == 'interrupted' else 'has'} {result.status}; "
            "expected one that completed"
        )
    config = RunConfig.load(run_dir / CONFIG_FILE)
    _require_verifiable(config)
    _require_same_code(config, result)
    if not other_data:
        _require_same_inputs(config, result)
    return config


def _require_verifiable(config: RunConfig) -> None:
    reason = config.mode_row.unverifiable
    if not config.mode_row.steps_together and config.topology.num_replicas > 1:
        reason = "its workers are asynchronous, so that no two runs train alike"
    if not config.sync_gradients:
        reason = "it was made without gradient sync, so that its replicas trained each a model of their own"
    if config.reuse_batch:
        reason = "it trained one batch over and over"
    if reason:
        raise RequestError(
            f"--like: a run of {config.framework} {config.mode} cannot be verified: {reason}; expected another run"
        )


def _require_same_code(config: RunConfig, result: RunResult) -> None:
    """Refuse a run whose model or backend, the user's own, is no longer what it was."""
    model = config.workload.model if is_custom(config.workload.model) else None
    for kind, name in (("model", model), ("backend", config.backend)):
        if name is None:
            continue
        recorded, found = result.settings.get(f"{kind}_source"), source_sha256(name)
        if recorded != found:
            raise RequestError(
                f"--like: the file of the {kind} {name} has changed since the run (sha256 {str(recorded)[:12]}, now "
                f"{found[:12]}); run it again, or bring the old file back"
            )
        if changed := changed_modules(name, result.settings.get(f"{kind}_modules", {})):
            raise RequestError(
                f"--like: {', '.join(changed)}, which the {kind} {name} imports, changed since the run; run it again, "
                "or bring the old files back"
            )


def _require_same_inputs(config: RunConfig, result: RunResult) -> None:
    largest_batch = batch_of_synthetic(config.inputs.num_train) if config.inputs else None
    inputs = prepare_again(config, largest_batch=largest_batch).inputs
    for what, recorded, found in (
        (f"the dataset {config.workload.dataset}", result.store_sha256, inputs.store_sha256),
        (f"the initial weights ({config.workload.weights})", result.weights_sha256, inputs.weights_sha256),
    ):
        if recorded != found:
            raise RequestError(
                f"--like: {what} changed since the run (sha256 {str(recorded)[:12]}, now {found[:12]}); run it again, "
                "or bring the old ones back"
            )


def group_like(
    config: RunConfig, precision: str | None, asked: dict[str, FieldValue], interpreters: Mapping[str, str]
) -> Group:
    """What the run trained, for a few steps: by its mode, by another framework's, and by one device.

    Args:
        config: of the run.
        interpreters: framework -> interpreter of its environment.
        precision: default: that of the run, but float64 where `optimizers_for` has no Adam in float32.
        asked: fields of the workload that are to be others.

    Raises:
        RequestError: they make no workload.
    """
    fields = config.workload.model_dump() | {"precision": precision or _precision(config.workload)} | asked
    fields |= {
        "epochs": None,
        "steps": STEPS,
        "warmup_steps": 0,
        "lr_warmup_steps": min(fields["lr_warmup_steps"], STEPS),
    }
    workload = Workload(**fields)
    own = Contender(
        framework=config.framework,
        mode=config.mode,
        num_nodes=config.cluster.num_nodes,
        devices_per_node=config.cluster.devices_per_node,
        accumulate=workload.accumulate,
        stages=config.stages,
        launcher=config.launcher,
        backend=config.backend,
        pipeline_schedule=config.pipeline_schedule,
        tune=config.tune if workload.profile == config.workload.profile else {},
        environment=config.environment,
        python=config.python if config.environment else None,
    )
    return Group(
        workload=workload,
        contenders=(own, _counterpart(config, workload, interpreters)),
        baseline=one_device(own, workload, config.topology.num_replicas),
    )


def late_step_of(run_dir: Path) -> tuple[Check | None, str | None]:
    """What another framework made of the last steps of a run when it ended, as a check, or why it did not."""
    result = RunResult.load(run_dir)
    made = result.late_step
    if made is None:
        return None, "the run was made without --late-step"
    if made.part_of_tolerance is None:
        return None, made.left_out
    check = Check(
        name="late step",
        modes=f"{result.framework} {result.mode}, {made.framework} single",
        pair=f"{result.framework} {result.mode} / {made.framework} single",
        workload=f"{result.model}, steps {made.first} to {made.last} of the run itself",
        precision=f"{result.precision} against float64",
        measured=made.part_of_tolerance,
        tolerance=1.0,
        detail=made.problem or "",
    )
    return check, None


def _precision(workload: Workload) -> str:
    is_small = not model_of(workload.model).is_big
    if is_small and workload.precision == "float32" and workload.optimizer not in optimizers_for("tiny", "float32"):
        return "float64"
    return workload.precision


def _is_usable(framework: str, interpreters: Mapping[str, str]) -> bool:
    try:
        require_framework(framework, interpreters.get(framework, sys.executable))
    except RequestError:
        return False
    return True


def _counterpart(config: RunConfig, workload: Workload, interpreters: Mapping[str, str]) -> Contender:
    """The mode of another framework, if possible one that is installed, that has as many replicas on as many nodes."""
    others = [other for other in FRAMEWORKS if other != config.framework]
    framework = next((other for other in others if _is_usable(other, interpreters)), others[0])
    num_replicas, num_nodes = config.topology.num_replicas, config.cluster.num_nodes
    if num_replicas == 1:
        mode, num_nodes = "single", 1
    else:
        on_one_node, on_several = FRAMEWORKS[framework].usual_modes
        mode = on_one_node if num_nodes == 1 else on_several
    return Contender(
        framework=framework,
        mode=mode,
        num_nodes=num_nodes,
        devices_per_node=num_replicas // num_nodes,
        accumulate=workload.accumulate,
    )
