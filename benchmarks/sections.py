"""Figures in documents, between marks, so that a script that measures them can write them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

COMMIT_FILE = ".commit"
"""At the root of a copy of the working tree that has no `.git`: what `git rev-parse` said where it was copied."""


def commit() -> str:
    """The commit of the working tree, and whether it was changed since.

    Of a copy without `.git`, what the variable DPCOMPARE_COMMIT or the file `.commit` says, else `unknown`.
    """
    here = Path(__file__).parents[1]  # not where it was started, as a test in a folder of its own

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    if named := os.environ.get("DPCOMPARE_COMMIT"):
        return named
    if (here / COMMIT_FILE).is_file():
        return (here / COMMIT_FILE).read_text().strip()
    if not (here / ".git").exists():  # git would look further up, and find a repository that does not hold this
        return "unknown"
    return git("rev-parse", "--short", "HEAD") + (" (changed)" if git("status", "--porcelain", "-uno") else "")


def typed(module: str) -> str:
    """The command that runs this process, as it is typed, in Markdown.

    Args:
        module: of the script, as `python -m` takes it.
    """
    return f"`{shlex.join(['python', '-m', module, *sys.argv[1:]])}`"


def write_section(path: Path, name: str, lines: Sequence[str]) -> None:
    """Replace what stands between `<!-- name -->` and `<!-- end of name -->`.

    Raises:
        ValueError: the document has no such section.
    """
    text = path.read_text()
    marks = f"<!-- {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"({re.escape(marks[0])}\n).*?({re.escape(marks[1])})", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"{path} has no section between {marks[0]} and {marks[1]}")
    path.write_text(pattern.sub(lambda found: found[1] + "\n".join(lines) + "\n" + found[2], text))
