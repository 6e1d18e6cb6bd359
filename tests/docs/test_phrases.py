"""The hook that names words which only this project understands, with the line in which they stand."""

import subprocess
from pathlib import Path

import pytest

HOOK = Path(__file__).parents[2] / ".ci" / "phrases"

pytestmark = pytest.mark.process


def phrases(*folders):
    return subprocess.run([HOOK, *folders], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('"""Runs next to each other."""', None),
        ("hf:nobody/has-written-this", None),
        ('"""Runs beside each other."""', "received 'beside', expected next to"),
        ("with only_one(folder):", "received 'only_one', expected wait_for_lock, exclusive_lock"),
        ("# it is no mode", "received 'it is no m', expected is not a"),
    ],
)
def test_a_phrase_is_named_with_its_line(tmp_path, line, says):
    (tmp_path / "module.py").write_text(f"\n{line}\n")
    done = phrases(tmp_path)
    assert done.returncode == (says is not None)
    assert done.stderr.startswith(f"{tmp_path / 'module.py'}:2: {says}" if says else "")


@pytest.mark.slow
def test_no_phrase_stands_in_the_package_and_its_tests():
    assert phrases().stderr == ""


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("Measured at 1a2b3c4 on two cores", "expected no commit: the evidence page has it"),
        ("`python -m stress.soak` at 1a2b3c4: 500 runs", None),
        ("started by hand", "received 'by hand', expected manually"),
        ("the interval leaves 1 out", "expected excludes"),
        ("one is kept beside it", "received 'beside', expected next to"),
    ],
)
def test_a_page_has_no_commit_and_no_foreign_phrase(tmp_path, line, says):
    (tmp_path / "page.md").write_text(f"{line}\n")
    done = phrases(tmp_path)
    assert done.returncode == (says is not None)
    assert says is None or says in done.stderr
