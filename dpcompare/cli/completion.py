"""What a shell completes: the script of each shell, and the values of options."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    split_arg_string,
)

from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.modes import MODES
from dpcompare.experiments import STUDY_FILE
from dpcompare.results.run_dir import CONFIG_FILE

Items = list[CompletionItem]


def starting_with(typed: str, values: Iterable[str]) -> Items:
    """Those of some values that begin with what was typed."""
    return [CompletionItem(value) for value in values if value.startswith(typed)]


def frameworks(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """Those of the table."""
    return starting_with(typed, FRAMEWORKS)


def engines(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """Those of the table, and of other packages."""
    from dpcompare.config.engines import engine_names

    return starting_with(typed, engine_names())


def modes(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """Completions of a mode, of the framework that was given or of all, each with what it is."""
    given = context.params.get("framework")
    return [
        CompletionItem(mode, help=row.summary)
        for (framework, mode), row in MODES.items()
        if mode.startswith(typed) and given in (None, framework)
    ]


def named_modes(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """`torch:ddp`, as `run` takes it."""
    return [
        CompletionItem(name, help=row.summary)
        for (framework, mode), row in MODES.items()
        if (name := f"{framework}:{mode}").startswith(typed)
    ]


def models(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """Those that are built in."""
    from dpcompare.models.architectures import MODELS

    return starting_with(typed, MODELS)


def datasets(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """Those that are built in, and folders."""
    from dpcompare.data.built_in import BUILT_IN

    return starting_with(typed, BUILT_IN) + _folders(typed, lambda folder: True)


def runs(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """The directories of runs, also those below runs/."""
    return _folders(typed, _is_run, "runs")


def studies(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """The directories of studies, also those below studies/."""
    return _folders(typed, _is_study, "studies")


def runs_and_studies(context: click.Context, parameter: click.Parameter, typed: str) -> Items:
    """Both."""
    return _folders(typed, lambda folder: _is_run(folder) or _is_study(folder), "runs", "studies")


def _is_run(folder: Path) -> bool:
    return os.path.isfile(folder / CONFIG_FILE)  # noqa: PTH113 (pathlib raises in a folder that may not be read)


def _is_study(folder: Path) -> bool:
    return os.path.isfile(folder / STUDY_FILE)  # noqa: PTH113 (the same)


def _folders(typed: str, suits: Callable[[Path], bool], *usual: str) -> Items:
    """The folders that suit and begin as typed, and those in the usual places; where there are none, any folder."""
    parent = Path(typed if typed.endswith("/") else Path(typed).parent)
    places = dict.fromkeys([parent, *map(Path, usual)])
    found = {
        str(folder)
        for place in places
        if place.is_dir() and os.access(place, os.R_OK | os.X_OK)
        for folder in place.iterdir()
        if str(folder).startswith(typed) and folder.is_dir() and suits(folder)
    }
    return [CompletionItem(name) for name in sorted(found)] or [CompletionItem(typed, type="dir")]


VARIABLE = "_DPCOMPARE_COMPLETE"
"""The variable through which a shell asks for completions: Click's name for it."""
_BREAKS = (":", "=")


class _Bash(BashComplete):
    """Bash breaks words at : and =, which arms such as torch:ddp,seed=1 have; here they are put together again."""

    _replaced_by_nothing = ""
    """What stands before the part of the word that bash replaces."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The whole words before the one that is completed, and that one."""
        words = split_arg_string(os.environ["COMP_WORDS"])
        position = int(os.environ["COMP_CWORD"])
        current = words[position] if position < len(words) else ""
        whole: list[str] = []
        for word in [*words[1:position], current]:
            if whole and word and (word in _BREAKS or whole[-1].endswith(_BREAKS)):
                whole[-1] += word
            else:
                whole.append(word)
        incomplete = whole.pop()
        before = incomplete if current in _BREAKS else incomplete.removesuffix(current)
        self._replaced_by_nothing = before.partition("=")[2] if before.startswith("-") else before
        return whole, incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """A line for the script."""
        return f"{item.type},{item.value.removeprefix(self._replaced_by_nothing)}"


class _WithOption(ShellComplete):
    """Zsh and fish replace the whole word `--framework=t`, of which Click answers with the value alone.

    Where the shell itself is to look for folders, `--option value` completes and `--option=value` may not.
    """

    _option = ""
    """What stands before the value, `--framework=`."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one that is completed, and that one."""
        words, incomplete = super().get_completion_args()
        name, equals, _ = incomplete.partition("=")
        self._option = name + equals if equals and name.startswith("-") else ""
        return words, incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """A line, or three, for the script."""
        return super().format_completion(CompletionItem(self._option + item.value, item.type, item.help))


class _Zsh(_WithOption, ZshComplete):
    """Zsh's words are whole."""


class _Fish(_WithOption, FishComplete):
    """Click's script would cut what is answered at its second comma, which arms and explanations have."""

    source_template = FishComplete.source_template.replace('string split ","', 'string split --max 1 ","')


SHELLS: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}


@click.command()
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script with which SHELL completes options, modes, models, and directories of runs and studies.

    \b
    bash:  echo 'eval "$(dpcompare completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(dpcompare completion zsh)"' >> ~/.zshrc     (after compinit)
    fish:  echo 'dpcompare completion fish | source' >> ~/.config/fish/config.fish
    """
    cli = context.find_root().command
    click.echo(SHELLS[shell](cli, {}, "dpcompare", VARIABLE).source())
