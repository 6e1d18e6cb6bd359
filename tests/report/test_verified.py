"""The checks of verify on a terminal: failures and a summary, and in full rows of any width."""

import pytest

from dpcompare.experiments.verify import Check
from dpcompare.report.verified import failures, rows, summary


def check(name="gradient", measured=2e-13, **changes):
    fields = {
        "modes": "torch single on 1, tensorflow mirrored on 2, jax spmd on 2",
        "pair": "tensorflow mirrored on 2 / jax spmd on 2",
        "workload": "toy-cnn",
        "precision": "float64",
        "tolerance": 1e-11,
    }
    return Check(name=name, measured=measured, **fields | changes)


def test_only_what_failed_is_told_and_each_reason_once():
    missing = "0 is in torch single alone"
    checks = [
        check(),
        check("gradient", 0.5),
        *(check(name, None, detail=missing) for name in ("sample order", "first loss", "first loss")),
    ]
    assert list(failures(checks)) == [
        "FAILED gradient, toy-cnn, float64: tensorflow mirrored on 2 / jax spmd on 2: 5.0e-01 of 1.0e-11",
        "FAILED sample order, toy-cnn, float64: tensorflow mirrored on 2 / jax spmd on 2: did not run",
        "  0 is in torch single alone",
        "  so did 2 more checks: first loss",
    ]
    assert list(failures([check()])) == []


def test_the_summary_has_the_check_closest_to_its_tolerance():
    near = check("first loss", 5e-5, precision="float32", tolerance=1e-4)
    checks = [check(), check("gradient of each tensor", 1e-9, tolerance=1e-8), near, check(measured=1.0)]
    assert list(summary(checks)) == [
        "3 of 4 checks passed",
        "  float64: 2 of 3; closest: gradient of each tensor, toy-cnn: 1.0e-09 of 1.0e-08 (10% of its tolerance), "
        "tensorflow mirrored on 2 / jax spmd on 2",
        "  float32: 1 of 1; closest: first loss, toy-cnn: 5.0e-05 of 1.0e-04 (50% of its tolerance), tensorflow "
        "mirrored on 2 / jax spmd on 2",
    ]
    assert list(summary([])) == ["nothing was compared"]
    assert list(summary([check(measured=0.0)])) == ["1 of 1 checks passed", "  float64: 1 of 1"]


@pytest.mark.parametrize(("width", "lines"), [(80, 2), (160, 1)])
def test_rows_fold_where_a_terminal_is_narrow(width, lines):
    shown = list(rows([check(), check("accumulation = replicas = one batch", 1.0)], width))
    assert shown[0] == "toy-cnn, float64"
    assert len(shown) == 1 + 2 * lines
    assert max(map(len, shown)) <= width
    assert shown[1].startswith("  pass  gradient ")
    assert shown[1 + lines].startswith("  FAIL  accumulation = replicas = one batch  1.0e+00 of 1.0e-11")
    assert shown[-1].endswith("tensorflow mirrored on 2 / jax spmd on 2, of 3 modes")
