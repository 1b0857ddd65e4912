"""The ``http`` tool: one request with a pooled client."""

from __future__ import annotations

import base64
import os
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx

from noetl_celery import hiding
from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.template.jsonable import is_plain
from noetl_celery.tools import http_request as ask
from noetl_celery.tools import http_time
from noetl_celery.tools.base import Reply, ToolCall
from noetl_celery.tools.http_reply import brief_url, parse_body, shown_url, status_error, transport_error
from noetl_celery.tools.keys import Complaint, bad_config, check_seconds, is_template, one_of, unknown_keys
from noetl_celery.tools.limits import limits

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
_KNOWN = frozenset(
    {
        *("method", "params", "headers", "timeout_seconds", "follow_redirects", "verify_ssl"),
        *ask.URL_KEYS,
        *ask.BODY_KEYS,
    }
)
_LIMITS = httpx.Limits(max_connections=1000, max_keepalive_connections=200, keepalive_expiry=30.0)


@dataclass(slots=True)
class _Request:
    """One request, ready to be sent, and what to keep out of sight."""

    request: httpx.Request
    auth: ask.Authorization
    follow_redirects: bool


class HttpTool:
    """Sends a request; the result is ``{status_code, headers, url, body, data}``, a status of 400 or more an error.

    One client per process (and one for requests that do not verify certificates) keeps connections alive. Cookies are
    not kept: executions share the client. A body larger than ``max_body_bytes`` (as large as a result may be, if not
    given) is an error, and the rest of it is not read.
    """

    kind = "http"
    raw_keys: frozenset[str] = frozenset()
    keys: frozenset[str] = _KNOWN

    def __init__(self, *, max_body_bytes: int | None = None) -> None:
        self._max_body_bytes = max_body_bytes
        self._clients: dict[tuple[int, bool], httpx.Client] = {}
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._renew_lock)

    def check(self, config: Mapping[str, Any]) -> Sequence[Complaint]:
        """Keys, one URL, at most one body, a method that exists, and a timeout that is a number."""
        complaints = unknown_keys(config, _KNOWN)
        complaints += one_of(config, ask.URL_KEYS, required=True)
        complaints += one_of(config, ask.BODY_KEYS, required=False)
        method = config.get("method")
        if method is not None and not is_template(method) and str(method).upper() not in METHODS:
            complaints.append(("method", f"unknown method `{method}`; known: {', '.join(METHODS)}"))
        for key in ("timeout", "timeout_seconds"):
            if not isinstance(config.get(key), Mapping):
                complaints += check_seconds(config, key)
        return complaints

    def target(self, config: Mapping[str, Any]) -> str | None:
        """The host, with its port if the URL names one."""
        try:
            return httpx.URL(ask.url_of(config)).netloc.decode("ascii").lower()
        except (ToolError, httpx.InvalidURL):
            return None  # which is the request's to tell

    def run(self, call: ToolCall) -> Any:
        """The result of the request. Raises ``ToolError``, see :mod:`noetl_celery.tools.http_reply` for its kinds."""
        client = self._client(ask.flag(call.config, "verify_ssl", True))
        deadline = ask.deadline_of(call.config, call.deadline)
        prepared = _prepare(client, call, deadline)
        try:
            with http_time.until(deadline):
                response = _send(client, prepared)
                try:
                    content = self._read(response, prepared)
                finally:
                    response.close()
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise transport_error(error, prepared.request.method, prepared.request.url) from None
        return _reply(response, content, prepared)

    def close(self) -> None:
        """Closes this process's clients; the tool makes new ones if it is used again."""
        with self._lock:
            mine = [key for key in self._clients if key[0] == os.getpid()]
            closing = [self._clients.pop(key) for key in mine]
        for client in closing:
            client.close()

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def _client(self, verify: bool) -> httpx.Client:
        key = (os.getpid(), verify)
        client = self._clients.get(key)
        if client is None:
            with self._lock:
                client = self._clients.get(key) or _new_client(verify)
                self._clients[key] = client
        return client

    def _read(self, response: httpx.Response, prepared: _Request) -> bytes:
        chunks: list[bytes] = []
        size, most = 0, self._max_body_bytes or limits().output_bytes
        for chunk in response.iter_bytes():
            size += len(chunk)
            if size > most:
                where = f"{prepared.request.method} {brief_url(prepared.request.url)}"
                hint = "" if self._max_body_bytes else " (NOETL_RESULT_MAX_BYTES)"
                text = f"{where}: the response is larger than {most} bytes{hint}"
                raise ToolError(ErrorInfo("too_large", text, status=response.status_code))
            chunks.append(chunk)
        return b"".join(chunks)


@cache
def certificates() -> ssl.SSLContext:
    """What servers are verified by. Read once, which takes a while: best before a node forks its processes."""
    return httpx.create_ssl_context()


def _new_client(verify: bool) -> httpx.Client:
    client = httpx.Client(
        verify=certificates() if verify else False,
        limits=_LIMITS,
        headers={"User-Agent": "noetl-celery"},
        event_hooks={"request": [_keep_secrets_at_home]},
    )
    client._cookies = _NoCookies()  # httpx would copy any that it is given as a parameter
    return http_time.bounded(client)


class _NoCookies(httpx.Cookies):
    """Keeps none, and does not even read them."""

    def extract_cookies(self, response: httpx.Response) -> None:
        pass


def _keep_secrets_at_home(request: httpx.Request) -> None:
    """A redirect to another origin must not carry an API key along (httpx itself takes care of ``Authorization``)."""
    origin, names = request.extensions.get("noetl", (None, ()))
    if origin is not None and origin != _origin(request.url):
        for name in names:
            request.headers.pop(name, None)


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _prepare(client: httpx.Client, call: ToolCall, deadline: float) -> _Request:
    config = call.config
    method = str(config.get("method") or "GET").upper()
    if method not in METHODS:
        raise bad_config(f"unknown method `{method}`; known: {', '.join(METHODS)}")
    auth = ask.authorization(config, call.credential)
    if auth.basic:
        hiding.learn(base64.b64encode(":".join(auth.basic).encode()).decode())
    headers = ask.headers_of(config.get("headers"))
    body = ask.body_of(config, headers)
    headers |= body.pop("headers", {})
    headers |= auth.headers
    params = [*ask.params_of(config.get("params")), *auth.params.items()]
    remaining = max(0.001, deadline - time.monotonic())
    timeouts = {phase: min(limit, remaining) for phase, limit in ask.timeouts_of(config).items()}
    try:
        url = _url(ask.url_of(config), params)
        extensions = {"timeout": timeouts, "noetl": (_origin(url), tuple(auth.headers))}
        request = client.build_request(method, url, headers=headers, extensions=extensions, **body)
    except (httpx.InvalidURL, UnicodeError, ValueError) as error:
        raise ToolError(ErrorInfo("client_error", f"the request cannot be made: {error}")) from None
    return _Request(request, auth, ask.flag(config, "follow_redirects", True))


def _url(text: str, params: list[tuple[str, Any]]) -> httpx.URL:
    """The URL with ``params`` behind those of its own, which httpx would replace."""
    if not params:
        return httpx.URL(text)
    if "?" not in text:
        return httpx.URL(text, params=httpx.QueryParams(params))
    url = httpx.URL(text)
    return url.copy_with(params=httpx.QueryParams([*url.params.multi_items(), *params]))


def _send(client: httpx.Client, prepared: _Request) -> httpx.Response:
    """Sends the request, and once more if a kept connection turned out closed by the server before any answer came."""
    try:
        return _send_once(client, prepared)
    except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
        if http_time.connected() or prepared.request.method not in _IDEMPOTENT:
            raise
        return _send_once(client, prepared)


def _send_once(client: httpx.Client, prepared: _Request) -> httpx.Response:
    auth = httpx.BasicAuth(*prepared.auth.basic) if prepared.auth.basic else httpx.USE_CLIENT_DEFAULT
    return client.send(prepared.request, stream=True, auth=auth, follow_redirects=prepared.follow_redirects)


def _reply(response: httpx.Response, content: bytes, prepared: _Request) -> Reply:
    headers = dict(response.headers.items())  # not dict(response.headers): that searches all of them for each
    media = headers.get("content-type", "")
    body = parse_body(content, media, response.charset_encoding if "charset" in media.lower() else None)
    result = {
        "status_code": response.status_code,
        "headers": headers,
        "url": shown_url(response.url, prepared.auth.params),
        "body": body,
        "data": body,
    }
    if response.status_code >= 400:
        raise status_error(prepared.request.method, prepared.request.url, result, response.reason_phrase)
    # The body stands there twice, and may be large: it is looked through once.
    return Reply(result, http={"status": response.status_code, "headers": headers}, plain=is_plain(body))
