"""Pages for users stay short: what is longer than a page may be has its own bound, which only goes down."""

from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
MOST_WORDS = 1_300
MOST_WORDS_OF_A_HOW_TO = 500
MADE = ("<!-- evidence -->", "<!-- made from the modules")
"""In a page that is made from results or from code, like those of docs/evidence: it has as many words as they need."""
LONGER = {
    "README.md": 650,
    "architecture.md": 2_000,
    "measuring.md": 1_500,
    "troubleshooting.md": 640,
}
"""Page -> the most words that it may have until it is shortened."""
PAGES = [
    DOCS.parent / "README.md",
    *(page for page in sorted(DOCS.glob("*.md")) if not any(mark in page.read_text() for mark in MADE)),
]
HOW_TOS = sorted((DOCS / "how-to").glob("*.md"))
WORDS_BEFORE_THE_COMMAND = 60


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_for_users_has_at_most_its_words(page):
    words = len(page.read_text().split())
    assert words <= LONGER.get(page.name, MOST_WORDS), f"{words} words: move what users need not read to docs/evidence"


def test_every_bound_is_that_of_a_page_and_needed():
    sizes = {page.name: len(page.read_text().split()) for page in (*PAGES, *HOW_TOS)}
    assert {name: sizes[name] for name in LONGER if sizes[name] < 0.9 * LONGER[name]} == {}


@pytest.mark.parametrize("page", HOW_TOS, ids=lambda page: page.name)
def test_a_how_to_begins_with_its_command_and_is_short(page):
    text = page.read_text()
    assert len(text.split()) <= LONGER.get(page.name, MOST_WORDS_OF_A_HOW_TO)
    before, _, block = text.partition("```")
    assert block, "expected a command in a block"
    assert len(before.split()) <= WORDS_BEFORE_THE_COMMAND
