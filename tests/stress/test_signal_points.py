"""A sample of what `stress.signal_points` explores."""

import subprocess
import sys


def test_a_signal_at_any_bytecode_of_a_launch_ends_it_in_time():
    command = [sys.executable, "-m", "stress.signal_points", "--points", "18", "--seed", "3"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "18 points" in done.stdout
