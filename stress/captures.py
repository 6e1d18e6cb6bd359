"""What users see of a study, for eyes: the terminal at three widths, and its page wide, on a phone, dark and printed.

    python -m stress.captures studies/modes captures/

The commands run in terminals of their own, and Chromium opens the page. Prints the widest line of each capture, and
ends with exit code 3 where a line or the page is wider than there is room for.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from stress.terminal import on_terminal

WIDTHS = (80, 100, 160)
COMMANDS = {
    "report": ("report", "{study}"),
    "full": ("report", "{study}", "--full"),
    "modes": ("modes",),
    "help": ("run", "--help"),
}
"""Name of a capture -> the command."""
PAGE_WIDTHS = {"wide": 1280, "phone": 390, "dark": 1280, "print": 718}
"""Name of a picture -> pixels; A4 between margins of a centimetre has 718."""


def main() -> int:
    """Make all captures and say what does not fit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    too_wide = [*_terminals(given.study, given.out), *_page(given.study, given.out)]
    for line in too_wide:
        print(f"too wide: {line}")
    return 3 if too_wide else 0


def _terminals(study: Path, out: Path) -> Iterator[str]:
    for name, command in COMMANDS.items():
        for width in WIDTHS:
            text = in_terminal([each.format(study=study) for each in command], width)
            (out / f"{name}-{width}.txt").write_text(text)
            widest = max(map(len, text.splitlines()))
            print(f"{name}-{width}.txt: widest line {widest}")
            if widest > width:
                yield f"{name}-{width}.txt, {widest} characters"


def in_terminal(arguments: list[str], width: int) -> str:
    """The text that a command of dpcompare writes into a terminal of so many columns."""
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "dpcompare", *arguments]
    shown = on_terminal(command, width, environment=environment | {"TERM": "xterm"})
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", shown)


def _page(study: Path, out: Path) -> Iterator[str]:
    from playwright.sync_api import sync_playwright

    page_file = (out / "page.html").resolve()
    command = [sys.executable, "-m", "dpcompare", "report", str(study), "--html", str(page_file)]
    subprocess.run(command, check=True)
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, width in PAGE_WIDTHS.items():
            page = browser.new_page(
                viewport={"width": width, "height": 900}, color_scheme="dark" if name == "dark" else "light"
            )
            page.goto(page_file.as_uri())
            if name == "print":
                page.emulate_media(media="print")
                page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
                page.pdf(path=out / "page.pdf", format="A4", margin=dict.fromkeys(("left", "right"), "1cm"))
            needed = page.evaluate("document.documentElement.scrollWidth")
            print(f"page-{name}.png: {needed} px wide")
            if needed > width:
                yield f"page-{name}.png, {needed} px"
            page.screenshot(path=out / f"page-{name}.png", full_page=True)
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
