"""Is dpcompare sound on the GPU of this machine, and how fast is it there? Two parts, for the minutes of a first GPU.

    python -m stress.first_gpu smoke   --out DIR [--seconds 110] [--jobs 16]
    python -m stress.first_gpu figures --out DIR [--seconds 530] [--timm-benchmark FILE]
    python -m stress.first_gpu smoke   --out DIR --device cpu --model toy-bn --image-size 32 --batch 16 --steps 12

`smoke` has every mode train a toy, several at once, since nothing is timed: what cannot run ends here, with its log.
`figures` compares what the GPU computes with the CPU, and then measures, one run after another, what is worth most
first. Each check leaves a line in DIR/PART.jsonl at once; one that no longer fits into --seconds is left out, and its
line says so. Everything is kept in DIR and, but for what is large, in one archive, whose runs `dpcompare report` opens
on any machine. Ends in a table; exit code 3: a check failed. --only CHECK makes one of them. --timm-benchmark names
timm's benchmark.py, which its wheel lacks. A copy of the checkout is enough: neither git nor an installed dpcompare is
needed. The third command tries the script itself, on a machine without GPUs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.evidence import Keeper
from dpcompare.system.devices import gpu_memory, installed_gpus, visible_gpus
from stress.gpu_figures import FIGURES
from stress.gpu_session import Check, Session, about_this
from stress.gpu_smoke import AFTERWARDS, SMOKE


class Part(NamedTuple):
    """A row of PARTS."""

    checks: Sequence[Check]
    afterwards: Sequence[Check]
    """When all others have ended."""
    seconds: float
    jobs: int
    """At once; where figures are measured, one."""


PARTS: Mapping[str, Part] = {
    "smoke": Part(checks=SMOKE, afterwards=AFTERWARDS, seconds=110, jobs=16),
    "figures": Part(checks=FIGURES, afterwards=(), seconds=530, jobs=1),
}


MEMORY_OF_A_JOB = 5e9
"""Bytes of a GPU for each of the jobs at once, most of which are toys (estimated)."""


def _jobs(asked: int | None, part: Part, device: str) -> int:
    """The number that was asked for or, on a small GPU, what it has memory for; one where figures are measured."""
    if part.jobs == 1:
        return 1
    memory = gpu_memory(visible_gpus(installed_gpus())[:1]) if device == "gpu" else None
    return asked or min(part.jobs, max(1, int(memory // MEMORY_OF_A_JOB)) if memory else part.jobs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--jobs", type=int, help="checks of `smoke` at once")
    parser.add_argument("--only", action="append", metavar="CHECK")
    parser.add_argument("--timm-benchmark", type=Path, metavar="FILE")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--model", default="efficientnet-b2")
    parser.add_argument("--image-size", type=int, default=260)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=65)
    parser.add_argument("--warmup-steps", type=int, default=15)
    keeper = Keeper(parser, "stress.first_gpu")
    given = parser.parse_args()
    part = PARTS[given.part]
    known = [check.name for check in (*part.checks, *part.afterwards)]
    if unknown := [name for name in given.only or () if name not in known]:
        parser.error(f"--only: received {', '.join(unknown)}, expected some of {', '.join(known)}")
    given.out.mkdir(parents=True, exist_ok=True)
    session = Session(
        part=given.part,
        out=given.out.absolute(),
        seconds=part.seconds if given.seconds is None else given.seconds,
        jobs=_jobs(given.jobs, part, given.device),
        device=given.device,
        model=given.model,
        image_size=given.image_size,
        batch=given.batch,
        steps=given.steps,
        warmup_steps=min(given.warmup_steps, max(1, given.steps // 4)),
        timm_benchmark=given.timm_benchmark and given.timm_benchmark.absolute(),
    )
    session.write(begins=about_this())
    passed = [
        session.make([check for check in checks if given.only is None or check.name in given.only])
        for checks in (part.checks, part.afterwards)
    ]
    keeper.keep(
        given.write,
        f"first-{given.device}-{given.part}",
        "failed" if not all(passed) else "open" if session.left_out or given.only else "passed",
        tables=[session.table],
        figures={"checks": session.checks, "left_out": session.left_out},
    )
    print(f"{session.archive()}", file=sys.stderr)
    sys.exit(0 if all(passed) else 3)


if __name__ == "__main__":
    main()
