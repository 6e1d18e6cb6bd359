"""What all tests share: a cache and a directory of their own, and guards that nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.errors import RequestError
from dpcompare.experiments.verify_groups import plan_groups
from dpcompare.launch.local import launch
from dpcompare.system.devices import installed_gpus, visible_gpus
from dpcompare.system.network_namespace import why_not_permitted
from tests.support.no_process import no_process
from tests.support.runs import SharedRuns, turn
from tests.support.warm import WarmLauncher

SECONDS_TO_BE_GONE = 5
MASK = os.environ.get("CUDA_VISIBLE_DEVICES")
"""The caller's, which tests on real GPUs keep."""
CLOTHING = Path(__file__).parents[2] / "shared" / "datasets" / "clothing"


NOT_UNIT = {"process", "seconds", "slow", "alone", "root", "gpu", *FRAMEWORKS}
"""Marks of tests that are not in the tier `unit`."""
FIXTURES_WITH_PROCESSES = {"install_gpus", "run_once", "warm_launcher"}
"""Whoever has one of them, itself or by another fixture, starts processes."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test marked with a framework's name needs that framework; one without a mark that costs more is `unit`."""
    missing = {
        framework: [package for package in row.packages if find_spec(package) is None]
        for framework, row in FRAMEWORKS.items()
    }
    for item in items:
        for framework, packages in missing.items():
            if item.get_closest_marker(framework) and packages:
                item.add_marker(pytest.mark.skip(reason=f"{', '.join(packages)} not installed (extra {framework})"))
        if not FIXTURES_WITH_PROCESSES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.process)
        if item.get_closest_marker("long") and not (item.get_closest_marker("slow") or item.get_closest_marker("root")):
            raise pytest.UsageError(
                f"{item.nodeid} is marked long alone, so that it would run by default; mark it slow"
            )
        if NOT_UNIT.isdisjoint(mark.name for mark in item.iter_markers()):
            item.add_marker(pytest.mark.unit)
        if item.get_closest_marker("root") and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root"))
        if item.get_closest_marker("gpu") and not visible_gpus(installed_gpus()):
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU is visible"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """No fixture of a test of the tier `unit` starts a process."""
    if item.get_closest_marker("unit"):
        _ask_the_machine()
    with guarded(item):
        return (yield)


def _ask_the_machine() -> None:
    """What is asked of it by a process, once: the answers are kept, so which test comes first makes no difference."""
    why_not_permitted()
    platform.processor()
    with contextlib.suppress(RequestError):
        installed_gpus()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """No test of the tier `unit` starts a process."""
    with guarded(item):
        return (yield)


def guarded(item: pytest.Item) -> AbstractContextManager[None]:
    return no_process() if item.get_closest_marker("unit") else contextlib.nullcontext()


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of a session share: pytest-xdist gives each of its workers one below it."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(autouse=True)
def _alone_where_asked(request: pytest.FixtureRequest, session_folder: Path) -> Iterator[None]:
    """A test marked `alone`, which measures time, has none alongside it."""
    with turn(session_folder, alone=request.node.get_closest_marker("alone") is not None):
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_environment(tmp_path_factory: pytest.TempPathFactory, session_folder: Path) -> Iterator[None]:
    """No setting of the caller's reaches a test, and no test writes into the caller's cache."""
    cache = tmp_path_factory.mktemp("cache")
    # XLA compiles for longer than most tests run: what one process of the session has compiled, the others take.
    (session_folder / "compiled").mkdir(exist_ok=True)
    (cache / "compiled").symlink_to(session_folder / "compiled")
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("DPCOMPARE_") or name in (
                "CUDA_VISIBLE_DEVICES",
                "TF_CONFIG",
                "FORCE_COLOR",
                "HF_ENDPOINT",
                "NODES",
                "DEVICE",
            ):
                patch.delenv(name)
        # Tests run side by side: threads of OpenMP that spin while they wait take the core from those they wait for.
        patch.setenv("OMP_WAIT_POLICY", "PASSIVE")
        # As Accelerate's own configurator writes it: no run may train in bfloat16 for that.
        patch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
        patch.setenv("DPCOMPARE_CACHE_DIR", str(cache))
        patch.setenv("DPCOMPARE_ENVIRONMENTS_DIR", str(tmp_path_factory.mktemp("environments")))
        patch.setenv("DPCOMPARE_TORCH_CPU_INDEX", "")  # no test asks a host on the network
        # Another framework would start after the first round of every study; tests/contract/test_late_step.py has it.
        patch.setattr("dpcompare.experiments.study.LATE_STEP_ROUND", 0)
        yield


def _children() -> set[int]:
    """Processes started by this one, and by them, that are still there."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
            continue
        parents[int(status.parent.name)] = int(fields[1])
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    stay = {os.getpid()}.union(*(launcher.pids for launcher in WARM_LAUNCHERS))
    return {pid for pid in found - stay if not _is_tracker(pid)}


def _is_tracker(pid: int) -> bool:
    """Whether a process is multiprocessing's own, one per interpreter until it ends; or has ended meanwhile."""
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True


WARM_LAUNCHERS: list[WarmLauncher] = []
"""Whose own processes last for the session; what forks from them must end."""


@pytest.fixture(scope="session")
def warm_launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmLauncher]:
    WARM_LAUNCHERS.append(WarmLauncher(tmp_path_factory.mktemp("warm")))
    yield WARM_LAUNCHERS[0]
    WARM_LAUNCHERS.pop().close()


@pytest.fixture(scope="session")
def run_once(session_folder: Path) -> SharedRuns:
    """Runs that are launched as a user's are."""
    return SharedRuns(session_folder / "launched", launch)


@pytest.fixture(scope="session")
def train_once(session_folder: Path, warm_launcher: WarmLauncher) -> SharedRuns:
    """Runs of which only what they train is the point; their processes need not import a framework."""
    return SharedRuns(session_folder / "warm", warm_launcher.launch)


@pytest.fixture
def warm(warm_launcher: WarmLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process runs is trained in processes that need not import a framework first."""
    for module in ("attempt", "late_step"):
        monkeypatch.setattr(f"dpcompare.launch.{module}.launch", warm_launcher.launch)
    monkeypatch.setattr("dpcompare.backends.custom_model.run_command", warm_launcher.describe)
    # The runs of a study are disturbed by other tests, so it would repeat them: tests/experiments/test_study_runs.py.
    monkeypatch.setattr("dpcompare.results.result.DISTURBANCES", ())


@pytest.fixture
def first_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify` makes the runs of its first group alone."""
    monkeypatch.setattr(
        "dpcompare.experiments.verify_groups.plan_groups",
        lambda *arguments, **options: plan_groups(*arguments, **options)[:1],
    )


def _environment() -> dict[str, str]:
    # Set once per interpreter: KMP_... by importing scikit-learn and its OpenMP runtime, CRC32C_... by tensorboardX,
    # TORCHINDUCTOR_... by timm.
    return {
        name: value
        for name, value in os.environ.items()
        if name != "PYTEST_CURRENT_TEST" and not name.startswith(("KMP_", "CRC32C_", "TORCHINDUCTOR_"))
    }


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """Each test runs in a directory of its own and leaves no process, thread or environment variable."""
    # All of /proc is read for the processes: more than a test of the tier `unit` takes, which may start none.
    children = set if request.node.get_closest_marker("unit") else _children
    with contextlib.chdir(tmp_path):
        yield from _compared_with_before(children)


def _compared_with_before(find_children: Callable[[], set[int]]) -> Iterator[None]:
    environment, threads, children = _environment(), set(threading.enumerate()), find_children()
    yield
    # A browser that was closed takes a moment to be gone.
    deadline = time.monotonic() + SECONDS_TO_BE_GONE
    while time.monotonic() < deadline and not (set(threading.enumerate()) <= threads and find_children() <= children):
        time.sleep(0.05)
    assert _environment() == environment
    assert set(threading.enumerate()) <= threads
    left = find_children() - children
    for pid in left:  # ours; the next tests are not to fail for it
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """An image folder of two classes, 12 and 8 images of different shapes, as JPEG and PNG."""
    root = tmp_path / "photos"
    rng = np.random.default_rng(0)
    for name, count in (("cat", 12), ("dog", 8)):
        (root / name).mkdir(parents=True)
        for index in range(count):
            pixels = rng.integers(0, 256, (40 + index, 60, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{index:02d}.{'jpg' if index % 2 else 'png'}")
    return root


@pytest.fixture
def clothing() -> Path:
    if not CLOTHING.is_dir():
        pytest.skip("the clothing photographs (../shared/datasets/clothing) are not here")
    return CLOTHING


NVIDIA_SMI = """\
GPU 0: NVIDIA H200 (UUID: GPU-aaaa0000)
GPU 1: NVIDIA H200 (UUID: GPU-bbbb1111)
GPU 2: NVIDIA H200 (UUID: GPU-cccc2222)
GPU 3: NVIDIA H200 (UUID: GPU-dddd3333)
"""


@pytest.fixture
def install_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Put an nvidia-smi into PATH that prints a listing: the hardware itself is absent."""

    def install(listing: str = NVIDIA_SMI) -> None:
        folder = tmp_path / "driver"
        folder.mkdir()
        (folder / "listing").write_text(listing)
        program = folder / "nvidia-smi"
        program.write_text(f"#!/bin/sh\ncat {folder}/listing\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        installed_gpus.cache_clear()

    yield install
    installed_gpus.cache_clear()
