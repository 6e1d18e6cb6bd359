"""mkdocs hooks: which pages the site has in addition to those of docs/, and where the links of a page lead on it.

The rule for links in the docs: write them as the code host needs them, from file to file of the repository. What lies
in docs/ has the same place on the site. What lies elsewhere and is linked comes along: Markdown as a page, other files
as a page with their text, a folder as a list of its files. The README is the first page.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from benchmarks.evidence import ResultFileError, all_results
from docs.site.api import api_reference
from docs.site.evidence import filled
from docs.site.options import option_reference
from docs.site.reference import reference

ROOT = Path(__file__).parents[2]
README = PurePosixPath("README.md")
DOCS = PurePosixPath("docs")
ELSEWHERE = PurePosixPath("repository")
"""The folder of the site for what does not lie in docs/."""

LINK = re.compile(r"(?<=\]\()([^)#\s]+)")
LANGUAGES = {".py": "python", ".sh": "bash", ".toml": "toml", ".yaml": "yaml"}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the references, the README, and everything outside docs/ that a page links to."""
    files.append(File.generated(config, "options.md", content=option_reference()))
    files.append(File.generated(config, "reference.md", content=reference()))
    files.append(File.generated(config, "api.md", content=api_reference()))
    waiting = [README, *(DOCS / file.src_uri for file in files.documentation_pages())]
    added = set()
    while waiting:
        path = waiting.pop()
        if path not in added and not path.is_relative_to(DOCS):
            added.add(path)
            files.append(File.generated(config, _place(path), content=_page(path)))
        if path.suffix == ".md" and (ROOT / path).is_file():
            waiting += [target for target in _targets(path) if target not in added and not target.is_relative_to(DOCS)]
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A page with the figures of the result files, and its links from their places in the repository to the site's."""
    path = _origin(page.file.src_uri)
    if path is None:
        return markdown
    try:
        markdown = filled(markdown, all_results())
    except ResultFileError as error:
        raise PluginError(f"{path}: {error}") from error

    def on_the_site(link: re.Match[str]) -> str:
        target = _target(path, link[1])
        return link[1] if target is None else os.path.relpath(_place(target), PurePosixPath(_place(path)).parent)

    return LINK.sub(on_the_site, markdown)


def _place(path: PurePosixPath) -> str:
    """Where a file or folder of the repository is on the site."""
    if path.is_relative_to(DOCS):
        return str(path.relative_to(DOCS))
    if path == README:
        return "index.md"
    return str(ELSEWHERE / path) if path.suffix == ".md" else f"{ELSEWHERE / path}.md"


def _origin(place: str) -> PurePosixPath | None:
    """The Markdown file of the repository that a page shows; None: it was made for the site."""
    uri = PurePosixPath(place)
    path = (
        README if place == "index.md" else uri.relative_to(ELSEWHERE) if uri.is_relative_to(ELSEWHERE) else DOCS / uri
    )
    return path if (ROOT / path).is_file() else None


def _target(path: PurePosixPath, link: str) -> PurePosixPath | None:
    """What a link in a file of the repository names there; None: nothing, so that mkdocs judges it."""
    if "://" in link:
        return None
    target = PurePosixPath(os.path.normpath(path.parent / link))
    return target if ".." not in target.parts and (ROOT / target).exists() else None


def _targets(path: PurePosixPath) -> list[PurePosixPath]:
    links = LINK.findall((ROOT / path).read_text())
    return [target for target in (_target(path, link) for link in links) if target is not None]


def _page(path: PurePosixPath) -> str:
    """The Markdown of a file or folder outside docs/."""
    file = ROOT / path
    if path.suffix == ".md":
        return file.read_text()
    if file.is_dir():
        inside = sorted(each.relative_to(file).as_posix() for each in file.glob("*") if each.is_file())
        return "\n".join([f"# {path}/", "", *(f"- `{name}`" for name in inside), ""])
    return f"# {path}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{file.read_text()}````\n"
