"""Numbers with their nouns, wherever a user reads them."""

import ast
import re
from pathlib import Path

import pytest

from dpcompare.system.words import counted

READ_BY_USERS = [Path(__file__).parents[2] / "dpcompare" / folder for folder in ("cli", "report")]
PLURALS = re.compile(
    r" (?!and )(?:[a-z]+ )?(arms|devices|epochs|images|nodes|pairs|processes|replicas|rounds|runs|samples|steps)\b(?!/)"
)


@pytest.mark.parametrize(
    ("count", "noun", "words"),
    [(1, "run", "1 run"), (0, "run", "0 runs"), (2, "process", "2 processes"), (1797, "image", "1,797 images")],
)
def test_one_is_singular(count, noun, words):
    assert counted(count, noun) == words


def test_no_text_puts_a_number_before_a_plural():
    """`1 runs` reads as if nobody had looked."""
    found = []
    for path in (path for folder in READ_BY_USERS for path in sorted(folder.glob("*.py"))):
        for text in ast.walk(ast.parse(path.read_text())):
            if not isinstance(text, ast.JoinedStr):
                continue
            for value, after in zip(text.values, text.values[1:], strict=False):
                is_number = isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant)
                if is_number and PLURALS.match(after.value):
                    found.append(f"{path.name}:{text.lineno}: {ast.unparse(value)}{after.value[:30]}")
    assert found == []
