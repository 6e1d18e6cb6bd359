"""The benchmark of GPUs, with the processes that it starts replaced: no GPU is needed to see what it asks for."""

import sys

import pytest

from benchmarks import gpu, overhead
from benchmarks.evidence import load

FIGURES = {
    "global_batch_size": 128,
    "step_seconds": {"mean": 0.1},
    "host_overhead_seconds": 0.0,
    "peak_memory_bytes": {"max_process": 1},
    "images_per_second": 1280.0,
}


@pytest.fixture
def started(monkeypatch, install_gpus):
    """The command lines of all processes, none of which is started."""
    install_gpus()
    asked = []

    def printed(processes):
        bare = {"images_per_second": 1280.0, "peak_memory_bytes": 1}
        return [FIGURES if "dpcompare" in argv[0] else bare for argv in processes]

    def start(argv, environment):
        asked.append(argv)
        return argv

    monkeypatch.setattr(overhead, "start", start)
    monkeypatch.setattr(overhead, "printed", printed)
    return asked


def main(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", *arguments])
    gpu.main()


def test_runs_evaluate_once_so_that_windows_have_all_their_steps(started, monkeypatch, capsys):
    main(monkeypatch, "--rounds", "1", "--mode", "single")
    runs = [argv for argv in started if argv[0] == "dpcompare"]
    assert runs
    for argv in runs:
        assert argv[argv.index("--evaluate-every") + 1] == argv[argv.index("--steps") + 1] == "60"


def test_one_mode_can_be_asked_for(started, monkeypatch, capsys):
    main(monkeypatch, "--rounds", "2", "--mode", "single")
    modes = {argv[argv.index("--mode") + 1] for argv in started}
    assert modes == {"single"}
    assert len(started) == 2 * len(gpu.contestants("single", []))
    assert "torch single" in capsys.readouterr().out


def test_every_round_is_kept_when_it_is_done(started, monkeypatch, tmp_path):
    contestants = len(gpu.contestants("single", []))
    printed = overhead.printed

    def stopped(processes):
        if len(started) > 2 * contestants:
            raise KeyboardInterrupt
        return printed(processes)

    monkeypatch.setattr(overhead, "printed", stopped)
    with pytest.raises(KeyboardInterrupt):
        main(monkeypatch, "--rounds", "5", "--mode", "single", "--write", str(tmp_path))
    result = load(tmp_path / "gpu.json")
    assert result.sentences[0] == "2 of 5 rounds of the last mode, 5 of each before it."
    assert [row[0] for row in result.tables[0].rows] == ["torch single"] * contestants
    assert result.figures["strict_ratio_lowest"] == result.figures["native_ratio_highest"] == "1.00"


def test_what_failed_in_a_round_has_no_figures(started, monkeypatch, tmp_path):
    printed = overhead.printed

    def failed(processes):
        if "bfloat16" in processes[0]:
            raise RuntimeError("out of memory")
        return printed(processes)

    monkeypatch.setattr(overhead, "printed", failed)
    main(monkeypatch, "--rounds", "2", "--mode", "single", "--write", str(tmp_path))
    result = load(tmp_path / "gpu.json")
    rows = {row[1]: row[2:] for row in result.tables[0].rows}
    assert rows["plain, as strict"][:2] == ((1280, 1280, 1280), (1, 1, 1))
    assert rows["bfloat16, as native"] == (None,) * 4
    assert result.figures["native_ratio_lowest"] == "-"
