"""The command line of the benchmarks. Exit codes: 0 all was measured, 1 something failed, 2 a wrong argument."""

from __future__ import annotations

import difflib
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from benchmarks.model import Case, CaseResult, Options
from noetl_celery.errors import InputError, NoetlError

OUT = Path(".noetl/bench")
REPEAT, QUICK_REPEAT = 5, 1

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def benchmarks(
    cases: Annotated[list[str] | None, typer.Argument(metavar="[CASE]...", help="Cases to run (default: all).")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few rows, once: a rough look.")] = False,
    repeat: Annotated[
        int | None, typer.Option(min=1, help=f"Runs of each contestant (default: {REPEAT}, quick: {QUICK_REPEAT}).")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the table, the JSON, the plot and the logs.")] = OUT,
    list_: Annotated[bool, typer.Option("--list", help="Name the cases and end.")] = False,
) -> None:
    """Measures NoETL-Celery beside plain Celery, dramatiq, procrastinate and psycopg, on the same services."""
    from benchmarks.cases import CASES

    if list_:
        for case in CASES:
            typer.echo(f"{case.name:<16} {case.title}")
        return
    chosen = choose(CASES, cases or [])
    check_installed()
    options = Options(quick, repeat or (QUICK_REPEAT if quick else REPEAT), out.resolve())
    raise typer.Exit(run(chosen, options))


def choose(known: Sequence[Case], names: Sequence[str]) -> list[Case]:
    """The cases of these names, in our order; all without names. :class:`InputError` for a name that is none."""
    by_name = {case.name: case for case in known}
    for name in names:
        if name not in by_name:
            near = difflib.get_close_matches(name, by_name, n=2)
            hint = f"did you mean {' or '.join(near)}?" if near else "--list names them"
            raise InputError(f"there is no case '{name}'", hint=hint)
    return [case for case in known if not names or case.name in names]


def check_installed() -> None:
    """:class:`InputError` if what we compare with is not there."""
    missing = [name for name in ("dramatiq", "matplotlib", "procrastinate", "psutil") if find_spec(name) is None]
    if missing:
        raise InputError(f"not installed: {', '.join(missing)}", hint="`make bench` installs what is needed")


def run(cases: Sequence[Case], options: Options) -> int:
    """Runs the cases and writes what they gave; the exit code."""
    from benchmarks.bench import bench
    from benchmarks.report import show_case, show_goals
    from benchmarks.runner import run_case

    # Where nobody watches, lines are as long as they are.
    console = Console(width=None if sys.stdout.isatty() else 100)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, _stop)

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {text}", file=sys.stderr, flush=True)

    tell(f"starting PostgreSQL and Redis; {len(cases)} cases, {options.repeat} runs of each contestant")
    results: list[CaseResult] = []
    about: dict[str, Any] = {}
    try:
        with bench(options) as surroundings:
            about = machine(options, surroundings.services.facts())
            for number, case in enumerate(cases):
                results.append(run_case(surroundings, case, tell, flip=number % 2 == 1))
                show_case(console, results[-1])
    finally:
        if results:
            about["seconds"] = round(time.monotonic() - began, 1)
            _write(options.out, results, about)
    show_goals(console, results)
    tell(f"written to {options.out}")
    return 1 if any(result.problems for result in results) else 0


def machine(options: Options, facts: dict[str, str]) -> dict[str, Any]:
    """Where it ran: what one has to know to compare with another run."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "quick": options.quick,
        "repeat": options.repeat,
        "cpus": os.cpu_count(),
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "machine": platform.platform(),
        "python": platform.python_version(),
        "postgresql": facts,
    }


def _write(out: Path, results: Sequence[CaseResult], about: dict[str, Any]) -> None:
    from benchmarks.plot import write_plot
    from benchmarks.report import show_case, show_goals, write_json

    write_json(out / "bench.json", results, about)
    write_plot(out / "bench.png", results)
    with (out / "bench.txt").open("w") as file:
        console = Console(file=file, width=100, no_color=True)
        for result in results:
            show_case(console, result)
        show_goals(console, results)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point; exits with the code that the module's first line explains."""
    sys.exit(_main(arguments))


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """A signal becomes an exit, so that what was started is ended."""
    raise SystemExit(128 + number)


def _main(arguments: Sequence[str] | None) -> int:
    try:
        code = app(args=arguments, prog_name="python -m benchmarks", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except NoetlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        usage = getattr(error, "format_message", None)
        if usage is None:
            raise
        print(f"error: {usage()}", file=sys.stderr)
        return 2
