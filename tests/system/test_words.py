"""Numbers with their nouns, wherever a user reads them."""

import ast
import re
from pathlib import Path

import click
import pytest

from dpcompare.cli import cli
from dpcompare.system.terminal_text import joined, pluralize

ROOT = Path(__file__).parents[2]
NOUNS = (
    "arms|classes|cores|devices|epochs|files|folders|GPUs|images|labels|layers|nodes|pairs|processes|replicas|rounds|"
    "runs|samples|stages|steps|tensors|times"
)
PLURALS = re.compile(rf" ({NOUNS})\b(?!/)")
NEVER_ONE = {
    # Numbers that are 2 or more where they are said.
    *("MOST_DEVICES", "BATCH", "num_nodes", "len(devices)", "per_node", "stages", "cluster.num_nodes", "layers", "n"),
    *(
        "config.topology.num_replicas",
        "len(dataset.class_names)",
        "len(manifest.classes)",
        "len(deeper)",
        "len(judged)",
    ),
    *("chance.num_classes", "FEWEST_STEPS", "LATE_STEPS", "self.part_of_tolerance"),
    *("config.stages", "max(done, needed)", "max(best.rounds, needed)", "self.stages", "len(again)", "self.count"),
    *("num_stages", "len(seconds)", "collection.repeats", "num_runs", "num_classes", "len(split)", "expected.count"),
    *(
        "VALIDATED_NODES",
        "MOST_TIMES",
        "ROUNDS_FOR_CLAIM",
        "ASSUMED_LAYERS",
        "TIMES_THE_BATCH",
        "batch",
        "explanation.rounds",
    ),
    # No numbers.
    *("framework", "arm.config.mode", "where"),
    *("device_type", "config.cluster.device_type", "optimizer", "group.workload.optimizer"),
    # Fractions.
    *("ratio", "ratio.value", "explanation.speedup", "remedy.speedup", "speed", "slower", "1 / per_replica"),
    *("per_replica", "arm.cores_per_replica"),
}
NOT_SAID = re.compile(
    r"\bknobs?\b|what is compared|differs or is unknown|runs by itself|loss less that|belongs into|received nothing|"
    r"first step s\b|for want of|nobody runs|are whole|go(es)? on with|to go on\b"
)
"""What a native speaker would not write, or not in this sense."""


@pytest.mark.parametrize(
    ("count", "noun", "words"),
    [
        (1, "run", "1 run"),
        (0, "run", "0 runs"),
        (2, "process", "2 processes"),
        (10, "epoch", "10 epochs"),
        (2, "study", "2 studies"),
        (2, "day", "2 days"),
        (1797, "image", "1,797 images"),
    ],
)
def test_one_is_singular(count, noun, words):
    assert pluralize(count, noun) == words


def test_the_last_of_several_follows_an_and():
    assert [joined("abc"[:number]) for number in (1, 2, 3)] == ["a", "a and b", "a, b and c"]


def strings(path):
    """The nodes of a module's texts, but for docstrings."""
    tree = ast.parse(path.read_text())
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [node for node in ast.walk(tree) if id(node) not in statements]


def modules():
    return sorted((ROOT / "dpcompare").rglob("*.py"))


@pytest.mark.seconds
@pytest.mark.slow
def test_no_text_puts_a_number_before_a_plural():
    """`1 runs` reads as if no one had looked."""
    found = []
    for path in modules():
        for text in strings(path):
            if not isinstance(text, ast.JoinedStr):
                continue
            for value, after in zip(text.values, text.values[1:], strict=False):
                is_number = isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant)
                if is_number and PLURALS.match(after.value) and ast.unparse(value.value) not in NEVER_ONE:
                    found.append(f"{path.name}:{text.lineno}: {ast.unparse(value.value)}{after.value[:30]}")
    assert found == []


@pytest.mark.seconds
def test_what_users_read_has_no_word_that_only_we_understand():
    texts = {
        f"{path.relative_to(ROOT)}:{text.lineno}": text.value
        for path in modules()
        for text in strings(path)
        if isinstance(text, ast.Constant) and isinstance(text.value, str)
    }
    texts |= {
        f"--help of {name}": command.get_help(click.Context(command)) for name, command in cli.all_commands().items()
    }
    page = (ROOT / "dpcompare" / "report" / "page.html.j2").read_text()
    texts["the page"] = re.sub(r"{[{%].*?[%}]}", "", page)
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):  # the changelog says what words were before
        texts[path.name] = path.read_text()
    assert {where: found[0] for where, text in texts.items() if (found := NOT_SAID.search(text))} == {}
