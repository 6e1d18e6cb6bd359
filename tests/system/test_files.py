"""Folders in which somebody else has put links, pipes, and files of other owners."""

import errno
import os
import pwd
from contextlib import contextmanager
from pathlib import Path

import pytest

from dpcompare.errors import RequestError
from dpcompare.launch.outcome import NodeOutcome
from dpcompare.launch.rendezvous import ALIVE_FILE, Rendezvous
from dpcompare.results.events import EventLog, Failed
from dpcompare.results.run_dir import event_path
from dpcompare.system.cache import exclusive_lock, is_held
from dpcompare.system.files import atomic_write, reject_links, require_writable
from dpcompare.system.json_files import read_document, write_document
from tests.support.command import invoke

DOCUMENT = NodeOutcome(node_rank=0, host="here", time=1.0, status=0)


@pytest.fixture
def precious(tmp_path):
    """A file elsewhere, which must stay as it is."""
    path = tmp_path / "precious"
    path.write_text("precious")
    yield path
    assert path.read_text() == "precious"


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    return path


def test_a_lock_is_no_link_and_is_not_cut_short(folder, precious):
    lock = folder / "lock"
    lock.symlink_to(precious)
    with pytest.raises(RequestError, match="lock: Too many levels of symbolic links"), exclusive_lock(folder, ""):
        pass
    assert not is_held(folder)
    lock.unlink()
    lock.hardlink_to(precious)  # no link to see, but nothing is lost
    with exclusive_lock(folder, ""):
        assert is_held(folder)


def test_a_document_is_not_written_through_a_link(folder, precious):
    (folder / "one.json.tmp").symlink_to(precious)
    write_document(DOCUMENT, folder / "one.json")
    assert read_document(NodeOutcome, folder / "one.json", kind="", expected="") == DOCUMENT
    (folder / "two.json").symlink_to(precious)
    with pytest.raises(RequestError, match=r"no readable two\.json \(Too many levels of symbolic links"):
        read_document(NodeOutcome, folder / "two.json", kind="", expected="")
    write_document(DOCUMENT, folder / "two.json")
    assert not (folder / "two.json").is_symlink()


def test_events_and_signs_of_life_are_not_written_through_a_link(folder, precious):
    (folder / "events").mkdir()
    event_path(folder, 0).symlink_to(precious)
    with pytest.raises(OSError, match="Too many levels"):
        EventLog(folder, 0).append(Failed(message="", traceback=""))
    rendezvous = Rendezvous.open(folder, 1)
    (alive,) = (folder / "nodes").glob(f"*/{ALIVE_FILE}")
    alive.unlink()
    alive.symlink_to(precious)
    with pytest.raises(OSError, match="Too many levels"):
        rendezvous.beat()


def _fill(path):
    path.write_text("half")
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_a_library_writes_takes_the_place_of_a_link(folder, precious):
    trace = folder / "process-0.json"
    trace.symlink_to(precious)
    with atomic_write(trace) as path:
        path.write_text("trace")
    assert trace.read_text() == "trace"
    with pytest.raises(OSError, match="No space"), atomic_write(trace) as path:
        _fill(path)
    with atomic_write(trace):
        pass  # as a process that has no trace of its own
    assert [path.name for path in folder.iterdir()] == [trace.name]
    assert trace.read_text() == "trace"


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/"), os.mkfifo], ids=["link", "pipe"])
@pytest.mark.parametrize("name", ["result.json", "study.json", "config.json", "logs", "checkpoints/step-1.safetensors"])
def test_what_leads_out_of_a_directory_is_refused_by_readers(folder, make, name):
    (folder / name).parent.mkdir(exist_ok=True)
    make(folder / name)
    with pytest.raises(RequestError, match=name):
        reject_links(folder, "the run")
    for command in (["report", folder], ["watch", folder], ["node", folder], ["run", "--resume", folder]):
        done = invoke(*command)
        assert done.code == 2
        assert "Traceback" not in done.stderr


@pytest.fixture
def as_nobody(tmp_path):
    """A context in which root is an ordinary user, whom permissions bind."""
    tmp_path.chmod(0o755)

    @contextmanager
    def bound():
        if os.geteuid() != 0:
            yield
            return
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)

    return bound


def test_the_folder_of_another_user_is_refused_in_words(folder, as_nobody):
    folder.chmod(0o500)
    with (
        as_nobody(),
        pytest.raises(RequestError, match="cannot be written \\(lock: Permission denied\\)"),
        exclusive_lock(Path(folder.name), ""),
    ):
        pass


def _require_own(run_dir):
    """`run --resume` does so."""
    reject_links(run_dir, "the run directory")
    require_writable(run_dir, "the run directory")


@pytest.mark.parametrize(
    ("name", "mode", "verb"),
    [
        ("run", 0o555, "written"),
        ("run/events", 0o555, "written"),
        ("run/checkpoints", 0o000, "written"),
        ("run/checkpoints", 0o744, "read"),
        ("run/checkpoints/step-1.safetensors", 0o000, "read"),
        ("run/config.json", 0o000, "read"),
    ],
)
def test_a_run_of_another_user_is_not_resumed_halfway(tmp_path, as_nobody, name, mode, verb):
    """Whatever part of it is not this user's: nothing has been moved when it is noticed."""
    for folder in ("run/events", "run/checkpoints"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("run/config.json", "run/checkpoints/step-1.safetensors"):
        (tmp_path / file).touch()
    for path in (tmp_path / "run", *(tmp_path / "run").rglob("*")):
        path.chmod(0o777)
    _require_own(Path("run"))
    (tmp_path / name).chmod(mode)
    owner = pwd.getpwuid(tmp_path.stat().st_uid).pw_name
    words = f"{name}' in the run directory cannot be {verb} by user .*: it belongs to user {owner}"
    with as_nobody(), pytest.raises(RequestError, match=words):
        _require_own(Path("run"))
    (tmp_path / name).chmod(0o777)
