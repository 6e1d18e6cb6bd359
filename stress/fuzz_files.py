"""The readers of files as targets of fuzzing: those of runs, studies, configs, checkpoints, stores and weights."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import numpy as np
from PIL import Image
from safetensors.numpy import save

from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.run_fields import Inputs
from dpcompare.config.workload import Workload
from dpcompare.data.decode import FORMATS, _decode
from dpcompare.data.folders import find_images
from dpcompare.data.prepare import prepare
from dpcompare.data.sources import EncodedImage
from dpcompare.data.store import MANIFEST, open_store
from dpcompare.errors import RequestError
from dpcompare.experiments.study import Arm, Study
from dpcompare.launch.engines import kubernetes, node_commands, slurm_job
from dpcompare.launch.plan import Endpoints, num_ports, plan, shell_script
from dpcompare.models.initial_weights import initial_weights
from dpcompare.models.weights import fit, read_source
from dpcompare.results.checkpoint import decode, encode
from dpcompare.results.events import read_events
from dpcompare.results.history import result_so_far
from dpcompare.results.run_dir import event_path
from dpcompare.results.series import RunState
from stress.fuzz_mutations import (
    Mutation,
    mutated_header,
    mutated_json,
    mutated_line,
    with_file_checksum,
    with_line_checksum,
)
from stress.fuzz_oracle import Reader, answered
from tests.support.checkpoints import made as made_checkpoint
from tests.support.recorded import aggregated, events, record

INPUTS = Inputs(
    store=Path("store"),
    store_sha256="0" * 64,
    weights=Path("weights"),
    weights_sha256="0" * 64,
    num_classes=10,
    num_train=32,
    num_validation=359,
    num_skipped=0,
)


def recorded_run(run_dir: Path, mode: str = "ddp") -> RunConfig:
    """A run of two processes that has completed, as far as files tell; returns its config."""
    config = RunConfig(
        framework="torch",
        mode=mode,
        workload=Workload(model="mlp", image_size=8, global_batch_size=8, steps=4, warmup_steps=1),
        cluster=Cluster.partition(2, device="cpu", num_cores=2),
        inputs=INPUTS,
        checkpoint_every=2,
    )
    run_dir.mkdir(parents=True)
    config.save(run_dir / "config.json")
    for rank in range(2):
        record(rank).save(run_dir)
    aggregated(config, run_dir, events(0) + events(1)).save(run_dir)
    return config


def _reported(path: Path) -> None:
    """Show a run or study in every way that needs no plots."""
    answered("report", path, "--full", "--fail-if", "images_per_second<1", "--fail-if", "ratio>2")
    answered("report", path, "--json", "-", "--markdown", "-", "--csv", "-", "--fail-if", "unstable")


def _file_of_run(name: str, mutate: Mutation = mutated_json) -> Callable[[Path], Reader]:
    def reader(folder: Path) -> Reader:
        recorded_run(folder / "run")
        path, result = folder / "run" / name, folder / "run" / "result.json"
        seed, whole = path.read_bytes() if path.exists() else b"{}", result.read_bytes()

        def read(content: bytes) -> None:
            result.write_bytes(whole)
            path.write_bytes(content)
            _reported(folder / "run")
            if path != result:
                result.unlink()
            with suppress(RequestError):  # as a run is read that was killed
                result_so_far(folder / "run")

        return Reader(read, (seed,), mutate)

    return reader


def _history(folder: Path) -> Reader:
    evaluation = {"epoch": 1, "step": 2, "loss": 2.0, "accuracy": 0.5, "count": 359}
    attempt = {"first_step": 0, "last_step": 2, "status": "failed", "framework": "torch", "mode": "ddp"}
    attempt |= {"error": "killed", "num_replicas": 2, "images_per_second": 80.0}
    seed = {"losses": [4.0, None], "evaluations": [evaluation], "attempts": [attempt]}
    return Reader(_file_of_run("history.json")(folder).read, (json.dumps(seed).encode(),), mutated_json)


def _events(folder: Path) -> Reader:
    recorded_run(folder / "run")
    path = event_path(folder / "run", 0)
    lines = [line.rpartition(b', "crc32"')[0] + b"}" for line in path.read_bytes().splitlines()]
    read_run = _file_of_run("events/process-0.jsonl")(folder / "other").read

    def read(content: bytes) -> None:
        read_run(b"".join(with_line_checksum(line) + b"\n" for line in content.split(b"\n")))
        state = RunState(range(2))
        with suppress(RequestError):  # as `watch` reads them
            for event in read_events(folder / "other" / "run", 2):
                state.add(event)
        assert isinstance(state.figures, str)

    return Reader(read, (b"\n".join(lines),), mutated_line)


def _study(folder: Path) -> Reader:
    arms = []
    for mode in ("ddp", "fsdp"):
        config = recorded_run(folder / mode, mode)
        arms.append(Arm(name=f"torch {mode}", config=config))
    study = Study(arms=tuple(arms), repeats=1)
    (folder / "study").mkdir()
    study.save(folder / "study")
    for arm, mode in zip(arms, ("ddp", "fsdp"), strict=True):
        run_dir = study.run_dir(folder / "study", 1, arm)
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        (folder / mode).rename(run_dir)
    path = folder / "study" / "study.json"
    seed = path.read_bytes()

    def read(content: bytes) -> None:
        path.write_bytes(content)
        _reported(folder / "study")
        answered("watch", folder / "study")
        answered("compare", "--resume", folder / "study", "--dry-run")

    return Reader(read, (seed,), mutated_json)


def _config(folder: Path) -> Reader:
    """config.json, and all plans that are made of it."""
    recorded_run(folder / "run")
    path = folder / "run" / "config.json"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        # A run on GPUs asks which the machine has, by a program that no file names.
        with (
            patch("dpcompare.system.devices._ask_nvidia_smi", list),
            patch("dpcompare.launch.run.prepare_again", lambda config: config.prepared(INPUTS)),
        ):
            with suppress(RequestError):
                _planned(RunConfig.load(path), folder / "run")
            answered("run", "--resume", folder / "run", "--steps", "9")  # there is no checkpoint

    return Reader(read, (path.read_bytes(),), mutated_json)


def _planned(config: RunConfig, run_dir: Path) -> None:
    engine = config.placement.engine
    if engine == "local":
        processes = plan(config, run_dir, Endpoints(list(range(1024, 1024 + num_ports(config)))))
        shell_script(config, run_dir, processes)
    elif engine == "slurm":
        slurm_job.job_script(config, run_dir)
    elif engine == "kubernetes":
        kubernetes.manifests(config, run_dir.name)
    elif engine == "hosts":
        node_commands(config, run_dir)


def _checkpoint(folder: Path) -> Reader:
    def read(content: bytes) -> None:
        with suppress(RequestError):
            decode(with_file_checksum(content))

    return Reader(read, (encode(made_checkpoint()),), mutated_header)


def _store(folder: Path) -> Reader:
    """The manifest of a store."""
    path = prepare("synthetic-mini", folder / "store", 8).path / MANIFEST

    def read(content: bytes) -> None:
        path.write_bytes(content)
        _trained_on(folder / "store")

    return Reader(read, (path.read_bytes(),), mutated_json)


def _trained_on(path: Path) -> None:
    with suppress(RequestError):
        store = open_store(path, verify=True)
        for name in ("train", "validation"):
            split = store.split(name)
            assert split.images.dtype == "uint8"
            assert len(split.means) == store.manifest.splits[name].count
            assert set(split.labels) <= set(range(len(store.manifest.classes)))


def _array(folder: Path) -> Reader:
    """An array of a store; its first byte says which."""
    path = prepare("synthetic-mini", folder / "store", 8).path
    names = ("train-images.npy", "train-labels.npy", "train-sums.npy")
    whole = {name: (path / name).read_bytes() for name in names}

    def read(content: bytes) -> None:
        for name, good in whole.items():
            (path / name).write_bytes(good)
        (path / names[(content or b"\0")[0] % len(names)]).write_bytes(content[1:])
        _trained_on(path)

    return Reader(read, tuple(bytes([number]) + whole[name][:1000] for number, name in enumerate(names)))


def _dogs(folder: Path) -> Reader:
    """The paths and labels of a list of Stanford Dogs; the process that reads its file with SciPy is not fuzzed."""
    for name in ("a-x/1.jpg", "b-y/2.jpg"):
        (folder / "Images" / name).parent.mkdir(parents=True)
        (folder / "Images" / name).touch()
    (folder / "train_list.mat").touch()

    def read(content: bytes) -> None:
        try:
            files, labels = json.loads(content)
            listed = [str(file) for file in files], [int(label) for label in labels]
        except (TypeError, ValueError, OverflowError, RecursionError):
            return
        with patch("dpcompare.data.folders._listed", return_value=listed), suppress(RequestError):
            found = find_images(folder)
            for images in found.splits.values():
                assert all(path.is_relative_to(folder / "Images") for path, _ in images)

    return Reader(read, (b'[["a-x/1.jpg", "b-y/2.jpg"], [0, 1]]',), mutated_json)


def _weights(folder: Path) -> Reader:
    """A file of initial weights: safetensors, or what Keras writes."""
    drawn = initial_weights("mlp", 8, 10, 0)

    def read(content: bytes) -> None:
        with suppress(RequestError):
            fit(read_source(content, "the file"), drawn, "mlp")

    return Reader(read, (save(drawn),), mutated_header)


def _picture(folder: Path) -> Reader:
    """An image file of a dataset, of any format that is read."""
    seeds = []
    for form in FORMATS:
        encoded = io.BytesIO()
        Image.new("RGB", (5, 7), (9, 8, 7)).save(encoded, form)
        seeds.append(encoded.getvalue())
    target = folder / "rows.npy"
    np.save(target, np.zeros((1, 8, 8, 3), np.uint8))

    def read(content: bytes) -> None:
        _decode((target, 0, [EncodedImage("the image", content)], None, 8))

    return Reader(read, tuple(seeds))


FILE_TARGETS: dict[str, Callable[[Path], Reader]] = {
    "result": _file_of_run("result.json"),
    "record": _file_of_run("process-0.json"),
    "history": _history,
    "events": _events,
    "study": _study,
    "config": _config,
    "checkpoint": _checkpoint,
    "store": _store,
    "array": _array,
    "dogs": _dogs,
    "weights": _weights,
    "picture": _picture,
}
"""Name -> what makes the reader in an empty folder."""
