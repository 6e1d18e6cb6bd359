"""The reference of the site, made from the tables of the code: settings, figures, columns, result.json, modes."""

from __future__ import annotations

import ast
import html
import inspect
from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from dpcompare.config.engines import ENGINES
from dpcompare.config.modes import MODES
from dpcompare.config.optimizers import OPTIMIZERS
from dpcompare.config.setting import Changes
from dpcompare.experiments.fairness_checks import CHECKS
from dpcompare.experiments.figures import FIGURES
from dpcompare.models.architectures import MODELS
from dpcompare.report.records import FIELDS
from dpcompare.results.result import RunResult


def reference() -> str:
    """The page in Markdown."""
    parts = [
        "# Reference",
        "Made from the tables of this version's code.",
        "## Settings of the fairness sheet",
        "A setting that must be equal and is not makes arms NOT COMPARABLE, unless `--subject` names it.",
        _table(
            ("setting", "what a difference changes", "what to do about it"),
            [(name, _changed(check.changes), check.fix or "nothing: it is shown") for name, check in CHECKS.items()],
        ),
        "## Figures",
        "In `--json -`, CSV and Parquet by these names; in the full report by the title of their column. A figure of "
        "an arm is taken over its rounds, and may be a condition of `--fail-if`.",
        _table(
            ("figure", "unit", "column", "of an arm", "what it is"),
            [
                (
                    f"`{name}`",
                    row.unit,
                    row.column.title if row.column else "",
                    "yes" if row.over_rounds else "",
                    row.explanation,
                )
                for name, row in FIGURES.items()
            ],
        ),
        "## Columns of CSV and Parquet",
        "A row per run, nothing rounded. A figure that was not measured is an empty cell, in Parquet null.",
        _table(("column", "what it is"), [(f"`{name}`", field.explanation) for name, field in FIELDS.items()]),
        "## result.json",
        "Every run leaves it in its directory.",
        _table(("key", "type", "what it is"), list(_fields(RunResult))),
        "## Modes",
        _table(
            ("mode", "what it is", "several nodes", "devices"),
            [
                (
                    f"`{framework}:{mode}`",
                    row.summary,
                    "yes" if row.multi_node else "",
                    ", ".join(sorted(row.device_types)),
                )
                for (framework, mode), row in MODES.items()
            ],
        ),
        "## Models",
        _table(
            ("model", "designed for images of", "weights of ImageNet"),
            [
                (f"`{name}`", f"{row.native_image_size} px" if row.native_image_size else "", row.published or "")
                for name, row in MODELS.items()
            ],
        ),
        "## Optimizers",
        _table(
            ("optimizer", "constants", "what it remembers of each parameter"),
            [
                (f"`{name}`", ", ".join(f"{key} {value}" for key, value in row.constants.items()), ", ".join(row.slots))
                for name, row in OPTIMIZERS.items()
            ],
        ),
        "## Engines",
        _table(
            ("engine", "nodes", "its options, also as `-o NAME=VALUE`"),
            [
                (f"`{name}`", row.summary, ", ".join(f"`{option}`" for option in row.options.model_fields))
                for name, row in ENGINES.items()
            ],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _changed(changes: Changes) -> str:
    """Such as `first loss, step time`."""
    return ", ".join(str(each.name).lower().replace("_", " ") for each in changes) or "nothing"


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, str, str]]:
    """Each field of a document, with the text below it in the source."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(model)).body if isinstance(node, ast.ClassDef))
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            said = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            kind = node.annotation
            if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "Annotated":
                kind = kind.slice.elts[0] if isinstance(kind.slice, ast.Tuple) else kind.slice
            yield f"`{node.target.id}`", f"`{ast.unparse(kind)}`", " ".join(str(said).split())


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ("---",) * len(head), *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    """Text in which only pairs of backticks are formatted."""
    escaped = html.escape(" ".join(text.split()), quote=False).replace("|", "&#124;").replace("*", "&#42;")
    parts = escaped.split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))
