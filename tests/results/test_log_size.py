"""Logs of models that print without end."""

import subprocess
import sys

import pytest

from dpcompare.results import run_dir as log_size

PRINTS = """
import os, pathlib, sys
for number in range({}):
    os.write(1, b'%09d\\n' % number)
pathlib.Path("printed").touch()
sys.stdin.read()
os.write(1, b"the last line")
"""


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(log_size, "MOST_BYTES", 50_000)
    monkeypatch.setattr(log_size, "KEPT_BYTES", 10_000)


@pytest.mark.usefixtures("small")
def test_the_middle_of_a_long_log_is_left_out_and_said(tmp_path):
    log = tmp_path / "node0.log"
    log.write_text("".join(f"{number:09d}\n" for number in range(10_000)))
    log_size.cut_logs(tmp_path, [0])
    lines = log.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("000000000", "000009999")
    assert "[dpcompare has left out the middle of this log, which was too long]" in lines
    assert log.stat().st_size < 21_000


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("name", "size"), [("node0.log", 50_000), ("node1.log", 90_000), ("node10-process0.log", 90_000)]
)
def test_logs_that_are_short_or_of_other_nodes_stay(tmp_path, name, size):
    (tmp_path / name).write_text("x" * size)
    log_size.cut_logs(tmp_path, [0])
    assert (tmp_path / name).read_text() == "x" * size


@pytest.mark.process
@pytest.mark.usefixtures("small")
def test_a_process_goes_on_writing_at_the_end(tmp_path):
    log = tmp_path / "node0.log"
    with log.open("ab") as opened:  # as the launcher opens it
        command = [sys.executable, "-c", PRINTS.format(300_000)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=opened, cwd=tmp_path)
    largest = 0
    while not (tmp_path / "printed").exists() and process.poll() is None:
        largest = max(largest, log.stat().st_size)
        log_size.cut_logs(tmp_path, [0])
    process.communicate()
    log_size.cut_logs(tmp_path, [0])
    assert log.read_text().splitlines()[-1] == "the last line"
    assert log.stat().st_size < 60_000
    assert largest < 3_000_000


def test_a_link_in_the_place_of_a_log_is_not_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(log_size, "MOST_BYTES", 1)
    (tmp_path / "mine").write_text("x" * 100)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "node0.log").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match=r"Too many levels of symbolic links"):
        log_size.cut_logs(tmp_path / "logs", [0])
    assert (tmp_path / "mine").read_text() == "x" * 100
