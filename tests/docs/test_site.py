"""The site of the docs: built without a warning, no dead link, options as the commands have them."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import pytest

import dpcompare
from docs.site.api import RETURNED, SECTIONS, api_reference
from docs.site.options import option_reference
from docs.site.reference import reference
from dpcompare.cli import cli
from dpcompare.cli.commands import LazyGroup
from dpcompare.cli.options import OPTION_GROUPS
from dpcompare.config.engines import ENGINES
from dpcompare.experiments.fairness_checks import CHECKS
from dpcompare.experiments.figures import FIGURES
from dpcompare.models.architectures import MODELS
from dpcompare.results.result import RunResult

ROOT = Path(__file__).parents[2]


def build(root, target):
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )


class Page(HTMLParser):
    """The links of a page, what it loads, and its anchors."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loaded, self.anchors = [], [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        self.loaded += [given[name] for name in ("src", "href") if tag in ("img", "script", "link") and given.get(name)]


@pytest.mark.slow
def test_the_site_builds_without_warnings_or_dead_links(tmp_path):
    pytest.importorskip("material", reason="needs the docs extra")
    done = build(ROOT, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    pages = {path: Page(path) for path in (tmp_path / "site").rglob("*.html") if path.name != "404.html"}
    dead, elsewhere = [], []
    for path, page in pages.items():
        for link in page.links + page.loaded:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                elsewhere += [link] if link in page.loaded else []
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (url.fragment and target in pages and url.fragment not in pages[target].anchors):
                dead.append(f"{path.relative_to(tmp_path)}: {link}")
    assert dead == []
    assert elsewhere == []  # nothing is fetched from others
    shown = {path.parent.name for path in pages}
    assert {"start", "glossary", "options", "tuning.py", "bare"} <= shown
    assert "DPCOMPARE_GLOBAL_BATCH_SIZE" in (tmp_path / "site" / "options" / "index.html").read_text()


@pytest.mark.slow
def test_dead_links_stop_the_build(tmp_path):
    pytest.importorskip("material", reason="needs the docs extra")
    for name in ("mkdocs.yml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    faults = "[a](gone.md) [b](modes.md#gone) [c](../dpcompare/gone.py)"
    (tmp_path / "docs" / "start.md").write_text(f"# Start\n\n{faults}\n")
    (tmp_path / "docs" / "new.md").write_text("# In no list of pages\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    warnings = [said for said in re.split(r"\n(?=INFO|WARNING)", done.stderr) if said.startswith("WARNING")]
    for named in ("'gone.md'", "'modes.md#gone'", "'../dpcompare/gone.py'", "- new.md"):
        assert any(named in warning for warning in warnings), (named, done.stderr)


def rows_of_reference():
    """The cells of each row of the tables, below the heading of their section."""
    heading, rows = "", []
    for line in option_reference().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("| <code>"):
            rows.append((heading, line[2:-2].split(" | ")))
    return rows


def options_of(command, name="dpcompare"):
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            yield name, option
    under_it = command.all_commands() if isinstance(command, LazyGroup) else getattr(command, "commands", {})
    for part, under in under_it.items():
        yield from options_of(under, f"{name} {part}")


def test_the_reference_has_every_row_of_the_tables():
    text = reference()
    named = [*CHECKS, *(f"<code>{name}</code>" for name in (*FIGURES, *RunResult.model_fields, *MODELS, *ENGINES))]
    assert [name for name in named if f"| {name} |" not in text] == []
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("| ")]
    assert all(line.count(" | ") == table[0].count(" | ") for table in tables for line in table)


def test_the_reference_has_every_option_of_every_command():
    assert len(list(options_of(cli))) > 300
    rows = rows_of_reference()
    for name, option in options_of(cli):
        (cells,) = [
            cells
            for heading, cells in rows
            if option.opts[0] in re.findall(r"--?[a-z][\w-]*", cells[0])
            and (heading == name or (heading in OPTION_GROUPS and is_of(name.split()[-1], cells[-1])))
        ]
        assert len(cells) == 3, cells
        assert ("DPCOMPARE_" in cells[0]) == bool(option.envvar)
        assert option.envvar is None or f"<code>{option.envvar}</code>" in cells[0]


def is_of(command, meaning):
    """Whether a row of the options of a run is about a command."""
    only = re.search(r"Only with (.*)\.$", meaning)
    return command in (only[1].split(" and ") if only else ("run", "compare", "explain", "gate", "plan"))


def test_the_reference_tells_groups_defaults_and_variables():
    rows = {cells[0].partition("<br>")[0]: (heading, cells) for heading, cells in rows_of_reference()}
    heading, cells = rows["<code>--nodes INTEGER</code>"]
    assert (heading, cells[1].partition(";")[0]) == ("Mode and devices", "1")
    assert cells[0].endswith("<code>DPCOMPARE_NODES</code>")
    heading, cells = rows["<code>--weights random&#124;zero-init&#124;imagenet&#124;FILE</code>"]
    assert (heading, cells[1]) == ("Training", "random")
    assert rows["<code>--share-gpu</code>"][1][1] == "off"
    assert rows["<code>--isolate / --no-isolate</code>"][1][1].startswith("where TensorFlow")
    assert rows["<code>--devices-per-node INTEGER</code>"][1][1].startswith("the visible GPUs shared out evenly")
    assert not any("default:" in cells[-1].lower() for _, cells in rows.values())


def test_the_reference_has_every_public_name():
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(set(dpcompare.__all__) - {"__version__"})
    assert api_reference().count("\n::: dpcompare.") == len(listed) + len(RETURNED)
