"""An A/A study: one arm twice per round, and the smallest difference that a study of such runs would show here."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from dpcompare.backends.availability import require_framework
from dpcompare.config.cluster import Cluster
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError, RunFailedError
from dpcompare.experiments.analysis import analyse
from dpcompare.experiments.claim_rows import ClaimRow
from dpcompare.experiments.collection import collect
from dpcompare.experiments.statistics import Plan
from dpcompare.experiments.study import Arm, Study, open_study
from dpcompare.experiments.study_runs import Watcher, run_study
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.system.type_names import FieldValue


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
    return claim.measured.interval(Plan().level) if claim.measured else None
