"""Output that is lost: to a reader that goes, a full disk, a terminal that hangs up."""

import errno
import io
import os
import subprocess
import sys

import pytest
from rich.table import Table

from dpcompare.cli.output import stderr_console, stdout_console
from dpcompare.cli.progress import RunProgress, StudyProgress, data_progress
from dpcompare.experiments.study import Study, open_study
from dpcompare.system.terminal_text import keep_stderr_from_failing
from tests.support.events import ready, trained
from tests.support.studies import arm


class LostStream(io.TextIOBase):
    """Fails as its file does."""

    def __init__(self, number):
        self.number, self.tried = number, 0

    def write(self, text):
        self.tried += 1
        raise OSError(self.number, os.strerror(self.number))

    def flush(self):
        self.write("")


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ENOSPC, errno.EIO])
def test_what_shows_progress_outlives_the_loss_of_its_output(tmp_path, monkeypatch, number):
    stream = LostStream(number)
    monkeypatch.setattr(sys, "stderr", stream)
    keep_stderr_from_failing()
    study = open_study(Study(arms=(arm(),), repeats=1), tmp_path / "study")
    with RunProgress(arm().config, tmp_path) as progress:
        for event in (ready(steps=1), trained([8.0], step=1)):
            progress.observe(event)
    with data_progress() as images_done:
        images_done(10, 10)
    with StudyProgress(study, tmp_path / "study") as watcher:
        watcher.run_says("still here")
    print("a warning", file=sys.stderr)
    assert stream.tried > 5


REFUSED = f"{sys.executable} -m dpcompare run --framework nothing --mode ddp"


@pytest.mark.process
@pytest.mark.parametrize("lost", ["2>/dev/full", "2>&-", "--json >/dev/full 2>/dev/full", "2>&1 | true"])
def test_the_exit_code_outlives_the_loss_of_output(lost):
    """Python itself exits with another code where stderr cannot be flushed at its end."""
    command = f"set -o pipefail; {REFUSED} {lost}"
    assert subprocess.run(["bash", "-c", command], stdin=subprocess.DEVNULL, timeout=600).returncode == 2


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_no_text_from_outside_is_obeyed_by_a_terminal(monkeypatch, stream):
    shown = io.StringIO()
    monkeypatch.setattr(sys, stream, shown)
    console = stdout_console() if stream == "stdout" else stderr_console()
    hostile = "\x1b]0;title\x07\x9b31m"
    table = Table(hostile, title=hostile, caption=hostile)
    table.add_row(hostile)
    console.print(table)
    console.print(hostile, soft_wrap=True)
    assert shown.getvalue().count("]0;title") == 5
    assert not set("\x1b\x07\x9b") & set(shown.getvalue())


SUMMARY = """
from dpcompare.cli.output import if_anybody_reads, stdout_console
with if_anybody_reads():
    stdout_console().print("a summary " * 10_000)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("output", "says"), [("pipe", ""), ("/dev/full", "could not write the output: No space left on device\n")]
)
def test_a_summary_that_nobody_can_read_fails_no_run(output, says):
    reading, writing = os.pipe()
    os.close(reading)
    stdout = writing if output == "pipe" else os.open(output, os.O_WRONLY)
    done = subprocess.run([sys.executable, "-c", SUMMARY], stdout=stdout, stderr=subprocess.PIPE, text=True)
    for descriptor in {writing, stdout}:
        os.close(descriptor)
    assert (done.returncode, done.stderr) == (0, says)
