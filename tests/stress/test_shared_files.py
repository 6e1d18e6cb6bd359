"""The file system of trials: other nodes' changes arrive late, a node's own at once, and writing takes its time."""

import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from importlib.util import find_spec

import pytest

from stress.shared_files import behind, late_answers, shared_files


def _may_be_mounted():
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError:
        return False
    return shutil.which("fusermount3") is not None and find_spec("mfusepy") is not None


pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not _may_be_mounted(), reason="needs /dev/fuse, fusermount3 (Debian: fuse3) and mfusepy"),
]
LATE_SECONDS = 4.0
ANSWER = "import os, sys\nfor line in sys.stdin: print(eval(line), flush=True)"


class Node:
    """A process of a node, which says what expressions are there."""

    def __init__(self, name):
        self._process = subprocess.Popen(
            [sys.executable, "-c", ANSWER],
            env=os.environ | {"NODE": name},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def __enter__(self):
        self("0")  # it has started
        return self

    def __exit__(self, *_):
        self._process.communicate()

    def __call__(self, expression):
        self._process.stdin.write(f"{expression}\n")
        return self._process.stdout.readline().strip()


def test_a_node_learns_late_of_what_another_has_made(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    file = disk / "a"
    append = f"open({str(file)!r}, 'a').write('x' * 10)"
    listed, read = f"os.listdir({str(disk)!r})", f"len(open({str(file)!r}).read())"
    size = f"os.path.exists({str(file)!r}) and os.stat({str(file)!r}).st_size"
    with ExitStack() as stack:
        stack.enter_context(shared_files(disk, late_seconds=LATE_SECONDS, node_variable="NODE"))
        zero, one, two = (stack.enter_context(Node(name)) for name in "012")
        assert [one(listed), one(size)] == ["[]", "False"]
        zero(append)
        assert [zero(listed), zero(size)] == ["['a']", "10"]
        assert not late_answers(behind(disk)).exists()
        assert [one(listed), one(size)] == ["[]", "False"]  # as the server said before
        assert late_answers(behind(disk)).exists()
        assert two(size) == "10"  # it had not asked
        time.sleep(LATE_SECONDS)
        assert [one(listed), one(size)] == ["['a']", "10"]
        zero(append)
        assert one(size) == "10"
        assert one(read) == "20"  # whoever opens a file asks again
        one(append)
        assert one(read) == "30"
    assert not os.path.ismount(disk)
    assert list(disk.iterdir()) == []
    assert (behind(disk) / "a").read_text() == "x" * 30


def test_every_write_takes_its_time(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    with shared_files(disk, write_seconds=0.2):
        began = time.monotonic()
        with (disk / "a").open("w", buffering=1) as file:
            for number in range(5):
                file.write(f"{number}\n")
        assert time.monotonic() - began >= 1.0
        assert (disk / "a").read_text() == "0\n1\n2\n3\n4\n"
        os.utime(disk / "a")
        assert time.time() - (disk / "a").stat().st_mtime < 60
