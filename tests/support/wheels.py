"""Tiny wheels in a folder that pip takes for its index: a real installation without a network."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import ZipFile


def write_wheel(
    folder: Path,
    name: str,
    version: str = "99.0",
    *,
    modules: Sequence[str] | None = None,
    extras: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """A wheel of empty modules; the format is that of the PyPA specification "Binary distribution format".

    Args:
        modules: default: one of the distribution's name.
        extras: extra -> names of the distributions that it requires.
    """
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    for extra, required in (extras or {}).items():
        metadata.append(f"Provides-Extra: {extra}")
        metadata += [f'Requires-Dist: {each}; extra == "{extra}"' for each in required]
    files = {f"{module}.py": "" for module in (modules if modules is not None else [name.replace("-", "_")])}
    files[f"{stem}.dist-info/METADATA"] = "\n".join(metadata) + "\n"
    files[f"{stem}.dist-info/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = "".join(f"{path},sha256={_digest(text)},{len(text)}\n" for path, text in files.items())
    wheel = folder / f"{stem}-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(f"{stem}.dist-info/RECORD", f"{record}{stem}.dist-info/RECORD,,\n")
    return wheel


def _digest(text: str) -> str:
    return urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
