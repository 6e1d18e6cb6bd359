"""Result files of the scripts that measure: what was run, on what, and what came out.

A script hands its figures to `keep`, which adds the command, commit, machine and versions and writes a JSON file into
docs/evidence/results. `docs.site.evidence` makes the tables of the pages from these files, and the figures that other
pages quote, so that nobody copies a number.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import median
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

import dpcompare
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.launch.node import installed_versions
from dpcompare.system.machine import this_machine

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "evidence" / "results"
"""All result files, one for each script and kind of question."""
COMMIT_FILE = ".commit"
"""At the root of a copy of the working tree that has no `.git`: what `git rev-parse` said where it was copied."""
CHANGED = " (changed)"
"""Follows a commit whose working tree was changed since."""

Spread = tuple[float, float, float]
"""A number with the lowest and the highest of its rounds."""
Cell = str | int | float | Spread | None
"""Text, a number, a number with its rounds, or nothing."""
Status = Literal["passed", "failed", "open", "measured"]
"""Open: the question wants more than was measured. Measured: the script judges nothing."""


class Column(BaseModel):
    """A column of a table; its format shows the numbers, as Python's `format` takes it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    format: str = ""
    is_number: bool = False
    """Aligned to the right. Text that holds a number may be."""


class Table(BaseModel):
    """Rows under columns, and the sentence above them if there is one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str = ""
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @model_validator(mode="after")
    def _rows_fit(self) -> Self:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"received a row of {len(row)} cells ({row[0]} ...), expected {len(self.columns)}")
        return self

    @property
    def markdown(self) -> list[str]:
        """The lines of the table in Markdown, its title first."""
        return [
            *([self.title, ""] if self.title else []),
            f"| {' | '.join(column.title for column in self.columns)} |",
            f"|{'|'.join('--:' if column.is_number else '---' for column in self.columns)}|",
            *(f"| {' | '.join(map(shown, row, self.columns))} |" for row in self.rows),
        ]


def text(*titles: str) -> list[Column]:
    """Columns of text."""
    return [Column(title=title) for title in titles]


def number(title: str, format: str = "") -> Column:
    """A column of numbers."""
    return Column(title=title, format=format, is_number=True)


def table(columns: Iterable[Column], rows: Iterable[Sequence[Cell]], title: str = "") -> Table:
    """A table of columns and rows."""
    return Table(title=title, columns=tuple(columns), rows=tuple(tuple(map(_finite, row)) for row in rows))


def _finite(cell: Cell) -> Cell:
    """Nothing in the place of a number that is none, which JSON has no word for."""
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


def spread(values: Sequence[float]) -> Spread | None:
    """Median, lowest and highest of the rounds; None if one failed: a median of fewer rounds looks like one of all."""
    return None if any(map(math.isnan, values)) else (median(values), min(values), max(values))


def extremes(name: str, values: Collection[float], form: str) -> dict[str, str]:
    """Two figures; both are there when nothing was measured, since a page that quotes them cannot be filled without."""
    lowest, highest = (format(of(values), form) if values else "-" for of in (min, max))
    return {f"{name}_lowest": lowest, f"{name}_highest": highest}


def shown(cell: Cell, column: Column) -> str:
    """A cell as the page shows it."""
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell.replace("|", "/")
    if isinstance(cell, tuple):
        middle, lowest, highest = (format(value, column.format) for value in cell)
        return f"{middle} ({lowest} to {highest})"
    return format(cell, column.format)


class Result(BaseModel):
    """A result file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern="^[a-z0-9-]+$")
    """Of the file, and of the marks between which pages show it."""
    command: str
    commit: str
    is_changed: bool
    """Whether the working tree differed from the commit."""
    date: date
    version: str
    """Of dpcompare."""
    machine: str
    """The machine in one line."""
    versions: Mapping[str, str]
    """Of Python and the packages that took part; empty if none was recorded."""
    status: Status
    seconds: float | None = Field(default=None, ge=0)
    """From the start of the command to its end; None is not known."""
    sentences: tuple[str, ...] = ()
    """Paragraphs above the tables, in Markdown."""
    tables: tuple[Table, ...] = ()
    figures: Mapping[str, str | int | float] = Field(default_factory=dict)
    """What pages quote, by name."""
    taken_over_from: str | None = None
    """The page that had this table before there were result files; None: the script wrote this file."""

    @property
    def head(self) -> str:
        """Which command, when, where and with what, as a sentence."""
        of_commit = f"commit {self.commit}{' with changes' if self.is_changed else ''}"
        versions = ", ".join(map(" ".join, self.versions.items()))
        parts = [
            f"`{self.command}` on {self.date} at {of_commit}, version {self.version}: {self.status}.",
            f"{'; '.join(filter(None, [self.machine, versions]))}.",
            *(["Taken over from a page that did not record more."] if self.taken_over_from else []),
        ]
        return " ".join(parts)

    @property
    def markdown(self) -> list[str]:
        """What a page shows: the head, the sentences, the tables."""
        parts = [[self.head], *([sentence] for sentence in self.sentences), *(each.markdown for each in self.tables)]
        return [line for part in parts for line in ("", *part)][1:]

    def cell(self, *words: str) -> str:
        """A cell as the page shows it: the words are its row's first cells, and the title of its column.

        Raises:
            ResultFileError: no cell, or several, are of these words.
        """
        *of_row, title = words
        found = [
            shown(row[place], table.columns[place])
            for table in self.tables
            for row in table.rows
            if [shown(*each) for each in zip(row, table.columns, strict=True)][: len(of_row)] == of_row
            for place, column in enumerate(table.columns)
            if column.title == title
        ]
        if len(found) != 1:
            raise ResultFileError(
                f"{self.name}: a page quotes the cell {'; '.join(words)}, and the file has {len(found)} of them; "
                "expected the first cells of a row, and the title of a column"
            )
        return found[0]


class ResultFileError(ValueError):
    """A file that cannot be a result: changed after it was written, incomplete, or of another form."""


def load(path: Path) -> Result:
    """A result file.

    Raises:
        ResultFileError: it was edited, or it is no result file.
    """
    try:
        fields = json.loads(path.read_text())
        digest = fields.pop("sha256")
        result = Result.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise ResultFileError(f"{path}: {place}: {first['msg']}; run its script again") from error
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ResultFileError(f"{path}: is no result file ({error!r}); run its script again") from error
    if digest != _digest(fields):
        raise ResultFileError(
            f"{path}: received text that does not have its sha256, expected the file as the script wrote it; "
            f"restore it, or run `{result.command}` again"
        )
    if result.name != path.stem:
        raise ResultFileError(f"{path}: received the name {result.name}, expected {path.stem}; rename the file")
    return result


def all_results(folder: Path = RESULTS) -> dict[str, Result]:
    """Name -> result, of every file of the folder.

    Raises:
        ResultFileError: of the first file that is none.
    """
    return {path.stem: load(path) for path in sorted(folder.glob("*.json"))}


def write(folder: Path, result: Result) -> Path:
    """Write a result file, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = json.loads(result.model_dump_json())
    lines = json.dumps({**fields, "sha256": _digest(fields)}, indent=1, ensure_ascii=False)
    path = folder / f"{result.name}.json"
    waiting = path.with_suffix(".partial")
    waiting.write_text(lines + "\n")
    return waiting.replace(path)


def _digest(fields: Mapping[str, object]) -> str:
    """Of the fields of a file, whatever their layout."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class Keeper:
    """Of a script: what it prints at its end, and the file that it keeps if asked to."""

    def __init__(self, parser: argparse.ArgumentParser, module: str) -> None:
        self._module = module
        self._began = time.monotonic()
        parser.add_argument(
            "--write",
            type=Path,
            nargs="?",
            const=RESULTS,
            metavar="FOLDER",
            help="keep a result file here; default: docs/evidence/results, and the pages get its figures",
        )

    def keep(
        self,
        folder: Path | None,
        name: str,
        status: Status,
        *,
        sentences: Sequence[str] = (),
        tables: Sequence[Table] = (),
        figures: Mapping[str, str | int | float] | None = None,
        machine: str | None = None,
        versions: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> Result:
        """The result of this command, printed, and written if `--write` was given.

        Args:
            folder: what `--write` has.
            machine: if another machine than this one measured.
            versions: if another interpreter than this one measured.
            seconds: if earlier commands measured a part.
        """
        of_tree, changed, _ = commit().partition(CHANGED)
        result = Result(
            name=re.sub("[^a-z0-9]+", "-", name.lower()).strip("-"),  # as marks in pages and files take it
            command=shlex.join(["python", "-m", self._module, *map(_without_folders, sys.argv[1:])]),
            commit=of_tree,
            is_changed=bool(changed),
            date=date.today(),
            version=dpcompare.__version__,
            machine=machine or this_machine().in_words,
            versions=versions_here() if versions is None else versions,
            status=status,
            seconds=round(time.monotonic() - self._began if seconds is None else seconds, 1),
            sentences=tuple(sentences),
            tables=tuple(tables),
            figures=dict(figures or {}),
        )
        print("\n".join(result.markdown))
        if folder is not None:
            write(folder, result)
            if folder.resolve() == RESULTS:
                from docs.site.evidence import fill_pages  # reads this module

                try:
                    fill_pages()
                except ResultFileError as error:  # the figures are kept: a page is no reason to end a long command
                    print(f"the pages were not filled in: {error}", file=sys.stderr)
        return result


def _without_folders(word: str) -> str:
    """An argument without the folders of the machine that it was typed on."""
    option, is_equal, value = word.rpartition("=")
    return f"{option}{is_equal}{Path(value).name}" if Path(value).is_absolute() else word


def versions_here(*others: str) -> dict[str, str]:
    """Of Python, of each framework that is installed with its packages, and of other packages."""
    packages = [package for framework in FRAMEWORKS.values() for package in framework.packages]
    return {"Python": platform.python_version(), **installed_versions([*packages, *others])}


def commit() -> str:
    """The commit of the working tree, and whether anything but the docs, which get the figures, was changed since.

    Of a copy without `.git`, what the variable DPCOMPARE_COMMIT or the file `.commit` says, else `unknown`.
    """

    def git(*arguments: str) -> str:
        # In the folder of this file, not where the script was started, as a test in a folder of its own.
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    if named := os.environ.get("DPCOMPARE_COMMIT"):
        return named
    if (ROOT / COMMIT_FILE).is_file():
        return (ROOT / COMMIT_FILE).read_text().strip()
    if not (ROOT / ".git").exists():  # git would look further up, and find a repository that does not hold this
        return "unknown"
    return git("rev-parse", "--short", "HEAD") + (
        CHANGED if git("status", "--porcelain", "-uno", "--", ".", ":!docs", ":!README.md") else ""
    )
