"""The readers of options, and of what other programs print, as targets of fuzzing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from dpcompare.cli.option_values import (
    parse_augmentations,
    parse_percentage,
    parse_seconds,
    parse_steps,
    parse_tuning,
)
from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.launch.engines import slurm, slurm_job
from dpcompare.system.devices import compute_capabilities, device_id, installed_gpus, used_gpus, visible_gpus
from stress.fuzz_files import recorded_run
from stress.fuzz_oracle import Reader, answered


def _text(content: bytes) -> str:
    """The text as Python has it of a command line, which holds no zero and any other byte."""
    return content.replace(b"\0", b"").decode(errors="surrogateescape")


@contextmanager
def _nothing_outside() -> Iterator[None]:
    """No program is found, such as an interpreter that is named by chance; ports are free without being tried."""
    with (
        patch("subprocess.Popen", side_effect=FileNotFoundError(2, "not found")),
        patch("shutil.which", return_value=None),
        patch("dpcompare.system.ports.free_ports", lambda count: list(range(1024, 1024 + count))),
        patch.dict(sys.modules, {"pynvml": None}),
    ):
        yield


def _toml(folder: Path) -> Reader:
    """The file of `--config`, of a run and of a study."""
    path = folder / "options.toml"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        with _nothing_outside():
            answered("plan", "--framework", "torch", "--mode", "ddp", "--device", "cpu", "--config", path)
            answered("compare", path, "--dry-run", "--arm", "torch:ddp", "--device", "cpu", "--out", folder / "out")

    options = b'nodes = 2\nsteps = 9\nprecision = "bfloat16"\naugment = "flip,contrast"\nwarmup-steps = "auto"\n'
    study = b'arm = ["torch:ddp,precision=float64", "torch:dp"]\nnodes = [1, 2]\nrepeats = 6\nsubject = ["mode"]\n'
    return Reader(read, (options, study, b'gpus = "0,1"\ntune = ["tf32=on"]\npython = ["torch=/usr/bin/python3"]\n'))


def _command_line(folder: Path) -> Reader:
    """The arguments of `plan`, a line each."""

    def read(content: bytes) -> None:
        words = _text(content).split("\n")
        if {"-h", "--help"} & set(words) or any(word.startswith("--config") for word in words):
            return
        with _nothing_outside():
            answered("plan", *words)

    lines = (
        "torch:ddp --nodes 2 --device cpu --format sh",
        "torch:fsdp --devices-per-node 2 --device cpu --format json --precision bfloat16 --accumulate 2",
        "tensorflow:multiworker --engine kubernetes --image x --nodes 2 --device gpu --devices-per-node 1",
        "torch:ddp --engine slurm --partition p --sbatch=--comment=x --nodes 2 --device cpu --cores-per-node 2",
        "torch:pipeline --stages 2 --device cpu --profile-steps 5:8 --steps 20 --run-dir runs/a",
    )
    return Reader(read, tuple("\n".join(line.split()).encode() for line in lines))


def _arm(folder: Path) -> Reader:
    """What `--arm` and `--pair` name."""

    def read(content: bytes) -> None:
        text = _text(content)
        with _nothing_outside():
            options = ("--dry-run", "--device", "cpu", "--steps", "9", "--out", folder / "out")
            answered("compare", f"--arm={text}", *options)
            answered("compare", "--arm=torch:ddp", "--arm=torch:dp", f"--pair={text}", "--pair=torch:dp", *options)

    return Reader(
        read, (b"torch:ddp", b"torch:ddp,precision=bfloat16", b"torch:dp,augment=flip+contrast,tune=compilation=none")
    )


def _condition(folder: Path) -> Reader:
    """What `--fail-if` is given."""
    recorded_run(folder / "run")

    def read(content: bytes) -> None:
        text = _text(content)
        answered("report", folder / "run", "--csv", "-", f"--fail-if={text}")

    return Reader(read, (b"ratio<0.97", b"accuracy > 1e-3", b"unstable", b"images_per_second<nan", b"efficiency<+.5"))


def _value(folder: Path) -> Reader:
    """Sizes, times, percentages and lists of options."""
    parsers: tuple[Callable[[str], object], ...] = (
        parse_percentage,
        parse_seconds,
        parse_steps,
        parse_augmentations,
        lambda text: parse_tuning(text.split("\n")),
    )

    def read(content: bytes) -> None:
        text = content[1:].decode(errors="surrogateescape")
        with suppress(RequestError):
            parsers[(content or b"\0")[0] % len(parsers)](text)

    return Reader(read, (b"\0002%", b"\00130m", b"\0025:8", b"\3flip,contrast", b"\4compilation=none"))


@contextmanager
def _programs_say(output: bytes) -> Iterator[None]:
    """Every program is there and prints this."""

    class Program:
        returncode = 0
        stdout = stderr = None

        def __init__(self, argv: object, *, encoding: str | None = None, errors: str | None = None, **_: Any) -> None:
            self._output = output.decode(encoding or "utf-8", errors or "strict")

        def __enter__(self) -> Program:
            return self

        def __exit__(self, *_: object) -> None: ...

        def communicate(self, timeout: float) -> tuple[str, str]:
            return self._output, ""

    with (
        patch.object(subprocess, "Popen", Program),
        patch("shutil.which", lambda name: name),
        patch("socket.gethostbyname", _unresolved),
        patch.dict(sys.modules, {"pynvml": None}),
    ):
        yield


def _unresolved(name: str) -> str:
    name.encode("idna")  # as the real one does
    raise OSError(-2, "Name or service not known")


def _slurm(folder: Path) -> Reader:
    """What sinfo and scontrol print, and the variables of a job."""

    def read(content: bytes) -> None:
        variable = _text(content)
        job = {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": variable, "SLURM_JOB_NUM_NODES": variable}
        job |= {"SLURM_NODEID": variable, "SLURMD_NODENAME": "node0"}
        placed = RunConfig(
            framework="torch",
            mode="ddp",
            cluster=Cluster.of_machines(2, 1, device_type="cpu", num_cores=1),
            placement={"engine": "slurm"},
        )
        with _programs_say(content):
            for ask in (
                lambda: slurm.partition_of(None),
                lambda: slurm.Slurm().check(placed),
                lambda: slurm_job.state_of("7"),
            ):
                with suppress(RequestError):
                    ask()
            with patch.dict(os.environ, job):
                for ask in (lambda: slurm.Slurm().check(placed), lambda: slurm.Slurm().node_identity(placed, None)):
                    with suppress(RequestError):
                        ask()

    seeds = (
        b"both|2|2|both*\nboth|1|4+|both*\none|1|2|one\n",
        b"JobId=7 JobState=RUNNING Reason=None Comment=x\n",
        b"NodeName=node0 NodeAddr=127.0.0.1 Port=6818\n",
        b"4(x2),8",
    )
    return Reader(read, seeds)


def _nvidia_smi(folder: Path) -> Reader:
    """What nvidia-smi prints; the last line is CUDA_VISIBLE_DEVICES."""

    def read(content: bytes) -> None:
        mask = content.splitlines()[-1].decode(errors="surrogateescape") if content else ""
        installed_gpus.cache_clear()
        with _programs_say(content), suppress(RequestError):
            installed = installed_gpus()
            names = [*visible_gpus(installed, {"CUDA_VISIBLE_DEVICES": mask}), "0", mask]
            for name in names:
                device_id(name, installed)
            used_gpus(names)
            compute_capabilities(names)
        installed_gpus.cache_clear()

    seeds = (
        b"GPU 0: NVIDIA H200 (UUID: GPU-aaaa0000)\nGPU 1: NVIDIA H200 (UUID: GPU-bbbb1111)\n0,GPU-bbbb\n",
        b"GPU 0: NVIDIA H100 (UUID: GPU-aaaa0000)\n  MIG 1g.10gb Device 0: (UUID: MIG-cccc)\nMIG-cccc\n",
        b"GPU-aaaa0000, 100, 80000\nGPU-aaaa0000, 9.0\n",
    )
    return Reader(read, seeds)


WORD_TARGETS: dict[str, Callable[[Path], Reader]] = {
    "toml": _toml,
    "command-line": _command_line,
    "arm": _arm,
    "condition": _condition,
    "value": _value,
    "slurm": _slurm,
    "nvidia-smi": _nvidia_smi,
}
"""Name -> what makes the reader in an empty folder."""
