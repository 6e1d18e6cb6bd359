"""The explanation of a run, from runs whose steps are made up: its words, floors, and what would help by how much."""

import json
import re

import pytest

from dpcompare.config.cluster import Cluster
from dpcompare.config.placement import Placement
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.errors import RunFailedError
from dpcompare.experiments.study import open_study
from dpcompare.experiments.variants import variants_of
from dpcompare.launch.inputs import prepare_compared
from dpcompare.models.state import Gradients
from dpcompare.projection.explanation import explain
from dpcompare.projection.remedies import floors_of
from dpcompare.report.explained import as_markdown, as_text
from dpcompare.system.gpu_state import GpuReading, GpuState
from tests.support.results import result
from tests.support.step_parts import SYNCHRONOUS, constant, write_runs

pytestmark = pytest.mark.seconds

STEPS = 20
GRADIENT_BYTES = 4 * (16 * 16 * 3 * 512 + 512 + 512 * 10 + 10)
"""Bytes of the gradients of the model mlp at 16 px."""


def config(framework="torch", mode="ddp", nodes=2, *, placement=None, workload=None):
    chosen = {"model": "mlp", "image_size": 16, "global_batch_size": 32, "steps": STEPS, "warmup_steps": 0}
    return RunConfig(
        framework=framework,
        mode=mode,
        workload=Workload(**chosen | (workload or {})),
        cluster=Cluster.partition(nodes, 1, device="cpu", num_cores=2),
        placement=placement or Placement(),
    )


def explained(folder, seconds, *, base=None, rounds=6, failed=(), slower=None, measured_link=None, busy=()):
    """What is said of a run whose variants took these seconds per step and process.

    `slower` is how many times as long it took without exchange, by round; `busy` are the rounds in which other
    processes took cores.
    """
    found = variants_of(base or config(), "mine")
    study = found.study(rounds)
    configs = prepare_compared([arm.config for arm in study.arms])
    arms = (arm.model_copy(update={"config": made}) for arm, made in zip(study.arms, configs, strict=True))
    study = open_study(study.model_copy(update={"arms": tuple(arms)}), folder)
    found = found.prepared(study)
    known = Gradients(num_bytes=GRADIENT_BYTES)
    write_runs(study, folder, found, seconds, failed=failed, slower=slower, busy=busy, gradients=known)
    return explain(study, folder, found, measured_link=measured_link)


def rows(explanation):
    return {row.part: row for row in explanation.parts}


def test_what_bounds_a_run_is_named_with_what_would_help(tmp_path):
    found = explained(tmp_path / "study", SYNCHRONOUS)
    assert found.verdict.startswith("This run is bound by exchange: 29% of a step (interval 29% to 29%), 50 ms.")
    assert {part for part, row in rows(found).items() if row.stands_out} == {
        "input", "exchange", "waiting", "launching",
    }  # fmt: skip
    assert found.slowest == "Process 1, on node 1, takes 1.25 times as long as the others to compute, in every round."
    assert found.speedup == pytest.approx(2 * 60 / 150)  # without the input, for which one device would wait too
    best = found.remedies[0]
    # Four batches in the time of one, and of three times what the images take: 30 ms of computing and 20 of input.
    assert best.speedup == pytest.approx(4 * 170 / (170 + 3 * 50))
    assert (best.changes, best.at_most) == ({"global_batch_size": "128"}, False)
    at_most = {remedy.part: remedy.speedup for remedy in found.remedies if remedy.at_most}
    assert at_most == {
        "input": pytest.approx(170 / 150), "waiting": pytest.approx(170 / 150), "exchange": pytest.approx(170 / 120),
    }  # fmt: skip
    assert [each.speedup for each in found.remedies] == sorted((each.speedup for each in found.remedies), reverse=True)
    json.dumps(found.model_dump(mode="json"), allow_nan=False)


def test_of_a_healthy_run_nothing_stands_out(tmp_path):
    seconds = SYNCHRONOUS | {
        "as_it_is": constant(0.105, 0.105),
        "no_exchange": constant(0.100, 0.101),
        "no_input": constant(0.103, 0.103),
        "computing_alone": constant(0.099, 0.1),
        "larger_batch": constant(0.378, 0.380),
    }
    found = explained(tmp_path / "study", seconds)
    assert found.verdict == (
        "Nothing stands out: no part other than computing is shown to take 10% of a step or more. 89% of a step is "
        "computing."
    )
    assert [(remedy.part, remedy.speedup) for remedy in found.remedies] == [("computing", None)]
    assert found.slowest is None


def test_rounds_that_differ_too_much_do_not_say_all_is_well(tmp_path):
    seconds = SYNCHRONOUS | {
        "no_input": constant(0.169, 0.169),
        "computing_alone": constant(0.098, 0.100),
        "larger_batch": constant(0.374, 0.379),
    }
    found = explained(tmp_path / "study", seconds, slower={1: 0.1, 2: 1.5, 3: 1.5})
    assert found.verdict.startswith("Inconclusive: exchange may take ")
    assert "but the rounds vary too much to say. Run more rounds (--repeats)" in found.verdict
    assert found.remedies[0].speedup is not None


def test_other_processes_come_first_where_they_took_most_runs(tmp_path):
    """The same steps are bound by exchange where the machine is idle."""
    found = explained(tmp_path / "study", SYNCHRONOUS, busy=(1, 2, 3, 4))
    taken = "DISTURBED in 24 of 36 runs, such as: other processes took 1.4 of 2 cores while this run was measured"
    assert found.others == taken
    assert found.verdict.startswith(f"Other processes come first: {taken}. Nothing is claimed of the parts of a step")
    assert not any(row.stands_out for row in found.parts)
    assert found.remedies[0].part == "other processes"
    text = as_text(found, 100)
    assert " ".join(text.split()).count(taken) == 1
    assert "what would help:\n  Free the cores of other processes" in text


def test_few_disturbed_runs_are_a_cause_where_nothing_stands_out(tmp_path):
    clear = explained(tmp_path / "clear", SYNCHRONOUS, busy=(1, 2, 3))
    assert clear.verdict.startswith("This run is bound by exchange")
    assert clear.others.startswith("DISTURBED in 18 of 36 runs")
    seconds = SYNCHRONOUS | {
        "no_input": constant(0.169, 0.169),
        "computing_alone": constant(0.098, 0.100),
        "larger_batch": constant(0.374, 0.379),
    }
    unclear = explained(tmp_path / "unclear", seconds, slower={1: 0.1, 2: 1.5, 3: 1.5}, busy=(1,))
    assert unclear.verdict.startswith(f"{unclear.others}. Inconclusive: exchange may take ")
    assert unclear.remedies[0].part != "other processes"


def test_no_share_below_0_or_above_100_percent_is_printed(tmp_path):
    """Without exchange the run took up to six times as long, which no share can say."""
    found = explained(tmp_path / "study", SYNCHRONOUS, slower={1: 6.0, 2: 0.1, 3: 5.0, 4: 0.2, 5: 6.0, 6: 4.0})
    exchange = rows(found)["exchange"]
    assert exchange.low < exchange.share < 0 < exchange.high
    assert exchange.is_cut
    assert (exchange.share_in_words, exchange.milliseconds_shown) == ("0%", 0.0)
    for printed in (as_text(found, 100), as_markdown(found)):
        percents = [int(number) for number in re.findall(r"(-?\d+)%", printed)]
        assert len(percents) > 10
        assert all(0 <= percent <= 100 for percent in percents)
        assert "Noise between the runs goes below 0% or above 100% of a step in exchange" in " ".join(printed.split())


def test_an_overlap_that_costs_time_has_milliseconds_alone(tmp_path):
    """Leaving out both saves more than each alone: input and exchange slow each other down."""
    seconds = SYNCHRONOUS | {"no_exchange": constant(0.160, 0.160), "no_input": constant(0.165, 0.165)}
    apart = rows(explained(tmp_path / "study", seconds))["together"]
    assert apart.share > 0
    slowing = rows(explained(tmp_path / "other", SYNCHRONOUS | {"no_exchange": constant(0.080, 0.080)}))["together"]
    assert slowing.share < 0
    assert (slowing.share_in_words, slowing.interval_in_words) == ("-", "-")
    assert slowing.milliseconds_shown == slowing.milliseconds < 0


def test_few_rounds_claim_nothing(tmp_path):
    found = explained(tmp_path / "study", SYNCHRONOUS, rounds=2)
    assert found.verdict.startswith(
        "FIRST LOOK: 2 of 6 rounds, nothing is claimed. The largest part other than computing is"
    )
    assert not any(row.stands_out or row.low for row in found.parts)
    assert (found.confidence, found.slowest) == (None, None)
    waiting = next(remedy for remedy in found.remedies if remedy.part == "waiting")
    assert "check what else each machine runs" in waiting.words  # not that of one process, which may be chance


def test_a_limited_link_has_a_floor_that_a_faster_one_lowers(tmp_path):
    """One pack of gradients after the backward pass: the model's ring on a link of 100 Mbit/s."""
    placement = Placement(engine="namespaces", link="100mbit")
    base = config("tensorflow", "multiworker", placement=placement)
    wire = GRADIENT_BYTES / (100e6 / 8 * 1448 / 1514)  # a ring of two sends all of it once
    seconds = SYNCHRONOUS | {
        "as_it_is": constant(0.12 + wire, 0.12 + wire),
        "no_input": constant(0.1 + wire, 0.1 + wire),
    }
    found = explained(tmp_path / "study", seconds, base=base)
    exchange = rows(found)["exchange"]
    assert exchange.milliseconds == pytest.approx(1000 * wire)
    assert exchange.floor_milliseconds == pytest.approx(1000 * wire, rel=0.01)
    twice = next(remedy for remedy in found.remedies if remedy.changes == {"link": "200mbit"})
    assert twice.speedup == pytest.approx((0.12 + wire) / (0.12 + wire / 2), rel=0.02)
    assert not twice.at_most
    assert any(remedy.changes == {"framework": "torch", "mode": "ddp"} for remedy in found.remedies)


def test_a_link_between_real_machines_is_the_one_that_is_named(tmp_path):
    """The same on two machines: nothing but the option tells how they are linked."""
    machines = Cluster.of_machines(2, 1, device_type="cpu", num_cores=2)
    hosts = Placement(engine="hosts", hosts=("a", "b"))
    base = config("tensorflow", "multiworker").model_copy(update={"cluster": machines, "placement": hosts})
    wire = GRADIENT_BYTES / (100e6 / 8 * 1448 / 1514)
    seconds = SYNCHRONOUS | {"as_it_is": constant(0.12 + wire, 0.12 + wire)}
    named = explained(tmp_path / "named", seconds, base=base, measured_link="100mbit")
    assert rows(named)["exchange"].floor_milliseconds == pytest.approx(1000 * wire, rel=0.01)
    (twice,) = (remedy for remedy in named.remedies if "200mbit" in remedy.words)
    assert twice.speedup == pytest.approx((0.12 + wire) / (0.12 + wire / 2), rel=0.02)
    assert twice.changes == {}  # no option of a run makes it
    unnamed = explained(tmp_path / "unnamed", seconds, base=base)
    assert rows(unnamed)["exchange"].floor_milliseconds is None
    assert "name it with --measured-link" in rows(unnamed)["exchange"].floor


def test_nothing_is_predicted_of_an_exchange_that_has_no_model(tmp_path):
    base = config("jax", "multiprocess", placement=Placement(engine="namespaces", link="100mbit"))
    found = explained(tmp_path / "study", SYNCHRONOUS, base=base)
    assert {remedy.part for remedy in found.remedies if not remedy.at_most} == {"launching"}


def test_buckets_that_cannot_be_hidden_are_the_links(tmp_path):
    """Measured on a link of 100 Mbit/s: 165 ms, without exchange 44."""
    base = config(placement=Placement(engine="namespaces", link="100mbit"))
    seconds = SYNCHRONOUS | {"as_it_is": constant(0.165, 0.165), "no_exchange": constant(0.044, 0.044)}
    found = explained(tmp_path / "study", seconds, base=base)
    twice = next(remedy for remedy in found.remedies if remedy.changes == {"link": "200mbit"})
    assert 1.4 < twice.speedup < 165 / 98  # half of the wire's 133 ms at most
    disturbed = SYNCHRONOUS | {"as_it_is": constant(0.3, 0.3), "no_exchange": constant(0.044, 0.044)}
    unexplained = explained(tmp_path / "other", disturbed, base=base)  # copying of 80 ns per byte would explain it
    assert not any("link" in remedy.changes for remedy in unexplained.remedies)


def test_what_could_not_be_measured_is_said_with_the_reason(tmp_path):
    found = explained(tmp_path / "study", SYNCHRONOUS, failed=("larger batch",))
    assert found.unmeasured == {"launching": "mine one batch without gradient sync 4x as large failed: out of memory"}
    assert {"computing", "launching"}.isdisjoint(rows(found))
    alone = {"as_it_is": constant(0.1), "no_input": constant(0.05), "larger_batch": constant(0.08)}
    single = explained(tmp_path / "single", alone, base=config(mode="single", nodes=1))
    assert "Not measured: contention between devices (the run has only one device)." in as_text(single, 200)
    assert set(single.unmeasured) == {"exchange", "waiting", "sharing"}
    assert single.unmeasured["exchange"] == "one replica has no other to exchange gradients with"
    with pytest.raises(RunFailedError, match="cannot be explained: mine failed: out of memory"):
        explained(tmp_path / "failed", SYNCHRONOUS, failed=("as it is",))


def test_a_step_that_must_exchange_says_what_is_unknown(tmp_path):
    seconds = {"as_it_is": constant(0.1, 0.1), "no_input": constant(0.09, 0.09), "one_device": constant(0.05)}
    found = explained(tmp_path / "study", seconds | {"larger_batch": constant(0.14)}, base=config(mode="fsdp"))
    devices = rows(found)["devices"]
    assert (devices.stands_out, devices.floor_milliseconds) == (True, None)
    assert "this mode has no step without its exchange" in devices.floor
    assert (
        "Not measured: exchange, waiting for the slowest, contention between devices (torch fsdp has no step without "
        "its exchange)."
    ) in as_markdown(found)


def test_the_bus_of_a_gpu_is_its_slowest_link_while_it_trains():
    cluster = Cluster.of_machines(1, 2, device_type="gpu", num_cores=8)
    workload = Workload(model="mlp", image_size=64, global_batch_size=128)
    placement = Placement(engine="slurm")
    base = RunConfig(framework="torch", mode="ddp", workload=workload, cluster=cluster, placement=placement)
    idle, full = GpuReading(pcie_generation=1, pcie_width=8), GpuReading(pcie_generation=4, pcie_width=16)
    half = GpuReading(pcie_generation=4, pcie_width=8)
    gpus = [GpuState(device="0", before=idle, after=full), GpuState(device="1", before=idle, after=half)]
    node = {"node_rank": 0, "host": "here", "device_names": ["cuda:0", "cuda:1"], "versions": {}}
    known = {"device_type": "gpu", "gradients": Gradients(num_bytes=10**9)}
    run = result(**known, nodes=[node | {"gpus": [each.model_dump() for each in gpus]}])
    floors = floors_of(base, run)
    num_bytes = 64 * (64 * 64 * 3 + 3 * 256 * 4)
    assert floors["input"].seconds == pytest.approx(num_bytes / (31.5e9 / 2 * 0.78))
    assert floors["exchange"].seconds == pytest.approx(1e9 / (31.5e9 / 2 * 0.78), rel=0.01)
    linked = [each.model_copy(update={"links": {"other": "12 NVLinks"}}).model_dump() for each in gpus]
    by_nvlink = result(**known, nodes=[node | {"gpus": linked}])
    assert floors_of(base, by_nvlink)["exchange"].seconds is None
    # Between nodes the link is the limit, where those within are faster; PCIe would be a slower one.
    two_nodes = base.model_copy(update={"cluster": Cluster.of_machines(2, 2, device_type="gpu", num_cores=8)})
    over_pcie, over_nvlink = (
        floors_of(two_nodes, each, measured_link="400gbit")["exchange"].seconds for each in (run, by_nvlink)
    )
    assert over_pcie > 3 * over_nvlink > 3 * 1e9 / (400e9 / 8)


def test_text_and_markdown_have_the_same_figures(tmp_path):
    found = explained(tmp_path / "study", SYNCHRONOUS)
    text, markdown = as_text(found, 100), as_markdown(found)
    for row in found.parts:
        assert row.words in text
        assert row.words in markdown
        figures = [row.share_in_words, f"{row.milliseconds_shown:.3g}"]
        line = next(line for line in text.splitlines() if line.removeprefix("of which ").startswith(row.words))
        assert all(figure in line.split() for figure in figures)
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "**This run is bound by exchange" in markdown
    assert "| input * | 12% |" in markdown
