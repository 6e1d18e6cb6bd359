"""Who can reach a run: listening sockets while it lasts, and a network of its own."""

import re
import socket
import threading
from pathlib import Path

import pytest

from dpcompare import Cluster, RunConfig, Workload, run
from dpcompare.config.placement import Placement
from dpcompare.errors import RequestError
from dpcompare.launch.plan import exposure, is_isolated
from dpcompare.system.network_namespace import isolated, why_not_permitted
from tests.conftest import _children
from tests.support.command import invoke

WORKLOAD = Workload(model="mlp", image_size=8, steps=6, warmup_steps=0)
SECONDS_BETWEEN_LOOKS = 0.05


def config(framework, mode, nodes, **changes):
    cluster = Cluster.partition(nodes, 1, device="cpu")
    return RunConfig(framework=framework, mode=mode, workload=WORKLOAD, cluster=cluster, **changes)


def listening():
    """(address, port) of every socket on which a child of this process listens, as the child's own network sees it."""
    found = set()
    for pid in _children():
        try:
            inodes = {link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir()}
            tables = [Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")]
        except OSError:  # it has ended
            continue
        for line in (line.split() for table in tables for line in table):
            if line[3] == "0A" and f"socket:[{line[9]}]" in inodes:  # TCP_LISTEN
                address, _, port = line[1].partition(":")
                found.add((_readable(address), int(port, 16)))
    return found


def _readable(address):
    """The kernel writes words of the host's byte order."""
    words = b"".join(bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8))
    return socket.inet_ntop(socket.AF_INET if len(words) == 4 else socket.AF_INET6, words)


def sockets_of(request, run_dir, then=lambda new: None):
    """All listening sockets seen while a run lasts; `then` gets each while it is there."""
    found, ended = set(), threading.Event()

    def look():
        while not ended.wait(SECONDS_BETWEEN_LOOKS):
            new = listening() - found
            then(new)
            found.update(new)

    # Not only when an event is observed: that of a short run may be read when its processes have ended already.
    looking = threading.Thread(target=look)
    looking.start()
    try:
        assert run(request, run_dir, observe=lambda event: found.update(listening())).status == "completed"
    finally:
        ended.set()
        looking.join()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "mode", "changes"),
    [
        pytest.param("torch", "ddp", {}, marks=[pytest.mark.torch, pytest.mark.slow]),
        pytest.param("torch", "ddp", {"launcher": "spawn"}, marks=[pytest.mark.torch, pytest.mark.slow]),
        pytest.param("jax", "multiprocess", {}, marks=pytest.mark.jax),
    ],
)
def test_torch_and_jax_listen_on_loopback_only(tmp_path, framework, mode, changes):
    found = sockets_of(config(framework, mode, 2, **changes), tmp_path / "run")
    assert found
    assert {address for address, _ in found} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.mark.tensorflow
@pytest.mark.slow
def test_tensorflow_serves_files_in_a_network_by_default(tmp_path):
    if reason := why_not_permitted():
        pytest.skip(f"no network namespaces here: {reason}")
    reached = []

    def connect(new):
        for _, port in new:
            with socket.socket() as outside:
                reached.append(outside.connect_ex(("127.0.0.1", port)) == 0)

    found = sockets_of(config("tensorflow", "multiworker", 2), tmp_path / "run", connect)
    assert len({port for _, port in found}) >= 2
    assert reached
    assert not any(reached)


@pytest.fixture
def not_permitted(monkeypatch):
    """A machine that permits no network namespace: the process that makes one says so and ends."""
    monkeypatch.setattr("dpcompare.system.network_namespace.sys.executable", "/bin/false")
    why_not_permitted.cache_clear()
    yield
    why_not_permitted.cache_clear()


@pytest.mark.process
@pytest.mark.parametrize(
    ("framework", "mode", "nodes", "isolate", "here", "elsewhere"),
    [
        ("tensorflow", "multiworker", 2, None, True, False),
        ("tensorflow", "parameter-server", 3, None, True, False),
        ("tensorflow", "multiworker", 1, None, True, False),
        ("tensorflow", "multiworker", 2, False, False, False),
        ("tensorflow", "mirrored", 1, None, False, False),
        ("torch", "ddp", 2, None, False, False),
        ("torch", "ddp", 2, True, True, True),
        ("jax", "multiprocess", 2, None, False, False),
    ],
)
def test_who_gets_a_network(framework, mode, nodes, isolate, here, elsewhere, request):
    asked = config(framework, mode, nodes, isolate=isolate)
    if why_not_permitted() is None:
        assert is_isolated(asked) == here
        assert exposure(asked) is None
    request.getfixturevalue("not_permitted")
    assert is_isolated(asked) == elsewhere
    is_exposed = asked.serves_files and isolate is None
    assert bool(exposure(asked)) == is_exposed
    if is_exposed:
        assert re.search(r"every user of this machine.* read and write files as you, .*--no-isolate$", exposure(asked))


@pytest.mark.process
def test_on_gpus_a_user_needs_the_device_that_only_root_can_make(monkeypatch, tmp_path):
    cluster = Cluster.partition(2, 1, gpus=["0", "1"])
    asked = config("tensorflow", "multiworker", 2).model_copy(update={"cluster": cluster})
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("dpcompare.launch.plan.UNIFIED_MEMORY", tmp_path / "nvidia-uvm")
    assert not is_isolated(asked)
    assert "nvidia-uvm is missing, which only root can create" in exposure(asked)
    (tmp_path / "nvidia-uvm").touch()
    assert is_isolated(asked) == (why_not_permitted() is None)


def test_between_machines_it_is_said_who_can_reach_the_servers():
    cluster = Cluster.of_machines(2, 1, "cpu", num_cores=1)
    machines = {"cluster": cluster, "placement": Placement(engine="hosts", hosts=("a", "b"))}
    asked = config("tensorflow", "multiworker", 2).model_copy(update=machines)
    assert not is_isolated(asked)
    assert "whoever reaches their ports can read and write files as you" in exposure(asked)
    assert exposure(asked.model_copy(update={"isolate": False})) is None


def test_nodes_with_a_network_each_are_open_to_nobody():
    placed = {"placement": Placement(engine="namespaces")}
    asked = config("tensorflow", "multiworker", 2)
    machines = Cluster.of_machines(2, 1, "cpu", num_cores=1)
    assert exposure(asked.model_copy(update=placed | {"cluster": machines})) is None


def test_a_script_says_what_is_open():
    asked = ["plan", "tensorflow:multiworker", "--nodes", "2", "--device", "cpu", "--format", "sh"]
    assert "read and write files as you" in invoke(*asked).stdout
    assert "read and write files as you" not in invoke(*asked, "--no-isolate").stdout


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_study_says_once_what_is_open(not_permitted, tmp_path):
    options = ["--model", "mlp", "--image-size", "8", "--global-batch-size", "8", "--steps", "2", "--repeats", "2"]
    arm = ["--arm", "tensorflow:multiworker", "--nodes", "2", "--device", "cpu"]
    done = invoke("compare", *arm, *options, "--out", str(tmp_path / "study"))
    assert done.code == 0, done.stderr
    assert done.stderr.count("can read and write files as you") == 1


@pytest.mark.process
def test_where_no_network_may_be_made_the_request_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("dpcompare.system.network_namespace.sys.executable", "/bin/true")
    with pytest.raises(RequestError, match="this machine permits no network namespace"), isolated():
        pass


def test_a_script_cannot_isolate(tmp_path):
    refused = invoke("plan", "--framework", "torch", "--mode", "ddp", "--nodes", "2", "--device", "cpu",
                        "--format", "sh", "--isolate")  # fmt: skip
    assert refused.code == 2
    assert "--isolate: a shell script cannot do this" in refused.stderr
