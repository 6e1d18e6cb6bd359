"""The command line: each command turns options into one library call and prints what it returns."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click
from click.shell_completion import add_completion_class

from dpcompare._version import __version__
from dpcompare.cli.commands import LazyGroup
from dpcompare.cli.completion import SHELLS, VARIABLE
from dpcompare.cli.option_values import blame_variable, unread_variables
from dpcompare.cli.other_options import known_option
from dpcompare.cli.output import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_REFUSED, fail
from dpcompare.errors import RequestError, RunFailedError
from dpcompare.system.signals import terminated_as_interrupted
from dpcompare.system.terminal_text import give_up_stdout, keep_stderr_from_failing


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 a run failed, 2 the request was wrong and nothing was started, 3 finished with a "
    "negative answer, 4 a gate is undecided, 130 interrupted.",
)
@click.version_option(__version__, prog_name="dpcompare")
def cli() -> None:
    """Train the same model on the same batches with every data-parallel mode of PyTorch, TensorFlow and JAX."""
    try:
        Path.cwd()
    except FileNotFoundError:  # every process that is started would fail in a way of its own
        raise RequestError("the current directory was removed; change to one that exists") from None


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code."""
    keep_stderr_from_failing()
    try:
        _main(arguments)
    except KeyboardInterrupt:  # a second one, while the first was being handled
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.exit(EXIT_INTERRUPTED)


def _main(arguments: Sequence[str] | None) -> NoReturn:
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    as_json = "--json" in arguments
    if VARIABLE in os.environ:  # a shell asks, which would show warnings amid the line that is typed
        for shell in SHELLS.values():
            add_completion_class(shell)
    else:
        for line in unread_variables(os.environ, cli):
            click.echo(f"warning: {line}", err=True)
    try:
        # Click would end a Ctrl-C with exit code 1, hence its exceptions are handled here.
        with terminated_as_interrupted():
            status = cli.main(arguments, prog_name="dpcompare", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(status if isinstance(status, int) else 0)
    except click.exceptions.NoArgsIsHelpError as error:  # its message is the help
        click.echo(error.format_message(), err=True)
        sys.exit(EXIT_REFUSED)
    except click.ClickException as error:
        usage = error.ctx.get_usage() if isinstance(error, click.UsageError) and error.ctx else None
        message = blame_variable(error) or known_option(error) or error.format_message()
        fail(EXIT_REFUSED, message, usage=usage, as_json=as_json)
    except RequestError as error:
        fail(EXIT_REFUSED, str(error), as_json=as_json)
    except RunFailedError as error:
        fail(EXIT_FAILED, str(error), as_json=as_json, run_dir=error.run_dir)
    except (KeyboardInterrupt, click.Abort):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all has ended; another one would only garble the exit code
        fail(EXIT_INTERRUPTED, "interrupted", as_json=as_json)
    except BrokenPipeError:  # the reader of our output has gone, as in `dpcompare modes | head -1`
        give_up_stdout()
        sys.exit(EXIT_FAILED)
    except MemoryError:
        fail(EXIT_FAILED, "this process has no memory left; its limit is too low, or others hold it", as_json=as_json)
    except OSError as error:
        is_typed = error.errno == errno.ENAMETOOLONG  # such names come from users alone
        fail(EXIT_REFUSED if is_typed else EXIT_FAILED, f"{type(error).__name__}: {error}", as_json=as_json)
