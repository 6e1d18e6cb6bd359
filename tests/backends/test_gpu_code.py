"""Whether a build has code for a GPU, by what builds say of themselves."""

import pytest

from dpcompare.backends.cuda_wheels import code_for, compiled_for, cuda_wheels_of
from dpcompare.errors import RequestError
from dpcompare.launch.findings import judge_gpu_code

TORCH_2_14 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
TENSORFLOW_2_21 = ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"]


@pytest.mark.parametrize(
    ("framework", "architectures", "capability", "status", "code"),
    [
        ("torch", TORCH_2_14, (7, 5), "ok", "machine code"),
        ("torch", TORCH_2_14, (9, 0), "ok", "machine code"),
        ("torch", TORCH_2_14, (12, 0), "ok", "machine code"),
        ("torch", TORCH_2_14, (7, 0), "problem", "none"),
        ("torch", [], (9, 0), "problem", "none"),
        ("tensorflow", TENSORFLOW_2_21, (7, 5), "ok", "machine code"),
        ("tensorflow", TENSORFLOW_2_21, (9, 0), "note", "PTX"),
        ("tensorflow", TENSORFLOW_2_21, (12, 0), "note", "PTX"),
        ("tensorflow", TENSORFLOW_2_21, (5, 2), "problem", "none"),
    ],
)
def test_builds_are_judged_by_the_gpu(framework, architectures, capability, status, code):
    finding = judge_gpu_code(framework, capability, architectures)
    assert finding.status == status
    assert finding.found.startswith(f"{code} for compute capability {capability[0]}.{capability[1]}, built for ")
    assert bool(finding.remedy) == (status != "ok")
    if status == "note":
        assert "the first run takes minutes" in finding.remedy


@pytest.mark.parametrize(
    ("architectures", "capability", "code"),
    [
        (["sm_86"], (8, 9), "machine code"),
        (["sm_89"], (8, 6), "none"),
        (["sm_90"], (10, 0), "none"),
        (["compute_89"], (8, 6), "none"),
        (["compute_80", "sm_80"], (8, 0), "machine code"),
        (["sm_90a"], (9, 0), "machine code"),
        (["sm_100a", "compute_100a"], (10, 3), "none"),
        (["sm_100f"], (10, 3), "machine code"),
        (["compute_100f"], (12, 0), "none"),
        (["sm_120"], (12, 1), "machine code"),
        (["gfx90a"], (9, 0), "none"),
    ],
)
def test_code_runs_on_what_nvidia_says(architectures, capability, code):
    assert code_for(capability, architectures) == code


@pytest.mark.torch
@pytest.mark.slow
def test_torch_says_what_it_was_built_for():
    import sys

    built_for = compiled_for("torch", sys.executable)
    assert all(name.startswith(("sm_", "compute_", "gfx")) for name in built_for)
    has_cuda = any(name.startswith("nvidia-cuda-runtime") for name in cuda_wheels_of(sys.executable).versions)
    assert bool(built_for) == has_cuda


@pytest.mark.process
def test_a_framework_that_cannot_be_imported_is_named():
    with pytest.raises(RequestError, match="torch of '/bin/false' cannot be asked for which GPUs it was built"):
        compiled_for("torch", "/bin/false")
