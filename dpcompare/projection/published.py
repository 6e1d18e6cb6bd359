"""Published figures of others against the model: what it says from their model sizes, step times and networks alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpcompare.projection.exchange import (
    BACKWARD_ENDS,
    Exchange,
    default_buckets,
    in_buckets,
    in_one_pack,
    ready_shares,
)
from dpcompare.projection.link import NETWORK_LATENCY, WITHIN_NODES, Algorithm, Interconnect, tcp_link
from dpcompare.projection.step import StepWork, predict_step

MB = 1e6
SPREAD = 0.03
"""The relative spread of a step; none of the sources has it, so the table is also made without."""


@dataclass(frozen=True, kw_only=True)
class PublishedFigure:
    """One figure that somebody measured on a cluster, and what the model needs of it."""

    name: str
    efficiency: float
    source: str
    work: StepWork
    interconnect: Interconnect
    baseline: Interconnect
    """The cluster that the efficiency is relative to."""
    remark: str
    """What was assumed."""
    loses_elsewhere: str | None = None
    """What takes the efficiency that the model, which knows the exchange alone, does not see lost."""

    def predicted(self, *, spread: float = SPREAD) -> float:
        """The efficiency that the model gives."""
        work = replace(self.work, spread=spread)
        alone = predict_step(work, self.baseline)
        return alone.seconds / predict_step(work, self.interconnect).seconds


def _evenly(gradient_bytes: float) -> Exchange:
    buckets = default_buckets(gradient_bytes)
    return in_buckets(buckets, ready_shares(buckets), backward_ends=BACKWARD_ENDS)


def _cluster(nodes: int, gpus: int, gbit: float, within: str, algorithm: Algorithm = "ring") -> Interconnect:
    between = tcp_link(f"{gbit:g}gbit", NETWORK_LATENCY)
    return Interconnect(
        nodes=nodes, ranks_per_node=gpus, between=between, within=WITHIN_NODES[within], algorithm=algorithm
    )


def _goyal(nodes: int, efficiency: float) -> PublishedFigure:
    cluster = _cluster(nodes, 8, 50, "nvlink-p100", "halving")
    return PublishedFigure(
        name=f"ResNet-50, {8 * nodes} P100",
        efficiency=efficiency,
        source="Goyal et al. 2017, arXiv:1706.02677: 100 MB of gradients, 120 ms of backward pass, 50 Gbit/s per node",
        work=StepWork(computing_seconds=0.180, batch_per_device=32, exchange=_evenly(100 * MB)),
        interconnect=replace(cluster, hierarchical=True),
        baseline=replace(cluster, nodes=1),
        remark="the forward pass is taken to be half as long as the backward pass; NVLink 1.0 within nodes, 80 GB/s",
    )


def _horovod(
    model: str, nodes: int, efficiency: float, exchange: Exchange, images_per_second: float
) -> PublishedFigure:
    cluster = _cluster(nodes, 4, 25, "pcie3")
    return PublishedFigure(
        name=f"{model}, {4 * nodes} P100",
        efficiency=efficiency,
        source="Sergeev and Del Balso 2018, arXiv:1802.05799: 4 GPUs and 25 Gbit/s RoCE per node",
        work=StepWork(computing_seconds=64 / images_per_second, batch_per_device=64, exchange=exchange),
        interconnect=cluster,
        baseline=replace(cluster, nodes=1, ranks_per_node=1),
        remark=f"64 images per GPU at {images_per_second:g} images/s of one GPU (TensorFlow's benchmarks of 2017)",
    )


def _nvidia(
    model: str, gpus: int, precision: str, one: float, batch: int, speedup: float, loses_elsewhere: str | None = None
) -> PublishedFigure:
    gradient_bytes = {"EfficientNet-B0": 21.2 * MB, "EfficientNet-B4": 77.4 * MB}[model]
    cluster = _cluster(-(-gpus // 8), 8, 1600, "nvlink-a100", "fastest")
    return PublishedFigure(
        name=f"{model} {precision}, {gpus} A100",
        efficiency=speedup / gpus,
        source="NVIDIA DeepLearningExamples, PyTorch EfficientNet, README: DGX A100, PyTorch 21.03",
        work=StepWork(computing_seconds=batch / one, batch_per_device=batch, exchange=_evenly(gradient_bytes)),
        interconnect=cluster,
        baseline=replace(cluster, nodes=1, ranks_per_node=1),
        remark=f"{batch} images per GPU at {one:g} images/s of one GPU",
        loses_elsewhere=loses_elsewhere,
    )


def _nvidia_tensorflow(
    gpus: int, precision: str, one: float, all_of_them: float, loses_elsewhere: str | None = None
) -> PublishedFigure:
    batch = 512
    cluster = _cluster(-(-gpus // 8), 8, 1600, "nvlink-a100", "fastest")
    exchange = in_one_pack(21.2 * MB)  # Horovod's fusion buffer of 64 MB holds all of it
    return PublishedFigure(
        name=f"EfficientNet-B0 {precision}, {gpus} A100 (TensorFlow)",
        efficiency=all_of_them / one / gpus,
        source="NVIDIA DeepLearningExamples, TensorFlow2 EfficientNet v1, README: DGX A100, TensorFlow 21.09",
        work=StepWork(computing_seconds=batch / one, batch_per_device=batch, exchange=exchange),
        interconnect=cluster,
        baseline=replace(cluster, nodes=1, ranks_per_node=1),
        remark=f"{batch} images per GPU are assumed, at {one:g} images/s of one GPU",
        loses_elsewhere=loses_elsewhere,
    )


VGG16 = in_buckets([83.5 * MB, 411.1 * MB, 58.9 * MB], [0.35, 0.37, 0.95], backward_ends=0.95)
"""Its last layers, which are the first to be ready, have 89% of its 138 million parameters."""
RESNET101 = in_buckets([64 * MB, 64 * MB, 50 * MB], [0.55, 0.75, 0.95], backward_ends=0.95)
"""In Horovod's fusion buffers of 64 MB."""

DALI = "the exchange is hidden; probably the input (DALI on shared cores) takes what is lost, which is not published"
AUGMENTATION = (
    "the exchange is hidden; its README calls the augmentation CPU-bound, and has no figure of what that takes"
)

PUBLISHED: Sequence[PublishedFigure] = (
    _goyal(32, 0.90),
    _goyal(44, 0.89),
    _horovod("VGG-16", 32, 0.79, VGG16, 154),
    _horovod("VGG-16", 128, 0.68, VGG16, 154),
    _horovod("ResNet-101", 32, 0.90, RESNET101, 132),
    _horovod("ResNet-101", 128, 0.90, RESNET101, 132),
    _nvidia("EfficientNet-B0", 8, "TF32", 1078, 256, 7.59),
    _nvidia("EfficientNet-B0", 8, "AMP", 2489, 256, 6.68, DALI),
    _nvidia("EfficientNet-B0", 16, "TF32", 1078, 256, 14.96),
    _nvidia("EfficientNet-B0", 16, "AMP", 2489, 256, 11.78, DALI),
    _nvidia_tensorflow(8, "TF32", 1209, 9119),
    _nvidia_tensorflow(8, "AMP", 3454, 20647, AUGMENTATION),
    _nvidia_tensorflow(16, "AMP", 3454, 40644, AUGMENTATION),
    _nvidia("EfficientNet-B4", 8, "TF32", 157, 64, 7.76),
    _nvidia("EfficientNet-B4", 64, "TF32", 157, 64, 58.05),
    _nvidia("EfficientNet-B4", 64, "AMP", 331, 128, 57.0),
)


def published_table() -> list[str]:
    """A line of Markdown per figure: what was published, what the model says with and without a spread, and why."""
    lines = [
        "| what | published efficiency | model, spread 3% | model, no spread | source and assumptions |",
        "|---|--:|--:|--:|---|",
    ]
    lines += [
        f"| {each.name} | {each.efficiency:.0%} | {each.predicted():.0%} | {each.predicted(spread=0.0):.0%} | "
        f"{'; '.join(filter(None, (each.source, each.remark, each.loses_elsewhere)))} |"
        for each in PUBLISHED
    ]
    return lines
