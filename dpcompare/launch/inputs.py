"""The inputs of a run: the prepared dataset and the initial weights, made once and kept in a cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from dpcompare.backends.own_backend import require_own_backend
from dpcompare.config.run import PreparedRun, RunConfig
from dpcompare.config.run_fields import Inputs
from dpcompare.config.workload import Workload
from dpcompare.data.decode import DECODER, RESIZE_RULE
from dpcompare.data.folders import Folder
from dpcompare.data.names import CROP
from dpcompare.data.prepare import margin_of, prepare_source, source_of
from dpcompare.data.sources import Progress
from dpcompare.data.sources import Source as ImageSource
from dpcompare.data.store import FORMAT, Store, is_store, open_store, unfinished
from dpcompare.errors import RequestError
from dpcompare.launch.initial_weights import NO_LAYERS, kept_layers, own_layers, weights_of, with_matched_layers
from dpcompare.models.sealed import is_whole
from dpcompare.models.weights import load_source
from dpcompare.system.cache import cache_dir, wait_for_lock
from dpcompare.system.files import expanded
from dpcompare.system.python_environment import is_custom
from dpcompare.system.terminal_text import pluralize

LONGEST_NAME = 48
"""Characters of a dataset's name that its cached store has: a file system takes 255 bytes, of up to 4 per character."""


def prepare_compared(configs: Sequence[RunConfig], progress: Progress | None = None) -> list[PreparedRun]:
    """Like `prepare_inputs`, for runs that are compared: `synthetic` is the same data whatever their global batches."""
    largest_batch = max(config.workload.global_batch_size for config in configs)
    return with_matched_layers([prepare_inputs(config, progress, largest_batch=largest_batch) for config in configs])


def prepare_again(config: RunConfig, *, largest_batch: int | None = None) -> PreparedRun:
    """Like `prepare_inputs`, for a run that had its inputs: a custom model's layers correspond as they did there."""
    inputs = config.inputs
    if inputs and inputs.drops and config.framework not in inputs.drop_layers:
        raise RequestError(
            f"regularization: received shared with a run of {' and '.join(inputs.drop_layers)}, whose dropout layers "
            f"were not matched with those in {config.framework}; expected a run of a study that compares both"
        )
    return prepare_inputs(config.without_inputs(), largest_batch=largest_batch, as_in=inputs)


def prepare_inputs(
    config: RunConfig,
    progress: Progress | None = None,
    *,
    largest_batch: int | None = None,
    custom_shapes: Mapping[str, tuple[int, ...]] | None = None,
    as_in: Inputs | None = None,
) -> PreparedRun:
    """The same config with `inputs` filled in; dataset and weights are prepared now unless the cache has them.

    A config that has its inputs already is returned as it is.

    Args:
        config: of a run.
        progress: called while images are prepared.
        largest_batch: images of the largest global batch of the runs that it is compared with; default: of its own.
        custom_shapes: of the tensors of a custom model for which weights are to be drawn; default: of all that it has.
        as_in: earlier inputs of the run, whose correspondence of a custom model's layers holds on.

    Raises:
        RequestError: the dataset cannot be used as asked.
    """
    if config.inputs is not None:
        return config.prepared()
    workload = config.workload
    # Before a dataset is prepared, which can take long.
    if config.backend is not None:
        require_own_backend(config.backend, config.framework, config.mode, config.python)
    source = load_source(workload.weights, workload.model, workload.image_size, cache_dir())
    store = _store(workload, largest_batch or workload.global_batch_size, progress)
    config = _with_fitting_warmup(config, workload.total_steps(store.manifest.splits["train"].count))
    num_classes = len(store.manifest.classes)
    if custom_shapes is not None and is_custom(workload.model) and workload.regularization == "shared":
        raise RequestError(
            "regularization: received shared with a model that is an object or keeps its own weights; expected off, or "
            "a model named package.module:NAME"
        )
    inputs = Inputs(
        store=store.path,
        store_sha256=store.manifest.sha256,
        **weights_of(
            config, num_classes, as_in.layers if as_in else NO_LAYERS, source=source, custom_shapes=custom_shapes
        ),
        **(kept_layers(as_in) if as_in else own_layers(config, num_classes)),
        num_classes=num_classes,
        num_train=store.manifest.splits["train"].count,
        num_validation=store.manifest.splits["validation"].count,
        num_skipped=len(store.manifest.skipped),
    )
    return config.prepared(inputs)


def restored(config: RunConfig, *, largest_batch: int) -> RunConfig:
    """The same config; its inputs are prepared again if the cache has lost them since.

    Args:
        config: of a run.
        largest_batch: as for `prepare_inputs`.

    Raises:
        RequestError: they cannot be had again as they were.
    """
    inputs = config.inputs
    if inputs is None or (is_store(inputs.store) and is_whole(inputs.weights)):
        return config
    _store_by_content.cache_clear()
    again = prepare_again(config, largest_batch=largest_batch).inputs
    if again != inputs:
        changed = "dataset" if again.store_sha256 != inputs.store_sha256 else "weights"
        raise RequestError(
            f"the cache has lost what was prepared for this run, and the {changed} "
            f"{getattr(config.workload, changed)!r} gives something else now; put back what it was, or start again"
        )
    return config


def check_inputs(config: RunConfig) -> None:
    """Refuse what `prepare_inputs` refuses, as far as that is known before anything is prepared.

    Raises:
        RequestError: the run is shorter than what is asked of it, or its store is another one than it needs.
    """
    if (path := _named_store(config.workload)) is not None:
        _require_fitting(open_store(path), config.workload)
    if config.workload.steps is not None:
        _check_steps(config, config.workload.steps)


def _with_fitting_warmup(config: RunConfig, num_steps: int) -> RunConfig:
    """A config whose warm-up fits: the usual one was not asked for, of which few images leave no step to measure.

    Raises:
        RequestError: what was asked for does not fit.
    """
    workload = config.workload
    if "warmup_steps" not in workload.model_fields_set and workload.least_warmup_steps >= num_steps:
        # As where few --steps are asked for.
        config = config.changed(workload=workload.changed(warmup_steps=num_steps - 1))
    _check_steps(config, num_steps)
    return config


def _check_steps(config: RunConfig, num_steps: int) -> None:
    """Refuse what does not fit into the length of the run, which only the dataset determines."""
    workload = config.workload
    if workload.least_warmup_steps >= num_steps:
        raise RequestError(
            f"warmup_steps: received {workload.warmup_in_words}, but the run has only {pluralize(num_steps, 'step')}, "
            "which leaves none to measure; expected fewer warm-up steps, more epochs or a smaller global batch"
        )
    if workload.lr_warmup_steps > num_steps:
        raise RequestError(
            f"lr_warmup_steps: received {workload.lr_warmup_steps}, but the run has only "
            f"{pluralize(num_steps, 'step')}; expected at most as many, or more epochs"
        )
    if config.evaluate_every is not None and config.evaluate_every > num_steps:
        raise RequestError(
            f"evaluate_every: received {config.evaluate_every}, but the run has only "
            f"{pluralize(num_steps, 'step')}; expected at most as many, or more epochs"
        )
    if config.profile_steps and config.profile_steps[1] > num_steps:
        raise RequestError(
            f"profile_steps: received {config.profile_steps[0]}:{config.profile_steps[1]}, but the run has only "
            f"{pluralize(num_steps, 'step')}; expected steps of the run"
        )


def remarks_on(config: RunConfig) -> Iterator[str]:
    """What is allowed but hardly meant, a line each."""
    num_images, batch = num_training_images(config), config.workload.global_batch_size
    if num_images < batch:
        yield (
            f"the training split has {pluralize(num_images, 'image')} and the global batch {batch}: every step trains "
            "on a batch that is padded, so the speed is not that of full batches; use a smaller --global-batch-size"
        )
    if config.inputs is not None:
        yield from open_store(config.inputs.store).manifest.duplicates.remarks()


def num_training_images(config: RunConfig) -> int:
    """Images of the training split, counted without preparing them; those that turn out to be corrupt are included."""
    if config.inputs is not None:
        return config.inputs.num_train
    if (path := _named_store(config.workload)) is not None:
        return open_store(path).manifest.splits["train"].count
    return _source(config.workload, config.workload.global_batch_size).num_train()


def _source(workload: Workload, largest_batch: int) -> ImageSource:
    return source_of(
        workload.dataset,
        skip_corrupt=workload.skip_corrupt,
        follow_links=workload.follow_links,
        largest_batch=largest_batch,
    )


def _store(workload: Workload, largest_batch: int, progress: Progress | None) -> Store:
    if (path := _named_store(workload)) is not None:
        store = open_store(path, verify=True)
        _require_fitting(store, workload)
        return store
    source = _source(workload, largest_batch)
    if not source.has_stamps:
        return _store_by_content(replace(source, largest_batch=1), workload.image_size, _margin(workload), progress)
    cached = cache_dir() / "stores" / _store_key(source, workload)
    if (found := _sound_store(cached)) is not None:
        return found
    with wait_for_lock(_lock_of(cached)):
        if (found := _sound_store(cached)) is not None:  # another command has just prepared it
            return found
        with unfinished(cached.parent) as temporary:
            prepared = prepare_source(
                source, temporary / "store", workload.image_size, margin=_margin(workload), progress=progress
            )
            return _kept(prepared, cached)


def _named_store(workload: Workload) -> Path | None:
    """The prepared store that a workload names; None where its data is still to be prepared."""
    if not isinstance(_source(workload, 1), Folder):
        return None
    path = expanded(workload.dataset).resolve()
    return path if is_store(path) else None


def _require_fitting(store: Store, workload: Workload) -> None:
    """Refuse a store of images of another size, or without the margin that `crop` needs."""
    if store.manifest.image_size != workload.image_size:
        raise RequestError(
            f"store {workload.dataset!r} holds images of {store.manifest.image_size} px, received image_size "
            f"{workload.image_size}; pass --image-size {store.manifest.image_size}, or prepare another store with "
            f"`dpcompare data prepare SOURCE DEST --image-size {workload.image_size}`"
        )
    if CROP in workload.augment and not store.manifest.margin:
        raise RequestError(
            f"augment: received crop, but the store {workload.dataset!r} was prepared without a margin to cut from; "
            f"expected a store of `dpcompare data prepare SOURCE DEST --image-size {workload.image_size} --margin "
            f"{margin_of(workload.image_size)}`, or another --augment"
        )


@cache
def _store_by_content(source: ImageSource, image_size: int, margin: int, progress: Progress | None) -> Store:
    """Prepared again by every command, and kept by its content."""
    with unfinished(cache_dir() / "stores") as temporary:
        prepared = prepare_source(source, temporary / "store", image_size, margin=margin, progress=progress)
        title = source.title.replace(":", ".")
        cached = cache_dir() / "stores" / f"{title}-{image_size}px-{prepared.manifest.sha256[:16]}"
        with wait_for_lock(_lock_of(cached)):
            return _sound_store(cached) or _kept(prepared, cached)


def _margin(workload: Workload) -> int:
    """The margin of the store that a run prepares by itself."""
    return margin_of(workload.image_size) if CROP in workload.augment else 0


def _lock_of(cached: Path) -> Path:
    return cache_dir() / "locks" / cached.name


def _sound_store(path: Path) -> Store | None:
    """The cached store; None where it is not there or damaged, since it can be prepared again."""
    if not is_store(path):
        return None
    try:
        return open_store(path, verify=True)
    except RequestError:
        return None


def _kept(prepared: Store, path: Path) -> Store:
    """A store that was prepared next to the cache, moved into it; a damaged one goes only now.

    A reader of that one continues with its open files, or opens the new one.
    """
    if path.exists():
        path.rename(prepared.path.with_name("damaged"))
    prepared.path.rename(path)
    return open_store(path)


def _store_key(source: ImageSource, workload: Workload) -> str:
    """Name of the cached store: changes with the images, the size and whatever else decides the pixels."""
    digest = hashlib.sha256(f"{FORMAT}|{RESIZE_RULE}|{DECODER}|{workload.skip_corrupt}".encode())
    if workload.follow_links:
        digest.update(b"|follow links")
    if margin := _margin(workload):
        digest.update(f"|margin {margin}".encode())
    for stamp in source.stamps():
        digest.update(stamp.encode("utf-8", "surrogateescape"))
    return f"{source.title[:LONGEST_NAME]}-{workload.image_size}px-{digest.hexdigest()[:16]}"
