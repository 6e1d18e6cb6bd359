"""One step of torch ddp and of TensorFlow multiworker, traced: where in the step each exchanges its gradients.

    python -m benchmarks.step_timeline [--model efficientnet-b2] [--image-size 64] [--write [FOLDER]]

Each mode trains on two simulated nodes of one CPU device, with a trace of one step after warm-up. The spans are those
of the page's timeline (`dpcompare report --html`). A process waits where it computes nothing: for an exchange, for
another process, or for the host. TensorFlow multiworker traces its first process only. Tracing slows steps down, so
the spans say in which order things happen, and nothing about speed.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.evidence import Keeper, number, table, text
from dpcompare import Cluster, RunConfig, Workload, run
from dpcompare.results.timeline import COMPUTES, SMALLEST_PART, Interval, Timeline, timeline_of, traced_processes

MODES = (("torch", "ddp"), ("tensorflow", "multiworker"))
WARMUP_STEPS = 4
TRACED_STEP = 8
WAITING = "waiting"


def traced(framework: str, mode: str, workload: Workload) -> list[Timeline]:
    """The timelines of the traced step, of each process that keeps a trace."""
    config = RunConfig(
        framework=framework,
        mode=mode,
        workload=workload,
        cluster=Cluster.partition(2, 1, device="cpu"),
        profile_steps=(TRACED_STEP, TRACED_STEP),
    )
    with tempfile.TemporaryDirectory(prefix="dpcompare-step-") as folder:
        run_dir = Path(folder) / "run"
        run(config, run_dir)
        return [timeline_of(run_dir, rank, framework) for rank in traced_processes(run_dir)]


def spans(timeline: Timeline) -> Iterator[tuple[str, float, float]]:
    """Kind, start and end of what a process does, in ms; without what the page draws too small to be seen."""
    kinds = {phase: timeline.drawn(phase) for phase in timeline.parts} | {WAITING: waiting(timeline)}
    for kind, intervals in kinds.items():
        for start, end in intervals:
            if end - start > timeline.milliseconds * SMALLEST_PART:
                yield kind, start, end


def waiting(timeline: Timeline) -> list[Interval]:
    """What lies between the spans in which the process computes."""
    found, computed_until = [], 0.0
    for start, end in sorted(interval for phase in COMPUTES for interval in timeline.drawn(phase)):
        if start > computed_until:
            found.append((computed_until, start))
        computed_until = max(computed_until, end)
    return [*found, (computed_until, timeline.milliseconds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="efficientnet-b2")
    parser.add_argument("--image-size", type=int, default=64)
    keeper = Keeper(parser, "benchmarks.step_timeline")
    arguments = parser.parse_args()
    workload = Workload(
        model=arguments.model,
        image_size=arguments.image_size,
        dataset="synthetic",
        steps=TRACED_STEP + 1,
        warmup_steps=WARMUP_STEPS,
    )
    rows = [
        (f"{framework} {mode}", timeline.process_rank, *span)
        for framework, mode in MODES
        for timeline in traced(framework, mode, workload)
        for span in spans(timeline)
    ]
    columns = [*text("arm"), number("process"), *text("kind"), number("start, ms", ".1f"), number("end, ms", ".1f")]
    keeper.keep(
        arguments.write,
        "step-timeline",
        "measured",
        sentences=["The times of each process begin at its own first event of the step."],
        tables=[table(columns, rows)],
    )


if __name__ == "__main__":
    main()
