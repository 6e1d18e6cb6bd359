"""What the documentation shows is true: its Python runs, its paths exist."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from docs.site.tree import TREE, tree
from dpcompare.cli import cli
from tests.support.command import dpcompare

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def python_blocks():
    for page in PAGES:
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)):
            yield pytest.param(code, id=f"{page.name}-{number}", marks=pytest.mark.torch)


def asks_for_runs_alone(code):
    """What loads no framework itself and starts no script may be run by the process of the tests."""
    imports_us_alone = re.findall(r"^(?:import|from) (\S+)", code, re.MULTILINE) == ["dpcompare"]
    return imports_us_alone and not {"backend", "run_script"} & set(re.findall(r"dp\.(\w+)\(", code))


@pytest.mark.slow
@pytest.mark.parametrize("code", list(python_blocks()))
def test_python_examples_run(code, tmp_path, request):
    if asks_for_runs_alone(code):
        for fixture in ("warm", "first_group"):  # that all groups pass, tests/experiments/test_verify.py shows
            request.getfixturevalue(fixture)
        exec(compile(code, "example.py", "exec"), {"__name__": "__main__"})
        return
    shutil.copytree(ROOT / "docs" / "examples", tmp_path, dirs_exist_ok=True)
    (tmp_path / "example.py").write_text(code)
    done = subprocess.run([sys.executable, "example.py"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.slow
def test_study_files_are_accepted(tmp_path):
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "measuring.md").read_text(), re.DOTALL)
    (tmp_path / "study.toml").write_text(block)
    done = dpcompare("compare", tmp_path / "study.toml", "--device", "cpu", "--dry-run", "--json")
    assert done.code == 0, done.stderr
    assert len(done.json["runs"]) == 36


def commands():
    """Every command of ours in a block of text or between backticks, but for those that are cut short with dots."""
    for page in PAGES:
        blocks = re.findall(r"```(?:bash|sh)?\n(.*?)```", page.read_text(), re.DOTALL)
        lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
        lines += re.findall(r"`(dpcompare \w+ [^`\n]+)`", page.read_text())  # not the mere name of a command
        for line in lines:
            if re.match(r"dpcompare \w", line) and "..." not in line:
                typed = shlex.split(line.partition(" | ")[0], comments=True)
                yield pytest.param(typed[1:], id=f"{page.name}: {line[:60].strip()}")


@pytest.mark.parametrize("command", list(commands()))
def test_commands_are_accepted_by_the_command_line(command, tmp_path):
    (tmp_path / "study.toml").touch()
    name, *arguments = command
    known = cli.all_commands()[name]
    if isinstance(known, click.Group):
        known, arguments = known.commands[arguments[0]], arguments[1:]
    known.make_context(name, arguments)


def test_commands_and_conditions_of_the_workflow_are_accepted():
    yaml = pytest.importorskip("yaml", reason="needs the dev extra")
    workflow = yaml.safe_load((ROOT / "docs" / "examples" / "compare.yml").read_text())
    lines = [line for step in workflow["jobs"]["gate"]["steps"] for line in step.get("run", "").splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("dpcompare ")]
    assert [name for name, *_ in commands] == ["setup", "setup", "gate", "report"]
    for name, *arguments in commands:
        assert cli.all_commands()[name].make_context(name, arguments).params


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_of_the_repository(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_package_layout_is_that_of_the_modules():
    page = (ROOT / "docs" / "package_layout.md").read_text()
    assert TREE.search(page)[0] == tree(), "run `python -m docs.site.tree`"
