"""What is recorded of GPUs, by an imitated NVML; no test machine has one."""

import sys
from types import SimpleNamespace

import pytest

from dpcompare.system.gpu_state import CLOCK_REASONS, GpuReading, near_numa_nodes, read_again, read_gpus
from tests.support.nvml import H100, Nvml


@pytest.fixture
def install(monkeypatch):
    def put(*arguments, **options):
        nvml = Nvml(*arguments, **options)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        return nvml

    return put


def test_what_nvml_tells_is_recorded_before_and_after(install):
    nvml = install({"GPU-aaaa": dict(H100), "GPU-bbbb": dict(H100)})
    (before,) = read_gpus(["1"], ["1"])
    nvml.gpus["GPU-bbbb"] |= {("ClockInfo", 1): 1755, "CurrentClocksEventReasons": 0x4}
    (state,) = read_again([before])
    assert (state.device, state.uuid, state.name) == ("1", "GPU-bbbb", "NVIDIA H100 80GB HBM3")
    assert state.memory_bytes == 85_520_809_984
    assert (state.max_sm_clock_mhz, state.max_memory_clock_mhz) == (1980, 2619)
    assert (state.persistence_mode, state.ecc, state.mig) == (True, True, False)
    assert (state.cpus, state.numa_nodes) == ("0-3,16-19,64", [1])
    assert state.links == {}
    assert state.before == GpuReading(
        power_limit_watts=700,
        sm_clock_mhz=345,
        memory_clock_mhz=2619,
        application_sm_clock_mhz=1980,
        application_memory_clock_mhz=2619,
        pcie_generation=5,
        pcie_width=16,
        clock_reasons=["idle"],
        thermal_slowdown_seconds=2.0,
    )
    assert state.after == state.before.model_copy(update={"sm_clock_mhz": 1755, "clock_reasons": ["power limit"]})
    assert state.slowdown is None  # a GPU at its power limit is as it should be
    assert state.settings == (
        "power limit 700 W, clocks at most 1980/2619 MHz, application clocks 1980/2619 MHz, ECC on, MIG off"
    )


@pytest.mark.parametrize("bit", [0x08, 0x20, 0x40, 0x80])
def test_heat_and_the_supply_of_power_are_named(install, bit):
    nvml = install({"GPU-aaaa": dict(H100)})
    before = read_gpus(["0"], ["0"])
    nvml.gpus["GPU-aaaa"]["CurrentClocksEventReasons"] = bit | 0x4
    (state,) = read_again(before)
    assert state.slowdown == CLOCK_REASONS[bit]


def test_heat_that_has_passed_is_counted(install):
    nvml = install({"GPU-aaaa": dict(H100)})
    before = read_gpus(["0"], ["0"])
    assert before[0].slowdown is None
    nvml.gpus["GPU-aaaa"][("ViolationStatus", 1)] = SimpleNamespace(violationTime=3_500_000_000)
    assert read_again(before)[0].slowdown == "thermal slowdown for 1.5 s of the training"


def test_a_power_limit_changed_meanwhile_is_in_the_settings(install):
    nvml = install({"GPU-aaaa": dict(H100)})
    before = read_gpus(["0"], ["0"])
    nvml.gpus["GPU-aaaa"]["EnforcedPowerLimit"] = 350_000
    assert read_again(before)[0].settings.startswith("power limit 700 W, later 350 W, ")


def test_what_is_not_supported_is_none(install):
    install({"GPU-aaaa": {"Name": "GPU"}, "GPU-bbbb": {"Name": "GPU"}})
    (state,) = read_again(read_gpus(["0"], ["0", "1"]))
    told = state.model_dump(exclude={"device", "uuid", "name", "links", "before", "after"})
    assert set(told.values()) == {None}
    assert state.links == {"GPU-bbbb": None}
    assert state.before == state.after == GpuReading()
    assert state.slowdown is None
    assert state.settings == "power limit ?, clocks at most ?/?, application clocks ?/?, ECC ?, MIG ?"


def test_bindings_without_a_function_are_no_error(install, monkeypatch):
    nvml = install({"GPU-aaaa": dict(H100)})
    monkeypatch.delattr(Nvml, "__getattr__")  # now only what is defined is there
    assert not hasattr(nvml, "nvmlDeviceGetApplicationsClock")
    nvml.nvmlDeviceGetName = lambda handle: "NVIDIA H100"
    (state,) = read_gpus(["0"], ["0"])
    assert (state.name, state.before) == ("NVIDIA H100", GpuReading())


def test_without_the_bindings_the_record_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    states = read_again(read_gpus(["0", "GPU-bbbb"], ["0", "GPU-bbbb"]))
    assert [(state.device, state.unread) for state in states] == [
        (name, "NVML: nvidia-ml-py is not installed") for name in ("0", "GPU-bbbb")
    ]


def test_gpus_are_found_by_the_beginning_of_their_uuid(install):
    install({"GPU-aaaa": dict(H100), "GPU-bbbb": dict(H100) | {"EnforcedPowerLimit": 500_000}})
    (state, unknown) = read_again(read_gpus(["GPU-bb", "7"], ["GPU-bb"]))
    assert (state.device, state.uuid, state.before.power_limit_watts) == ("GPU-bb", "GPU-bbbb", 500)
    assert unknown.unread == "NVML lists no GPU 7"


def test_a_part_of_a_gpu_has_the_clocks_and_power_of_the_whole(install):
    part = {"Name": "NVIDIA H100 80GB HBM3 MIG 3g.40gb", "MemoryInfo": SimpleNamespace(total=42_000_000_000)}
    install({"GPU-aaaa": H100 | {"MigMode": [1, 1]}, "MIG-1": part}, mig={"GPU-aaaa": ["MIG-1"]})
    (state,) = read_gpus(["MIG-1"], ["MIG-1"])
    assert (state.uuid, state.name, state.memory_bytes) == ("MIG-1", part["Name"], 42_000_000_000)
    assert (state.mig, state.max_sm_clock_mhz, state.before.power_limit_watts) == (True, 1980, 700)


def linked(ends, pairs):
    """The link between two GPUs, the first of which has NVLinks to these ends."""
    answers = {("NvLinkState", number): 1 for number in range(len(ends))}
    answers |= {("NvLinkRemotePciInfo", number): SimpleNamespace(busId=end) for number, end in enumerate(ends)}
    return (
        {"GPU-aaaa": H100 | answers, "GPU-bbbb": H100 | {"PciInfo": SimpleNamespace(busId="bb")}},
        {(name, "GPU-aaaa", "GPU-bbbb", *rest): value for (name, *rest), value in pairs.items()},
    )


@pytest.mark.parametrize(
    ("ends", "pairs", "link"),
    [
        (["bb", "cc", "bb"], {("P2PStatus", 2): 0}, "2 NVLinks"),
        (["switch"] * 18, {("P2PStatus", 2): 0}, "18 NVLinks"),
        (["cc"], {("P2PStatus", 2): 5, ("P2PStatus", 1): 0, ("TopologyCommonAncestor",): 10},
         "PCIe across one PCIe switch, from peer to peer"),
        ([], {("TopologyCommonAncestor",): 50}, "PCIe across several NUMA nodes, through the host"),
    ],
    ids=["direct", "switch", "PCIe", "host"],
)  # fmt: skip
def test_links_are_told_apart(install, ends, pairs, link):
    gpus, of_pairs = linked(ends, pairs)
    install(gpus, pairs=of_pairs)
    (state,) = read_gpus(["0"], ["0", "1"])
    assert state.links == {"GPU-bbbb": link}


def test_the_numa_nodes_near_gpus_are_those_of_the_whole(install, monkeypatch):
    part = {"Name": "NVIDIA H100 80GB HBM3 MIG 3g.40gb"}
    install({"GPU-aaaa": dict(H100), "GPU-bbbb": {"Name": "GPU"}, "MIG-1": part}, mig={"GPU-aaaa": ["MIG-1"]})
    assert near_numa_nodes(["GPU-aa", "MIG-1", "1", "7"]) == [{1}, {1}, set(), set()]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert near_numa_nodes(["0", "1"]) == [set(), set()]
