"""What processes take of the cores, by the kernel's counters and by imitations of them."""

import os
import time

import pytest

from dpcompare.system.cores import CoresMeter

TICKS = os.sysconf("SC_CLK_TCK")


def write(proc, *, busy, stolen=0.0, waiting=None):
    """Counters in seconds, of each core that this process may use and of one more that works all the time."""
    proc.mkdir(exist_ok=True)
    cores = sorted(os.sched_getaffinity(0))
    lines = [f"cpu{core} {int(busy * TICKS)} 0 0 900 50 0 0 {int(stolen * TICKS)} 0 0" for core in cores]
    lines.append(f"cpu{cores[-1] + 1} 999999999 0 0 0 0 0 0 0 0 0")
    (proc / "stat").write_text("\n".join(["cpu  1 2 3", *lines, "intr 5"]))
    if waiting is not None:
        (proc / "pressure").mkdir(exist_ok=True)
        (proc / "pressure" / "cpu").write_text(
            f"some avg10=0.00 avg60=0.00 avg300=0.00 total={int(waiting * 1e6)}\nfull avg10=0.00 total=7\n"
        )


def throttle(cpus, core, package, cores_count, package_count):
    folder = cpus / f"cpu{core}"
    (folder / "thermal_throttle").mkdir(parents=True, exist_ok=True)
    (folder / "topology").mkdir(exist_ok=True)
    (folder / "topology" / "physical_package_id").write_text(f"{package}\n")
    (folder / "thermal_throttle" / "core_throttle_count").write_text(f"{cores_count}\n")
    (folder / "thermal_throttle" / "package_throttle_count").write_text(f"{package_count}\n")


def test_differences_of_counters_are_told_after_the_warm_up(tmp_path):
    proc, cpus = tmp_path / "proc", tmp_path / "cpus"
    write(proc, busy=100.0, waiting=5.0)
    for core in (0, 1):
        throttle(cpus, core, 0, cores_count=3, package_count=8)
    meter = CoresMeter(2, proc, cpus)
    meter.count_step()
    write(proc, busy=200.0, stolen=10.0, waiting=6.0)
    meter.count_step()
    write(proc, busy=201.5, stolen=10.25, waiting=7.5)
    throttle(cpus, 1, 0, cores_count=4, package_count=10)
    throttle(cpus, 0, 0, cores_count=3, package_count=10)
    meter.count_step()
    used = meter.used()
    num_cores = len(os.sched_getaffinity(0))
    assert used.cores == num_cores
    assert (used.busy_seconds, used.stolen_seconds) == (1.5 * num_cores, 0.25 * num_cores)
    assert used.waiting_seconds == pytest.approx(1.5)
    assert used.heat_throttles == 3  # once of a core, twice of its package, which two cores tell of
    assert 0 <= used.seconds < 60


def test_the_own_part_is_that_of_this_process():
    meter = CoresMeter(0)
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    used = meter.used()
    assert 0.2 <= used.own_seconds <= used.seconds * used.cores + 0.05
    assert used.busy_seconds >= 0.1


@pytest.mark.parametrize("lines", [None, "cpu  1 2 3 4\n", "cpu9999 1 2 3 4 5 6 7 8 0 0\n"])
def test_a_kernel_silent_about_these_cores_leaves_no_figure(tmp_path, lines):
    if lines is not None:
        (tmp_path / "stat").write_text(lines)
    assert CoresMeter(0, tmp_path, tmp_path).used() is None


def test_without_pressure_and_heat_the_rest_is_told(tmp_path):
    write(tmp_path, busy=1.0)
    used = CoresMeter(0, tmp_path, tmp_path / "none").used()
    assert (used.waiting_seconds, used.heat_throttles, used.busy_seconds) == (None, None, 0.0)


def test_a_run_of_fewer_steps_than_its_warm_up_has_no_figure():
    meter = CoresMeter(3)
    meter.count_step()
    assert meter.used() is None
