"""The http tool against a small server of its own."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from noetl_celery.outcome import Outcome
from noetl_celery.tools import http_request
from noetl_celery.tools.base import ToolCall
from noetl_celery.tools.http import HttpTool
from noetl_celery.tools.limits import Limits, limits, set_limits
from noetl_celery.tools.outcome import run_tool


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    connections: set[Any]
    release: threading.Event
    sent = 0

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle_any(self) -> None:
        type(self).connections.add(self.client_address)
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        route = url.path.strip("/")
        if route == "echo":
            seen = {
                "method": self.command,
                "query": parse_qsl(url.query, keep_blank_values=True),
                "headers": {name.lower(): value for name, value in self.headers.items()},
                "body": body.decode(),
            }
            self.answer(200, json.dumps(seen).encode(), Content_Type="application/json", Set_Cookie="a=b")
        elif route.startswith("status/"):
            extra = {"Retry_After": query["after"]} if "after" in query else {}
            self.answer(int(route.removeprefix("status/")), b'{"why": "so"}', Content_Type="application/json", **extra)
        elif route == "body":
            self.answer(200, bytes.fromhex(query["hex"]), Content_Type=query.get("type", ""))
        elif route == "deep":
            depth = int(query["depth"])
            self.answer(int(query["status"]), b"[" * depth + b"]" * depth, Content_Type="application/json")
        elif route == "zip":
            self.answer(200, gzip.compress(b"x" * 2_000_000), Content_Encoding="gzip", Content_Type="text/plain")
        elif route == "redirect":
            self.answer(302, b"", Location=query.get("to", "/redirect"))
        elif route == "hang":
            type(self).release.wait(20)
            self.close_connection = True
        elif route == "drip":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            while not type(self).release.wait(0.05):
                self.wfile.write(b".")
        elif route == "drip-head":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
            while not type(self).release.wait(0.05):
                self.wfile.write(b".")
            self.close_connection = True
        elif route == "endless":
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                while not type(self).release.is_set():
                    self.wfile.write(b"x" * 65536)
                    type(self).sent += 65536
            self.close_connection = True
        elif route == "last":
            # keeps the connection alive in words, and closes it all the same
            self.answer(200, b"{}")
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_DELETE = handle_any


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that hang up


def serve() -> Iterator[str]:
    handler = type("OwnHandler", (Handler,), {"connections": set(), "release": threading.Event()})
    server = Server(("127.0.0.1", 0), handler)
    server.handler = handler  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    SERVERS[f"http://127.0.0.1:{server.server_port}"] = handler
    yield f"http://127.0.0.1:{server.server_port}"
    handler.release.set()
    server.shutdown()
    server.server_close()
    thread.join()


SERVERS: dict[str, Any] = {}


@pytest.fixture
def api() -> Iterator[str]:
    yield from serve()


@pytest.fixture
def other_api() -> Iterator[str]:
    yield from serve()


Run = Callable[..., Outcome]


@pytest.fixture
def run() -> Iterator[Run]:
    tool = HttpTool(max_body_bytes=1_000_000)
    secrets = {
        "api": {"token": "TOP-SECRET"},
        "query": {"type": "api_key", "in": "query", "name": "k", "value": "TOP-SECRET"},
    }

    def run_http(url: str, *, deadline: float | None = None, **config: Any) -> Outcome:
        call = ToolCall({"url": url, **config}, {}, secrets.__getitem__, print, {}, deadline)
        return run_tool(tool, call)

    yield run_http
    tool.close()
    tool.close()


def test_result(run: Run, api: str) -> None:
    outcome = run(
        f"{api}/echo?a=1", params={"b": [2, 3], "c": True, "d": None, "e": 1.5, "f": "x y&z"}, headers={"X-N": 5}
    )
    assert outcome.error is None
    data = outcome.data
    assert (data["status_code"], data["body"]) == (200, data["data"])
    assert data["url"].startswith(f"{api}/echo?a=1&b=2&b=3")
    assert data["data"]["query"] == [["a", "1"], ["b", "2"], ["b", "3"], ["c", "true"], ["e", "1.5"], ["f", "x y&z"]]
    assert data["data"]["headers"]["x-n"] == "5"
    assert outcome.http == {"status": 200, "headers": data["headers"]}
    assert data["headers"]["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("config", "content_type", "sent"),
    [
        ({"json": {"a": [1]}}, "application/json", '{"a": [1]}'),
        ({"payload": {"a": None}}, "application/json", '{"a": null}'),
        ({"data": [1, "ü"]}, "application/json", '[1, "ü"]'),
        ({"body": "plain <b>"}, None, "plain <b>"),
        ({"json": "text"}, "application/json", '"text"'),
        ({"json": {}}, "application/json", "{}"),
        ({"form": {"a": "1 2", "b": [True, 2]}}, "application/x-www-form-urlencoded", "a=1+2&b=true&b=2"),
        (
            {"data": {"a": 1}, "headers": {"content-type": "application/x-www-form-urlencoded"}},
            "application/x-www-form-urlencoded",
            "a=1",
        ),
        (
            {"body": {"a": 1}, "headers": {"Content-Type": "application/vnd.x+json"}},
            "application/vnd.x+json",
            '{"a": 1}',
        ),
    ],
)
def test_bodies(run: Run, api: str, config: dict[str, Any], content_type: str | None, sent: str) -> None:
    echo = run(f"{api}/echo", method="post", **config).data["data"]
    assert (echo["method"], echo["headers"].get("content-type"), echo["body"]) == ("POST", content_type, sent)


@pytest.mark.parametrize(
    ("content", "content_type", "expected"),
    [
        (b'{"a": 1}', "application/json; charset=utf-8", {"a": 1}),
        (b'{"a": 1}', "text/plain", {"a": 1}),
        (b" [1]", "", [1]),
        (b"{broken", "application/json", "{broken"),
        (b"12", "text/plain", "12"),
        (b"12", "application/json", 12),
        (b'{"a": NaN}', "application/json", {"a": None}),
        ("grün".encode("latin-1"), "text/plain; charset=latin-1", "grün"),
        ("grün".encode(), "text/html", "grün"),
        (b"\x00\xff", "application/octet-stream", "AP8="),
        (b"\xff\xfe", "", "//4="),
        (b"", "application/json", ""),
    ],
)
def test_response_bodies(run: Run, api: str, content: bytes, content_type: str, expected: Any) -> None:
    assert run(f"{api}/body", params={"hex": content.hex(), "type": content_type}).data["data"] == expected


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, "client_error", False),
        (401, "auth", False),
        (403, "auth", False),
        (404, "not_found", False),
        (408, "client_error", True),
        (422, "client_error", False),
        (425, "client_error", True),
        (429, "rate_limit", True),
        (500, "server_error", True),
        (503, "server_error", True),
    ],
)
def test_statuses(run: Run, api: str, status: int, kind: str, retryable: bool) -> None:
    outcome = run(f"{api}/status/{status}?token=SECRET&after=7")
    error = outcome.error
    assert error is not None
    assert (error.kind, error.status, error.retryable, error.retry_after) == (kind, status, retryable, 7.0)
    assert error.message.startswith(f"GET {api}/status/{status} answered {status}")
    assert error.message.endswith(': {"why": "so"}')
    assert "SECRET" not in error.message
    assert outcome.http["status"] == status
    assert outcome.data["data"] == {"why": "so"}


@pytest.mark.parametrize(
    ("auth", "header", "value"),
    [
        ("api", "authorization", "Bearer TOP-SECRET"),
        ({"token": "T"}, "authorization", "Bearer T"),
        ({"type": "bearer", "credential": "api"}, "authorization", "Bearer TOP-SECRET"),
        ({"username": "u", "password": "p"}, "authorization", "Basic dTpw"),
        ({"type": "api_key", "header": "X-Key", "value": "v"}, "x-key", "v"),
        ({"type": "api_key", "key": "v"}, "x-api-key", "v"),
        ({"headers": {"X-Own": "o"}}, "x-own", "o"),
    ],
)
def test_auth(run: Run, api: str, auth: Any, header: str, value: str) -> None:
    assert run(f"{api}/echo", auth=auth).data["data"]["headers"][header] == value


def test_secrets_stay_out_of_results_and_errors(run: Run, api: str) -> None:
    outcome = run(f"{api}/echo", auth="query")
    assert outcome.data["data"]["query"] == [["k", "TOP-SECRET"]]
    assert outcome.data["url"] == f"{api}/echo"
    failed = run(f"{api.replace('//', '//user:TOP-SECRET@')}/status/500", auth="query")
    assert failed.error is not None
    assert "TOP-SECRET" not in failed.error.message + failed.data["url"]
    wrong = run(f"{api}/echo", auth={"type": "basic", "username": "TOP-SECRET"})
    assert wrong.error is not None
    assert (wrong.error.kind, wrong.error.message) == ("credential", "`auth` needs `password`")


def test_an_api_key_does_not_follow_a_redirect_to_another_origin(run: Run, api: str, other_api: str) -> None:
    key = {"header": "X-Key", "value": "v"}
    at_home = run(f"{api}/redirect", params={"to": f"{api}/echo"}, auth=key).data
    assert at_home["data"]["headers"]["x-key"] == "v"
    assert at_home["url"] == f"{api}/echo"
    for auth in (key, "api", {"username": "u", "password": "p"}):
        abroad = run(f"{api}/redirect", params={"to": f"{other_api}/echo"}, auth=auth).data["data"]
        assert not {"x-key", "authorization"} & set(abroad["headers"])
    stayed = run(f"{api}/redirect", params={"to": "/echo"}, follow_redirects=False)
    assert (stayed.error, stayed.data["status_code"]) == (None, 302)


def test_an_endless_redirect_is_not_retried(run: Run, api: str) -> None:
    circle = run(f"{api}/redirect")
    assert circle.error is not None
    assert (circle.error.kind, circle.error.retryable) == ("client_error", False)


def test_connections_are_reused_and_cookies_are_not(run: Run, api: str) -> None:
    for _ in range(5):
        assert "cookie" not in run(f"{api}/echo").data["data"]["headers"]
    assert len(SERVERS[api].connections) == 1


def test_a_kept_connection_that_the_server_closed_is_no_error(run: Run, api: str) -> None:
    for _ in range(10):
        assert run(f"{api}/last").error is None


@pytest.mark.parametrize(
    ("route", "config"),
    [
        ("hang", {"timeout": 0.2}),
        ("hang", {"timeout_seconds": "0.2"}),
        ("hang", {"timeout": {"connect": 5, "read": 0.2}}),
        ("hang", {"deadline": 0.2}),
        ("drip", {"deadline": 0.2}),  # a limit per read would not end it
        ("drip", {"timeout": 0.2}),
        ("drip-head", {"timeout": 0.2}),
        ("drip-head", {"timeout_seconds": 0.2}),
        ("drip-head", {"deadline": 0.2, "timeout": {"read": 5}}),
    ],
)
def test_timeouts(run: Run, api: str, route: str, config: dict[str, Any]) -> None:
    if "deadline" in config:
        config = {"deadline": time.monotonic() + config["deadline"]}
    outcome = run(f"{api}/{route}", **config)
    assert outcome.error is not None
    assert (outcome.error.kind, outcome.error.retryable) == ("timeout", True)
    assert outcome.meta["duration"] < 5


def test_the_time_of_a_request_counts_behind_a_proxy_too(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", api)
    monkeypatch.setenv("NO_PROXY", "")
    tool = HttpTool()
    call = ToolCall({"url": "http://192.0.2.1/drip-head", "timeout": 0.3}, {}, lambda name: {}, print, {})
    outcome = run_tool(tool, call)
    tool.close()
    assert outcome.error is not None
    assert outcome.error.message == "GET http://192.0.2.1/drip-head: timed out (read)"
    assert SERVERS[api].connections, "it did not go through the proxy"


def test_a_request_without_a_limit_has_one(run: Run, api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_request, "DEFAULT_TOTAL_SECONDS", 0.3)
    outcome = run(f"{api}/drip")
    assert outcome.error is not None
    assert outcome.error.kind == "timeout"


def test_what_is_too_large_is_not_read_to_its_end(run: Run, api: str) -> None:
    outcome = run(f"{api}/endless")
    assert outcome.error is not None
    assert outcome.error.kind == "too_large"
    assert SERVERS[api].sent < 50_000_000


def test_a_body_may_be_as_large_as_a_result(api: str) -> None:
    before = limits()
    tool = HttpTool()
    try:
        set_limits(Limits(output_bytes=100_000))
        outcome = run_tool(tool, ToolCall({"url": f"{api}/endless"}, {}, lambda name: {}, print, {}))
    finally:
        set_limits(before)
        tool.close()
    assert outcome.error is not None
    assert outcome.error.message.endswith("larger than 100000 bytes (NOETL_RESULT_MAX_BYTES)")


@pytest.mark.parametrize(("status", "kind"), [(200, "result_type"), (500, "server_error")])
@pytest.mark.parametrize("depth", [190, 500, 900, 10_000])
def test_deep_bodies(run: Run, api: str, status: int, kind: str, depth: int) -> None:
    outcome = run(f"{api}/deep?depth={depth}&status={status}")
    if outcome.error is None:
        assert depth < 200 or isinstance(outcome.data["body"], str), "what cannot be parsed is text"
    else:
        assert outcome.error.kind == kind, outcome.error


def test_a_request_that_is_too_late_is_not_sent(run: Run, api: str) -> None:
    outcome = run(f"{api}/echo", deadline=time.monotonic() - 1)
    assert outcome.error is not None
    assert (outcome.error.kind, outcome.error.retryable) == ("timeout", False)
    assert not SERVERS[api].connections


def test_nobody_there(run: Run) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        outcome = run(f"http://127.0.0.1:{port}/x?secret=1")
    assert outcome.error is not None
    assert (outcome.error.kind, outcome.error.retryable) == ("connection", True)
    assert f"GET http://127.0.0.1:{port}/x: " in outcome.error.message


@pytest.mark.parametrize(
    "config",
    [
        {"url": ""},
        {"url": "/just/a/path"},
        {"url": "ftp://example.org/x"},
        {"url": "http://"},
        {"url": "http://exa mple.org:port/"},
        {"headers": {"X": "a\nb"}},
        {"headers": {"Xü": "a"}},
        {"headers": {"X": "…"}},
        {"headers": "text"},
        {"params": "a=b"},
        {"params": {"a": object()}},
        {"timeout": "soon"},
        {"timeout": {"total": 3}},
        {"verify_ssl": "maybe"},
        {"auth": 5},
        {"method": "G T"},
    ],
)
def test_requests_that_cannot_be_made(run: Run, config: dict[str, Any]) -> None:
    outcome = run(**{"url": "http://127.0.0.1:1/", **config})
    assert outcome.error is not None
    assert outcome.error.kind in {"client_error", "config"}
    assert not outcome.error.retryable


@pytest.mark.parametrize("route", ["zip", "body?hex=" + "00" * 3])
def test_a_large_body_is_an_error(api: str, route: str) -> None:
    tool = HttpTool(max_body_bytes=2)
    outcome = run_tool(tool, ToolCall({"url": f"{api}/{route}"}, {}, lambda name: {}, print, {}))
    tool.close()
    assert outcome.error is not None
    assert outcome.error.kind == "too_large"
    assert "larger than 2 bytes" in outcome.error.message
