"""From a response to the tool's result, and from a failure to the tool's error. No network."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import ssl
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.hiding import hidden

_EXCERPT = 200
_KINDS = {401: "auth", 403: "auth", 404: "not_found", 429: "rate_limit"}
_RETRYABLE = frozenset({408, 425, 429})
_TEXTUAL = ("json", "xml", "javascript", "x-www-form-urlencoded", "yaml", "csv", "graphql")


def parse_body(content: bytes, content_type: str, charset: str | None) -> Any:
    """JSON if the content type says so or the text is an object or array; else text; base64 if it is not text."""
    if not content:
        return ""
    media = content_type.partition(";")[0].strip().lower()
    text = _decoded(content, media, charset)
    if text is None:
        return base64.b64encode(content).decode("ascii")
    if "json" in media or text.lstrip()[:1] in {"{", "["}:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _decoded(content: bytes, media: str, charset: str | None) -> str | None:
    if charset:
        try:
            return content.decode(charset, "replace")
        except LookupError:
            pass  # a charset nobody knows
    if media.startswith("text/") or any(part in media for part in _TEXTUAL):
        return content.decode("utf-8", "replace").removeprefix("\ufeff")
    if b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def shown_url(url: httpx.URL, secret_params: Mapping[str, str]) -> str:
    """The URL as results show it: without user and password, without parameters that came from a credential, and
    without secrets that a template brought."""
    if url.userinfo:
        url = url.copy_with(username=None, password=None)
    for name in secret_params:
        if name in url.params:
            url = url.copy_remove_param(name)
    return hidden(str(url))


def brief_url(url: httpx.URL) -> str:
    """The URL as messages show it: without the query, which may hold anything."""
    return str(url.copy_with(username=None, password=None, query=None, fragment=None))


def status_error(method: str, url: httpx.URL, result: Mapping[str, Any], reason: str) -> ToolError:
    """The error for a status of 400 or more; the whole result comes with it as ``data``."""
    status = int(result["status_code"])
    headers = result["headers"]
    kind = _KINDS.get(status, "server_error" if status >= 500 else "client_error")
    body = result["body"]
    excerpt = hidden(" ".join((body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)).split()))
    shown = excerpt if len(excerpt) <= _EXCERPT else excerpt[:_EXCERPT] + "…"
    message = f"{method} {brief_url(url)} answered {status} {reason}".rstrip() + (f": {shown}" if shown else "")
    info = ErrorInfo(
        kind,
        message,
        code=str(status),
        status=status,
        retryable=status >= 500 or status in _RETRYABLE,
        retry_after=retry_after(headers.get("retry-after"), headers.get("date")),
    )
    return ToolError(info, extra={"http": {"status": status, "headers": headers}, "data": result})


def retry_after(value: str | None, date: str | None = None, *, now: dt.datetime | None = None) -> float | None:
    """Seconds that ``Retry-After`` asks for: a number, or a date measured against the server's own ``Date``."""
    if not value:
        return None
    try:
        number = float(value)
    except ValueError:
        until = _date(value)
        since = _date(date) or now or dt.datetime.now(dt.UTC)
        return None if until is None else max(0.0, (until - since).total_seconds())
    return number if math.isfinite(number) and number >= 0 else None


def _date(value: str | None) -> dt.datetime | None:
    try:
        parsed = parsedate_to_datetime(value or "")
    except (TypeError, ValueError):
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=dt.UTC)


def transport_error(error: Exception, method: str, url: httpx.URL) -> ToolError:
    """The error for a request that got no (whole) answer."""
    where = f"{method} {brief_url(url)}"
    reason = str(error) or type(error).__name__
    if isinstance(error, httpx.TimeoutException):
        phase = type(error).__name__.removesuffix("Timeout").lower()
        return ToolError(ErrorInfo("timeout", f"{where}: timed out ({phase})", retryable=True))
    if isinstance(error, httpx.TooManyRedirects):
        return ToolError(ErrorInfo("client_error", f"{where}: too many redirects"))
    if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError | httpx.InvalidURL):
        return ToolError(ErrorInfo("client_error", f"{where}: {reason}"))
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _causes(error)):
        return ToolError(ErrorInfo("connection", f"{where}: the certificate is not trusted: {reason}"))
    return ToolError(ErrorInfo("connection", f"{where}: {reason}", retryable=True))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
