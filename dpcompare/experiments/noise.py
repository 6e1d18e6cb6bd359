"""An A/A study: one arm twice per round, and the smallest difference that a study of such runs would show here."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path

from scipy.stats import t

from dpcompare.backends.availability import require_framework
from dpcompare.config.cluster import Cluster
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError, RunFailedError
from dpcompare.experiments.analysis import analyse
from dpcompare.experiments.collection import collect
from dpcompare.experiments.comparison import ClaimRow
from dpcompare.experiments.statistics import Plan, Ratio, num_trimmed
from dpcompare.experiments.study import Arm, Study, open_study
from dpcompare.experiments.study_runs import Watcher, run_study
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.system.type_names import FieldValue

POWER = 0.8
"""Part of the studies that show a difference of the size that is called detectable."""


def noise_study(rounds: int, device: str, interpreters: Mapping[str, str], workload: Mapping[str, FieldValue]) -> Study:
    """The study of the first framework that is usable here.

    Raises:
        RequestError: none is.
    """
    for framework in FRAMEWORKS:
        given = {"python": interpreters[framework]} if framework in interpreters else {}
        try:
            require_framework(framework, **given)
            break
        except RequestError:
            continue
    else:
        raise RequestError(f"--noise: no framework is usable here; expected one of {', '.join(FRAMEWORKS)}")
    config = prepare_inputs(
        RunConfig(
            framework=framework,
            mode="single",
            workload=Workload(**workload),
            cluster=Cluster.partition(1, 1, device=device),  # type: ignore[arg-type]
            late_step=False,
            **given,
        )
    )
    return Study(arms=tuple(Arm(name=f"{framework} single {name}", config=config) for name in "AB"), repeats=rounds)


def run_noise(study: Study, watcher: Watcher) -> ClaimRow:
    """Run it, and return what it claims.

    Raises:
        RunFailedError: too many of its runs failed.
    """
    with tempfile.TemporaryDirectory(prefix="dpcompare-noise-") as folder:
        path = Path(folder) / "study"
        open_study(study, path)
        run_study(study, path, watcher)
        claims = analyse(collect([path])).claims
    if len(claims) != 1 or interval_of(claims[0]) is None:
        raise RunFailedError("--noise: too many of the runs failed for an answer", "")
    return claims[0]


def interval_of(claim: ClaimRow) -> tuple[float, float] | None:
    """Ends of the interval of a pair that is judged alone, also where most rounds are not sound and nothing is claimed.

    How much runs differ is shown by those that others disturb too. None with too few rounds.
    """
    if claim.ratio is None or claim.standard_error is None:
        return None
    trimmed = num_trimmed(claim.rounds)
    ratio = Ratio(value=claim.ratio, standard_error=claim.standard_error, rounds=claim.rounds, trimmed=trimmed)
    return ratio.interval(Plan().level)


def detectable(low: float, high: float, *, confidence: float, rounds: int) -> float:
    """The smallest ratio, less 1, that studies with such an interval show with probability POWER.

    An interval of half width h = t s / sqrt(n) misses 1 in POWER of the studies when the truth is (t + t') s / sqrt(n)
    away, t and t' being Student's quantiles of the interval's end and of POWER.
    """
    half_width = math.log(high / low) / 2
    end = t.isf((1 - confidence) / 2, rounds - 1)
    return math.expm1(half_width * (1 + t.ppf(POWER, rounds - 1) / end))
