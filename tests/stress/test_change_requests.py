"""The eight requests still fit the code, and touch no more of it than the docs say."""

import subprocess
import sys
from dataclasses import replace

import pytest

from stress.change_requests import PAGE, ROOT, make, row, show, working_tree
from stress.request_edits import REQUESTS, Edit

pytestmark = pytest.mark.process

MOST_CHANGED = {
    "model": 1, "interpreter": 3, "engine": 1, "optimizer": 5, "source": 1, "check": 2, "figure": 2, "framework": 2,
}  # fmt: skip
"""Request -> files of the package that it may change, in addition to those that it adds."""


@pytest.fixture(autouse=True)
def _needs_a_repository():
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("this is not a clone: the requests are made in working trees")


@pytest.mark.slow
@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_made_and_touches_what_the_docs_say(name):
    with working_tree() as tree:
        made = make(name, REQUESTS[name], tree)
        for path in made.new:
            module = path.removesuffix(".py").replace("/", ".")
            if not path.rpartition("/")[2].startswith("in_"):  # which need their framework
                subprocess.run([sys.executable, "-c", f"import {module}"], cwd=tree, check=True)
        if name in ("engine", "figure"):  # the others train
            show(REQUESTS[name], tree)
    assert len(made.changed) <= MOST_CHANGED[name]
    assert f"| {' | '.join(row(name, REQUESTS[name], made))} |" in PAGE.read_text()


@pytest.mark.slow
def test_a_text_that_is_not_there_is_named():
    request = replace(REQUESTS["source"], edits=(Edit("dpcompare/errors.py", "no such text", ""),))
    with working_tree() as tree, pytest.raises(ValueError, match=r"dpcompare/errors\.py has 0 times 'no such text'"):
        make("source", request, tree)
