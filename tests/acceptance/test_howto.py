"""The Python of docs/howto.md, run as it stands there."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
from pathlib import Path
from typing import Any

import httpx
import pytest
from pages import blocks
from running import ROOT, System

pytestmark = pytest.mark.acceptance

PYTHON = {
    block.title: block.body for block in blocks((ROOT / "docs" / "howto.md").read_text()) if block.language == "python"
}


@pytest.fixture
def surroundings(system: System, monkeypatch: pytest.MonkeyPatch) -> System:
    """The variables that say where the system is, in this process; as in the root of a clone."""
    for name, value in system.own.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(ROOT)
    return system


def run(name: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": Path(name).stem}
    exec(compile(PYTHON[name], name, "exec", dont_inherit=True), names)
    return names


def test_in_a_program(surroundings: System) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        run("embed.py")
    assert ast.literal_eval(printed.getvalue())["text"].startswith("Welcome")


def test_in_fastapi(surroundings: System) -> None:
    surroundings.cli("register", str(ROOT / "playbooks" / "hello.yaml"))
    asyncio.run(asked(run("service.py")["app"]))


async def asked(app: Any) -> None:
    transport = httpx.ASGITransport(app=app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://it") as client:
        answer = await client.post("/greetings/Hi")
        assert answer.status_code == 202
        execution = answer.json()["execution"]
        await (await app.state.noetl.execution(execution)).wait(60)
        assert (await client.get(f"/executions/{execution}")).json() == {"status": "COMPLETED"}
        assert (await client.get("/executions/4711")).status_code == 404


def test_from_beat(surroundings: System) -> None:
    surroundings.cli("register", surroundings.playbook("nightly", "  - {step: a, tool: {kind: noop, result: 1}}\n"))
    names = run("schedules.py")
    [entry] = names["app"].conf.beat_schedule.values()
    assert entry["task"] == names["nightly"].name


def test_what_cannot_be_run_here_is_python() -> None:
    assert PYTHON.keys() == {"embed.py", "service.py", "schedules.py", "views.py"}
    ast.parse(PYTHON["views.py"])
