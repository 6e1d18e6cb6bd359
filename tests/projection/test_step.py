"""The model of a step: its formulas against figures worked out by hand, and what its terms do."""

import math

import numpy as np
import pytest

from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.projection.calibration import Fitted, MeasuredCell, fit, interconnect_of_run
from dpcompare.projection.exchange import (
    BUCKET,
    default_buckets,
    in_buckets,
    in_one_pack,
    in_shards,
    ready_shares,
    through_servers,
)
from dpcompare.projection.goal import batch_for_efficiency, link_for_efficiency, nodes_for_throughput
from dpcompare.projection.link import (
    PAIR_GATHERS,
    PAIR_GATHERS_FROM,
    TCP_PAYLOAD,
    Interconnect,
    Latency,
    Link,
    duration_in_words,
    duration_of,
    link_between_nodes,
    link_within_nodes,
    rate_in_words,
    rate_of,
)
from dpcompare.projection.remedies import speedup_by_change
from dpcompare.projection.step import (
    Interruptions,
    StepWork,
    TrainingOverheads,
    expected_maximum,
    predict_step,
    seconds_with_exchange,
    slowdown,
    slowest_of_each_step,
    spread_of,
)

FREE = Link(name="free")
BUCKETS = in_buckets([2.05e6, 26.25e6, 2.56e6], [0.29, 0.61, 0.94], backward_ends=0.94)
"""What was measured of EfficientNet-B2 at 64 px on a CPU."""


def connected(nodes, bytes_per_second=math.inf, latency=0.0, **changes):
    seconds = Latency(low=latency, typical=latency, high=latency)
    link = Link(name="link", bytes_per_second=bytes_per_second, latency=seconds)
    return Interconnect(**{"nodes": nodes, "between": link, "within": FREE} | changes)


def work(exchange=BUCKETS, **changes):
    return StepWork(**{"computing_seconds": 0.1, "batch_per_device": 32, "exchange": exchange} | changes)


@pytest.mark.parametrize(
    ("algorithm", "nodes", "seconds"),
    [
        ("ring", 4, 2 * 3 / 4 * 1.0 + 6 * 0.001),
        ("halving", 4, 2 * 3 / 4 * 1.0 + 2 * 2 * 0.001),
        ("tree", 4, 2 * 1.0 + 2 * 2 * 0.001),
        ("ring", 1, 0.0),
    ],
)
def test_an_all_reduce_takes_what_its_algorithm_says(algorithm, nodes, seconds):
    found = connected(nodes, 1e6, 0.001, algorithm=algorithm).wire_seconds("all-reduce", 1e6)
    assert found == pytest.approx(seconds)


def test_a_gather_is_half_an_all_reduce():
    ring = connected(8, 1e9, 1e-5)
    parts = [ring.wire_seconds(kind, 1e6) for kind in ("all-gather", "reduce-scatter")]
    assert sum(parts) == pytest.approx(ring.wire_seconds("all-reduce", 1e6))


@pytest.mark.parametrize(
    ("ranks", "kind", "num_bytes", "times_as_long"),
    [
        ({"nodes": 2}, "all-gather", PAIR_GATHERS_FROM, 1 / PAIR_GATHERS),
        ({"nodes": 2}, "all-gather", PAIR_GATHERS_FROM - 1, 1),
        ({"nodes": 2}, "all-reduce", 1e6, 1),
        ({"nodes": 3}, "all-gather", 1e6, 1),
        ({"nodes": 1, "ranks_per_node": 2}, "all-gather", 1e6, 1),
    ],
)
def test_two_nodes_gather_more_slowly_by_gloo_than_their_link_is(ranks, kind, num_bytes, times_as_long):
    link = Link(name="link", bytes_per_second=1e9)
    links, pairs = (Interconnect(**ranks, between=link, within=link, pair_gathers=part) for part in (1.0, PAIR_GATHERS))
    ratio = pairs.wire_seconds(kind, num_bytes) / links.wire_seconds(kind, num_bytes)
    assert ratio == pytest.approx(times_as_long)


@pytest.mark.parametrize(("collective", "part"), [("gloo", PAIR_GATHERS), ("ring", 1.0), ("nccl", 1.0)])
def test_only_gloo_gathers_more_slowly_between_two(collective, part):
    config = RunConfig(framework="torch", mode="fsdp", cluster=Cluster.partition(2, 1, device="cpu"))
    links = interconnect_of_run(config, collective=collective, between=FREE, within=FREE, cores=2)
    assert links.pair_gathers == part


def test_the_fastest_algorithm_is_the_tree_where_latency_counts():
    many, few = connected(1024, 1e9, 1e-4, algorithm="fastest"), connected(4, 1e9, 1e-6, algorithm="fastest")
    assert many.wire_seconds("all-reduce", 1e6) == pytest.approx(2e-3 + 20 * 1e-4)
    assert few.wire_seconds("all-reduce", 1e9) == pytest.approx(1.5 + 6e-6)


def test_a_hierarchy_spares_steps_between_nodes():
    """8 devices on each of 4 nodes: the link of a node carries fewer bytes, since its devices have summed theirs."""
    within = Link(name="within", bytes_per_second=1e12)
    flat = connected(4, 1e9, ranks_per_node=8, within=within)
    assert flat.wire_seconds("all-reduce", 1e9) == pytest.approx(2 * 31 / 32)
    summed_first = connected(4, 1e9, ranks_per_node=8, within=within, hierarchical=True)
    assert summed_first.wire_seconds("all-reduce", 1e9) == pytest.approx(2 * 3 / 4 + 2 * 7 / 8 * 1e-3)


def test_what_overlaps_is_hidden_and_what_does_not_adds_up():
    exchange = in_buckets([1e6, 1e6], [0.5, 1.0], backward_ends=1.0)
    links = connected(2, 1e7)  # 0.1 s per bucket
    assert seconds_with_exchange(exchange, 1.0, links) == pytest.approx(1.0 + 0.1)
    assert seconds_with_exchange(exchange.without_overlap(), 1.0, links) == pytest.approx(1.0 + 0.2)
    assert seconds_with_exchange(in_one_pack(2e6, backward_ends=0.9), 1.0, links) == pytest.approx(1.0 + 0.2)


def test_buckets_wait_for_those_before_them():
    """The second is ready at 0.5 s and begins at 0.9, when the first has ended; the update takes another 0.2."""
    exchange = in_buckets([8e6, 4e6], [0.1, 0.5], backward_ends=0.8)
    assert seconds_with_exchange(exchange, 1.0, connected(2, 1e7)) == pytest.approx(0.1 + 0.8 + 0.4 + 0.2)


def test_copying_takes_cores_beside_the_wire_and_time_after_it():
    links = connected(2, 1e7, copying=2e-7)  # 0.2 s of copying, 0.1 s of wire
    overlapped = in_buckets([1e6], [0.2], backward_ends=1.0)
    assert seconds_with_exchange(overlapped, 1.0, links) == pytest.approx(1.2)  # not hidden: the cores are busy
    assert seconds_with_exchange(in_one_pack(1e6), 1.0, links) == pytest.approx(1.3)


@pytest.mark.parametrize(
    ("bytes_per_second", "seconds"),
    [
        (1e7, 0.15 + 0.15),  # the wire is slow: while some ranks wait for it, others copy
        (1e9, 2 * 0.15),  # the two cores are busy with what four ranks copy
    ],
)
def test_ranks_that_share_cores_copy_while_others_wait(bytes_per_second, seconds):
    links = connected(4, bytes_per_second, copying=1e-7, contention=2.0)
    assert seconds_with_exchange(in_one_pack(1e6), 1.0, links) == pytest.approx(1.0 + seconds)


def test_shards_are_gathered_twice_and_a_gpu_hides_them():
    layers = [1e6] * 10
    links = connected(2, 1e8)  # 5 ms per gather of a layer
    waiting = seconds_with_exchange(in_shards(layers, waits=True), 1.0, links)
    assert waiting == pytest.approx(1.0 + 3 * 10 * 0.005)
    hidden = seconds_with_exchange(in_shards(layers, waits=False), 1.0, links)
    assert 1.0 + 0.005 <= hidden < 1.02  # the first layer is waited for
    by_gloo = seconds_with_exchange(in_shards(layers, waits=True, reduces_by_all_reduce=True), 1.0, links)
    assert by_gloo == pytest.approx(1.0 + 4 * 10 * 0.005)


def test_the_link_of_a_server_is_shared_by_its_workers():
    exchange = through_servers(1e6)
    few = predict_step(work(exchange), connected(2, 1e8))
    many = predict_step(work(exchange), connected(64, 1e8))
    assert few.seconds == pytest.approx(0.1 + 2 * 0.01)
    assert many.seconds == pytest.approx(64 * 0.01)
    assert many.images_per_second == pytest.approx(32 / 0.01)


def test_default_buckets_are_those_of_torch():
    assert default_buckets(30e6) == [1024 * 1024, BUCKET, 30e6 - BUCKET - 1024 * 1024]
    assert ready_shares([1.0, 1.0], backward_ends=0.9)[-1] == pytest.approx(0.9)
    assert ready_shares([5.0, 5.0], [(2.0, 0.1), (6.0, 0.4), (10.0, 0.8)]) == [0.4, 0.8]


def test_the_slowest_of_many_is_expected_from_the_spread():
    assert expected_maximum(1) == pytest.approx(0.0, abs=1e-9)
    assert expected_maximum(2) == pytest.approx(1 / math.sqrt(math.pi), abs=1e-4)
    assert expected_maximum(1024) == pytest.approx(3.25, abs=0.01)
    assert slowdown(0.1, 2, 2) == 1.0
    assert slowdown(0.1, 1024, 2) == pytest.approx(1.3248 / 1.0564, abs=1e-3)


def test_two_processes_say_how_long_sixteen_wait_for_each_other():
    steps = 0.1 * (1 + 0.15 * np.random.default_rng(0).standard_normal((16, 4000)))
    measured = steps[:2]
    predicted = slowest_of_each_step(measured) * slowdown(spread_of(measured), 16, 2)
    assert predicted == pytest.approx(slowest_of_each_step(steps), rel=0.02)
    assert slowest_of_each_step([[1.0, 4.0, 2.0], [3.0, 1.0, 2.5]]) == 3.0


def test_a_spread_is_of_steps_and_of_processes():
    steps = [0.99, 1.0, 1.01] * 20
    assert spread_of([steps]) == pytest.approx(0.0148, abs=1e-3)
    assert spread_of([[*steps, 50.0]]) == pytest.approx(0.0148, abs=1e-3)  # a stall is none
    assert spread_of([steps, [1.2 * each for each in steps]]) == pytest.approx(0.13, abs=0.01)
    assert spread_of([]) == 0.0


def test_a_step_is_made_of_its_parts():
    step = predict_step(work(spread=0.05, image_bytes=1000), connected(16, 1e8), storage_bytes_per_second=1e5)
    assert step.seconds == pytest.approx(16 * 32 * 1000 / 1e5)
    assert step.computing == 0.1
    assert step.waiting_for_slowest == pytest.approx(0.1 * 0.05 * expected_maximum(16))
    assert min(step.exchange, step.input) > 0
    assert step.efficiency == pytest.approx(0.1 / step.seconds)
    alone = predict_step(work(), connected(1))
    assert (alone.seconds, alone.efficiency) == (0.1, 1.0)


def test_constants_of_other_cells_meet_published_cells():
    """docs/clusters.md: fitted to the link without a limit and 100mbit, judged on 10gbit and 1gbit."""
    measured = {None: 0.30, 100e6: 2.68, 1e9: 0.42, 10e9: 0.28}

    def cell(rate):
        link = Link(name="tc", bytes_per_second=rate / 8, payload=TCP_PAYLOAD) if rate else FREE
        links = Interconnect(nodes=2, between=link, within=FREE)
        return MeasuredCell(exchange=BUCKETS, computing_seconds=0.24, seconds=measured[rate], interconnect=links)

    fitted = fit([cell(None), cell(100e6)])
    assert max(abs(cell(rate).error(fitted)) for rate in (None, 100e6)) < 1e-3
    assert fitted.copying == pytest.approx(1.94e-9, rel=0.02)
    assert cell(1e9).predicted(fitted) == pytest.approx(0.42, rel=0.06)
    assert cell(10e9).predicted(fitted) == pytest.approx(0.28, rel=0.08)
    assert fit([]) == Fitted()


def test_goals_are_reached_by_what_is_named_for_them():
    links = connected(8, 1e8, 1e-5)
    assert predict_step(work(), links).efficiency < 0.5
    rate = link_for_efficiency(work(), links, 0.9)
    assert predict_step(work(), connected(8, rate, 1e-5)).efficiency == pytest.approx(0.9, abs=0.01)
    batch = batch_for_efficiency(work(), links, 0.9)
    assert predict_step(work().with_batch(batch), links).efficiency >= 0.9
    assert predict_step(work().with_batch(batch - 1), links).efficiency < 0.9
    assert nodes_for_throughput(work(), links, 1.0, least=4) == 4
    nodes = nodes_for_throughput(work(), links, 2000)
    assert predict_step(work(), links.with_nodes(nodes)).images_per_second >= 2000
    assert predict_step(work(), links.with_nodes(nodes - 1)).images_per_second < 2000


@pytest.mark.parametrize("words", ["500us", "1ms", "2s", "2.7us", "60s", "5ns"])
def test_durations_are_written_as_they_are_typed(words):
    assert duration_in_words(duration_of(words, "--latency")) == words
    assert duration_in_words(0.9996e-3) == "1ms"


def test_goals_that_nothing_reaches_are_said_so():
    slow = connected(1024, 1e8, 0.01)
    assert link_for_efficiency(work(), slow, 0.9) is None  # latency alone is too much
    assert nodes_for_throughput(work(through_servers(1e6)), connected(2, 1e6), 1e9) is None
    assert batch_for_efficiency(work(spread=0.5), slow, 0.9) is None


@pytest.mark.seconds
@pytest.mark.slow
def test_goals_are_found_below_what_is_too_large():
    """A larger batch has more to lose by a failure, and of more nodes one fails sooner."""
    often = Interruptions(checkpoint_every=1000, checkpoint_seconds=1, node_mtbf_seconds=2e5, restart_seconds=60)
    overheads = TrainingOverheads(interruptions=often)

    def efficiency(batch):
        return overheads.efficiency(work().with_batch(batch), connected(64, 1e8))

    largest = max(map(efficiency, range(1, 2000)))
    assert efficiency(32 * 4096) < largest / 2  # with the largest batch that is tried
    batch = batch_for_efficiency(work(), connected(64, 1e8), 0.99 * largest, overheads)
    assert efficiency(batch) >= 0.99 * largest > efficiency(batch - 1)
    here = efficiency(32)  # that of the table needs no larger batch
    assert batch_for_efficiency(work(), connected(64, 1e8), here, overheads) <= 32

    def speed(nodes):
        return overheads.images_per_second(work(), connected(nodes, 1e8))

    peak = max(range(1, 10_000), key=speed)
    assert speed(1_000_000) < speed(peak) / 2
    nodes = nodes_for_throughput(work(), connected(1, 1e8), 0.999 * speed(peak), overheads)
    assert nodes <= peak
    assert speed(nodes) >= 0.999 * speed(peak) > speed(nodes - 1)


def test_a_larger_batch_keeps_what_is_fixed():
    twice = work(fixed_seconds=0.02).with_batch(64)
    assert twice.computing_seconds == pytest.approx(0.02 + 2 * 0.08)
    assert twice.exchange == BUCKETS


def test_failures_and_checkpoints_take_their_part():
    assert Interruptions().fraction_training(1.0, 1000) == 1.0
    assert Interruptions(checkpoint_every=90, checkpoint_seconds=10).fraction_training(1.0, 1) == pytest.approx(0.9)
    failing = Interruptions(checkpoint_every=100, node_mtbf_seconds=1e6, restart_seconds=50)
    assert failing.fraction_training(1.0, 1000) == pytest.approx(0.9)
    assert failing.fraction_training(1.0, 100_000) == 0.0


def test_faster_links_help_who_waits_and_buckets_a_single_pack():
    assert speedup_by_change(work(), connected(8, 1e7)) == {"a link twice as fast": pytest.approx(2.0, abs=0.1)}
    packed = speedup_by_change(work(in_one_pack(30e6)), connected(2, 1e9))
    assert packed["a link twice as fast"] == pytest.approx((0.1 + 0.03) / (0.1 + 0.015))
    assert 1.0 < packed["gradients in buckets"] < 1.3


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [
        ("100gbit", 12.5e9), ("1Gbit/s", 125e6), ("300MBIT", 37.5e6), ("100Gb/s", 12.5e9), ("10gbps", 1.25e9),
        ("10Gbps", 1.25e9), ("12.5GB/s", 12.5e9), ("200gB", 200e9), ("1GBps", 1e9),
    ],
)  # fmt: skip
def test_rates_are_bits_or_bytes(text, bytes_per_second):
    assert rate_of(text, "--link") == pytest.approx(bytes_per_second)


@pytest.mark.parametrize("text", ["", "fast", "100", "-1gbit", "0gbit", "1 gbit per second", "nan", "1e3gbit"])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(RequestError, match="expected a rate such as 100gbit"):
        rate_of(text, "--link")


@pytest.mark.parametrize("rate", ["100gbit", "8kbit", "1.5mbit", "1000kbit", "2tbit"])
def test_a_rate_in_words_can_be_typed(rate):
    bytes_per_second = rate_of(rate, "--link")
    assert rate_of(rate_in_words(bytes_per_second), "--link") == pytest.approx(bytes_per_second)


def test_links_have_names_and_latencies():
    assert link_within_nodes("nvlink").name == "nvlink-a100"
    assert link_within_nodes("200GB/s").bytes_per_second == 200e9
    with pytest.raises(RequestError, match="Did you mean 'nvlink'"):
        link_within_nodes("nvlnk")
    assert duration_of("5us", "--latency") == pytest.approx(5e-6)
    with pytest.raises(RequestError, match="expected a duration such as 5us"):
        duration_of("5", "--latency")
    given = link_between_nodes("100gbit", "5us").latency
    assert (given.low, given.typical, given.high) == pytest.approx((2.5e-6, 5e-6, 10e-6))
