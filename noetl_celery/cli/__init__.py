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
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from noetl_celery.cli import console, control, credentials, database, executions, playbooks
from noetl_celery.cli.doctor import doctor
from noetl_celery.cli.explain import explain
from noetl_celery.cli.lint import lint
from noetl_celery.cli.logs import logs
from noetl_celery.cli.plan import plan
from noetl_celery.cli.prune import prune
from noetl_celery.cli.rows import rows
from noetl_celery.cli.schema import schema
from noetl_celery.errors import NoetlError

#: commands whose modules are slow to import: only when they are called, or listed
_LATER = {
    "worker": "noetl_celery.cli.worker",
    "dev": "noetl_celery.cli.dev",
    "console": "noetl_celery.cli.web",
}


class Commands(TyperGroup):
    """The commands, some of them imported when they are first asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(dict.fromkeys([*super().list_commands(ctx), *_LATER]))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in _LATER and cmd_name not in self.commands:
            self.commands[cmd_name] = _load(cmd_name)
        return super().get_command(ctx, cmd_name)


def _load(name: str) -> Any:
    holder = typer.Typer(add_completion=False, rich_markup_mode=None)
    passed_on = {"allow_extra_args": True, "ignore_unknown_options": True}
    holder.command(name, context_settings=passed_on)(getattr(import_module(_LATER[name]), name))
    return typer.main.get_command(holder)


app = typer.Typer(
    cls=Commands,
    name="noetl-celery",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="NoETL playbooks on Celery workers.",
)

app.command()(playbooks.register)
app.command()(playbooks.run)
app.command()(executions.status)
app.command()(executions.wait)
app.command()(control.cancel)
app.command()(control.pause)
app.command()(control.resume)
app.command()(control.retry)
app.command()(executions.events)
app.command()(executions.result)
app.command()(rows)
app.command()(logs)
app.command()(explain)
app.command("list")(executions.list_)
app.command()(lint)
app.command()(plan)
app.command()(schema)
app.command()(doctor)
app.command()(control.verify)
app.command()(prune)
app.add_typer(credentials.commands, name="credential")
app.add_typer(database.commands, name="db")


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
    console.hush(False)
    # What the library logs as a warning (a broker that is away) is said by the commands in their own words.
    logging.getLogger("noetl_celery").addHandler(logging.NullHandler())
    try:
        code = app(args=arguments, prog_name="noetl-celery", standalone_mode=False)
        console.flush()
        return code if isinstance(code, int) else console.OK
    except console.ReaderGone:
        # Python must not complain about it again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return console.BROKEN_PIPE
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        if _Mode.debug:
            console.note("".join(traceback.format_exception(error)).rstrip())
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
        if type(error).__name__ == "NoArgsIsHelpError":
            console.note(usage())
        else:
            console.complain(f"{usage().rstrip('.')}{f' (see {context.command_path} --help)' if context else ''}")
        return console.INVALID
    console.complain(f"internal: {type(error).__name__}: {error} (--debug shows where)")
    return console.FAILED
