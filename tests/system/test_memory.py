"""The memory that processes may still take, by the kernel's estimate or a container's limit; those that it kills."""

import pytest

from dpcompare.system.processes import MemoryPeak, OomWatch, available_memory, oom_kills


@pytest.mark.parametrize(("limit", "expected"), [(None, 4096), ("max", 4096), ("3000", 2750), ("9000", 4096)])
def test_the_smaller_of_what_the_kernel_and_a_container_leave(tmp_path, limit, expected):
    (tmp_path / "meminfo").write_text("MemTotal:       8 kB\nMemAvailable:       4 kB\n")
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text("1000\n")
        (tmp_path / "memory.stat").write_text("anon 250\ninactive_file 700\nactive_file 50\nslab_reclaimable 9\n")
    assert available_memory(tmp_path, tmp_path) == expected


def test_this_machine_has_some():
    assert available_memory() > 1e6


@pytest.mark.parametrize(
    ("group", "counters", "expected"),
    [
        ("0::/run", "run/memory.events", 3),
        ("4:cpu,memory:/run\n0::/", "memory/run/memory.oom_control", 3),
        ("0::/../elsewhere", "memory.events", 100),
    ],
    ids=["version 2", "version 1", "not of this container"],
)
def test_kills_for_want_of_memory_are_those_of_our_control_group(tmp_path, group, counters, expected):
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(f"{group}\n")
    (tmp_path / "vmstat").write_text("pgfault 7\noom_kill 100\n")
    (tmp_path / counters).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / counters).write_text("oom 5\noom_kill 3\noom_group_kill 0\n")
    assert oom_kills(tmp_path, tmp_path) == expected


def test_a_kill_for_want_of_memory_is_forgotten_after_a_while(monkeypatch):
    now, kills = 0.0, 0
    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr("dpcompare.system.processes.oom_kills", lambda: kills)
    watch = OomWatch()
    kills += 1
    for now, just in ((1.0, True), (11.0, True), (22.0, False)):
        watch.look()
        assert watch.has_just_killed() == just, now


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("Name:\tpython\nVmHWM:\t 2048 kB\nVmRSS:\t 1024 kB\n", 2048 << 10),
        ("Name:\tpython\nVmRSS:\t 1024 kB\n", 1024 << 10),  # gVisor
    ],
)
def test_peak_memory_is_what_the_kernel_tells(tmp_path, status, expected):
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "status").write_text(status)
    peak = MemoryPeak(tmp_path)
    with peak.left_out():
        pass
    assert peak.num_bytes == expected


def test_what_is_left_out_of_the_peak_does_not_count(tmp_path):
    (tmp_path / "self").mkdir()

    def resident(most):
        (tmp_path / "self" / "status").write_text(f"VmHWM:\t {most} kB\nVmRSS:\t 1 kB\n")

    peak = MemoryPeak(tmp_path)
    resident(2048)
    with peak.left_out():
        resident(9000)
    assert (tmp_path / "self" / "clear_refs").read_text() == "5"
    resident(1024)  # as the kernel then says
    assert peak.num_bytes == 2048 << 10
    resident(4096)
    assert peak.num_bytes == 4096 << 10


def test_the_kernel_forgets_a_peak():
    peak = MemoryPeak()
    held = bytearray(200 << 20)
    with_it = peak.num_bytes
    del held
    peak._before = 0
    with peak.left_out():
        pass
    peak._before = 0
    assert peak.num_bytes < with_it - (100 << 20)
