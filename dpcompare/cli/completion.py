"""`dpcompare completion`: the script with which a shell completes commands, options and values."""

from __future__ import annotations

import os

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    split_arg_string,
)

VARIABLE = "_DPCOMPARE_COMPLETE"
"""By which a shell asks: Click's name for it."""
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
