"""The whole life of executions over HTTP: `noetl-celery console` as users start it, and a real worker."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from running import CLI, TOKEN, System, until

pytestmark = pytest.mark.acceptance

LOOP = """
  - step: start
    spec: {policy: {failure: {mode: best_effort}}}
    loop: {in: "{{ workload.numbers }}", iterator: number, spec: {mode: parallel, max_in_flight: 4}}
    tool:
      kind: python
      input: {number: "{{ iter.number }}"}
      code: |
        print(f"number {number}")
        if number % 2 == 0:
            raise ValueError(f"{number} is even")
        result = {"square": number * number}
    next: [{step: after}]
  - step: after
    tool:
      kind: python
      code: "result = {'greeting': 'Grüß Gott', 'big': list(range(50000))}"
"""
GATE = """
  - step: start
    tool:
      kind: postgres
      auth: http_pg
      command: SELECT 1 AS open FROM http_gate WHERE name = '{{ workload.gate }}' AND is_open;
    next: {arcs: [{step: opened, when: '{{ start.rows | length > 0 }}'}, {step: closed}]}
  - step: closed
    tool: {kind: python, code: "import time; time.sleep(0.05)"}
    next: [{step: start}]
  - step: opened
    tool: {kind: noop}
"""
FAILING = """
  - step: start
    tool:
      kind: postgres
      auth: http_pg
      command: SELECT 1 / n AS x FROM http_numbers WHERE name = '{{ workload.name }}';
"""


@pytest.fixture(scope="module")
def address(system: System) -> Iterator[str]:
    system.sql("CREATE TABLE public.http_gate (name text PRIMARY KEY, is_open bool NOT NULL)")
    system.sql("CREATE TABLE public.http_numbers (name text PRIMARY KEY, n int NOT NULL)")
    with system.console() as address:
        yield address


@pytest.fixture
def api(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30) as client:
        yield client


def post(api: httpx.Client, url: str, /, **body: Any) -> dict[str, Any]:
    answer = api.post(url, json=body)
    assert answer.is_success, answer.text
    found: dict[str, Any] = answer.json()
    return found


def get(api: httpx.Client, url: str, /, **query: Any) -> Any:
    answer = api.get(url, params=query)
    assert answer.is_success, answer.text
    return answer.json()


def registered(system: System, api: httpx.Client, name: str, workflow: str, workload: str = "{}") -> str:
    """Puts a playbook into the catalog over HTTP; its path."""
    file = system.playbook(name, workflow, workload)
    with open(file) as stream:
        return str(post(api, "/api/catalog/register", content=stream.read())["path"])


def started(api: httpx.Client, path: str, **workload: Any) -> str:
    """The address of a new execution."""
    return f"/api/executions/{post(api, '/api/executions', path=path, workload=workload)['execution_id']}"


def ends(api: httpx.Client, place: str, status: str) -> None:
    """Waits for the end."""
    found = until(lambda: (s := get(api, f"{place}/status"))["end_time"] and s, f"{place} ends")
    assert found["status"] == status, found


class Told:
    """What a stream of events has told, read by a thread."""

    def __init__(self, lines: Iterator[str]) -> None:
        self.messages: list[dict[str, str]] = []
        self._lines = lines
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        message: dict[str, str] = {}
        try:
            for line in self._lines:
                if line and not line.startswith(":"):
                    name, _, value = line.partition(": ")
                    message[name] = value
                elif message:
                    self.messages.append(message)
                    message = {}
        except httpx.HTTPError:
            return

    @property
    def ids(self) -> list[int]:
        return [int(message["id"]) for message in self.messages if "id" in message]

    def over(self) -> bool:
        return not self._thread.is_alive()


@contextmanager
def stream(api: httpx.Client, place: str, *, base: str = "", **headers: str) -> Iterator[Told]:
    with api.stream("GET", f"{base}{place}/events/stream", headers=headers, timeout=60) as answer:
        assert answer.status_code == 200
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        yield Told(answer.iter_lines())


def test_a_whole_life(system: System, api: httpx.Client) -> None:
    path = registered(system, api, "http_life", LOOP, "{numbers: []}")
    place = started(api, path, numbers=[1, 2, 3, 4, 5])
    with stream(api, place) as told:
        until(told.over, "the stream ends with the execution")
    last = told.messages.pop()
    assert (last["event"], json.loads(last["data"])) == ("end", {"status": "COMPLETED"})
    events = [json.loads(message["data"]) for message in told.messages]
    assert [event["event_id"] for event in events] == [message["id"] for message in told.messages]
    assert events[0]["event_type"] == "playbook.started"
    assert events[-1]["event_type"] == "playbook.completed"

    shown = get(api, place)
    assert (shown["status"], shown["progress"], shown["error"]) == ("COMPLETED", 100, None)
    assert [(step["step"], step["ok"], step["failed"]) for step in shown["steps"]] == [("start", 3, 2), ("after", 1, 0)]
    books = get(api, f"{place}/books")["books"]
    assert [(of["step"], of["claimed"], of["differences"]) for of in books] == [("start", 5, []), ("after", 1, [])]
    ended, failed = get(api, f"{place}/explain")["reasons"]
    assert (failed["text"], failed["step"]) == ("2 rows failed", "start")
    assert ended == {"text": "it has completed", "todo": "", "step": None}
    printed = get(api, f"{place}/logs", step="start")["lines"]
    assert {line["text"] for line in printed} == {f"number {n}" for n in range(1, 6)}


def test_results_of_any_size_and_parts_of_them(system: System, api: httpx.Client) -> None:
    place = started(api, registered(system, api, "http_life", LOOP, "{numbers: []}"), numbers=[1, 3])
    ends(api, place, "COMPLETED")
    assert get(api, f"{place}/result") == {"greeting": "Grüß Gott", "big": list(range(50000))}
    assert get(api, f"{place}/result", path="big[49999]") == 49999
    assert get(api, f"{place}/result", step="start", path="results[1].square") == 9
    assert get(api, f"{place}/result", step="after", path="greeting") == "Grüß Gott"
    for query, status in (
        ({"step": "strat"}, 404),
        ({"step": "after", "path": "nothing"}, 404),
        ({"path": "big[50000]"}, 404),
        ({"path": "big["}, 422),
    ):
        assert api.get(f"{place}/result", params=query).status_code == status, query


def test_rows_in_pages(system: System, api: httpx.Client) -> None:
    path = registered(system, api, "http_life", LOOP, "{numbers: []}")
    place = started(api, path, numbers=list(range(10)))
    ends(api, place, "COMPLETED")
    found: list[list[dict[str, Any]]] = []
    cursor: dict[str, str] | None = {}
    while cursor is not None:
        page = get(api, f"{place}/rows", step="start", limit=4, **cursor)
        found.append(page["rows"])
        cursor = {"cursor": page["next"]} if page["next"] else None
    assert [len(rows) for rows in found] == [4, 4, 2]
    assert [row["item"] for rows in found for row in rows] == list(range(10))
    failed = get(api, f"{place}/rows", step="start", failed=True)["rows"]
    assert [(row["item"], row["status"]) for row in failed] == [(n, "FAILED") for n in (0, 2, 4, 6, 8)]
    assert "0 is even" in failed[0]["error"]["message"]
    assert isinstance(failed[0]["frame_id"], str)


def test_events_in_pages_in_both_ways(system: System, api: httpx.Client) -> None:
    place = started(api, registered(system, api, "http_life", LOOP, "{numbers: []}"), numbers=[1])
    ends(api, place, "COMPLETED")
    forward: list[str] = []
    after: str | None = "0"
    while after is not None:
        page = get(api, f"{place}/events", after=after, limit=3)
        assert len(page["events"]) <= 3
        forward += [event["event_id"] for event in page["events"]]
        after = page["next"]
    for of in (place, f"{place}/events"):
        backward: list[str] = []
        number, more = 1, True
        while more:
            page = get(api, of, page=number, page_size=3)
            backward += [event["event_id"] for event in page["events"]]
            number, more = number + 1, page["pagination"]["has_next"]
        assert backward == forward[::-1]
        assert page["pagination"]["total_events"] == len(forward)


def test_a_stream_goes_on_behind_what_was_told(system: System, api: httpx.Client) -> None:
    post(api, "/api/credentials", name="http_pg", type="postgres", data={"dsn": system.env["NOETL_DATABASE_URL"]})
    path = registered(system, api, "http_gate", GATE)
    place = started(api, path, gate="resume")
    with stream(api, place) as first:
        until(lambda: len(first.ids) > 10, "events are told while it runs")
    seen = first.ids
    assert seen == sorted(seen)
    with stream(api, place, **{"Last-Event-ID": str(seen[-1])}) as second:
        until(lambda: len(second.ids) > 3, "the next ones are told")
        assert min(second.ids) > seen[-1]
        assert not second.over()
        system.sql("INSERT INTO public.http_gate VALUES ('resume', true)")
        until(second.over, "the stream ends with the execution")
    assert second.messages[-1]["event"] == "end"
    after, told = "0", []
    while after is not None:
        page = get(api, f"{place}/events", after=after, limit=1000)
        told += [int(event["event_id"]) for event in page["events"]]
        after = page["next"]
    assert sorted({*seen, *second.ids}) == told


def test_pause_resume_and_cancel(system: System, api: httpx.Client) -> None:
    post(api, "/api/credentials", name="http_pg", type="postgres", data={"dsn": system.env["NOETL_DATABASE_URL"]})
    path = registered(system, api, "http_gate", GATE)
    place = started(api, path, gate="held")
    until(lambda: get(api, f"{place}/status")["completed_steps"], "it works")
    assert post(api, f"{place}/pause")["accepted"] is True
    until(lambda: get(api, place)["status"] == "PAUSED", "it is paused")
    assert any("paused" in reason["text"] for reason in get(api, f"{place}/explain")["reasons"])
    assert post(api, f"{place}/resume")["accepted"] is True
    until(lambda: get(api, place)["status"] == "RUNNING", "it goes on")
    told = post(api, f"{place}/cancel", reason="wrong queue", cascade=True)
    assert (told["accepted"], told["cancelled_executions"]) == (True, [place.rpartition("/")[2]])
    ends(api, place, "CANCELLED")
    status = get(api, f"{place}/status")
    assert (status["cancelled"], status["completed"], status["failed"]) == (True, True, False)
    for verb in ("cancel", "pause", "resume"):
        again = post(api, f"{place}/{verb}")
        assert (again["accepted"], again["status"]) == (False, "CANCELLED")
    refused = api.get(f"{place}/result")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "execution_failed")


def test_failed_work_is_run_again(system: System, api: httpx.Client) -> None:
    post(api, "/api/credentials", name="http_pg", type="postgres", data={"dsn": system.env["NOETL_DATABASE_URL"]})
    system.sql("INSERT INTO public.http_numbers VALUES ('again', 0)")
    place = started(api, registered(system, api, "http_failing", FAILING), name="again")
    ends(api, place, "FAILED")
    shown = get(api, place)
    assert shown["failure"]["step"] == "start"
    assert "zero" in shown["error"]
    [told] = [event for event in get(api, f"{place}/events")["events"] if event["event_type"] == "playbook.failed"]
    assert "zero" in told["error"]
    system.sql("UPDATE public.http_numbers SET n = 2 WHERE name = 'again'")
    assert post(api, f"{place}/retry")["accepted"] is True
    until(lambda: get(api, place)["status"] == "COMPLETED", "it completes")
    assert api.post(f"{place}/retry").status_code == 409

    loop = started(api, registered(system, api, "http_life", LOOP, "{numbers: []}"), numbers=[1, 2])
    ends(api, loop, "COMPLETED")
    assert post(api, f"{loop}/retry", step="start")["accepted"] is True
    until(lambda: get(api, loop)["steps"][-1]["visit"] == 2, "the failed row is run again, and the arcs are followed")


def test_a_stream_ends_when_the_server_is_told_to_stop(system: System, api: httpx.Client) -> None:
    post(api, "/api/credentials", name="http_pg", type="postgres", data={"dsn": system.env["NOETL_DATABASE_URL"]})
    place = started(api, registered(system, api, "http_gate", GATE), gate="never")
    try:
        with ExitStack() as console:
            other = console.enter_context(system.console())
            with stream(api, place, base=other) as told:
                until(lambda: told.ids, "something is told")
                console.close()  # it ends, although somebody listens
                until(told.over, "the stream is ended")
    finally:
        post(api, f"{place}/cancel")


def test_it_runs_without_a_token_for_this_machine_only(system: System) -> None:
    with system.console(token=None) as address:
        assert httpx.get(f"{address}/api/executions").status_code == 200
        assert httpx.get(f"{address}/api/executions", headers={"Host": "elsewhere.example"}).status_code == 403
        foreign = httpx.post(f"{address}/api/catalog/list", json={}, headers={"Origin": "https://elsewhere.example"})
        assert foreign.status_code == 403


def test_noetls_regression_suite_finds_what_it_asks_for(system: System) -> None:
    """The requests of NoETL's own client, in its order, without a token as it sends none."""
    with system.console(token=None) as address, httpx.Client(base_url=address, timeout=30) as api:
        assert api.get("/api/health").status_code == 200
        with open(system.playbook("http_life", LOOP, "{numbers: [1, 2]}")) as stream:
            content = stream.read()
        done = api.post("/api/catalog/register", json={"content": content, "resource_type": "Playbook"}).json()
        begun = api.post("/api/execute", json={"path": done["path"], "merge": True, "payload": {"numbers": [1, 2, 3]}})
        id_ = begun.json()["execution_id"]
        until(
            lambda: (
                api.get(f"/api/executions/{id_}/status").json()["status"].lower()
                in {"completed", "failed", "error", "cancelled"}
            ),
            "its status is final",
        )
        events: list[dict[str, Any]] = []
        more, page = True, 1
        while more:
            found = api.get(f"/api/executions/{id_}", params={"page": page, "page_size": 500}).json()
            events += found["events"]
            more, page = found["pagination"]["has_next"], page + 1
        done_steps = {e["node_name"] for e in events if e["event_type"] == "step.exit" and e["status"] == "COMPLETED"}
        assert done_steps == {"start", "after"}


def test_the_process_says_what_is_wrong_and_ends(system: System) -> None:
    done = subprocess.run(
        [*CLI, "console", "--port", "0"], env=system.env, cwd=system.folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "NOETL_CONSOLE_TOKEN" in done.stderr
