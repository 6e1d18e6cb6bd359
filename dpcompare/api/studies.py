"""Studies from Python: arms trained in interleaved rounds, and what may be claimed of them."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpcompare.api.command_line import read_by, text_of
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError, require_type
from dpcompare.experiments.analysis import analyse
from dpcompare.experiments.arm_rows import ArmRow
from dpcompare.experiments.claim_rows import ClaimRow, GateRow
from dpcompare.experiments.collection import collect
from dpcompare.experiments.comparison import Comparison
from dpcompare.experiments.study import Study as Plan
from dpcompare.experiments.study_runs import results
from dpcompare.results.result import RunResult
from dpcompare.system.terminal_text import pluralize


class Arm:
    """One of the ways of training that a study compares: `Arm("torch:ddp", precision="bfloat16")`."""

    def __init__(self, mode: str, **options: Any) -> None:
        """Args:
        mode: FRAMEWORK:MODE, such as `torch:ddp`.
        options: in which this arm differs from the others, by the names that `--arm` takes, such as `precision`,
            `profile`, `tune` or `batchnorm`.

        Raises:
            RequestError: the mode is not a string.
        """
        require_type(mode, str, "mode")
        self.mode = mode
        self.options = options

    def __str__(self) -> str:
        """The text that `--arm` takes."""
        return ",".join([self.mode, *(f"{name}={_in_arm(value)}" for name, value in self.options.items())])

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"Arm({self.mode!r}{options})"


def _in_arm(value: Any) -> str:
    """A value of an arm's option, several joined by +."""
    if isinstance(value, Mapping):
        return "+".join(f"{key}={text}" for key, text in value.items())
    return "+".join(map(text_of, value)) if isinstance(value, (list, tuple)) else text_of(value)


class Report:
    """What a study or some runs show: claims, figures and the fairness sheet. A notebook shows the page."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        """All of it, as `dpcompare report --json` writes it."""

    @property
    def headline(self) -> str:
        """The answer in a sentence."""
        return self.comparison.headline

    @property
    def claims(self) -> list[ClaimRow]:
        """What is said of each pair of arms: `sentence`, `outcome`, `ratio`, and its interval `low` to `high`."""
        return self.comparison.claims

    @property
    def arms(self) -> list[ArmRow]:
        """The figures of each arm."""
        return self.comparison.arms

    @property
    def gate(self) -> GateRow | None:
        """The gate's answer: `outcome` ("slower", "not slower" or "undecided") and `sentence`; None if the study is not
        a gate."""
        return self.comparison.gate

    @property
    def verdict(self) -> str:
        """Whether all arms are comparable: that of the fairness sheet."""
        return self.comparison.verdict

    @property
    def reasons(self) -> list[str]:
        """Why arms are not comparable, and what to do."""
        return self.comparison.reasons

    def text(self, width: int = 120) -> str:
        """What `dpcompare report` prints first, in lines of at most `width` characters where that is possible."""
        from dpcompare.report.text import as_text

        return as_text(self.comparison, width)

    def save(self, *paths: str | Path) -> None:
        """Write files: a page (.html), Markdown (.md), all figures (.json, .csv, .parquet), or JUnit tests (.xml).

        Raises:
            RequestError: a path ends otherwise, or cannot be written.
        """
        from dpcompare.report import formats, junit, page, records

        renderers: dict[str, Callable[[Comparison], str | bytes]] = {
            ".html": page.as_html,
            ".md": formats.as_markdown,
            ".json": formats.as_json,
            ".csv": records.as_csv,
            ".parquet": records.as_parquet,
            ".xml": junit.as_junit,
        }
        for path in map(Path, paths):
            if path.suffix not in renderers:
                raise RequestError(f"path: received {str(path)!r}, expected one that ends in {', '.join(renderers)}")
            content = renderers[path.suffix](self.comparison)
            try:
                path.write_bytes(content.encode() if isinstance(content, str) else content)
            except OSError as error:
                raise RequestError(f"{str(path)!r} cannot be written ({error.strerror}); choose another name") from None

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """The page, in a frame of a notebook, whose styles and scripts do not meet those of the notebook."""
        from dpcompare.report import page

        content = html.escape(page.as_html(self.comparison), quote=True)
        return f'<iframe srcdoc="{content}" style="width: 100%; height: 640px; border: 0"></iframe>'


class Study:
    """A study in its directory, as `compare` or `gate` made it or another process is making it."""

    def __init__(self, path: str | Path) -> None:
        """Args:
        path: the directory of a study.

        Raises:
            RequestError: there is none.
        """
        require_type(path, (str, Path), "path")
        self.path = Path(path)
        Plan.load(self.path)

    @property
    def plan(self) -> Plan:
        """Everything that decides what is run, and in which order, as it is now."""
        return Plan.load(self.path)

    @property
    def arms(self) -> list[str]:
        """The names of its arms, those without gradient sync left out."""
        return [arm.name for arm in self.plan.arms if arm.ablation_of is None]

    def results(self, arm: str | None = None) -> list[RunResult]:
        """The results of the runs that have ended, round by round.

        Args:
            arm: of one arm, by its name.

        Raises:
            RequestError: there is no such arm.
        """
        plan = self.plan
        names = [each.name for each in plan.arms]
        if arm is not None and arm not in names:
            raise RequestError(f"arm: received {arm!r}, expected one of {', '.join(names)}")
        return [result for each, _, result in results(plan, self.path) if result and arm in (None, each.name)]

    def report(self, *, subject: Sequence[str] = ()) -> Report:
        """What may be claimed so far.

        Args:
            subject: rows of the fairness sheet that the comparison is about, and that may differ.

        Raises:
            RequestError: no run has ended yet.
        """
        require_type(subject, (list, tuple), "subject")
        return Report(analyse(collect([self.path], tuple(subject))))

    def resume(self, *, rounds: int | None = None, retry_failed: bool = False, accept_changed: bool = False) -> Study:
        """Make the runs that are missing, as `dpcompare compare --resume` does.

        Args:
            rounds: more than it had; default: as many.
            retry_failed: whether failed runs are repeated.
            accept_changed: whether it continues though versions or the machine are not those of its last rounds; its
                arms are then NOT COMPARABLE.

        Raises:
            RequestError: it cannot go on, it is a gate, or versions or the machine have changed; nothing was started.
        """
        if self.plan.allowed_loss is not None:
            raise RequestError(f"{str(self.path)!r} is a gate; to continue it, repeat its dp.gate(...) with this out")
        options = {"repeats": rounds, "retry_failed": retry_failed, "accept_changed": accept_changed}
        return _made({"resume": self.path, **options})

    def __repr__(self) -> str:
        described = f"{pluralize(len(self.arms), 'arm')}, {pluralize(self.plan.repeats, 'round')}"
        return f"Study({str(self.path)!r}: {described})"

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()


def compare(
    arms: Sequence[str | Arm] = (),
    workload: Workload | None = None,
    *,
    rounds: int = 6,
    nodes: int | Sequence[int] | None = None,
    devices_per_node: int | Sequence[int] | None = None,
    device: str | None = None,
    out: str | Path | None = None,
    subject: Sequence[str] = (),
    pair: Sequence[str | Arm] = (),
    vary_seed: bool = False,
    margin: float | None = None,
    ablate: bool = False,
    until: str | None = None,
    budget: str | None = None,
    autotune: bool = False,
    skip_unusable: bool = False,
    python: Mapping[str, str] | None = None,
    **options: Any,
) -> Study:
    """Train arms in interleaved rounds, each run in fresh processes, as `dpcompare compare` does.

    Progress is shown on stderr. Ctrl-C ends all processes and raises KeyboardInterrupt; the same call with the same
    `out` continues.

    Args:
        arms: such as `"torch:ddp"`, `"torch:ddp,precision=bfloat16"` or `Arm("torch:ddp", precision="bfloat16")`;
            default: every usual mode that is not emulated here.
        workload: what all of them train; default: `Workload()`.
        rounds: how often each arm is trained; a claim needs 6.
        nodes: numbers of nodes to simulate; every arm runs on each topology that it can have.
        devices_per_node: numbers of devices of each node.
        device: `auto`, `cpu` or `gpu`.
        out: directory of the study; default: below `studies/`.
        subject: rows of the fairness sheet that the study is about, and that may differ.
        pair: the two arms that the study is to judge; all other pairs are then exploratory.
        vary_seed: whether each round has a seed of its own, shared by all arms, so that accuracies can be compared.
        margin: percentage points of accuracy within which two arms count as equally accurate.
        ablate: whether each arm also runs without gradient sync.
        until: add rounds until every interval is as narrow as this, such as `"2%"`.
        budget: with `until`: start no round after this time, such as `"30m"`.
        autotune: whether the fastest settings of arms with `profile=native` are found first.
        skip_unusable: whether arms that cannot run here are left out instead of refused.
        python: framework -> interpreter of the environment that holds it.
        options: further options of `dpcompare compare`, by their names with underscores.

    Returns:
        The study; `study.report().claims[0].sentence` is the first claim.

    Raises:
        RequestError: an arm, an option or the workload cannot be used; nothing was started.
        RunFailedError: every run failed, or the study had to stop; what was measured is kept.
        KeyboardInterrupt: it was interrupted; what was measured is kept.
    """
    if isinstance(arms, (str, Arm)):
        arms = [arms]
    for name, several in (("arms", arms), ("subject", subject), ("pair", pair)):
        require_type(several, (list, tuple), name)
    for arm in (*arms, *pair):
        require_type(arm, (str, Arm), "arms")
    require_type(rounds, int, "rounds")
    for other, argument in (("repeats", "rounds"), ("arm", "arms")):
        if other in options:
            raise RequestError(f"{other}: received {options[other]!r}, expected it as {argument}={options[other]!r}")
    return _made(
        options
        | {
            "arm": list(map(str, arms)) or None,
            "repeats": rounds,
            "nodes": nodes,
            "devices_per_node": devices_per_node,
            "device": device,
            "out": out,
            "subject": list(subject) or None,
            "pair": list(map(str, pair)) or None,
            "vary_seed": vary_seed,
            "margin": margin,
            "ablate": ablate,
            "until": until,
            "budget": budget,
            "autotune": autotune,
            "skip_unusable": skip_unusable,
            "python": python,
        },
        workload,
    )


def gate(
    arm: str | Arm,
    baseline: str | Arm,
    workload: Workload | None = None,
    *,
    allow: str = "2%",
    budget: str = "30m",
    device: str | None = None,
    out: str | Path | None = None,
    subject: Sequence[str] = (),
    python: Mapping[str, str] | None = None,
    **options: Any,
) -> Study:
    """Say whether an arm is slower than a baseline by more than is allowed, as `dpcompare gate` does.

    Both train in the same rounds until a look at them decides or the budget is spent. `study.report().gate` is the
    answer, which may be undecided. Progress is shown on stderr. The same call with the same `out` continues.

    Args:
        arm: the one that is judged, `"torch:ddp"` or an `Arm`.
        baseline: `"env=good"`, which is the arm with that option changed, or another arm.
        workload: what both train; default: `Workload()`.
        allow: the largest loss of steady speed that passes.
        budget: no round starts after this time, such as `"90s"`, `"30m"` or `"2h"`.
        device: `auto`, `cpu` or `gpu`.
        out: directory of the study; default: below `studies/`.
        subject: rows of the fairness sheet that may differ between the two, in addition to environments.
        python: framework -> interpreter of the environment that holds it.
        options: further options of `dpcompare gate`, by their names with underscores, such as `env` or `nodes`.

    Returns:
        The study of the gate.

    Raises:
        RequestError: an arm, an option or the workload cannot be used; nothing was started.
        RunFailedError: a run failed, or the gate had to stop; what was measured is kept.
        KeyboardInterrupt: it was interrupted; what was measured is kept.
    """
    from dpcompare.cli.gate import gate as command
    from dpcompare.cli.gate import gate_asked_for, make_rounds

    for name, one in (("arm", arm), ("baseline", baseline)):
        require_type(one, (str, Arm), name)
    for name, text in (("allow", allow), ("budget", budget)):
        require_type(text, str, name)
    require_type(subject, (list, tuple), "subject")
    given = {"baseline": baseline, "allow": allow, "budget": budget, "device": device, "out": out, "python": python}
    with read_by(command, (str(arm),), workload, options | given | {"subject": list(subject) or None}) as context:
        study, made_in, asked = gate_asked_for(context, context.params)
        make_rounds(study, made_in, asked)
    return Study(made_in)


def load(path: str | Path) -> Study:
    """A study that was made before, by Python or by the command line.

    Args:
        path: its directory.

    Raises:
        RequestError: there is none.
    """
    return Study(path)


def _made(options: Mapping[str, Any], workload: Workload | None = None) -> Study:
    """Make the runs of a study, and return it."""
    from dpcompare.cli.compare import compare as command
    from dpcompare.cli.compare import make_runs, require_any_success, study_asked_for

    with read_by(command, (), workload, options) as context:
        study, out, asked = study_asked_for(context, context.params)
        make_runs(study, out, asked)
    require_any_success(out)
    return Study(out)
