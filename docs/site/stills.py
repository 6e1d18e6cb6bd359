"""Makes the README's pictures from a study: what `dpcompare report` prints on a terminal, and its page as a sample.

    python -m docs.site.stills studies/modes    # writes docs/pictures/report-* and docs/sample/report.html

The page is looked at with Chromium (playwright's, or the one that is installed) at 1280 px.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

from stress.terminal import on_terminal

DOCS = Path(__file__).parents[1]
COLUMNS = 92
PAGE = {"width": 1280, "height": 900}
MOST_BYTES = 200_000
"""The most bytes of a picture: a clone carries every version of it."""
MOST_BYTES_OF_A_PAGE = 400_000
COLOURS = 128
"""Colours of the screenshot, which has few; a third of the bytes."""


def terminal_still(title: str, text: str) -> str:
    """The SVG of a terminal that shows a text."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(text.rstrip("\n")))
    svg = console.export_svg(title=title, unique_id="terminal")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # they would be fetched from elsewhere
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def page_still(page: Path) -> bytes:
    """The PNG of the top of a page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        shown = browser.new_page(viewport=PAGE)
        shown.goto(page.as_uri())
        picture = Image.open(io.BytesIO(shown.screenshot()))
        browser.close()
    target = io.BytesIO()
    picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(target, "PNG", optimize=True)
    return target.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", help="As the still is to show it, such as studies/modes.")
    study = parser.parse_args().study
    report = [sys.executable, "-m", "dpcompare", "report", study]
    with tempfile.TemporaryDirectory(prefix="dpcompare-stills-") as folder:
        page = Path(folder) / "report.html"
        subprocess.run([*report, "--html", str(page)], check=True)
        pictures = {
            "pictures/report-terminal.svg": terminal_still(
                f"dpcompare report {study}", on_terminal(report, COLUMNS)
            ).encode(),
            "pictures/report-page.png": page_still(page),
            "sample/report.html": page.read_bytes().rstrip() + b"\n",
        }
    for name, content in pictures.items():
        most = MOST_BYTES_OF_A_PAGE if name.endswith(".html") else MOST_BYTES
        if len(content) > most:
            sys.exit(f"{name}: received {len(content):,} bytes, expected at most {most:,}; use a smaller study")
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_bytes(content)


if __name__ == "__main__":
    main()
