"""Values as they are typed: percentages, on the command line and in the file of a study."""

import pytest

from dpcompare.cli.option_values import Percentage
from tests.support.command import invoke

TWO = ["--arm", "torch:single", "--arm", "tensorflow:single", "--vary-seed", "--repeats", "6", "--device", "cpu"]


@pytest.mark.parametrize(
    ("typed", "as_fraction", "as_points"),
    [("95%", 0.95, 95.0), (" 2.5 % ", 0.025, 2.5), ("0.9", 0.9, 0.9), (0.9, 0.9, 0.9), (1, 1.0, 1.0)],
)
def test_a_percentage_is_a_fraction_or_points(typed, as_fraction, as_points):
    assert Percentage().convert(typed, None, None) == as_fraction
    assert Percentage(of_points=True).convert(typed, None, None) == as_points


def test_a_percentage_is_the_fraction_that_one_types():
    """70 hundredths of 1 are 0.7000000000000001: more than 70 right of 100."""
    for percent in range(1, 101):
        assert Percentage().convert(f"{percent}%", None, None) == float(f"{percent}e-2")


@pytest.mark.parametrize("typed", ["%", "many%", "95%%", "nan%", "inf%", "-5%"])
def test_what_is_no_percentage_is_refused(typed):
    refused = invoke("compare", *TWO, "--target-accuracy", typed)
    assert refused.code == 2
    assert "--target-accuracy" in refused.stderr


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.parametrize(("typed", "received"), [("0%", "0"), ("101%", "1.01")])
def test_a_percentage_that_is_no_accuracy_is_refused(typed, received):
    refused = invoke("compare", *TWO, "--target-accuracy", typed)
    assert refused.code == 2
    assert f"target_accuracy: received {received}, expected a fraction" in refused.stderr


@pytest.mark.torch
@pytest.mark.tensorflow
def test_a_file_of_a_study_has_percentages_too(tmp_path):
    (tmp_path / "study.toml").write_text('margin = "2%"\ntarget_accuracy = "90%"\nrepeats = 6\n')
    planned = invoke("compare", tmp_path / "study.toml", *TWO, "--dry-run")
    assert planned.code == 0, planned.stderr
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("margin = [2]\n")
    assert 'expected a number, or a percentage such as "90%"' in invoke("compare", wrong, *TWO, "--dry-run").stderr
