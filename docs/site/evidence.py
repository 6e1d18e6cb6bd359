"""The figures of result files in the pages: tables between marks, quoted figures, and the list of all results.

python -m docs.site.evidence  # fills them in

A page shows a result between `<!-- NAME -->` and `<!-- end of NAME -->`. It quotes one of its figures between
`<!-- =NAME.FIGURE -->` and `<!-- = -->`, and a cell of its tables after `<!-- =NAME[ROW; COLUMN] -->`: the first cells
of a row, and the title of a column. `<!-- results -->` is the list. What stands between marks is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.evidence import RESULTS, ROOT, Result, ResultFileError, all_results, number, table, text

LIST = "results"
SECTION = re.compile(r"(<!-- (?P<name>[a-z0-9-]+) -->\n).*?(<!-- end of (?P=name) -->)", re.DOTALL)
QUOTE = re.compile(r"(<!-- =(?P<name>[a-z0-9-]+)(?:\.(?P<figure>\w+)|\[(?P<cell>[^\]]+)\]) -->).*?(?P<end><!-- = -->)")


def pages() -> Iterator[Path]:
    """Every page that may show or quote a result."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def filled(page: str, results: Mapping[str, Result]) -> str:
    """A page with the figures of the results.

    Raises:
        ResultFileError: the page shows or quotes what no result file has.
    """

    def of(name: str) -> Result:
        if name not in results:
            raise ResultFileError(f"{name}: a page shows it, and docs/evidence/results has no such file")
        return results[name]

    def section(found: re.Match[str]) -> str:
        name = found["name"]
        lines = listed(results) if name == LIST else of(name).markdown
        return "\n".join([found[1], *lines, "", ""]) + found[3]

    def quote(found: re.Match[str]) -> str:
        result = of(found["name"])
        if found["cell"]:
            return f"{found[1]}{result.cell(*found['cell'].split('; '))}{found['end']}"
        if found["figure"] not in result.figures:
            raise ResultFileError(
                f"{result.name}: a page quotes {found['figure']}; the file has "
                f"{', '.join(result.figures) or 'no figures'}"
            )
        return f"{found[1]}{result.figures[found['figure']]}{found['end']}"

    return QUOTE.sub(quote, SECTION.sub(section, page))


def listed(results: Mapping[str, Result]) -> list[str]:
    """The table of all results."""
    rows = [
        (
            f"[{result.name}](results/{result.name}.json)",
            result.command.partition("-m ")[2].split(" ")[0],
            result.status,
            str(result.date),
            result.version,
            None if result.seconds is None else result.seconds / 60,
        )
        for result in results.values()
    ]
    columns = [*text("result", "script", "status", "date", "version"), number("minutes", ".0f")]
    return table(columns, rows).markdown


def fill_pages() -> list[Path]:
    """Bring all pages up to date with the result files, and name those that were changed."""
    results = all_results(RESULTS)
    changed = []
    for page in pages():
        was = page.read_text()
        if (now := filled(was, results)) != was:
            page.write_text(now)
            changed.append(page)
    return changed


if __name__ == "__main__":
    for each in fill_pages():
        print(each.relative_to(ROOT))
