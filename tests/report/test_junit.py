"""JUnit XML: arms and conditions as tests, read back as a CI system reads them."""

from xml.etree import ElementTree as Xml

from dpcompare.report.junit import as_junit
from tests.support.arms import FAST, SLOW, compared, renamed, runs


def read(shown, conditions):
    (suite,) = Xml.fromstring(as_junit(shown, conditions))
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    return suite, {name: getattr(case.find("failure"), "text", None) for name, case in cases.items()}


def test_arms_and_conditions_are_tests():
    shown = compared(runs("torch", "ddp", FAST), runs("tensorflow", "multiworker", SLOW))
    suite, failures = read(shown, {"ratio<0.97": [], "accuracy<0.9": ["accuracy<0.9 holds for a <b>: 0.5", "and c"]})
    assert failures == {
        "torch ddp 2x1": None,
        "tensorflow multiworker 2x1": None,
        "ratio<0.97": None,
        "accuracy<0.9": "accuracy<0.9 holds for a <b>: 0.5\nand c",
    }
    assert (suite.get("tests"), suite.get("failures"), suite.get("name")) == ("4", "1", shown.measured)
    properties = {each.get("name"): each.get("value") for each in suite.iter("property")}
    assert properties == {"headline": shown.headline, "fairness": shown.summary}
    assert float(suite.find("testcase").get("time")) > 0


def test_an_arm_that_failed_is_a_test_that_fails():
    failed = renamed("third", runs("torch", "ddp", [None] * 6))
    failed.failures = ["round 1: killed by signal 9"]
    suite, failures = read(compared(runs("torch", "ddp", FAST), failed), {})
    assert failures["third"] == "round 1: killed by signal 9"
    assert suite.get("failures") == "1"
