"""What a change touches: each of eight requests is made in a copy of the repository, shown to work, and counted.

python -m stress.change_requests            # prints the table of docs/architecture.md
python -m stress.change_requests --write    # and writes it there
python -m stress.change_requests optimizer  # some of them, with the difference

The files that a request adds are in stress/requests/NAME, as they lie in the repository.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stress.request_edits import REQUESTS, Request

ROOT = Path(__file__).parents[1]
ADDED = Path(__file__).parent / "requests"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- made by `python -m stress.change_requests --write` -->", "<!-- end -->"
HEADS = ("request", "package files, new and changed", "lines", "shown to work by")


@dataclass(frozen=True, kw_only=True)
class Made:
    """What making a request has changed below dpcompare/."""

    new: list[str]
    changed: list[str]
    lines: int
    """Added."""
    difference: str


@contextmanager
def working_tree() -> Iterator[Path]:
    """A repository of its own with the files of this one as they are, gone at the end."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        for name in _git("ls-files", "--cached", "--others", "--exclude-standard", tree=ROOT).splitlines():
            if (ROOT / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
        _git("init", "--quiet", tree=tree)
        _git("add", "--all", tree=tree)
        _git("-c", "user.name=nobody", "-c", "user.email=nobody@localhost", "commit", "--quiet", "-m", "x", tree=tree)
        yield tree


def make(name: str, request: Request, tree: Path) -> Made:
    """Make a request in a tree.

    Raises:
        ValueError: a text that it changes is not there once.
    """
    if (ADDED / name).is_dir():
        shutil.copytree(ADDED / name, tree, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for edit in request.edits:
        path = tree / edit.path
        text = path.read_text()
        if text.count(edit.old) != 1:
            raise ValueError(f"{name}: {edit.path} has {text.count(edit.old)} times {edit.old!r}, expected it once")
        path.write_text(text.replace(edit.old, edit.new))
    _git("add", "--all", tree=tree)
    entries = [line.split("\t") for line in _git("diff", "--cached", "--name-status", tree=tree).splitlines()]
    package = [(kind, path) for kind, path in entries if path.startswith("dpcompare/")]
    added = [line.split("\t") for line in _git("diff", "--cached", "--numstat", tree=tree).splitlines()]
    return Made(
        new=[path for kind, path in package if kind == "A"],
        changed=[path for kind, path in package if kind != "A"],
        lines=sum(int(plus) for plus, _, path in added if path.startswith("dpcompare/")),
        difference=_git("diff", "--cached", tree=tree),
    )


def show(request: Request, tree: Path) -> None:
    """Run what shows that a request works, in a folder of its own.

    Raises:
        subprocess.CalledProcessError: it does not.
    """
    environment = os.environ | {"PYTHONPATH": str(tree), "DPCOMPARE_CACHE_DIR": str(tree.parent / "cache")}
    for argv in request.shown_by:
        subprocess.run([sys.executable, *argv], cwd=tree.parent, env=environment, check=True, stdout=sys.stderr)


def row(name: str, request: Request, made: Made) -> tuple[str, str, str, str]:
    """The cells of a request."""
    files = [f"**{path.removeprefix('dpcompare/')}**" for path in made.new]
    files += [path.removeprefix("dpcompare/") for path in made.changed]
    counted = f"{len(made.new)} new, {len(made.changed)} changed: {', '.join(files)}"
    return f"{name}: {request.title}", counted, str(made.lines), request.says


def _git(*arguments: str, tree: Path) -> str:
    return subprocess.run(["git", *arguments], cwd=tree, check=True, capture_output=True, text=True).stdout


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the requests that were named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(REQUESTS)}")
    parser.add_argument("--write", action="store_true", help="write the table into docs/architecture.md")
    parser.add_argument("--only-made", action="store_true", help="leave out what shows that they work")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.names) - set(REQUESTS):
        parser.error(f"received {', '.join(sorted(unknown))}, expected some of {', '.join(REQUESTS)}")
    lines = [HEADS, ("---", "---", "--:", "---")]
    for name in asked.names or REQUESTS:
        with working_tree() as tree:
            made = make(name, REQUESTS[name], tree)
            if not asked.only_made:
                show(REQUESTS[name], tree)
        lines.append(row(name, REQUESTS[name], made))
        if asked.names:
            print(made.difference)
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    print(table)
    if asked.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
