"""The parts of the http tool that need no network."""

from __future__ import annotations

import datetime as dt
from typing import Any

import httpx
import pytest

from noetl_celery.tools.http import HttpTool
from noetl_celery.tools.http_reply import retry_after, shown_url, transport_error

NOW = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("value", "date", "expected"),
    [
        (None, None, None),
        ("7", None, 7.0),
        ("0.5", None, 0.5),
        ("-3", None, None),
        ("nan", None, None),
        ("soon", None, None),
        ("Fri, 02 Jan 2026 03:04:35 GMT", None, 30.0),
        ("Fri, 02 Jan 2026 03:04:35 GMT", "Fri, 02 Jan 2026 03:04:25 GMT", 10.0),
        ("Fri, 02 Jan 2026 03:00:00 GMT", None, 0.0),
    ],
)
def test_retry_after(value: str | None, date: str | None, expected: float | None) -> None:
    assert retry_after(value, date, now=NOW) == expected


def test_shown_url() -> None:
    url = httpx.URL("https://u:p@example.org/a?k=secret&b=1#f")
    assert shown_url(url, {"k": "secret"}) == "https://example.org/a?b=1#f"


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        (httpx.ConnectTimeout(""), "timeout", True),
        (httpx.PoolTimeout(""), "timeout", True),
        (httpx.ConnectError("no"), "connection", True),
        (httpx.RemoteProtocolError("gone"), "connection", True),
        (httpx.DecodingError("zip"), "connection", True),
        (httpx.LocalProtocolError("bad"), "client_error", False),
        (httpx.UnsupportedProtocol("bad"), "client_error", False),
        (httpx.TooManyRedirects("round"), "client_error", False),
    ],
)
def test_transport_errors(error: Exception, kind: str, retryable: bool) -> None:
    made = transport_error(error, "GET", httpx.URL("http://u:SECRET@h/p?k=SECRET"))
    assert (made.info.kind, made.info.retryable) == (kind, retryable)
    assert made.message.startswith("GET http://h/p: ")


@pytest.mark.parametrize(
    ("config", "complaints"),
    [
        ({"url": "{{ u }}", "method": "get", "timeout": {"read": 1}, "json": {}, "auth": "x", "assert": {}}, []),
        ({"endpoint": "http://x", "method": "{{ m }}", "timeout_seconds": "{{ t }}"}, []),
        ({}, [(None, "needs one of `url`, `endpoint`")]),
        ({"url": "u", "header": {}}, [("header", "unknown key `header`: did you mean `headers`?")]),
        ({"url": "u", "zzz": 1}, [("zzz", "unknown key `zzz`: known keys: body, data, endpoint,")]),
        ({"url": "u", "json": {"a": 1}, "form": {"a": 1}}, [("form", "only one of `json`")]),
        ({"url": "u", "method": "FETCH"}, [("method", "unknown method `FETCH`")]),
        ({"url": "u", "timeout": "x"}, [("timeout", "`timeout` has to be")]),
    ],
)
def test_check(config: dict[str, Any], complaints: list[tuple[str | None, str]]) -> None:
    found = HttpTool().check(config)
    assert [key for key, _ in found] == [key for key, _ in complaints]
    for (_, message), (_, start) in zip(found, complaints, strict=True):
        assert message.startswith(start)
