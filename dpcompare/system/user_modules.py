"""The files of a user's own code, by the names `package.module:NAME` of models and backends: their checksums."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from dpcompare.errors import RequestError
from dpcompare.system.python_environment import with_current_directory


def source_sha256(name: str) -> str:
    """sha256 of the file that an object's module is written in, without what that imports.

    Raises:
        RequestError: there is no such module.
    """
    return _sha256(_source_of(name.partition(":")[0]))


def module_digests(name: str) -> dict[str, str]:
    """File -> sha256 of each module that this process has imported from the folder of an object or its package.

    Paths are relative to that folder. Empty where the object is installed, or no file has it.
    """
    import_module(name.partition(":")[0])
    root = _folder(name)
    if _INSTALLED.intersection(root.parts) or root.is_relative_to(_OURS):
        return {}
    files = {_file_of(module) for module in list(sys.modules.values()) if getattr(module, "__file__", None)}
    return {str(file.relative_to(root)): _sha256(file) for file in sorted(files) if _is_of_user(file, root)}


def changed_modules(name: str, recorded: Mapping[str, str]) -> list[str]:
    """Files of `module_digests` that are not any more what they were."""
    root = _folder(name)
    return [file for file, digest in recorded.items() if not (root / file).is_file() or _sha256(root / file) != digest]


_INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of what is installed, whose versions results have."""
_OURS = Path(__file__).resolve().parents[1]


def _folder(name: str) -> Path:
    """The folder of an object's module, or that of the outermost package around it."""
    module = name.partition(":")[0]
    file, depth = _source_of(module), module.count(".")
    return file.parents[max(0, depth - 1 + (file.name == "__init__.py"))]


def _source_of(module: str) -> Path:
    """The file of a module, which is not imported for it: it may import a framework."""
    with_current_directory()
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise RequestError(
            f"the module {module} is not there; expected one that Python finds from the current directory"
        )
    return Path(spec.origin).resolve()


def _file_of(module: ModuleType) -> Path:
    assert module.__file__ is not None
    return Path(module.__file__).resolve()


def _is_of_user(file: Path, root: Path) -> bool:
    """Whether a module is below a folder, and neither installed there nor ours nor a framework's."""
    if not file.is_relative_to(root) or not file.is_file() or _INSTALLED.intersection(file.relative_to(root).parts):
        return False
    others = (_OURS, Path(sys.base_prefix).resolve())
    return not any(file.is_relative_to(other) and not root.is_relative_to(other) for other in others)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
