"""The examples on real workers, each by the command that playbooks/README.md gives, twice."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest
from running import ROOT, System
from services import credential_of

pytestmark = pytest.mark.acceptance

PLAYBOOKS = ROOT / "playbooks"
COMMANDS = dict(
    re.findall(r"^\| \[(\w+)\]\(.*\| `([^`]+)`[^|]*\|$", (PLAYBOOKS / "README.md").read_text(), re.MULTILINE)
)
#: examples that ask the API; less of it than they would by themselves, so that they take seconds
ASK_API = {
    "paginate_api": [],
    "fan_out_reduce": ["--set", "patients=20"],
    "adaptive_rate": ["--set", "patients=60"],
    "cursor_reentry": ["--set", "batch=25"],
    "python_etl": [],
    "patient_flow": ["--set", "patients=8"],
}


@pytest.fixture(scope="module")
def api() -> Iterator[str]:
    """The API of the examples, with fewer patients than it has by itself; its URL."""
    command = [sys.executable, str(PLAYBOOKS / "api.py"), "--port", "0", "--patients", "60", "--stop-with-stdin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        yield json.loads(process.stdout.readline())["url"]
        process.stdin.close()


@pytest.fixture(scope="module", autouse=True)
def credential(system: System) -> None:
    stored = json.dumps(credential_of(system.env["NOETL_DATABASE_URL"]))
    done = system.cli("credential", "set", "demo_pg", "--type", "postgres", "--data", "-", stdin=stored)
    assert done.returncode == 0, done.stderr


def commands(name: str) -> list[list[str]]:
    """What the README says for an example, as arguments of `noetl-celery`, with whole paths."""
    text = COMMANDS[name].replace("$PWD/playbooks/", "playbooks/").replace("playbooks/", f"{PLAYBOOKS}/")
    return [shlex.split(part)[1:] for part in text.split("&&")]


def test_the_readme_has_every_playbook() -> None:
    files = {file.stem for file in PLAYBOOKS.rglob("*.yaml")}
    assert files - COMMANDS.keys() == {"child_ward_bill"}
    assert COMMANDS.keys() <= files


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_may_be_run_twice(system: System, api: str, name: str) -> None:
    options = [*ASK_API[name], "--set", f"api_url={api}"] if name in ASK_API else []
    *before, run = commands(name)
    for arguments in before:
        assert system.cli(*arguments).returncode == 0
    first, second = (system.cli(*run, *options, "--json", "--timeout", "100") for _ in range(2))
    assert first.returncode == 0, first.stdout + first.stderr
    assert second.returncode == 0, second.stdout + second.stderr
    assert json.loads(second.stdout)["status"] == "COMPLETED"


@pytest.mark.parametrize(
    ("name", "option", "says"),
    [
        ("csv_to_postgres", "max_rejected=0.01", "this is no list of orders"),
        ("dead_letters", "max_dead=0.01", "too many dead letters"),
    ],
)
def test_an_example_that_finds_too_much_wrong_fails(system: System, name: str, option: str, says: str) -> None:
    [run] = commands(name)
    done = system.cli(*run, "--set", option)
    assert done.returncode == 1
    assert says in done.stdout


def test_dead_letters_are_tried_again_and_leave_no_letter_when_they_succeed(system: System) -> None:
    [run] = commands("dead_letters")
    assert system.cli(*run).returncode == 0
    system.sql("UPDATE examples.message SET body = '{\"cents\": 7}' WHERE id = 10")
    assert system.cli(*run, "--set", "redrive=true").returncode == 0
    assert system.sql("SELECT status, cents FROM examples.message WHERE id = 10") == [("done", 7)]
    assert system.sql("SELECT count(*) FROM examples.dead_letter WHERE message_id = 10") == [(0,)]


def test_a_report_of_another_day(system: System) -> None:
    [run] = commands("nightly_report")
    done = system.json(*run, "--set", "day=2025-03-01")
    assert done["status"] == "COMPLETED", done
    [(page,)] = system.sql("SELECT page FROM examples.report WHERE day = '2025-03-01'")
    assert page.startswith("# Visits on 2025-03-01")
