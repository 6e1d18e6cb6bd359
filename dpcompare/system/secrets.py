"""What is taken for a secret, so that no file of a run and no page holds it."""

from __future__ import annotations

import re

WORDS = ("PASSWORD", "PASSWD", "TOKEN", "KEY", "SECRET", "AUTH", "CREDENTIAL", "ENCRYPTION", "LICENSE")
"""In the names of variables whose values are secret, or may be."""

_URL_WITH_PASSWORD = re.compile(r"\w+://[^\s/@]*:[^\s/@]*@")
_PEM = re.compile(r"-----BEGIN ")
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_|gh[opsur]_|github_pat_|glpat-|xox[abeprs]-|sk-|pk_live_|sk_live_|rk_live_|npm_|pypi-|"
    r"AKIA|ASIA|AIza|ya29\.|eyJ)[A-Za-z0-9_.-]{8,}"
)
"""By the prefixes that their makers publish for scanners: Hugging Face, GitHub, GitLab, Slack, OpenAI and Anthropic,
Stripe, npm, PyPI, Amazon, Google, and JSON Web Tokens."""
_HEX = re.compile(r"(?<![A-Za-z0-9])[0-9a-fA-F]{20,}(?![A-Za-z0-9])")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{20,}|[A-Za-z0-9_-]{20,}")


def is_secret(name: str, value: str) -> bool:
    """Whether a variable looks as if it held a secret, by its name or its value.

    Better too often: a variable that is not recorded is named as such by `dpcompare doctor`.
    """
    if any(word in name.upper() for word in WORDS):
        return True
    if any(pattern.search(value) for pattern in (_URL_WITH_PASSWORD, _PEM, _TOKEN)):
        return True
    return any(_is_mixed(found) for pattern in (_HEX, _BASE64) for found in pattern.findall(value))


def _is_mixed(text: str) -> bool:
    """Whether a text of 20 characters and more is as random ones are: no word, no path and no number has all of it.

    Hexadecimal digits: digits and letters. Others: digits, and letters of both cases.
    """
    if any(part.isalpha() and part.islower() and len(part) > 2 for part in re.split(r"[/_-]", text)):
        return False  # a path, or words
    has_digit = any(map(str.isdigit, text))
    if _HEX.fullmatch(text):
        return has_digit and not text.isdigit()
    return has_digit and any(map(str.islower, text)) and any(map(str.isupper, text))
