"""The command line: ``noetl-celery``.

Exit codes: 0 completed, 1 failed, cancelled or a service is not there, 2 invalid input, 3 timed out while still
running. Errors are one message on stderr; ``--debug`` shows where they came from.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from noetl_celery.cli import console, credentials, database, dev, executions, playbooks, worker
from noetl_celery.errors import NoetlError

app = typer.Typer(
    name="noetl-celery",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="NoETL playbooks on Celery workers.",
)
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}

app.command()(playbooks.register)
app.command()(playbooks.run)
app.command()(executions.status)
app.command()(executions.wait)
app.command()(executions.cancel)
app.command()(executions.events)
app.command("list")(executions.list_)
app.command()(playbooks.lint)
app.add_typer(credentials.commands, name="credential")
app.add_typer(database.commands, name="db")
app.command(context_settings=_PASSED_ON)(worker.worker)
app.command(context_settings=_PASSED_ON)(dev.dev)


class _Mode:
    debug = False


def _show_version(wanted: bool) -> None:
    if wanted:
        from noetl_celery import __version__

        typer.echo(f"noetl-celery {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", envvar="NOETL_DEBUG", help="Show tracebacks where otherwise one line says what is wrong."
        ),
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    _Mode.debug = debug


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point ``noetl-celery``: runs a command and exits with its code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; its exit code. Whatever goes wrong becomes a message and a code here, and nowhere else."""
    _Mode.debug = False
    # What the library logs as a warning (a broker that is away) is said by the commands in their own words.
    logging.getLogger("noetl_celery").addHandler(logging.NullHandler())
    try:
        code = app(args=arguments, prog_name="noetl-celery", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else console.OK
    except BrokenPipeError:
        # Whoever read our output has gone; Python must not complain about it again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return console.BROKEN_PIPE
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        if _Mode.debug:
            traceback.print_exception(error)
        return _explained(error)


def _explained(error: BaseException) -> int:
    if isinstance(error, console.Detached):
        console.note(f"execution {error.execution_id} goes on; noetl-celery wait {error.execution_id}")
        return console.INTERRUPTED
    if isinstance(error, NoetlError):
        return console.show_error(error)
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        console.note("interrupted")
        return console.INTERRUPTED
    usage = getattr(error, "format_message", None)
    if usage is not None:
        context = getattr(error, "ctx", None)
        console.complain(f"{usage()}{f' (see {context.command_path} --help)' if context else ''}")
        return console.INVALID
    console.complain(f"internal: {type(error).__name__}: {error} (--debug shows where)")
    return console.FAILED
