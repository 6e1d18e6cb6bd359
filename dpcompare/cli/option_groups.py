"""Commands whose help shows the options of a run in the groups that the options name."""

from __future__ import annotations

import click

from dpcompare.cli.options import OPTIONS
from dpcompare.config.setting import GROUPS

OPTION_GROUPS: dict[str, tuple[str, ...]] = {
    group: tuple(row.name for row in OPTIONS if row.group == group) for group in GROUPS
}
"""Title -> names of options, both in the order in which they are shown."""


class GroupedCommand(click.Command):
    """A command whose help shows its own options first, and those of a run in groups."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options into the help."""
        records = {
            parameter.name: record
            for parameter in self.get_params(context)
            if isinstance(parameter, click.Option)  # arguments are in the usage, with what the docstring says of them
            and (record := parameter.get_help_record(context)) is not None
        }
        grouped = {
            title: [records.pop(name) for name in names if name in records] for title, names in OPTION_GROUPS.items()
        }
        for title, lines in {"Options": list(records.values()), **grouped}.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)
