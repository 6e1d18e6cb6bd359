"""How the package is cut: modules, lines, imports between modules, and names that are kept in lists by hand.

python -m benchmarks.package 1470ae9 HEAD  # a column for each commit
"""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "dpcompare"
LEAST_NAMES = 5
"""The least number of names in a list that is kept manually."""


def counts(tree: Path) -> dict[str, float]:
    """What is counted in a checkout."""
    modules = {_name(path, tree): ast.parse(path.read_text()) for path in sorted((tree / PACKAGE).rglob("*.py"))}
    lines = {name: _lines(tree, name) for name in modules}
    imported = {name: set(_imports(body, modules)) - {name} for name, body in modules.items()}
    fan_in = Counter(target for targets in imported.values() for target in targets)
    functions = [node for body in modules.values() for node in ast.walk(body) if isinstance(node, ast.FunctionDef)]
    inner = [
        node for function in functions for node in ast.walk(function) if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    return {
        "modules": len(modules),
        "lines of the median module": statistics.median(lines.values()),
        "modules above 400 lines": sum(count > 400 for count in lines.values()),
        "modules of the package that a module imports, mean": round(statistics.mean(map(len, imported.values())), 1),
        "modules that one other imports": sum(count == 1 for count in fan_in.values()),
        "imports inside functions": len(inner),
        "names in lists of five and more": sum(map(_names_in_lists, modules.values())),
        "lines of the package": sum(lines.values()),
        "lines of the tests": sum(len(path.read_text().splitlines()) for path in (tree / "tests").rglob("*.py")),
    }


def _name(path: Path, tree: Path) -> str:
    return ".".join(path.relative_to(tree).with_suffix("").parts).removesuffix(".__init__")


def _lines(tree: Path, name: str) -> int:
    base = tree.joinpath(*name.split("."))
    path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    return len(path.read_text().splitlines())


def _imports(body: ast.Module, modules: dict[str, ast.Module]) -> Iterator[str]:
    for node in ast.walk(body):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(PACKAGE):
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                yield inside if inside in modules else node.module


def _names_in_lists(body: ast.Module) -> int:
    """Texts in sets, tuples and lists that stand at the top of a module."""
    found = 0
    for node in body.body:
        value = getattr(node, "value", None)
        for part in ast.walk(value) if isinstance(value, (ast.Call, ast.Set, ast.Tuple, ast.List)) else ():
            if isinstance(part, (ast.Set, ast.Tuple, ast.List)):
                texts = [each for each in part.elts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
                found += len(texts) if len(texts) >= LEAST_NAMES else 0
    return found


def main() -> None:
    """Print a column for each commit."""
    columns = {}
    for commit in sys.argv[1:] or ["HEAD"]:
        with tempfile.TemporaryDirectory() as folder:
            archive = subprocess.run(["git", "archive", commit], check=True, capture_output=True).stdout
            subprocess.run(["tar", "xf", "-", "-C", folder], input=archive, check=True)
            columns[commit] = counts(Path(folder))
    print(f"| | {' | '.join(columns)} |\n|---|{'--:|' * len(columns)}")
    for what in next(iter(columns.values())):
        print(f"| {what} | {' | '.join(f'{column[what]:,}' for column in columns.values())} |")


if __name__ == "__main__":
    main()
