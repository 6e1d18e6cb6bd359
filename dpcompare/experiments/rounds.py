"""The runs of an arm, round by round, with every figure that reports show of them."""

from __future__ import annotations

from itertools import zip_longest

from dpcompare.experiments.collection import ArmRuns
from dpcompare.experiments.comparison import Round
from dpcompare.experiments.figures import FIGURES, figures_of_run
from dpcompare.system.terminal_text import printable


def rounds_of(arm: ArmRuns) -> list[Round]:
    """Those that were run; a run that was interrupted is made again, and is not among them."""
    rounds = zip(arm.positions, arm.run_dirs, strict=True)
    runs = zip_longest(arm.runs, arm.without_sync)
    return [
        Round(
            number=number,
            position=position,
            run_dir=printable(run_dir),
            failure=arm.failure_of(number),
            remarks=list(dict.fromkeys(remark.kind for remark in run.remarks)) if run else [],
            seed=run.config["workload"].get("seed") if run else None,
            **{name: value for name, value in figures_of_run(run, without_sync).items() if FIGURES[name].of_runs},
        )
        for number, ((position, run_dir), (run, without_sync)) in enumerate(zip(rounds, runs, strict=True), start=1)
        if run_dir or arm.failure_of(number)
    ]
