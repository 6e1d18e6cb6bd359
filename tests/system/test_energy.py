"""Energy counters: read where there are any, never made up. The hardware is imitated; no test machine has it."""

import sys

from dpcompare.system.energy import EnergyMeter, gpu_counters, package_counters
from tests.support.nvml import Nvml


def package(folder, name, microjoules, wrap=1000, called="package-0"):
    path = folder / name
    path.mkdir(parents=True)
    (path / "name").write_text(f"{called}\n")
    (path / "max_energy_range_uj").write_text(f"{wrap}\n")
    (path / "energy_uj").write_text(f"{microjoules}\n")
    return path / "energy_uj"


def test_packages_are_added_up_and_their_parts_are_not(tmp_path):
    first = package(tmp_path, "intel-rapl:0", 100)
    package(tmp_path, "intel-rapl:0:0", 100).write_text("900")  # cores, within the package
    second = package(tmp_path, "intel-rapl:1", 0, called="package-1")
    package(tmp_path, "intel-rapl:2", 0, called="psys").write_text("900")  # the platform, packages included
    meter = EnergyMeter(package_counters(tmp_path))
    first.write_text("400")
    second.write_text("50")
    assert meter.joules() == 350e-6


def test_a_counter_that_starts_again_is_followed(tmp_path):
    file = package(tmp_path, "intel-rapl:0", 900)
    meter = EnergyMeter(package_counters(tmp_path))
    file.write_text("99")  # 100 to the end of its range, which is 1000, and one to 0
    assert meter.joules() == 200e-6


def test_without_counters_there_is_no_figure(tmp_path):
    assert EnergyMeter(package_counters(tmp_path)).joules() is None
    (tmp_path / "intel-rapl:0").mkdir()
    assert package_counters(tmp_path) == []


def counting(monkeypatch, *millijoules):
    """GPUs GPU-0000, GPU-1111... with these counters."""
    gpus = {
        f"GPU-{str(index) * 4}": {"Name": "NVIDIA H100", "TotalEnergyConsumption": count}
        for index, count in enumerate(millijoules)
    }
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(gpus))
    return gpus


def test_gpus_are_found_by_number_and_beginning_of_uuid(monkeypatch):
    gpus = counting(monkeypatch, 7, 1500, 500)
    meter = EnergyMeter(gpu_counters(["1", "GPU-2"]))
    assert meter.joules() == 2.0
    gpus["GPU-1111"]["TotalEnergyConsumption"] = 2500
    assert meter.joules() == 3.0


def test_a_counter_that_fails_ends_the_figure_and_not_the_run(monkeypatch, capsys):
    gpus = counting(monkeypatch, 1500, 500)
    meter = EnergyMeter(gpu_counters(["0", "1"]))
    assert meter.joules() == 2.0
    gpus["GPU-1111"]["TotalEnergyConsumption"] = None  # the driver has lost it
    assert meter.joules() is None
    gpus["GPU-1111"]["TotalEnergyConsumption"] = 9000  # a difference to a reading before would mean nothing
    assert meter.joules() is None
    assert capsys.readouterr().err.count("cannot be read any more") == 1


def test_one_gpu_without_a_counter_leaves_no_figure(monkeypatch):
    counting(monkeypatch, 1500, None)
    assert gpu_counters(["0", "1"]) == []
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    assert gpu_counters(["0"]) == []
