"""The option reference of the site, made from the commands themselves: nothing of it is kept in a file."""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence

import click

from dpcompare.cli import cli
from dpcompare.cli.commands import LazyGroup
from dpcompare.cli.options import OPTION_GROUPS, GroupedCommand

DEFAULT_IN_HELP = re.compile(r"\s*(?:\[default: (?P<short>.*?)\]|Default: (?P<sentence>.*?)\.(?=\s|$))")
"""How a help text says a default that is the config's, which Click does not know."""

Row = tuple[str, str, str]
"""Cells of an option."""
HEADS = ("option, environment variable", "default", "what it is")


def option_reference() -> str:
    """The page in Markdown: every command with its own options, then the options of a run by their groups."""
    commands = dict(_commands(cli, "dpcompare"))
    parts = [
        "# Commands and options",
        "Made from the code of this version; `--help` of a command shows the same. An option with an environment "
        "variable is also read from it, and from a TOML file given by `--config`, where it has the option's name with "
        "underscores. The command line comes first, then the variable, then the file.",
        *(_section(name, command) for name, command in commands.items()),
        "## Options of a run",
    ]
    for group, names in OPTION_GROUPS.items():
        parts += [f"### {group}", _table(_shared_rows(commands, names))]
    return "\n\n".join(parts) + "\n"


def _commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        under_it = command.all_commands() if isinstance(command, LazyGroup) else command.commands
        for part, under in under_it.items():
            if not under.hidden:
                yield from _commands(under, f"{name} {part}")


def _context(name: str, command: click.Command) -> click.Context:
    """What Click needs to describe a command; nothing is parsed."""
    return click.Context(command, info_name=name, max_content_width=100)


def _options(command: click.Command) -> list[click.Option]:
    return [option for option in command.params if isinstance(option, click.Option) and not option.hidden]


def _is_shared(option: click.Option, command: click.Command) -> bool:
    """Whether the help shows an option in one of the groups of a run."""
    return isinstance(command, GroupedCommand) and any(option.name in names for names in OPTION_GROUPS.values())


def _section(name: str, command: click.Command) -> str:
    context = _context(name, command)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    parts = [f"## {name}", f"```\n{usage}\n```", _paragraphs(command.help or "")]
    own = [option for option in _options(command) if not _is_shared(option, command)]
    if own:
        parts.append(_table([_row(option, context) for option in own]))
    if isinstance(command, GroupedCommand):
        parts.append("and the [options of a run](#options-of-a-run).")
    if command.epilog:
        parts.append(_paragraphs(command.epilog))
    return "\n\n".join(parts)


def _paragraphs(text: str) -> str:
    r"""A help text in Markdown: what Click leaves unwrapped below \b is a block of code."""
    blocks = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        f"```\n{block.removeprefix(chr(8)).strip()}\n```" if block.startswith("\b") else html.escape(block, quote=False)
        for block in blocks
    )


def _shared_rows(commands: Mapping[str, click.Command], names: Sequence[str]) -> list[Row]:
    """A row for each option of a group, and one more where another command has it with another meaning."""
    sharing = {name: command for name, command in commands.items() if isinstance(command, GroupedCommand)}
    takers: dict[Row, list[str]] = {}
    for option_name in names:
        for name, command in sharing.items():
            for option in _options(command):
                if option.name == option_name:
                    takers.setdefault(_row(option, _context(name, command)), []).append(name.removeprefix("dpcompare "))
    return [
        (*row[:-1], row[-1] if len(of) == len(sharing) else f"{row[-1]} Only with {' and '.join(of)}.".strip())
        for row, of in takers.items()
    ]


def _row(option: click.Option, context: click.Context) -> Row:
    record = option.get_help_record(context)
    assert record is not None, f"{option.name} is hidden"
    text = option.help or ""
    said = DEFAULT_IN_HELP.search(text)
    extra = option.get_help_extra(context)
    unsaid = "required" if option.required else "off" if option.is_flag and not option.callback else ""
    default = said["short"] or said["sentence"] if said else extra.get("default", unsaid)
    names = [_code(record[0]), *([_code(str(option.envvar))] if option.envvar else [])]
    meaning = DEFAULT_IN_HELP.sub("", text)
    if span := extra.get("range"):
        meaning = f"{meaning} {span}".strip()
    return "<br>".join(names), _cell(default), _cell(meaning)


def _code(text: str) -> str:
    return f"<code>{_cell(text)}</code>"


def _cell(text: str) -> str:
    """Text that may hold what Markdown or HTML would take for its own; pairs of backticks stay code."""
    parts = html.escape(" ".join(text.split()), quote=False).replace("|", "&#124;").replace("*", "&#42;").split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))


def _table(rows: Sequence[Row]) -> str:
    lines = [HEADS, ("---",) * len(HEADS), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
