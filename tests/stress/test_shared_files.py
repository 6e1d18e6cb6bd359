"""The file system on which trials imitate what nodes share: one tells nodes apart, and never a node about itself."""

import importlib.util
import os
import shutil
import subprocess
import sys
import time

import pytest

from stress.shared_files import shared_files

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        shutil.which("fusermount3") is None or importlib.util.find_spec("mfusepy") is None,
        reason="needs FUSE (Debian: fuse3) and mfusepy",
    ),
]
LATE_SECONDS = 2.0


def on_node(node, code, path):
    environment = os.environ | {"NODE": node}
    done = subprocess.run(
        [sys.executable, "-c", f"import os; path = {str(path)!r}; {code}"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_a_node_is_told_late_of_what_another_one_has_made_and_knows_its_own(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    file = disk / "a"
    append = "f = open(path, 'a'); f.write('x' * 10); f.close()"
    listed, size = f"print(os.listdir({str(disk)!r}))", "print(os.path.exists(path) and os.stat(path).st_size)"
    with shared_files(disk, late_seconds=LATE_SECONDS, node_variable="NODE"):
        assert [on_node("1", listed, file), on_node("1", size, file)] == ["[]", "False"]
        on_node("0", append, file)
        assert [on_node("0", listed, file), on_node("0", size, file)] == ["['a']", "10"]
        assert [on_node("1", listed, file), on_node("1", size, file)] == ["[]", "False"]  # as it was told before
        assert on_node("2", size, file) == "10"  # it had not asked
        time.sleep(LATE_SECONDS)
        assert [on_node("1", listed, file), on_node("1", size, file)] == ["['a']", "10"]
        on_node("0", append, file)
        assert on_node("1", size, file) == "10"
        assert on_node("1", "print(len(open(path).read()))", file) == "20"  # whoever opens a file asks anew
        on_node("1", append, file)
        assert on_node("1", "print(open(path).read())", file) == "x" * 30
    assert not os.path.ismount(disk)
    assert [path.name for path in disk.iterdir()] == []


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
