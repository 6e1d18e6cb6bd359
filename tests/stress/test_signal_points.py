"""A sample of what `stress.signal_points` explores."""

import re
import subprocess
import sys

import pytest


@pytest.mark.process
@pytest.mark.slow
def test_a_signal_at_any_bytecode_of_a_launch_ends_it_in_time():
    command = [sys.executable, "-m", "stress.signal_points", "--points", "18", "--seed", "3", "--jobs", "4"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "18 points, 0 failed" in done.stdout
    delivered = 18 - int(re.search(r"(\d+) points were after the end", done.stdout)[1])
    assert delivered > 9, done.stdout  # a renamed function once left no bytecode to deliver one at
