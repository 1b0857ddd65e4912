"""``noetl-celery doctor`` on a running system: what workers say of themselves, and what the command prints."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.fernet import Fernet
from running import System

pytestmark = pytest.mark.acceptance


def findings(system: System, **env: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    done = system.cli("doctor", "--json", **env)
    report = json.loads(done.stdout)
    by_check: dict[str, list[dict[str, Any]]] = {}
    for finding in report["findings"]:
        by_check.setdefault(finding["check"], []).append(finding)
    worst = {level for level in ("problem", "warning") if any(f["level"] == level for f in report["findings"])}
    assert report["status"] == ("problem" if "problem" in worst else "warning" if "warning" in worst else "ok")
    return done.returncode, by_check


def test_workers_that_run_are_fine(system: System) -> None:
    code, found = findings(system)
    assert [finding["level"] for finding in found["workers"]] == ["ok"], found["workers"]
    assert "2 nodes answer: bodies-1@" in found["workers"][0]["message"]
    assert [finding["level"] for finding in found["queues"]] == ["ok"], found["queues"]
    assert {found[check][0]["level"] for check in ("postgres", "redis", "schema", "clock", "sweep")} == {"ok"}
    assert code == int(any(finding["level"] == "problem" for several in found.values() for finding in several))


def test_it_speaks_to_people(system: System) -> None:
    done = system.cli("doctor", NOETL_POOLS="gpu")
    lines = done.stdout.splitlines()
    place = next(number for number, line in enumerate(lines) if "no worker takes noetl.body.gpu" in line)
    assert lines[place].startswith("warning  queues")
    assert lines[place + 1].strip().startswith("→ start one: noetl-celery worker -Q gpu")
    assert "warning" in done.stderr


def test_a_key_that_is_not_the_workers(system: System) -> None:
    data = json.dumps({"token": "whatever"})
    assert system.cli("credential", "set", "doctors", "--type", "http", "--data", "-", stdin=data).returncode == 0
    code, found = findings(system, NOETL_SECRET_KEY=Fernet.generate_key().decode())
    assert code == 1
    assert [finding["level"] for finding in found["workers"]] == ["ok", "problem", "problem"]
    assert "'doctors'" in found["credentials"][0]["message"]


@pytest.mark.parametrize(
    ("variable", "url", "check"),
    [
        ("NOETL_BROKER_URL", "redis://:geheim@127.0.0.1:1/0", "redis"),
        ("NOETL_DATABASE_URL", "postgresql://u:geheim@127.0.0.1:1/d", "postgres"),
    ],
)
def test_a_service_that_is_away(system: System, variable: str, url: str, check: str) -> None:
    done = system.cli("doctor", **{variable: url})
    assert done.returncode == 1
    assert "geheim" not in done.stdout + done.stderr
    problems = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("problem")]
    # (Credentials of other tests may have been written with another key.)
    assert [name for name in problems if name != "credentials"] == [check]
