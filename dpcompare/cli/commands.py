"""The table of commands, and a group that imports a command only when it is called or described."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

import click

from dpcompare.errors import did_you_mean

TASKS = {
    "Compare": {
        "compare": "Train the arms of a study round by round, and compare them.",
        "report": "Show studies and runs: claims, figures, the fairness sheet.",
        "gate": "Say whether an arm is slower than a baseline by more than is allowed.",
        "ledger": "Keep figures of studies over days and versions.",
        "watch": "Follow a study that another process runs.",
    },
    "Understand": {
        "explain": "Measure what bounds a run, and what would help.",
        "project": "Predict how fast a study would train on more nodes.",
    },
    "Trust": {
        "verify": "Check on this machine that the modes compute the same.",
        "doctor": "Check this machine, every framework and the usual modes.",
    },
    "Train": {
        "run": "Train a model with one mode of one framework.",
        "modes": "List every mode and whether it is usable here.",
        "plan": "Print the node processes of a run, and start nothing.",
        "node": "Take part in a run that another machine has planned.",
    },
    "Set up": {
        "setup": "Install the frameworks that are not usable yet.",
        "data": "Prepare datasets.",
        "completion": "Print the script with which a shell completes commands.",
    },
}
"""What one wants -> its commands, each with what `dpcompare --help` says of it."""
COMMANDS = {name: said for commands in TASKS.values() for name, said in commands.items()}
"""Name -> what is said of it. The command is the function of that name in dpcompare.cli.NAME."""


class LazyGroup(click.Group):
    """A group whose commands are those of COMMANDS; `--help` of the group imports none."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Their names, in the order of the alphabet."""
        return sorted(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """The command of a name, or None."""
        return self.all_commands([name])[name] if name in COMMANDS else None

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of this name; a group's own method would import all commands to find a similar one."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not context.resilient_parsing:
            context.fail(f"No such command {name!r}.{did_you_mean(name, [*COMMANDS, '--version', '--help'])}")
        return super().resolve_command(context, args)

    def all_commands(self, names: Iterable[str] = COMMANDS) -> dict[str, click.Command]:
        """Name -> command, in the order of the table."""
        for name in names:
            if name not in self.commands:
                self.add_command(getattr(import_module(f"dpcompare.cli.{name}"), name))
        return {name: self.commands[name] for name in names}

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands into the help, by task."""
        for task, commands in TASKS.items():
            with formatter.section(task):
                formatter.write_dl(list(commands.items()))
