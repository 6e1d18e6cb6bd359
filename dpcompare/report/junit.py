"""A report as JUnit XML, which CI systems show as tests: one for each arm, for a gate, and for each condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from xml.etree import ElementTree as Xml

from dpcompare.experiments.arm_rows import ArmRow
from dpcompare.experiments.claim_rows import GateRow
from dpcompare.experiments.comparison import Comparison


def as_junit(comparison: Comparison, conditions: Mapping[str, Sequence[str]] = MappingProxyType({})) -> str:
    """The XML.

    Args:
        comparison: its arms are tests, which fail where a run of theirs has failed; so is a gate, which fails unless it
            is not slower.
        conditions: of `--fail-if` -> where each holds, which makes it a test that fails.
    """
    suites = Xml.Element("testsuites", name="dpcompare")
    suite = Xml.SubElement(suites, "testsuite", name=comparison.measured)
    properties = Xml.SubElement(suite, "properties")
    for name, value in (("headline", comparison.headline), ("fairness", comparison.summary)):
        Xml.SubElement(properties, "property", name=name, value=value)
    for row in comparison.arms:
        _case(suite, "arms", row.name, row.all_failures, seconds=_seconds(row))
    for condition, lines in (_of_gate(comparison.gate) | dict(conditions)).items():
        _case(suite, "conditions", condition, lines)
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    Xml.indent(suites)
    return Xml.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _of_gate(row: GateRow | None) -> dict[str, Sequence[str]]:
    """What a gate asks -> its answer, unless that is yes."""
    if row is None:
        return {}
    kept = f"{row.candidate} keeps the speed of {row.baseline} within {100 * row.allowed_loss:.3g}%"
    return {kept: [] if row.outcome == "not slower" else [row.sentence]}


def _case(suite: Xml.Element, group: str, name: str, problems: Sequence[str], seconds: float | None = None) -> None:
    case = Xml.SubElement(suite, "testcase", classname=f"dpcompare.{group}", name=name)
    if seconds is not None:
        case.set("time", f"{seconds:.3f}")
    if problems:
        Xml.SubElement(case, "failure", message=problems[0]).text = "\n".join(problems)


def _seconds(row: ArmRow) -> float | None:
    """Of all completed runs of an arm together."""
    known = [shown.wall_seconds for shown in row.rounds_shown if shown.wall_seconds is not None]
    return sum(known) if known else None
