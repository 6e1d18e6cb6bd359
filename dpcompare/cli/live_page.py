"""The page of a study that is running: written between its runs, never during one, and loaded again by the browser."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import click

from dpcompare.errors import RequestError, RunFailedError
from dpcompare.system.files import atomic_write


class LivePage:
    """Keeps a page up to date; use as a context manager, which at the end writes the page that no longer reloads."""

    def __init__(self, study_dir: Path, file: Path) -> None:
        """Refuse what cannot become a page.

        Args:
            study_dir: of the study, which may not exist yet.
            file: of the page; it may lie in that directory.

        Raises:
            RequestError: there is no directory for it, or the libraries that draw are not installed.
        """
        from dpcompare.report.charts import load_altair

        if file.is_dir() or not (file.parent.is_dir() or file.parent == study_dir):
            raise RequestError(f"--html: received {str(file)!r}, expected a file in a directory that exists")
        if str(file) == "-":
            raise RequestError("--html: received -, expected a file: the page is written again after every run")
        load_altair()
        self._study_dir, self._file = study_dir, file

    def __enter__(self) -> LivePage:
        from dpcompare.report.page import empty_page

        try:
            self._write(empty_page(self._study_dir))
        except OSError as error:
            raise RequestError(f"--html: {str(self._file)!r} cannot be written ({error.strerror})") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._show(reloads=False)

    def update(self) -> None:
        """Show the runs that have ended."""
        self._show(reloads=True)

    def _show(self, *, reloads: bool) -> None:
        """Without the page a study is worth as much: what prevents it is said, and the study continues."""
        from dpcompare.experiments.analysis import analyse
        from dpcompare.experiments.collection import collect
        from dpcompare.report.page import as_html

        try:
            comparison = analyse(collect([self._study_dir]))
            if any(row.rounds for row in comparison.arms):
                self._write(as_html(comparison, reloads=reloads))
        except (RequestError, RunFailedError, OSError) as error:
            click.echo(f"the page {self._file} was not written: {error}", err=True)

    def _write(self, page: str) -> None:
        with atomic_write(self._file) as written:
            written.write_text(page)
