"""The page of a study that is running: written between its runs, never during one, and loaded again by the browser."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

import click

from dpcompare.errors import RequestError, in_words
from dpcompare.system.files import atomic_write


class LivePage:
    """Keeps a page up to date; use as a context manager, which at the end writes the page that no longer reloads."""

    def __init__(self, study_dir: Path, file: Path) -> None:
        """Refuse what cannot become a page.

        Args:
            study_dir: of the study, which may not exist yet.
            file: of the page; it may lie in that directory.

        Raises:
            RequestError: it is not a name for a page, its directory cannot be written to, or the libraries that draw
                are not installed.
        """
        from dpcompare.report.charts import load_altair

        if file.suffix != ".html":
            raise RequestError(
                f"--html: received {str(file)!r}, expected a file with a name such as page.html, which is written "
                "again after every run"
            )
        folder = file.absolute().parent
        if not os.access(folder, os.W_OK) and (folder.exists() or folder != study_dir.absolute()):
            raise RequestError(f"--html: received {str(file)!r}, expected a file in a directory that can be written to")
        load_altair()
        self._study_dir, self._file = study_dir, file

    def __enter__(self) -> LivePage:
        self._show(reloads=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._show(reloads=False)

    def update(self) -> None:
        """Show the runs that have ended."""
        self._show(reloads=True)

    def _show(self, *, reloads: bool) -> None:
        """Without the page a study is worth as much: whatever prevents it is said, and the study continues."""
        try:
            page = self._page(reloads=reloads)
            with atomic_write(self._file) as written:
                written.write_text(page)
        except Exception as error:  # libraries that draw raise what they like
            click.echo(f"the page {self._file} was not written: {in_words(error)}", err=True)

    def _page(self, *, reloads: bool) -> str:
        from dpcompare.experiments.analysis import analyse
        from dpcompare.experiments.collection import collect
        from dpcompare.experiments.study import Study
        from dpcompare.experiments.study_runs import results
        from dpcompare.report.page import as_html, empty_page

        made = results(Study.load(self._study_dir), self._study_dir)
        if any(run.status == "completed" and arm.ablation_of is None for arm, _, run in made if run):
            return as_html(analyse(collect([self._study_dir])), reloads=reloads)
        return empty_page(self._study_dir, reloads=reloads)
