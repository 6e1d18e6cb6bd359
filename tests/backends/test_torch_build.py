"""How torch was built, as results record it: what the installed torch says, and what other builds would."""

import pytest

from tests.support.command import python

pytestmark = pytest.mark.torch

BUILDS = '''
import torch
from dpcompare.backends.torch.build import build_of_torch

usual = build_of_torch()
assert {"gcc", "onednn", "blas", "built with"} <= usual.keys(), usual
assert "GLOO" in usual["built with"].split(), usual
said = """PyTorch built with:
  - GCC 4.2
  - clang 17.0.6
  - oneDNN v3.9.1 (Git Hash 0123456789)
  - Build settings: BLAS_INFO=open, BUILD_TYPE=Release, USE_CUDA=OFF, USE_GLOO=ON, USE_MKLDNN=1, USE_MPI=ON,
"""
torch._C._show_config = lambda: said
other = build_of_torch()
assert other.pop("built with") == "GLOO MKLDNN MPI"
assert other == {"gcc": "4.2", "clang": "17.0.6", "onednn": "3.9.1", "blas": "open"}, other
said = ""
assert build_of_torch() == {}
'''


@pytest.mark.slow
def test_builds_of_one_version_differ_in_what_they_say():
    python("-c", BUILDS)
