"""The benchmark of GPUs, with the processes that it starts replaced: no GPU is needed to see what it asks for."""

import sys

import pytest

from benchmarks import gpu, overhead

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


def test_every_round_is_written_when_it_is_done(started, monkeypatch, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- gpu -->\n<!-- end of gpu -->\nafter\n")
    written = []

    def stopped(path, name, lines):
        written.append("\n".join(lines))
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "write_section", stopped)
    with pytest.raises(KeyboardInterrupt):
        main(monkeypatch, "--rounds", "5", "--mode", "single", "--write", str(page))
    assert len(started) == len(gpu.contestants("single", []))  # of the first round alone
    assert "torch single" in written[0]
