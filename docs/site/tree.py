"""The tree of packages and modules in docs/package_layout.md, made from their first sentences.

python -m docs.site.tree  # writes it
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dpcompare"
PAGE = ROOT / "docs" / "package_layout.md"
TREE = re.compile(r"(?<=```\n)dpcompare/\n.*?(?=```)", re.DOTALL)
ORDER = ("cli", "report", "projection", "experiments", "launch", "training", "backends", "results", "config", "data",
         "models", "system")  # fmt: skip
"""From the entry points down."""
COLUMN, WIDTH = 29, 120
NO_BREAK = "\u00a0"


def tree() -> str:
    """A line for each package and module, with its first sentence."""
    lines = ["dpcompare/"]
    for name in ORDER:
        lines += _entry(f"  {name}/", PACKAGE / name / "__init__.py")
        lines += _inside(PACKAGE / name, "    ")
    for path in sorted(PACKAGE.glob("[!_]*.py")):
        lines += _entry(f"  {path.name}", path)
    return "\n".join(lines) + "\n"


def _inside(folder: Path, indent: str) -> Iterator[str]:
    for path in sorted(folder.glob("*.py")):
        if not path.name.startswith("__"):
            yield from _entry(f"{indent}{path.name}", path)
    for inner in sorted(path.parent for path in folder.glob("*/__init__.py")):
        names = ", ".join(path.stem for path in sorted(inner.glob("*.py")) if not path.name.startswith("__"))
        yield from _entry(f"{indent}{inner.name}/", inner / "__init__.py", f" ({names})")


def _entry(label: str, path: Path, more: str = "") -> list[str]:
    """The label and the sentence, on as many lines as it takes."""
    said = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0]
    sentence = " ".join(said.split()).rstrip(".") + more
    whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", NO_BREAK), sentence)  # what is typed stays on a line
    first = label.ljust(COLUMN) if len(label) < COLUMN else f"{label}  "
    lines = textwrap.wrap(whole, WIDTH, initial_indent=first, subsequent_indent=" " * COLUMN, break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ") for line in lines]


if __name__ == "__main__":
    PAGE.write_text(TREE.sub(lambda _: tree(), PAGE.read_text(), count=1))
