"""What holds of all modules of tests: where helpers stand, and how long the names of tests are."""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]


def parsed():
    """Each module of tests/ as (path from there, its syntax tree)."""
    return [(path.relative_to(TESTS), ast.parse(path.read_text())) for path in sorted(TESTS.glob("**/*.py"))]


def imported(tree):
    """The modules that a module names in its imports, those of programs that it writes as strings too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for line in node.value.replace(";", "\n").splitlines():
                words = line.split()
                if words[:1] in (["import"], ["from"]):
                    yield words[1] if len(words) > 1 else ""


def test_no_module_of_tests_imports_another():
    """What several share stands in tests/support/ or in a conftest.py."""
    found = [(str(path), name) for path, tree in parsed() for name in imported(tree)]
    assert not [(path, name) for path, name in found if any(part.startswith("test_") for part in name.split("."))]


def test_the_name_of_a_test_has_at_most_60_characters():
    """A report shows it on one line, behind the path of its file."""
    functions = [(str(path), node) for path, tree in parsed() for node in ast.walk(tree)]
    names = [(path, node.name) for path, node in functions if isinstance(node, ast.FunctionDef)]
    assert not [(path, name) for path, name in names if name.startswith("test_") and len(name) > 60]
