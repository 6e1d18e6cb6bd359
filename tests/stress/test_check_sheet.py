"""The check that the fairness sheet says nothing of runs that compute the same: it counts every setting that speaks."""

import pytest

from stress import check_sheet
from tests.support.results import result


def checked(results, monkeypatch, capsys):
    """The exit code, and the columns of the only workload."""
    monkeypatch.setattr(check_sheet, "WORKLOADS", check_sheet.WORKLOADS[:1])
    monkeypatch.setattr(check_sheet, "trained", lambda workload, folder: iter(results))
    monkeypatch.setattr("sys.argv", ["check_sheet"])
    with pytest.raises(SystemExit) as ended:
        check_sheet.main()
    return ended.value.code, [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].split("|")][1:-1]


def test_runs_that_compute_the_same_are_pairs_without_a_word(monkeypatch, capsys):
    four = {"num_replicas": 4, "device_names": [f"cpu:{number}" for number in range(4)], "train_loss": [2.1] * 45}
    code, cells = checked([result(), result("tensorflow", "multiworker"), result(**four)], monkeypatch, capsys)
    assert code == 0
    assert cells == ["toy-bn, sgd, float32, off", "3", "none", *["0.0e+00"] * 6, "-", "-", "-"]


def test_a_knob_that_speaks_is_counted_and_how_far_off_it_was(monkeypatch, capsys):
    other = result("tensorflow", "multiworker", train_loss=[2.0, 2.03] + [2.0] * 43, computed={"images": 7})
    code, cells = checked([result(), result(), other], monkeypatch, capsys)
    assert code == 3
    assert cells[1:4] == ["3", "images computed 2, second loss 2", "0.0e+00"]
    assert float(cells[7]) == pytest.approx(0.03 / 2.03 / 5e-3, rel=0.02)
