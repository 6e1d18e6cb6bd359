"""Completion in shells: what Click's protocol answers, what bash makes of it, and how little is imported for it."""

import os
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest

from dpcompare.cli import main
from dpcompare.cli.completion import SHELLS
from dpcompare.config.modes import MODES
from dpcompare.experiments.study import Study, open_study
from tests.support.command import invoke
from tests.support.results import result
from tests.support.studies import arm

ROOT = Path(__file__).parents[2]


def asked(*words, **environment):
    """The answers to a TAB after these words, the last of which is begun."""
    environment |= {"COMP_WORDS": "\n".join(["dpcompare", *words]), "COMP_CWORD": str(len(words))}
    stdout, stderr = TextIOWrapper(BytesIO()), StringIO()  # Click answers in bytes
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(stdout), redirect_stderr(stderr):
        for name, value in {"_DPCOMPARE_COMPLETE": "bash_complete", **environment}.items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main([])
    assert (ended.value.code, stderr.getvalue()) == (0, "")
    return [line.partition(",")[2] for line in stdout.buffer.getvalue().decode().splitlines() if line]


@pytest.mark.parametrize(
    ("words", "answers"),
    [
        (["comp"], ["compare", "completion"]),
        (["run", "--fram"], ["--framework"]),
        (["run", "--framework", ""], ["torch", "tensorflow", "jax"]),
        (["run", "--framework", "tensorflow", "--mode", "m"], ["mirrored", "multiworker"]),
        (["run", "--framework", "torch", "-m", "f"], ["fsdp", "fabric"]),
        (["run", "--framework=t"], ["torch", "tensorflow"]),
        (["run", "jax:"], ["jax:single", "jax:spmd", "jax:multiprocess", "jax:jit", "jax:keras-fit"]),
        (["plan", "tensorflow:m"], ["tensorflow:mirrored", "tensorflow:multiworker"]),
        (["run", "--model", "toy"], ["toy-cnn", "toy-bn"]),
        (["run", "--engine", "sl"], ["slurm"]),
        (["run", "--precision", "b"], ["bfloat16"]),
        (["compare", "--arm", "torch:f"], ["torch:fsdp", "torch:fabric"]),
        (["compare", "--arm", "torch:ddp,prec"], ["torch:ddp,precision="]),
        (["compare", "--pair", "torch:ddp,precision=b"], ["torch:ddp,precision=bfloat16"]),
        (["completion", "z"], ["zsh"]),
    ],
)
def test_values_are_completed(words, answers):
    assert asked(*words) == answers


def test_warnings_do_not_disturb_the_line_that_is_typed():
    assert asked("dat", DPCOMPARE_NODE="2") == ["data"]


@pytest.mark.skipif(os.access("/proc/1/fdinfo/0", os.F_OK), reason="needs a folder that this user may not read")
def test_folders_that_may_not_be_read_complete_nothing():
    assert asked("report", "/proc/1/fd") == ["/proc/1/fd"]


def test_runs_and_studies_are_found_where_they_usually_are(tmp_path):
    run_dir, other = tmp_path / "runs" / "one", tmp_path / "runs" / "no-run"
    run_dir.mkdir(parents=True)
    other.mkdir()
    (run_dir / "config.json").write_text("{}")
    result().save(run_dir)
    open_study(Study(arms=(arm(),), repeats=1), tmp_path / "studies" / "modes")
    assert asked("run", "--resume", "") == ["runs/one"]
    assert asked("compare", "--resume", "") == ["studies/modes"]
    assert asked("report", "") == ["runs/one", "studies/modes"]
    assert asked("report", "runs/one", "stu") == ["studies/modes"]
    assert asked("watch", f"{tmp_path}/studies/m") == [f"{tmp_path}/studies/modes"]


def test_datasets_are_the_built_in_ones_and_folders(tmp_path):
    (tmp_path / "photos").mkdir()
    assert asked("run", "--dataset", "") == ["digits", "synthetic", "synthetic-mini", "synthetic-many", "photos"]
    assert asked("run", "--dataset", "pho") == ["photos"]


@pytest.mark.process
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "answers"),
    [
        # As bash breaks them, and of the last word only what it replaces.
        ("plan torch : dd", ["ddp"]),
        ("compare --arm tensorflow :", ["single", "mirrored", "multiworker", "parameter-server", "keras-fit", "tpu"]),
        ("compare --arm torch : ddp,precision = bf", ["bfloat16"]),
        ("run --framework = te", ["tensorflow"]),
    ],
)
def test_bash_gets_the_part_of_a_word_that_it_replaces(tmp_path, words, answers):
    script = tmp_path / "completion.bash"
    script.write_text(invoke("completion", "bash").stdout)
    program = tmp_path / "dpcompare"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dpcompare "$@"\n')
    program.chmod(0o755)
    words = f"dpcompare {words}".split()
    command = (
        f"source {script}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; "
        f'_dpcompare_completion {program}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=600)
    assert done.stdout.split() == answers, done.stderr


@pytest.fixture
def on_the_path(tmp_path, monkeypatch):
    """The command that the scripts of shells start."""
    program = tmp_path / "bin" / "dpcompare"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dpcompare "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)


OF_WHOLE_WORDS = [
    ("run --framework=te", ["--framework=tensorflow"]),
    ("run --fram", ["--framework"]),
    ("plan torch:dd", ["torch:ddp"]),
    ("compare --arm torch:ddp,prec", ["torch:ddp,precision="]),
    ("compare --arm torch:ddp,precision=bf", ["torch:ddp,precision=bfloat16"]),
]


@pytest.mark.process
@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(("typed", "answers"), OF_WHOLE_WORDS)
def test_fish_gets_whole_words(on_the_path, tmp_path, typed, answers):
    command = f"dpcompare completion fish | source; complete -C 'dpcompare {typed}'"
    environment = os.environ | {"HOME": str(tmp_path)}
    done = subprocess.run(["fish", "-c", command], env=environment, capture_output=True, text=True, timeout=600)
    assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == answers, done.stderr


@pytest.mark.process
@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_shows_an_explanation_to_its_end(on_the_path, tmp_path):
    command = "dpcompare completion fish | source; complete -C 'dpcompare run torch:dd'"
    environment = os.environ | {"HOME": str(tmp_path)}
    done = subprocess.run(["fish", "-c", command], env=environment, capture_output=True, text=True, timeout=600)
    assert done.stdout == f"torch:ddp\t{MODES['torch', 'ddp'].summary}\n"


@pytest.mark.process
@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
@pytest.mark.parametrize(("typed", "answers"), OF_WHOLE_WORDS)
def test_zsh_gets_whole_words(on_the_path, typed, answers):
    """What its completion system is handed."""
    words = f"dpcompare {typed}".split()
    explained = 'for one in $completions_with_descriptions; do print -r -- "${${one//\\\\:/\t}%%:*}"; done'
    shown = f"compadd() {{ print -rl -- $completions }}; _describe() {{ {explained} }}"
    command = (
        f"compdef() {{ }}; {shown}; source <(dpcompare completion zsh); "
        f"words=({' '.join(words)}); CURRENT={len(words)}; _dpcompare_completion"
    )
    done = subprocess.run(["zsh", "-fc", command], capture_output=True, text=True, timeout=600)
    assert done.stdout.replace("\t", ":").splitlines() == answers, done.stderr


@pytest.mark.process
@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script_that_asks(shell):
    script = invoke("completion", shell).stdout
    assert f"_DPCOMPARE_COMPLETE={shell}_complete" in script


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "answers"), [("run\n--mode\nd", ["plain,dp", "plain,ddp"]), ("report\nstu", ["plain,studies/modes"])]
)
def test_completion_imports_no_framework_and_nothing_slow(tmp_path, words, answers):
    (tmp_path / "studies" / "modes").mkdir(parents=True)
    (tmp_path / "studies" / "modes" / "study.json").touch()
    environment = {"COMP_WORDS": f"dpcompare\n{words}", "COMP_CWORD": str(len(words.split()))}
    command = [sys.executable, "-X", "importtime", "-m", "dpcompare"]
    environment |= os.environ | {"_DPCOMPARE_COMPLETE": "bash_complete"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.stdout.split() == answers
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "click" in imported
    assert not imported & {"torch", "tensorflow", "keras", "rich", "scipy", "numpy", "altair"}


@pytest.mark.process
def test_the_list_of_commands_imports_no_command_and_no_config():
    command = [sys.executable, "-X", "importtime", "-m", "dpcompare", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "compare" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "dpcompare.cli" in imported
    assert not imported & {
        "pydantic",
        "numpy",
        "dpcompare.config.workload",
        "dpcompare.cli.run",
        "dpcompare.cli.compare",
    }
