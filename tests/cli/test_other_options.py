"""An option that people type under another name is answered with its name here."""

import pytest

from dpcompare.cli import cli
from dpcompare.cli.commands import COMMANDS
from dpcompare.cli.other_options import OTHER_OPTIONS
from tests.support.command import invoke

pytestmark = pytest.mark.unit


def options_of(command):
    return {name for option in command.params for name in (*option.opts, *option.secondary_opts)}


@pytest.fixture(scope="module")
def options():
    """Command -> names of its options."""
    return {name: options_of(command) for name, command in cli.all_commands().items()}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("run --dry-run", "dpcompare plan"),
        ("run --replicas 2", "--devices-per-node"),
        ("run --out runs/a", "--run-dir"),
        ("compare --study-dir studies/a", "--out"),
        ("compare --run-dir studies/a", "--out"),
        ("compare --rounds 6", "--repeats"),
        ("compare --modes ddp", "--arm"),
        ("report studies/a --plot-format pdf", "--plots"),
        ("report studies/a --output page.html", "--html"),
    ],
)
def test_the_option_that_is_meant_is_named(typed, meant):
    refused = invoke(*typed.split())
    assert refused.code == 2
    (unknown,) = [word for word in typed.split() if word.startswith("--")]
    assert refused.stderr.rstrip().endswith(f"No such option {unknown!r}. Did you mean {meant!r}?")


def test_another_unknown_option_is_answered_by_its_likeness():
    assert "'--repeats'" in invoke("compare", "--repeat", "6").stderr
    assert invoke("compare", "--qqqq").stderr.rstrip().endswith("No such option '--qqqq'.")


@pytest.mark.parametrize("typed", OTHER_OPTIONS)
def test_each_answer_exists_and_can_be_given(typed, options):
    """An answer that no command without `typed` has would never be given."""
    for meant in OTHER_OPTIONS[typed]:
        if meant.startswith("-"):
            assert any(meant in known and typed not in known for known in options.values())
        else:
            assert meant.removeprefix("dpcompare ") in COMMANDS
