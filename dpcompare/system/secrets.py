"""What is taken for a secret, so that no file of a run and no page holds it."""

from __future__ import annotations

import re

WORDS = (
    "PASSWORD", "PASSWD", "PASSPHRASE", "PWD", "TOKEN", "KEY", "SECRET", "AUTH", "CRED", "CERT", "ENCRYPTION",
    "LICENSE",
)  # fmt: skip
"""In the names of variables whose values are secret, or may be."""

LONGEST_VALUE = 10_000
"""Characters; no user types a longer one, and it could take long to look at."""
_URL_WITH_PASSWORD = re.compile(r"://[^\s/@]{1,1000}@")
_ASSIGNED = re.compile(r"(?i)(pass(?!es)\w{0,20}|token|secret|key)\s?[=:]")
_PEM = re.compile(r"-----BEGIN ")
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_|gh[opsur]_|github_pat_|glpat-|xox[abeprs]-|sk-|pk_live_|sk_live_|rk_live_|npm_|pypi-|"
    r"AKIA|ASIA|AIza|ya29\.|eyJ)[A-Za-z0-9_.-]{8,}"
)
"""Tokens by the prefixes that their makers publish for scanners: Hugging Face, GitHub, GitLab, Slack, OpenAI and
Anthropic, Stripe, npm, PyPI, Amazon, Google, and JSON Web Tokens."""
LEAST_RANDOM = 16
"""Characters of a part of base64 that are no words."""
_HEX = re.compile(r"(?<![A-Za-z0-9])[0-9a-fA-F]{20,}(?![A-Za-z0-9])")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{20,}|[A-Za-z0-9_-]{20,}")


def without_passwords(text: str) -> str:
    """A text whose addresses have no user and no password."""
    return _URL_WITH_PASSWORD.sub("://...@", text)


def is_secret(name: str, value: str) -> bool:
    """Whether a variable looks as if it held a secret, by its name or its value.

    Better too often: a variable that is not recorded is named as such by `dpcompare doctor`.
    """
    if any(word in name.upper() for word in WORDS):
        return True
    if len(value) > LONGEST_VALUE:
        return True
    if any(pattern.search(value) for pattern in (_URL_WITH_PASSWORD, _ASSIGNED, _PEM, _TOKEN)):
        return True
    return any(_is_mixed(found) for pattern in (_HEX, _BASE64) for found in pattern.findall(value))


def _is_mixed(text: str) -> bool:
    """Whether a text is as random ones are: what of it is not a word has digits, and letters of both cases.

    Of hexadecimal digits: digits and letters. Words are parts in lower case, as of paths and options.
    """
    if _HEX.fullmatch(text):
        return not text.isdigit() and not text.isalpha()
    rest = "".join(part for part in re.split(r"[/_-]", text) if not (part.isalpha() and part.islower()))
    return len(rest) >= LEAST_RANDOM and all(any(map(kind, rest)) for kind in (str.isdigit, str.islower, str.isupper))
