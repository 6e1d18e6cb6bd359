"""What holds of all tests: where helpers stand, how long names are, and that the tier `unit` starts no process."""

import multiprocessing
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.no_process import no_process

TESTS = Path(__file__).parents[1]


# Their text is read, not their syntax tree: programs that tests write as strings import too.
IMPORTS = re.compile(
    r"""(?:from|import)\s+(?:tests)?\.[\w.]*\btest_\w+
    |   from\s+(?:tests|\.)[\w.]*\s+import\s[^\n]*\btest_\w+""",
    re.VERBOSE,
)
NAME = re.compile(r"^\s*def (test_\w+)", re.MULTILINE)


def found(pattern):
    """What of the modules of tests matches, with the module."""
    paths = sorted(TESTS.glob("**/*.py"))
    return [(str(path.relative_to(TESTS)), match) for path in paths for match in pattern.findall(path.read_text())]


@pytest.mark.parametrize(
    "line",
    [
        "from tests.cli.test_one import two",
        "import tests.cli.test_one as one",
        "from tests.cli import other, test_one",
        "from .test_one import two",
        "from . import test_one",
        '    "from tests.cli.test_one import two; two()"',
    ],
)
def test_an_import_of_a_module_of_tests_is_found(line):
    assert IMPORTS.search(line)


def test_no_module_of_tests_imports_another():
    """What several share stands in tests/support/ or in a conftest.py."""
    mine = str(Path(__file__).relative_to(TESTS))
    assert not [(path, line) for path, line in found(IMPORTS) if path != mine]


def test_the_name_of_a_test_has_at_most_60_characters():
    """A report shows it on one line, behind the path of its file."""
    assert not [(path, name) for path, name in found(NAME) if len(name) > 60]


STARTS = {
    "subprocess": lambda: subprocess.run(["true"]),
    "fork": lambda: os.fork() or os._exit(0),
    "forkpty": lambda: os.forkpty()[0] or os._exit(0),
    "posix_spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "system": lambda: os.system("true"),
    "multiprocessing": lambda: multiprocessing.get_context("spawn").Process(target=print).start(),
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_no_way_to_start_a_process_passes_the_guard(start):
    with pytest.raises(pytest.fail.Exception, match="mark it with"), no_process():
        start()


def test_a_start_fails_even_where_its_failure_was_caught():
    with pytest.raises(pytest.fail.Exception, match=r"os\.system of .*true"), no_process(), suppress(BaseException):
        os.system("true")


THREE_TESTS = """
import subprocess
import pytest

@pytest.fixture(scope="module")
def started():
    subprocess.run(["true"])

def test_its_fixture_starts_one(started): ...

def test_it_starts_one_itself():
    subprocess.run(["true"])

@pytest.mark.process
def test_it_is_marked():
    subprocess.run(["true"])
"""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "outcome"), [("unit", "1 failed, 1 deselected, 1 error"), ("process", "1 passed, 2 deselected")]
)
def test_a_test_of_the_tier_unit_that_starts_a_process_fails(tmp_path, chosen, outcome):
    (tmp_path / "test_three.py").write_text(THREE_TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-m", chosen, "--rootdir", tmp_path, tmp_path]
    markers = ["-o", "markers=process\nunit"]
    environment = os.environ | {"PYTHONPATH": str(TESTS.parent)}
    done = subprocess.run([*command, *markers], stdout=subprocess.PIPE, text=True, env=environment)
    assert outcome in done.stdout
