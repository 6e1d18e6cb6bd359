"""Python's environments: what is installed in them, and objects by their names."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from importlib import import_module, metadata
from math import inf
from pathlib import Path
from types import ModuleType

from pydantic import BaseModel, ValidationError

from dpcompare.errors import RequestError, RunFailedError
from dpcompare.system.commands import run_command
from dpcompare.system.json_files import write_document
from dpcompare.system.secrets import without_passwords


def import_extra(module: str, *, extra: str, needed_by: str) -> ModuleType:
    """A module of a package that only an extra of dpcompare brings.

    Raises:
        RequestError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        missing = error.name or module
        raise RequestError(
            f"{needed_by} needs {missing}, which is not installed; install the extra with: python -m pip install "
            f"'dpcompare[{extra}]'"
        ) from None


def installed_packages() -> dict[str, str]:
    """Distribution -> version, of all that this interpreter finds; of two of a name the one that is imported."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if name:  # an installer that was interrupted leaves folders without one
            found.setdefault(name, distribution.version)
    return dict(sorted(found.items()))


def is_custom(name: str) -> bool:
    """Whether a name is `package.module:NAME`."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name) is not None


def find_object(name: str, what: str) -> object:
    """The object of a name, found from the current directory too.

    Raises:
        RequestError: it cannot be imported; `what` it was to be, such as `model`.
    """
    module, _, attribute = name.partition(":")
    with_current_directory()
    try:
        return getattr(import_module(module), attribute)
    except RequestError:  # in our words already
        raise
    except (Exception, SystemExit) as error:  # whatever a user's module does
        raise RequestError(
            f"{what}: {name!r} cannot be imported ({type(error).__name__}: {error}); expected package.module:NAME that "
            "Python finds from the current directory"
        ) from None


def with_current_directory() -> None:
    """Have Python look for modules in the current directory too."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # last: a folder named torch/ there is not the framework


class _Record(BaseModel):
    """What is next to an environment that dpcompare makes, from before its folder is made."""

    requirements: tuple[str, ...]
    """The requirements as pip takes them on its command line."""
    first: tuple[str, ...] = ()
    """What was installed before them, such as builds from another index."""
    origin: str
    """What the requirements do not say of where they come from."""
    finished: bool

    def is_of(self, requirements: Sequence[str], origin: str) -> bool:
        return (self.requirements, self.origin) == (tuple(requirements), origin)


class PythonEnvironment:
    """An environment in a folder, which need not be there yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._record_file = folder.with_name(f"{folder.name}.json")

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.folder / "bin" / "python")

    @property
    def is_finished(self) -> bool:
        """Whether it has been made, and is still there."""
        record = self._record()
        return record is not None and record.finished and Path(self.python).exists()

    def has(self, requirements: Sequence[str], origin: str) -> bool:
        """Whether it is finished and was made with these requirements, from there."""
        record = self._record()
        return self.is_finished and record is not None and record.is_of(requirements, origin)

    @property
    def requirements(self) -> tuple[str, ...]:
        """What it is made with; nothing if it has not been made."""
        record = self._record()
        return record.requirements if record else ()

    @property
    def first(self) -> tuple[str, ...]:
        """What was installed before its requirements."""
        record = self._record()
        return record.first if record else ()

    @property
    def is_unfinished(self) -> bool:
        """Whether its making was interrupted."""
        record = self._record()
        return record is not None and not record.finished

    def remove(self) -> None:
        """Delete it.

        Raises:
            RequestError: its folder holds something else, which is left alone.
        """
        self._refuse_other()
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self._record_file.unlink(missing_ok=True)

    def make(self, requirements: Sequence[str], origin: str, *, first: Sequence[str] = (), index: str = "") -> None:
        """Make it, again if it is there already; what the installer says goes to stderr.

        It starts from nothing, since an interrupted installer leaves distributions of which a part is missing. What was
        downloaded is in the installer's cache.

        Args:
            requirements: as pip takes them on its command line.
            origin: what they do not say of where they come from, such as a checksum.
            first: what is installed before them: what they need of it is there then.
            index: the address that all of `first` comes from.

        Raises:
            RequestError: the folder holds something else, which is left alone.
            RunFailedError: the installer failed.
        """
        self._refuse_other()
        record = _Record(requirements=tuple(requirements), first=tuple(first), origin=origin, finished=False)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        write_document(record, self._record_file)
        if self.folder.exists():
            shutil.rmtree(self.folder)
        before = [self._installation(first, index)] if first else []
        for argv in [self._creation(), *before, self._installation(requirements)]:
            env = _without_other_indexes() if argv in before else None
            if status := run_command(argv, seconds=inf, shown=True, env=env).returncode:
                raise RunFailedError(
                    f"{without_passwords(' '.join(argv))} ended with status {status}, see above; run the same command "
                    "again to continue with what has been downloaded",
                    str(self.folder),
                )
        write_document(record.model_copy(update={"finished": True}), self._record_file)

    def _refuse_other(self) -> None:
        if self.folder.exists() and self._record() is None:
            raise RequestError(
                f"{str(self.folder)!r} is not an environment that dpcompare made, and is left alone; expected a path "
                "where nothing is: move it away"
            )

    def _creation(self) -> list[str]:
        if installer_name() == "uv":
            # --seed: with pip, which other advice of ours asks for.
            return ["uv", "venv", "--quiet", "--seed", "--python", sys.executable, str(self.folder)]
        return [sys.executable, "-m", "venv", str(self.folder)]

    def _installation(self, requirements: Sequence[str], index: str = "") -> list[str]:
        if installer_name() == "uv":
            # Not --index-url, which UV_DEFAULT_INDEX outdoes.
            named = ["--default-index", index] if index else []
            return ["uv", "pip", "install", "--compile-bytecode", "--python", self.python, *named, *requirements]
        named = ["--index-url", index] if index else []
        return [self.python, "-m", "pip", "install", "--disable-pip-version-check", *named, *requirements]

    def _record(self) -> _Record | None:
        try:
            return _Record.model_validate_json(self._record_file.read_text())
        except (OSError, ValidationError):  # no environment, or none of ours
            return None


def _without_other_indexes() -> dict[str, str]:
    """The environment of an installer that is to take a build from one index, where a newer one may be elsewhere."""
    others = {"PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"}
    return {name: value for name, value in os.environ.items() if name not in others}


def installer_name() -> str:
    """The installer that environments are made with here: `uv`, or `pip`."""
    return "uv" if shutil.which("uv") else "pip"
