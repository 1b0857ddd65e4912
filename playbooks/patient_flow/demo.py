"""The demo: the patient flow playbook against an API that throttles and fails, with a table at the end.

    noetl-celery dev --workers 2 -- python playbooks/patient_flow/demo.py --patients 200

``dev`` starts PostgreSQL, Redis and the workers and tells us where they are; with services and workers of your
own, set NOETL_DATABASE_URL and the rest and run this file directly. Exit code: 0 if every patient is complete, 1 if
not, 2 if there is nothing to run on.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn
from urllib.request import urlopen

from rich import box
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
CREDENTIAL = "demo_pg"
STOP_SECONDS = 5


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patients", type=int, default=200)
    parser.add_argument("--rate-limit", type=int, default=100, help="requests per second that the API allows")
    parser.add_argument("--error-rate", type=float, default=0.05, help="share of requests that the API fails")
    parser.add_argument("--latency-ms", type=float, default=5, help="time that the API takes for a page")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=900, help="seconds after which the demo gives up")
    return parser.parse_args(arguments)


@contextmanager
def records_api(options: argparse.Namespace) -> Iterator[str]:
    """Start the API as a child and yield its URL; it ends with this block, or with this process however that ends."""
    command = [sys.executable, str(HERE.parent / "api.py"), "--port", "0", "--stop-with-stdin"]
    for name in ("rate_limit", "error_rate", "latency_ms", "seed"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin
        assert child.stdout
        try:
            line = child.stdout.readline()
            if not line:
                raise DemoError("the records API did not start; its message is above")
            yield json.loads(line)["url"]
        finally:
            child.stdin.close()
            try:
                child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()


def noetl(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line; its stderr (progress, messages) goes to ours, its stdout is kept."""
    try:
        return subprocess.run(["noetl-celery", *arguments], input=stdin, stdout=subprocess.PIPE, text=True, check=False)
    except FileNotFoundError:
        raise DemoError("noetl-celery is not on the PATH; activate its environment (. .venv/bin/activate)") from None


def store_credential(dsn: str) -> None:
    """Tell NoETL under which name the playbook finds its database; the secret travels by stdin, never by arguments."""
    # SQLAlchemy's name of the driver is no part of what PostgreSQL's own library reads
    data = json.dumps({"dsn": dsn.replace("postgresql+psycopg://", "postgresql://", 1)})
    done = noetl("credential", "set", CREDENTIAL, "--type", "postgres", "--data", "-", stdin=data)
    if done.returncode:
        raise DemoError("the credential could not be stored")


def run_playbook(api_url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run the playbook to its end and return what ``run --json`` prints."""
    workload = json.dumps({"api_url": api_url, "pg_auth": CREDENTIAL, "patients": options.patients})
    playbook = str(HERE / "patient_flow.yaml")
    done = noetl("run", playbook, "--workload", workload, "--timeout", str(options.timeout), "--json")
    try:
        outcome: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise DemoError(f"the run ended with code {done.returncode}: {done.stdout.strip() or 'see above'}") from None
    if outcome["status"] != "COMPLETED":
        error = outcome.get("error") or {}
        raise DemoError(f"execution {outcome['execution_id']} is {outcome['status']}: {error.get('message', '')}")
    return outcome


def summary_table(rows: Sequence[Mapping[str, Any]], stats: Mapping[str, Mapping[str, int]]) -> Table:
    """One line per data type: what the playbook saved beside what the API was asked for. Fits 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, show_footer=len(rows) > 1, pad_edge=False, collapse_padding=True)
    lines = [
        {
            "expected": row["expected"],
            "done": row["done"],
            "pages": row["pages"],
            "requests": stats[row["data_type"]]["requests"],
            "429": stats[row["data_type"]]["throttled"],
            "500": stats[row["data_type"]]["failed"],
            "retried": stats[row["data_type"]]["throttled"] + stats[row["data_type"]]["failed"],
            "twice": stats[row["data_type"]]["pages_twice"],
        }
        for row in rows
    ]
    table.add_column("data type", footer="all")
    for name in lines[0] if lines else ():
        table.add_column(name, justify="right", footer=f"{sum(line[name] for line in lines):,}")
    for row, line in zip(rows, lines, strict=True):
        table.add_row(row["data_type"], *(f"{value:,}" for value in line.values()))
    return table


def say(console: Console, text: str) -> None:
    """A line as it is: no markup in it, no words coloured."""
    console.print(text, highlight=False, markup=False)


def demo(options: argparse.Namespace, console: Console) -> int:
    dsn = os.environ.get("NOETL_DATABASE_URL")
    if not dsn:
        console.print("NOETL_DATABASE_URL is not set. Run [bold]make demo[/bold], or put me behind noetl-celery dev --")
        return 2
    with records_api(options) as url:
        allowed = f"{options.rate_limit} requests/s" if options.rate_limit else "any number of requests"
        say(console, f"Records API at {url}: {allowed}, {options.error_rate:.0%} fail on purpose.")
        store_credential(dsn)
        say(console, f"Fetching and saving every page of the records of {options.patients:,} patients …")
        started = time.monotonic()
        outcome = run_playbook(url, options)
        seconds = outcome.get("duration_seconds") or time.monotonic() - started
        with urlopen(f"{url}/stats", timeout=10) as answer:
            stats = json.load(answer)
    result = outcome["steps"]["report"]["output"]
    console.print(summary_table(result["rows"], stats))
    say(console, "429: throttled. 500: failed. retried: both. twice: pages served more than once.")
    for data_type in result["missing"]:
        console.print(f"[red]incomplete: {data_type}[/red]")
    done = sum(row["done"] for row in result["rows"])
    colour = "green" if result["all_passed"] else "red"
    console.print(f"[bold {colour}]all_passed: {str(result['all_passed']).lower()}[/]", highlight=False)
    say(console, f"{done:,} rows in {seconds:.1f} s: {done / seconds:.1f} rows/s")
    say(console, f"execution {outcome['execution_id']} of {HERE.name}/patient_flow.yaml")
    return 0 if result["all_passed"] else 1


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """A signal becomes an exit, so that the blocks above are left and their children end."""
    raise SystemExit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    signal.signal(signal.SIGTERM, stop)
    try:
        return demo(options, Console())
    except DemoError as error:
        Console(stderr=True).print(f"[red]demo:[/red] {error}", highlight=False)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
