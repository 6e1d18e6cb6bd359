"""The hook that reads the message of a commit, with messages as git writes them."""

import subprocess
from pathlib import Path

import pytest

HOOK = Path(__file__).parents[2] / ".ci" / "commit-message"


@pytest.mark.process
@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("A subject\n\nThe reason.\n", None),
        ("# a comment of git's\nA subject\n\nThe reason.\n# ------------------------ >8 ---\n" + "x" * 99, None),
        ("Merge branch 'other'\n", None),
        ("fixup! A subject\n", None),
        ("x" * 72 + "\n\nThe reason.\n", None),
        ("x" * 73 + "\n\nThe reason.\n", "received a subject of 73 characters, expected at most 72"),
        ("A subject\n", "received a subject alone, expected the reason"),
        ("A subject\n\n# only a comment\n", "received a subject alone, expected the reason"),
        ("A subject\ngoes on\n", "received text in the second line, expected an empty one"),
        ("", "received a subject alone"),
    ],
)
def test_a_subject_is_short_and_has_a_reason(tmp_path, message, says):
    (tmp_path / "message").write_text(message)
    done = subprocess.run([HOOK, tmp_path / "message"], capture_output=True, text=True)
    assert (done.returncode == 0) == (says is None)
    assert (says or "") in done.stderr
