"""Hosts that are machines of their own to the processes: by hand, and as network namespaces."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import numpy
import pytest

from dpcompare.config.cluster import Cluster
from dpcompare.config.placement import Placement
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.launch.engines import NodesEnded, hosts
from dpcompare.launch.engines.hosts import SSH
from dpcompare.launch.engines.namespaces import _limits, linked_hosts
from dpcompare.launch.node import _node_context
from dpcompare.launch.outcome import Deadlines, NodeOutcome
from dpcompare.launch.rendezvous import NodeInfo, Rendezvous, RendezvousError, join, listening
from dpcompare.launch.supervise import ENGINE_SECONDS, NodesWatch
from dpcompare.results.events import EventTail, Failed, Started, StepsTrained, Stopped
from dpcompare.system.network_namespace import isolated
from dpcompare.system.ports import local_address
from dpcompare.system.processes import is_alive
from tests.support.command import dpcompare, invoke, start
from tests.support.marks import with_mark
from tests.support.recorded import INPUTS

TINY = ["--model", "toy-cnn", "--image-size", "32", "--dataset", "synthetic-mini", "--global-batch-size", "16"]
MODES = [
    pytest.param(["--framework", "torch", "--mode", "ddp"], marks=pytest.mark.torch, id="torch"),
    pytest.param(["--framework", "tensorflow", "--mode", "multiworker"], marks=pytest.mark.tensorflow, id="tensorflow"),
]
TORCH = MODES[0].values[0]
HERE = ["--engine", "hosts", "--hosts", "127.0.0.1,localhost", "--cores-per-node", "1", "--device", "cpu"]


def node_info(rank, port=1, **changes):
    known = {"node_rank": rank, "host": f"h{rank}", "address": "127.0.0.1", "port": port}
    return NodeInfo(**known | {"versions": {"dpcompare": "1"}} | changes)


def commands_of(process, count):
    """What it asks to be run on the hosts."""
    found = []
    for line in process.stderr:
        if match := re.match(r"\s*on (\S+): (.*)", line):
            found.append(shlex.split(match[2]))
        if len(found) == count:
            return found
    raise AssertionError(process.communicate())


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.long
def test_the_commands_of_two_terminals_make_one_run(tmp_path):
    run = start("run", *HERE, *TORCH, *TINY, "--steps", "8", "--json", "--run-dir", tmp_path / "run")
    terminals = [subprocess.Popen(command) for command in commands_of(run, 2)]
    stdout, stderr = run.communicate(timeout=600)
    assert run.returncode == 0, stderr
    assert [terminal.wait(300) for terminal in terminals] == [0, 0]
    assert json.loads(stdout)["num_nodes"] == 2


@pytest.mark.torch
@pytest.mark.slow
def test_a_run_whose_nodes_differ_in_versions_says_so(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import numpy\nnumpy.__version__ = '0.1'\n")
    short = ["--steps", "4", "--warmup-steps", "0", "--env", "shown=TORCH_SHOWN=1"]
    run = start("run", *HERE, *TORCH, *TINY, *short, "--run-dir", tmp_path / "run")
    environments = [os.environ, os.environ | {"PYTHONPATH": str(tmp_path)}]
    terminals = [
        subprocess.Popen(command, env=environment)
        for command, environment in zip(commands_of(run, 2), environments, strict=True)
    ]
    stdout, stderr = run.communicate(timeout=600)
    assert run.returncode == 0, stderr
    assert [terminal.wait(300) for terminal in terminals] == [0, 0]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    both = [node["versions"]["numpy"] for node in result["nodes"]]
    assert both == [numpy.__version__, "0.1"]
    assert result["settings"]["environment"]["TORCH_SHOWN"] == "1"  # of --env, which no terminal knows
    assert re.search(rf"numpy differs\W+node 0: {both[0]}, node 1: 0.1", stdout)


@pytest.mark.torch
@pytest.mark.slow
def test_a_host_where_nothing_is_started_is_named(tmp_path):
    run = start("run", *HERE, *TORCH, *TINY, "--steps", "8", "--start-timeout", "3", "--run-dir", tmp_path / "run")
    first, _ = commands_of(run, 2)
    terminal = subprocess.Popen(first, stderr=subprocess.PIPE, text=True)
    _, said = run.communicate(timeout=600)
    assert run.returncode == 1
    assert "has waited 3 s for node 1 to start" in said
    assert "is not the same folder there and here" in said
    assert "has waited 3 s for node 1" in terminal.communicate()[1]
    assert terminal.returncode == 1


@pytest.mark.torch
@pytest.mark.slow
def test_ctrl_c_ends_the_hosts_too(tmp_path):
    run = start("run", *HERE, *TORCH, *TINY, "--steps", "100000", "--run-dir", tmp_path / "run")
    terminals = [subprocess.Popen(command) for command in commands_of(run, 2)]
    tail = EventTail(tmp_path / "run", range(2))
    while not any(isinstance(event, StepsTrained) for event in tail.new_events()):
        assert run.poll() is None
        time.sleep(0.1)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=600)
    assert run.returncode == 130
    assert [terminal.wait(300) for terminal in terminals] == [1, 1]


@pytest.mark.parametrize("rate", ["0", "0gbit", "0.00001kbit", "1e-3gbit", "1tbit", "12.5GB/s", "9" * 400 + "gbit"])
def test_a_link_that_is_no_rate_is_refused(rate):
    with pytest.raises(RequestError, match=f"link: received '{rate}'; expected a rate in kbit, mbit or gbit"):
        Placement(engine="namespaces", link=rate)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--hosts", "no-such-host.invalid,127.0.0.1"], "hosts: 'no-such-host.invalid' cannot be resolved here"),
        (["--hosts", "127.0.0.1,127.0.0.1"], "expected each once"),
        (["--hosts", "127.0.0.1,localhost", "--nodes", "3"], "hosts: received 2 for 3 nodes; expected one per node"),
        (["--hosts", ""], "hosts: received none"),
        (
            ["--hosts", "127.0.0.1,localhost", "--link", "1gbit"],
            "link: received with engine hosts; expected engine namespaces",
        ),
        (["--hosts", "127.0.0.1,localhost", "--isolate"], "isolate: received with engine hosts"),
        (
            ["--hosts", "127.0.0.1,localhost", "--partition", "p"],
            "partition: received with engine hosts; expected engine slurm",
        ),
    ],
    ids=["name", "twice", "number", "none", "link", "isolate", "partition"],
)  # fmt: skip
def test_hosts_that_make_no_run_are_refused(tmp_path, asked, says):
    refused = invoke("run", "--engine", "hosts", *TORCH, *TINY, "--global-batch-size", "12", "--device", "cpu", *asked,
                        "--run-dir", tmp_path / "run")  # fmt: skip
    assert refused.code == 2, refused.stderr
    assert says in refused.stderr
    assert not (tmp_path / "run").exists()


def test_there_is_no_slurm_here(tmp_path):
    refused = invoke(
        "run", "--engine", "slurm", *TORCH, "--device", "cpu", "--run-dir", tmp_path / "run", PATH="/nowhere"
    )
    if "not installed" not in refused.stderr:
        assert refused.code == 2
        assert "sinfo is not found; expected a machine from which Slurm is used (`dpcompare plan`" in refused.stderr


@pytest.mark.process
def test_a_slurm_without_its_controller_is_refused_in_one_line(tmp_path):
    sinfo = tmp_path / "sinfo"
    sinfo.write_text("#!/bin/sh\nprintf 'no controller\\nfatal: no source\\n' >&2\nexit 1\n")
    sinfo.chmod(0o755)
    refused = invoke(
        *("plan", "torch:ddp", "--engine", "slurm", "--nodes", "2", "--devices-per-node", "4", "--device", "gpu"),
        PATH=f"{tmp_path}:{os.environ['PATH']}",
    )
    assert refused.code == 2
    (line,) = refused.stderr.splitlines()
    assert "(`dpcompare plan` with --cores-per-node works without Slurm)" in line
    assert line.endswith("says: no controller; fatal: no source")


def test_a_run_directory_that_waits_for_nobody_is_refused(tmp_path):
    refused = invoke("node", tmp_path, "--node-rank", "0")
    assert refused.code == 2
    assert "holds no readable attempt.json" in refused.stderr


def test_ssh_asks_nothing():
    assert "BatchMode=yes" in SSH


@pytest.mark.torch
def test_without_ssh_it_is_refused_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    refused = invoke(
        "run", "--engine", "hosts", "--hosts", "localhost", "--ssh", *TORCH, *TINY, "--run-dir", tmp_path / "run"
    )
    assert refused.code == 2
    assert "--ssh: ssh is not installed here" in refused.stderr


def both_meet(tmp_path, node_infos, seconds=10.0):
    """Each node in a thread; returns what came of it."""
    rendezvous = Rendezvous.open(tmp_path, len(node_infos))
    outcomes = {}

    def part(own):
        try:
            outcomes[own.node_rank] = [each.node_rank for each in join(rendezvous, own, seconds)]
        except RendezvousError as error:
            outcomes[own.node_rank] = str(error)

    threads = [threading.Thread(target=part, args=(own,)) for own in node_infos]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def test_nodes_meet_and_reach_each_other(tmp_path):
    with listening("127.0.0.1") as first, listening("127.0.0.1") as second:
        node_infos = [node_info(rank, each.getsockname()[1]) for rank, each in enumerate((first, second))]
        assert both_meet(tmp_path, node_infos) == {0: [0, 1], 1: [0, 1]}


def test_different_releases_are_told_by_every_node(tmp_path):
    node_infos = [node_info(0), node_info(1, versions={"dpcompare": "2"})]
    outcomes = both_meet(tmp_path, node_infos)
    assert all("different releases of dpcompare: node 0 (h0) 1, node 1 (h1) 2" in outcomes[rank] for rank in (0, 1))


def test_a_port_that_nobody_answers_on_is_told(tmp_path):
    with socket.socket() as silent:  # bound, so that no other process takes it, and not listening
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        rendezvous = Rendezvous.open(tmp_path, 2)
        rendezvous.write_node_info(node_info(1, port))
        with listening("127.0.0.1") as own, pytest.raises(RendezvousError) as refused:
            join(rendezvous, node_info(0, own.getsockname()[1]), 5.0)
    assert f"node 0 (h0) cannot reach node 1 (h1) at 127.0.0.1:{port}" in str(refused.value)
    assert "open them between the hosts" in str(refused.value)


def test_an_address_of_another_machine_is_told():
    with (
        pytest.raises(RendezvousError, match=r"192\.0\.2\.1 is to be this machine, and is not an address of"),
        listening("192.0.2.1"),
    ):
        pass


def test_a_node_trains_what_its_attempt_was_started_with(tmp_path):
    """Meanwhile, as in a queue, config.json was edited."""
    placement = Placement(engine="hosts", hosts=("127.0.0.1", "localhost"))
    cluster = Cluster.of_machines(2, 1, device_type="cpu", num_cores=1)
    config = RunConfig(framework="torch", mode="ddp", placement=placement, cluster=cluster).prepared(INPUTS)
    config.save(tmp_path / "attempt-config.json")
    config.changed(mode="fsdp").save(tmp_path / "config.json")
    Rendezvous.open(tmp_path, 2)
    assert _node_context(tmp_path, 0, None, print).config == config


def end(rank, **changes):
    return NodeOutcome(**{"node_rank": rank, "host": f"h{rank}", "time": 1.0, "status": None} | changes)


@pytest.mark.parametrize(
    ("happens", "says"),
    [
        (lambda rendezvous, run_dir: rendezvous.stop(), "all nodes were stopped"),
        (lambda rendezvous, run_dir: rendezvous.write_outcome(end(1, status=1)), "node 1 (h1) has failed"),
        (lambda rendezvous, run_dir: rendezvous.write_outcome(end(1, stopped=True)), "node 1 (h1) was stopped"),
        (lambda rendezvous, run_dir: rendezvous.write_outcome(end(1, status=0)), None),
        (lambda rendezvous, run_dir: Rendezvous.open(run_dir, 2), "another attempt of this run has started"),
        (lambda rendezvous, run_dir: None, None),
    ],
    ids=["stop", "failure", "end", "success", "attempt", "nothing"],
)
def test_what_ends_a_node(tmp_path, happens, says):
    rendezvous = Rendezvous.open(tmp_path, 2)
    assert rendezvous.why_stopped(0) is None
    happens(rendezvous, tmp_path)
    assert rendezvous.why_stopped(0) == says


def test_a_node_ends_when_nothing_is_heard_of_who_began_the_run(tmp_path, monkeypatch):
    rendezvous = Rendezvous.open(tmp_path, 1)
    now = time.monotonic()
    monkeypatch.setattr("dpcompare.launch.rendezvous.time.monotonic", lambda: now)
    assert rendezvous.why_stopped(0) is None
    now += 170
    assert rendezvous.why_stopped(0) is None
    rendezvous.beat()
    now += 20
    assert rendezvous.why_stopped(0) is None
    now += 200
    assert rendezvous.why_stopped(0) == "no sign of life came for 180 s from the process that started the run"


def test_a_job_may_queue_longer_than_a_node_may_be_silent(tmp_path, monkeypatch):
    now = time.monotonic()
    monkeypatch.setattr("dpcompare.launch.supervise.time.monotonic", lambda: now)
    rendezvous = Rendezvous.open(tmp_path, 1)
    watch = NodesWatch(rendezvous, Deadlines(start=1, progress=1), may_queue=True, processes_per_node=1)
    now += 10_000
    watch.look(lambda: None)
    rendezvous.write_node_info(node_info(0))
    for seconds, over in ((1, False), (60, False), (3, True)):
        now += seconds
        watch.look(lambda: None)
        assert watch.is_over() == over, seconds
    assert "no sign of life came from any node for 61 s" in watch.outcome().reasons


@pytest.mark.parametrize(
    ("ends", "expected"),
    [((105.0, 107.0), 107.0), ((105.0,), 115.0), ((90.0, 91.0), 100.0), ((300.0, 107.0), 115.0)],
    ids=["both", "one is missing", "a clock that is late", "a clock that is early"],
)
def test_a_run_ends_when_its_nodes_say_however_late_that_is_seen(tmp_path, monkeypatch, ends, expected):
    """Slurm's controller, which is asked meanwhile, may take seconds to answer."""
    now = 100.0
    monkeypatch.setattr("dpcompare.launch.supervise.time.time", lambda: now)
    rendezvous = Rendezvous.open(tmp_path, 2)
    watch = NodesWatch(rendezvous, Deadlines(start=60, progress=60), may_queue=True, processes_per_node=1)
    for rank in range(2):
        rendezvous.write_reached(rank)
    watch.look(lambda: None)
    for rank, ended in enumerate(ends):
        rendezvous.write_outcome(end(rank, time=ended, status=0))
    now += 15
    assert watch.outcome().ended_at == expected


def test_a_reason_from_outside_stops_the_nodes(tmp_path, monkeypatch):
    now = time.monotonic()
    monkeypatch.setattr("dpcompare.launch.supervise.time.monotonic", lambda: now)
    watch = NodesWatch(
        Rendezvous.open(tmp_path, 1), Deadlines(start=60, progress=60), may_queue=False, processes_per_node=1
    )
    watch.look(lambda: None, stopped_by="no end after 3 s")
    assert not watch.is_over()  # what the node still writes may say more
    now += 5
    assert watch.is_over()
    assert not watch.succeeded
    assert watch.outcome().cause == "no end after 3 s"


@pytest.mark.parametrize(
    ("ended_by", "waits"),
    [
        ([Stopped], True),
        ([Failed, Stopped], False),
        ([], False),
    ],
    ids=["terminated", "an exception first", "neither"],
)
def test_who_terminated_the_processes_is_asked_of_the_engine(tmp_path, ended_by, waits):
    """At a time limit the processes end before their nodes hear of it."""
    rendezvous = Rendezvous.open(tmp_path, 1)
    watch = NodesWatch(rendezvous, Deadlines(start=60, progress=60), may_queue=True, processes_per_node=1)
    for kind in ended_by:
        watch.on_event(kind(message="wrong", traceback="ValueError: wrong") if kind is Failed else kind())
    rendezvous.write_outcome(end(0, status=1))
    watch.look(lambda: None)
    assert watch.is_over() is not waits
    watch.look(lambda: NodesEnded(why="the time limit", is_cause=True))
    assert watch.is_over()
    assert watch.outcome().cause == "the time limit"


def test_an_engine_that_cannot_tell_is_not_waited_for(tmp_path):
    rendezvous = Rendezvous.open(tmp_path, 1)
    watch = NodesWatch(rendezvous, Deadlines(start=60, progress=60), may_queue=True, processes_per_node=1)
    watch.on_event(Stopped())
    rendezvous.write_outcome(end(0, status=1))
    watch.look(None)
    assert watch.is_over()


def test_an_engine_is_waited_for_and_stopped_processes_are_not(tmp_path, monkeypatch):
    now = time.monotonic()
    monkeypatch.setattr("dpcompare.launch.supervise.time.monotonic", lambda: now)
    rendezvous = Rendezvous.open(tmp_path, 2)
    watch = NodesWatch(rendezvous, Deadlines(start=60, progress=60), may_queue=True, processes_per_node=1)
    watch.on_event(Stopped(process_rank=1))
    rendezvous.write_outcome(end(0, status=1))
    rendezvous.write_outcome(end(1, stopped=True))  # because of the first
    watch.look(lambda: None)
    assert watch.is_over()
    watch.on_event(Stopped(process_rank=0))
    watch.look(lambda: None)
    assert not watch.is_over()
    now += ENGINE_SECONDS
    assert watch.is_over()


def test_what_stops_a_failed_run_is_not_its_cause(tmp_path):
    rendezvous = Rendezvous.open(tmp_path, 2)
    watch = NodesWatch(rendezvous, Deadlines(start=60, progress=60), may_queue=False, processes_per_node=1)
    rendezvous.write_outcome(end(0, status=1))
    watch.look(lambda: None, stopped_by="no end after 3 s")
    outcome = watch.outcome()
    assert outcome.cause is None
    assert outcome.reasons[-1] == "no end after 3 s"


def test_a_name_that_is_loopback_here_is_not_what_others_reach(monkeypatch):
    monkeypatch.setattr("dpcompare.launch.rendezvous.socket.gethostbyname", lambda name: "127.0.1.1")
    assert local_address("127.0.1.1") == "127.0.1.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outwards:
        try:
            outwards.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no route out of it")
        assert local_address("myself") == outwards.getsockname()[0]


NAMESPACES = ["--engine", "namespaces", "--nodes", "2", "--device", "cpu"]


@pytest.mark.root
@pytest.mark.parametrize("mode", [MODES[0], with_mark(MODES[1], pytest.mark.long)])
def test_hosts_as_namespaces_train_what_simulated_nodes_train(tmp_path, mode):
    short = [*mode, *TINY, "--steps", "8", "--json"]
    done = dpcompare("run", *NAMESPACES, *short, "--run-dir", tmp_path / "namespaces")
    assert done.code == 0, done.stderr
    local = dpcompare("run", "--nodes", "2", "--device", "cpu", *short, "--run-dir", tmp_path / "local")
    assert done.json["train_loss"] == pytest.approx(local.json["train_loss"], rel=1e-6)


@pytest.mark.root
@pytest.mark.torch
def test_a_run_is_resumed_with_another_engine(tmp_path):
    local = ["--nodes", "2", "--device", "cpu", *TORCH, *TINY, "--steps", "8", "--checkpoint-every", "4"]
    started = dpcompare("run", *local, "--run-dir", tmp_path / "run")
    assert started.code == 0, started.stderr
    done = dpcompare(
        "run", "--resume", tmp_path / "run", "--engine", "namespaces", "--link", "1gbit", "--steps", "12", "--json"
    )
    assert done.code == 0, done.stderr
    assert len(done.json["train_loss"]) == 12
    assert done.json["config"]["placement"]["link"] == "1gbit"
    assert [attempt["last_step"] for attempt in done.json["attempts"]] == [8]


@pytest.mark.root
@pytest.mark.long
@pytest.mark.torch
def test_a_slower_link_makes_a_slower_run(tmp_path):
    """mlp at 32 px has 1.6 million parameters, 6.3 MB of gradients: 0.5 s at 100 Mbit/s, and 50 ms at 1 Gbit/s."""
    mlp = [*TORCH, "--model", "mlp", *TINY[2:], "--steps", "12", "--warmup-steps", "4", "--json"]
    seconds = {}
    for link in ("1gbit", "100mbit"):
        done = dpcompare("run", *NAMESPACES, "--link", link, *mlp, "--run-dir", tmp_path / link)
        assert done.code == 0, done.stderr
        seconds[link] = done.json["step_seconds"]["median"]
    gradients = 8 * 4 * 1_578_506
    assert seconds["1gbit"] > 0.5 * gradients / 1e9
    assert seconds["100mbit"] > 5 * seconds["1gbit"] * 0.5


SEND = """
import socket, time
with socket.create_connection(("198.18.0.2", 29500)) as link:
    for _ in range(4):
        time.sleep(0.05)
        begin = time.perf_counter()
        link.sendall(bytes(262144))
        link.recv(1)
        print(time.perf_counter() - begin)
"""
ANSWER = """
import socket
with socket.create_server(("198.18.0.2", 29500)) as server:
    print("listening", flush=True)
    link, _ = server.accept()
    while link.recv(262144, socket.MSG_WAITALL):
        link.send(b"x")
"""


@pytest.mark.root
def test_a_link_does_not_make_up_for_a_pause():
    """A bucket of 256 KiB in tc let as much pass after each pause in a fraction of a millisecond."""
    with linked_hosts(2, "100mbit") as hosts, ExitStack() as stack:
        command = [sys.executable, "-c"]
        answering = stack.enter_context(
            subprocess.Popen([*command, ANSWER], stdout=subprocess.PIPE, preexec_fn=hosts[1].enter)
        )
        stack.callback(answering.kill)
        assert answering.stdout.readline() == b"listening\n"
        sent = subprocess.run([*command, SEND], stdout=subprocess.PIPE, preexec_fn=hosts[0].enter, check=True)
        assert answering.wait(timeout=300) == 0
    at_the_rate = 262144 * 8 / 100e6
    assert 0.75 * at_the_rate < min(map(float, sent.stdout.split())) < 4 * at_the_rate


@pytest.mark.parametrize(
    ("rate", "told"),
    [
        ("1kbit", ("gso_max_size 16384", "tbf rate 1kbit burst 17408b limit 262150b")),
        ("100mbit", ("gso_max_size 16384", "tbf rate 100mbit burst 23658b limit 887144b")),
        ("10gbit", ("", "tbf rate 10gbit burst 694632b limit 62762144b")),
        ("1000gbit", ("", "tbf rate 1000gbit burst 62569632b limit 1073741824b")),
    ],
)
def test_a_links_bucket_holds_a_packet_and_half_a_millisecond(rate, told):
    assert _limits(rate) == told


def test_no_link_is_made_of_what_is_no_rate():
    with pytest.raises(RequestError, match="--link: received 'fast', expected a rate such as 1gbit"):
        _limits("fast")


@pytest.mark.root
@pytest.mark.parametrize("rate", ["1kbit", "1000gbit"])
def test_the_slowest_and_the_fastest_rate_can_be_set(rate):
    with linked_hosts(2, rate) as hosts:
        assert len(hosts) == 2


def in_namespace(pid, command):
    subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", *command.split()], check=True)


def trained_by_both(run, run_dir, step=1):
    """Waits until each process has made a step; returns their pids."""
    tail, pids, reached = EventTail(run_dir, range(2)), {}, set()
    while len(reached) < 2:
        assert run.poll() is None, run.communicate()
        for event in tail.new_events():
            if isinstance(event, Started):
                pids[event.process_rank] = event.pid
            if isinstance(event, StepsTrained) and event.step >= step:
                reached.add(event.process_rank)
        time.sleep(0.1)
    return pids


@pytest.mark.root
@pytest.mark.parametrize(
    ("mode", "seconds_allowed", "says"),
    [
        pytest.param(
            TORCH, "8", "showed no progress for 8 s", marks=[pytest.mark.torch, pytest.mark.long], id="torch"
        ),
        # By itself, after 10 seconds without a heartbeat.
        pytest.param(
            MODES[1].values[0], "60", "stopped sending heartbeats", marks=pytest.mark.tensorflow, id="tensorflow"
        ),
    ],
)  # fmt: skip
def test_a_link_that_is_cut_for_good_ends_the_run(tmp_path, mode, seconds_allowed, says):
    long = ["--steps", "100000", "--progress-timeout", seconds_allowed]
    run = start("run", *NAMESPACES, *mode, *TINY, *long, "--run-dir", tmp_path / "run")
    pids = trained_by_both(run, tmp_path / "run")
    in_namespace(pids[1], "ip link set eth0 down")
    begin = time.monotonic()
    _, said = run.communicate(timeout=600)
    assert run.returncode == 1, said
    assert time.monotonic() - begin < 300
    assert says in said
    assert not any(is_alive(pid) for pid in pids.values())


@pytest.mark.root
@pytest.mark.parametrize(
    ("mode", "seconds"),
    [
        pytest.param(TORCH, 10, marks=pytest.mark.torch, id="torch"),
        # A heartbeat is sent every 5 s and may be missed for 10: one that is lost is sent again by TCP at up to twice
        # the cut, so that 4 s ended a run whenever the one before it was old enough.
        pytest.param(MODES[1].values[0], 2, marks=[pytest.mark.tensorflow, pytest.mark.long], id="tensorflow"),
    ],
)
def test_a_link_that_is_cut_for_some_seconds_holds_the_run_up(tmp_path, mode, seconds):
    run = start("run", *NAMESPACES, *mode, *TINY, "--steps", "100000", "--run-dir", tmp_path / "run")
    pids = trained_by_both(run, tmp_path / "run")
    in_namespace(pids[1], "ip link set eth0 down")
    time.sleep(seconds)
    events = EventTail(tmp_path / "run", [0]).new_events()
    step = [event.step for event in events if isinstance(event, StepsTrained)][-1]
    in_namespace(pids[1], "ip link set eth0 up")
    trained_by_both(run, tmp_path / "run", step + 100)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=600)
    assert run.returncode == 130


@pytest.mark.root
def test_a_namespace_is_gone_with_whoever_made_it():
    with isolated() as network:
        assert is_alive(network.pid)
    assert not is_alive(network.pid)


@pytest.mark.process
def test_ssh_that_is_refused_on_one_host_ends_the_run_at_once(tmp_path, monkeypatch):
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\n[ "$1" = refused ] && exit 255\nexec sleep 60\n')
    ssh.chmod(0o755)
    monkeypatch.setattr(hosts, "SSH", (str(ssh),))
    monkeypatch.setattr(hosts, "EXIT_SECONDS", 0.0)
    placement = Placement(engine="hosts", hosts=("answers", "refused"), ssh=True)
    cluster = Cluster.of_machines(2, 1, device_type="cpu", num_cores=1)
    config = RunConfig(framework="torch", mode="ddp", cluster=cluster, placement=placement)
    rendezvous = Rendezvous.open(tmp_path, 2)
    watch = NodesWatch(rendezvous, Deadlines(start=600, progress=600), may_queue=False, processes_per_node=1)
    with hosts.Hosts().started(config, tmp_path, rendezvous, lambda line: None) as poll_exit:
        deadline = time.monotonic() + 300
        while poll_exit() is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        watch.look(poll_exit)
    assert "ssh has ended with 255 on refused" in watch.outcome().reasons
