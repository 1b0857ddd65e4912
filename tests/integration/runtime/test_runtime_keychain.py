"""``keychain``: secrets reach the tools and sources that ask for them, and no table, event or log ever has one."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from cases import CLAIM, fill
from families import nothing_left, playbook
from services import credential_of
from tickets import Arm
from world import World

from noetl_celery import faults

pytestmark = pytest.mark.integration

SECRET, OTHER = "5ecret-0f-the-v4ult", "an0ther-0ne"


class Stub(ThreadingHTTPServer):
    """Keeps the headers of what it was asked; answers with ``status``."""

    def __init__(self) -> None:
        self.seen: list[dict[str, str]] = []
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.seen.append(dict(self.headers))
                self.send_response(outer.status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *args: Any) -> None:
                return None

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


@contextmanager
def serving() -> Iterator[Stub]:
    with Stub() as stub:
        thread = Thread(target=stub.serve_forever, daemon=True)
        thread.start()
        try:
            yield stub
        finally:
            stub.shutdown()
            thread.join()


@pytest.fixture
def stub() -> Iterator[Stub]:
    with serving() as made:
        yield made


@pytest.fixture(autouse=True)
def nowhere_kept(world: World, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """After every test of this file."""
    caplog.set_level(logging.DEBUG)
    world.credential("stored_api", {"token": SECRET, "type": "bearer"})
    yield
    assert_nowhere(world)
    for secret in (SECRET, OTHER):
        assert secret not in caplog.text


def assert_nowhere(world: World) -> None:
    """No column of any table of ours has a secret in it, however it is written."""
    tables = world.column("SELECT table_name FROM information_schema.tables WHERE table_schema = 'noetl'")
    assert len(tables) > 10
    for table in tables:
        for secret in (SECRET, OTHER):
            found = world.q(f"SELECT * FROM noetl.{table} t WHERE t::text LIKE %s", f"%{secret}%")
            assert found == [], table


def calling_api(stub: Stub, keychain: str, task: str) -> str:
    steps = f"""
  - step: call
    tool:
      kind: http
      url: {stub.url}
{task}
    next: []
"""
    return playbook("test/keychain", steps, "{tenant: stored_api}").replace(
        "workload:", f"keychain: {keychain}\nworkload:"
    )


HEADER = '      headers: {X-Key: "{{ keychain.api.token }}"}'


@pytest.mark.parametrize(
    "keychain",
    [
        "[{name: api, kind: credential, credential: stored_api}]",
        "[{name: api, ref: stored_api}]",
        '[{name: api, kind: bearer, credential: "{{ workload.tenant }}"}]',
        '[{name: raw, ref: stored_api}, {name: api, map: {token: "{{ keychain.raw.token }}"}}]',
    ],
    ids=["by name", "by ref", "by a template", "by another entry"],
)
def test_a_field_in_a_header(world: World, stub: Stub, keychain: str) -> None:
    execution = world.begin(calling_api(stub, keychain, HEADER), tenant="stored_api")
    assert world.run(execution) == "COMPLETED"
    assert stub.seen[0]["X-Key"] == SECRET
    nothing_left(world)


def test_a_field_in_the_address_is_not_kept_with_the_result(world: World, stub: Stub) -> None:
    keychain = "[{name: api, credential: stored_api, map: {odd: \"{{ 'a b/' ~ '" + OTHER + "' }}\"}}]"
    task = '      params: {key: "{{ keychain.api.token }}", other: "{{ keychain.api.odd }}"}'
    execution = world.begin(calling_api(stub, keychain, task).replace(OTHER, f"{OTHER[:3]}' ~ '{OTHER[3:]}"))
    assert world.run(execution) == "COMPLETED"
    assert world.steps(execution)["call"]["result"]["url"] == f"{stub.url}?key=***&other=***"


def test_an_entry_as_auth(world: World, stub: Stub) -> None:
    text = calling_api(stub, "[{name: api, credential: stored_api}]", "      auth: api")
    assert world.run(world.begin(text)) == "COMPLETED"
    assert stub.seen[0]["Authorization"] == f"Bearer {SECRET}"


def test_fields_of_the_playbook_go_over_those_that_are_stored(world: World, stub: Stub) -> None:
    keychain = f"[{{name: api, credential: stored_api, map: {{token: \"{{{{ '{OTHER[:3]}' ~ '{OTHER[3:]}' }}}}\"}}}}]"
    assert world.run(world.begin(calling_api(stub, keychain, HEADER))) == "COMPLETED"
    assert stub.seen[0]["X-Key"] == OTHER


def test_a_call_that_fails_and_waits_keeps_none_either(world: World, stub: Stub) -> None:
    """Its row is parked with all that its tasks have left, and then fails."""
    stub.status = 503
    rules = "[{when: \"{{ output.status == 'error' }}\", then: {do: retry, attempts: 2, delay: 60}}]"
    task = f"{HEADER}\n      auth: api\n      spec: {{policy: {{rules: {rules}}}}}"
    execution = world.begin(calling_api(stub, "[{name: api, credential: stored_api}]", task))
    assert world.run(execution) == "RUNNING"
    assert world.column("SELECT status FROM noetl.row") == ["PARKED"]
    assert_nowhere(world)
    world.q("UPDATE noetl.wakeup SET due_at = clock_timestamp()")
    assert world.settle(execution) == "FAILED"


@pytest.mark.parametrize(
    ("keychain", "said"),
    [
        ("[{name: api, credential: nobody}]", "nobody"),
        ('[{name: api, credential: "{{ workload.nothing }}"}]', "workload.nothing"),
        ('[{name: api, map: {token: "{{ keychain.api.token }}"}}]', "keychain.api"),
    ],
)
def test_an_entry_that_cannot_be_looked_up_is_named(world: World, stub: Stub, keychain: str, said: str) -> None:
    execution = world.begin(calling_api(stub, keychain, HEADER))
    assert world.run(execution) == "FAILED"
    message = world.value("SELECT error ->> 'message' FROM noetl.execution")
    assert said in message
    assert stub.seen == []


def test_a_field_that_is_not_there_is_named(world: World, stub: Stub) -> None:
    text = calling_api(stub, "[{name: api, credential: stored_api}]", HEADER.replace("token", "tokne"))
    assert world.run(world.begin(text)) == "FAILED"
    assert "tokne" in world.value("SELECT error ->> 'message' FROM noetl.execution")


# a source that is reached with a keychain


def loop(auth: str) -> str:
    steps = f"""
  - step: start
    loop:
      cursor: {{kind: postgres, auth: {auth}, claim: {json.dumps(CLAIM)}}}
      iterator: item
      spec: {{frame: {{max_rows: 10, row_concurrency: 4}}}}
    tool: {{kind: probe, input: {{item: "{{{{ iter.item }}}}"}}}}
    next: []
"""
    entry = "[{name: source, credential: stored_source}]"
    return playbook("test/keychain", steps).replace("workload:", f"keychain: {entry}\nworkload:")


@pytest.fixture
def elsewhere(world: World, empty_database: str) -> str:
    """Another database with rows, whose credential has a password."""
    fill(empty_database, 3)
    world.credential("stored_source", credential_of(empty_database) | {"db_password": SECRET})
    return empty_database


@pytest.mark.parametrize("auth", ["source", '"{{ keychain.source }}"'], ids=["its name", "its fields"])
@pytest.mark.parametrize("point", ["claim.recorded", "claim.source_committed", None])
def test_a_claim_with_an_entry_is_settled_after_a_crash(
    world: World, elsewhere: str, crash_at: Arm, auth: str, point: str | None
) -> None:
    """Whoever settles it looks the credential up again: what is recorded has its name at most."""
    execution = world.begin(loop(auth))
    if point:
        crash_at(point)
        with pytest.raises(faults.FaultInjected):
            world.claim(world.publisher.claims()[0])
        assert world.column("SELECT status FROM noetl.frame") == ["TENTATIVE"]
        assert_nowhere(world)
        world.q("UPDATE noetl.run SET lease_until = clock_timestamp()")
    assert world.settle(execution) == "COMPLETED"
    assert sorted(call["item"]["id"] for call in world.probe.calls) == [1, 2, 3]
    nothing_left(world)


def test_a_childs_keychain_is_its_own(world: World, stub: Stub) -> None:
    inner = calling_api(stub, "[{name: api, credential: stored_api}]", HEADER)
    world.register(inner.replace("test/keychain", "test/child"))
    outer = playbook("test/outer", "  - step: call\n    tool: {kind: playbook, path: test/child}\n    next: []\n")
    assert world.run(world.begin(outer)) == "COMPLETED"
    assert stub.seen[0]["X-Key"] == SECRET


def test_an_error_that_quotes_what_was_sent_hides_it(world: World, database: str) -> None:
    world.credential("src", credential_of(database))
    command = "SELECT nothing_like_it('{{ keychain.api.token }}')"
    steps = f"  - step: ask\n    tool: {{kind: postgres, auth: src, command: {json.dumps(command)}}}\n    next: []\n"
    entry = "keychain: [{name: api, credential: stored_api}]\nworkload:"
    execution = world.begin(playbook("test/keychain", steps).replace("workload:", entry))
    assert world.run(execution) == "FAILED"
    assert "nothing_like_it('***')" in world.value("SELECT error ->> 'message' FROM noetl.execution")
