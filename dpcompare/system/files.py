"""Files in folders that others may have written, or may write to: nothing there leads out of them."""

from __future__ import annotations

import errno
import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpcompare.errors import RequestError


def no_link(path: str, flags: int) -> int:
    """An `opener` of `open`, for a file of a folder that is not a link to another, nor a pipe to wait for.

    Raises:
        OSError: it is one; or as of `os.open`.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


def expanded(path: str) -> Path:
    """A path whose `~` or `~user` is that user's home.

    Raises:
        RequestError: that home is not known.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise RequestError(
            f"received {path!r}, whose home directory is not known; expected a path without ~, or HOME to be set"
        ) from None


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Where to write a file that then takes the place of `path`, and of a link that somebody has put there.

    For libraries that open files by their names. Where nothing is written, `path` stays as it is.
    """
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=path.parent) as folder:
        written = Path(folder, path.name)
        yield written
        if written.exists():
            written.replace(path)


def write_synced(content: bytes, path: Path, temporary: Path) -> None:
    """Write a file that is on the disk, whole and under its name, before this returns, also after a loss of power.

    Args:
        content: of the file.
        path: its name, which another file may have until then.
        temporary: a name in the same folder that no file has, under which it is written.

    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    try:
        with temporary.open("xb") as file:  # with the rights that the umask leaves
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Have a file's content, or the names in a folder, survive a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def reject_links(folder: Path, what: str) -> None:
    """Refuse a folder in which, or below which, there is anything but files and folders.

    A link would have its reader show what is elsewhere, and its writer write there; a pipe would never end.

    Args:
        folder: which may itself be named by a link: that is the user's.
        what: it is, such as `the run directory`.

    Raises:
        RequestError: there is such a thing, or a folder of another user's in which this one cannot look.
    """
    for above, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(above, name)
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:  # a run or study that is being made
                continue
            except PermissionError:  # names can be listed, and nothing else
                raise _not_permitted(Path(above), what, "read") from None
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                kind = "a link" if stat.S_ISLNK(mode) else "neither a file nor a folder"
                raise RequestError(
                    f"{str(path)!r} in {what} is {kind}; expected nothing but files and folders: remove it, or put "
                    "there what it stands for"
                )


def require_writable(folder: Path, what: str) -> None:
    """Refuse a folder of another user's in which this one cannot read every file, and write into every folder.

    Args:
        folder: in which files are to be read, moved and written.
        what: it is, such as `the run directory`.

    Raises:
        RequestError: there is such a file or folder, with its owner.
    """
    everything = os.R_OK | os.W_OK | os.X_OK
    rights = {folder: everything}
    for above, folders, files in os.walk(folder):
        rights |= dict.fromkeys((Path(above, name) for name in folders), everything)
        rights |= dict.fromkeys((Path(above, name) for name in files), os.R_OK)
    for path, needed in rights.items():  # what is above comes first
        if not os.access(path, needed, effective_ids=True) and path.exists():
            raise _not_permitted(path, what, "written" if needed == everything else "read")


def _not_permitted(path: Path, what: str, verb: str) -> RequestError:
    return RequestError(
        f"{str(path)!r} in {what} cannot be {verb} by {_name_of_user(os.geteuid())}: it belongs to "
        f"{_name_of_user(path.stat().st_uid)}; do this as that user, or with a copy of the directory that is your own "
        "(cp -r)"
    )


def _name_of_user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:  # of another machine, or of a container
        return f"user {uid}"


class FolderWatch:
    """A watch on a folder that is in use, which may be removed, renamed or unmounted under its users."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: tuple[int, int] | None = None
        self._known = self._identity()

    def loss(self) -> str | None:
        """What became of the folder, where it is no longer what it was; None while it is, or cannot be asked."""
        now = self._identity()
        if self._known is None or now == self._known:
            return None
        if now is None:
            return f"{str(self._folder)!r} is gone: it was removed or renamed, or its disk was unmounted"
        return (
            f"{str(self._folder)!r} is another folder than it was: something was mounted, unmounted or put in its place"
        )

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = self._folder.stat()
        except OSError as error:
            # Such as a server that does not answer for a while: the errors of a lost folder are listed.
            return None if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE) else self._known
        return status.st_dev, status.st_ino
