"""The initial weights of a run, and those of runs that are compared: the same, whatever frameworks call the layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from dpcompare.backends.custom_model import described_layers
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.modes import MODES
from dpcompare.config.run import PreparedRun, RunConfig
from dpcompare.config.run_fields import Inputs
from dpcompare.errors import RequestError
from dpcompare.models.dropout_matching import drops_of, matched_drops, unlike_dropout, without_a_key
from dpcompare.models.layer_matching import (
    KERAS,
    NO_NAMES,
    OWN_FORWARD,
    Layer,
    layouts_in_words,
    listed,
    match,
    matched_in_words,
    require_equal,
    shapes_of,
)
from dpcompare.models.sealed import sha256_of
from dpcompare.models.spec import ZERO_INIT
from dpcompare.models.weights import Source, classifier_of, load_source, prepare_weights
from dpcompare.system.cache import cache_dir
from dpcompare.system.python_environment import is_custom

NO_LAYERS: Mapping[str, Mapping[str, str]] = MappingProxyType({})
"""`Inputs.layers` where all frameworks call their layers alike."""


def weights_of(
    config: RunConfig,
    num_classes: int,
    layers: Mapping[str, Mapping[str, str]],
    *,
    source: Source | None,
    custom_shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, Any]:
    """What `Inputs` says of the initial weights, which are made now unless the cache has them.

    Args:
        config: of a run.
        num_classes: of its dataset.
        layers: of a custom model, as `Inputs.layers`.
        source: the file to take weights from, if any.
        custom_shapes: of the tensors of a custom model for which weights are to be drawn; default: of all that it has.

    Raises:
        RequestError: the weights cannot be had, or the model is none.
    """
    workload = config.workload
    if is_custom(workload.model) and custom_shapes is None:
        names = layers.get(config.framework, NO_NAMES)
        custom_shapes = shapes_of(
            [
                Layer(name=names.get(layer.name, layer.name), tensors=layer.tensors)
                for layer in _layers(config, num_classes)
            ]
        )
    weights = prepare_weights(
        *(workload.model, workload.image_size, workload.seed, num_classes, source, cache_dir(), custom_shapes),
        zero_init=workload.weights == ZERO_INIT,
    )
    return {
        "weights": weights,
        "weights_sha256": sha256_of(weights.read_bytes()),
        "classifier": classifier_of(weights),
    }


def own_layers(config: RunConfig, num_classes: int) -> dict[str, Any]:
    """What `Inputs` says of the layers of a run that is compared with none of another framework.

    Raises:
        RequestError: the run has `regularization="shared"`, and its custom model drops nothing that can be shared.
    """
    workload = config.workload
    if workload.regularization == "off" or not is_custom(workload.model):
        return {}
    drops = drops_of(workload.model, config.framework, _layers(config, num_classes))
    return {"drops": drops, "drop_layers": {config.framework: {drop.name: drop.name for drop in drops}}}


def kept_layers(inputs: Inputs) -> dict[str, Any]:
    """The same of earlier inputs."""
    return {name: getattr(inputs, name) for name in ("layers", "drops", "drop_layers")}


def with_seed(config: RunConfig, seed: int) -> RunConfig:
    """The same config under another seed; where its inputs are prepared, with that seed's initial weights.

    Raises:
        RequestError: the weights cannot be had.
    """
    config = config.changed(workload=config.workload.changed(seed=seed))
    return config if config.inputs is None else _with_layers(config.prepared(), config.inputs.layers)


def with_matched_layers(runs: Sequence[PreparedRun]) -> list[PreparedRun]:
    """The same runs, where those of one custom model in several frameworks start from the same tensors.

    Its layers in each framework are matched with those of the first one (`FRAMEWORKS`), whose names all tensors get.

    Raises:
        RequestError: the layers of two frameworks do not correspond, or are seen to compute something else.
    """
    by_model: dict[tuple[str, int, int], list[PreparedRun]] = {}
    for run in runs:
        if is_custom(run.workload.model):
            by_model.setdefault(_model_of(run), []).append(run)
    matched = {model: _matched(compared) for model, compared in by_model.items()}
    return [_alike(run, **matched[_model_of(run)]) if _model_of(run) in matched else run for run in runs]


def matches_in_words(runs: Sequence[PreparedRun]) -> Iterator[str]:
    """How layers with other names were matched, a line for each framework and model."""
    for model, layers in {run.workload.model: run.inputs.layers for run in runs}.items():
        yield from matched_in_words(model, layers)


def tensors_in_words(runs: Sequence[PreparedRun]) -> Iterator[str]:
    """Which tensors of custom models have other names or layouts in their library, a line for each framework."""
    for run in runs:
        if is_custom(run.workload.model):
            yield from layouts_in_words(run.workload.model, run.framework, _layers(run, run.inputs.num_classes))


def idle_dropout(run: PreparedRun) -> str | None:
    """What is said of a run whose layers of dropout drop nothing; None of others.

    Args:
        run: prepared in this process, so that its layers are known here.
    """
    workload = run.workload
    if not is_custom(workload.model) or workload.regularization == "shared" or run.framework == "tensorflow":
        return None
    layers = _layers(run, run.inputs.num_classes)
    if keyed := [layer for layer in layers if layer.settings.get("idle_rate")]:
        return f"dropout of {workload.model} ({listed(keyed)}) {without_a_key(keyed[0])}"
    dropping = [layer for layer in layers if layer.settings.get("rate")]
    idle = [layer for layer in dropping if run.framework == "jax" or layer.written_in == KERAS]  # torch's own draw
    if not idle:
        return None
    shared = MODES[run.framework, run.mode].supported_values.get("regularization", ("shared",))
    instead = "pass" if "shared" in shared else f"choose another mode than {run.mode}, with"
    return (
        f"dropout of {workload.model} ({listed(idle)}) drops nothing in {run.framework} unless the host draws it: "
        f"{instead} --regularization shared"
    )


def _alike(run: PreparedRun, layers: Mapping[str, Mapping[str, str]], **dropping: Any) -> PreparedRun:
    """The same run, whose layers correspond to those of the others."""
    if run.workload.regularization == "shared":
        run = run.changed(inputs=run.inputs.changed(**dropping))
    return _with_layers(run, layers) if layers else run


def _matched(runs: Sequence[PreparedRun]) -> dict[str, Any]:
    """What `Inputs` says of the layers in runs of one model."""
    of_framework = {run.framework: run for run in runs}
    shared = [run.workload.regularization == "shared" for run in runs]
    model = runs[0].workload.model
    reference, *others = (framework for framework in FRAMEWORKS if framework in of_framework)
    found = {framework: _layers(run, run.inputs.num_classes) for framework, run in of_framework.items()}
    for run in runs:
        if _layers(run, run.inputs.num_classes) != found[run.framework]:
            raise RequestError(
                f"model: {model!r} has other layers in one environment of {run.framework} ({run.python}) than in "
                "another; expected the same in all, with the same names"
            )
    layers = {}
    drops = {each: drops_of(model, each, of_each) for each, of_each in found.items()} if any(shared) else {}
    for other in others:
        both = (reference, other)
        matching = match(model, found[reference], found[other], both)
        unlike = unlike_dropout(found[reference], found[other], both, shared=all(shared))
        require_equal(model, matching, found[reference], found[other], both, unlike)
        if matching.names:
            layers[other] = matching.names
    drop_layers = {framework: matched_drops(found[reference], found[framework]) for framework in drops}
    return {"layers": layers, "drops": drops.get(reference, ()), "drop_layers": drop_layers}


def _with_layers(run: PreparedRun, layers: Mapping[str, Mapping[str, str]]) -> PreparedRun:
    """The same run with its initial weights under the names that its layers get."""
    workload, inputs = run.workload, run.inputs
    source = load_source(workload.weights, workload.model, workload.image_size, cache_dir())
    weights = weights_of(run, inputs.num_classes, layers, source=source)
    return run.changed(inputs=inputs.changed(**weights, layers=layers))


def _model_of(run: PreparedRun) -> tuple[str, int, int]:
    return run.workload.model, run.workload.image_size, run.inputs.num_classes


def _layers(config: RunConfig, num_classes: int) -> tuple[Layer, ...]:
    limit = {} if config.start_timeout is None else {"seconds": config.start_timeout}
    model = config.workload.model
    layers = described_layers(model, config.framework, config.python, config.workload.image_size, num_classes, **limit)
    own = [layer for layer in layers if layer.settings.get(OWN_FORWARD)]
    if own and config.workload.batchnorm == "sync":
        raise RequestError(
            f"batchnorm: received sync with {model!r}, whose BatchNorm {listed(own)} has a forward of its own in "
            f"{config.framework}; expected torch's class and a layer behind it, or --batchnorm local"
        )
    library = MODES[config.framework, config.mode].trains_models_of
    if library and not any(layer.written_in == library for layer in layers):
        raise RequestError(
            f"model: {model!r} is not a {library} model in {config.framework}; {config.framework} {config.mode} trains "
            f"only {library} models: expected CustomModel(keras=...) without a factory for {config.framework}, which "
            "comes before it, or another mode"
        )
    return layers
