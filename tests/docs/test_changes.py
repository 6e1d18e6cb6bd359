"""The hook that reads changes/, with names as people choose them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("name", "is_taken"),
    [
        ("+words.fixed.md", True),
        ("12.numbers.md", True),
        ("+words.md", False),
        ("+words.repaired.md", False),
    ],
)
def test_a_change_has_the_name_of_one(tmp_path, name, is_taken):
    pytest.importorskip("towncrier", reason="needs the lint extra")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "changes").mkdir()
    shutil.copy(ROOT / "changes" / "README.md", tmp_path / "changes")
    (tmp_path / "changes" / name).write_text("What is new.\n")
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "next"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode == 0) == is_taken, done.stderr
    assert ("What is new." if is_taken else name) in done.stdout + done.stderr
