"""From a rendered configuration to the request: parameters, body, time limits and credentials. No network."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from noetl_celery import hiding
from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.template.jsonable import to_json
from noetl_celery.tools.keys import auth_of, bad_config, is_blank, present, seconds

BODY_KEYS = ("json", "body", "payload", "data", "form")
URL_KEYS = ("url", "endpoint")
PHASES = ("connect", "read", "write", "pool")
DEFAULT_TIMEOUT_SECONDS = 30.0
DEFAULT_TOTAL_SECONDS = 300.0
_TOKEN_KEYS = ("token", "access_token", "bearer_token", "bearer")
_VALUE_KEYS = ("value", "key", "api_key", "token", "password")
_HEADER_KEYS = ("header", "header_name", "key_name")


@dataclass(slots=True)
class Authorization:
    """What a credential adds to a request; never shown anywhere."""

    headers: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    basic: tuple[str, str] | None = None


def url_of(config: Mapping[str, Any]) -> str:
    """The rendered URL. Raises ``ToolError`` unless it is an absolute http or https one."""
    url = next((config[key] for key in URL_KEYS if not is_blank(config.get(key))), None)
    if not isinstance(url, str):
        raise ToolError(ErrorInfo("client_error", "needs `url`"))
    url = url.strip()
    if not url.lower().startswith(("http://", "https://")):
        shown = url.partition("?")[0].rpartition("@")[2]
        raise ToolError(ErrorInfo("client_error", f"the URL has to begin with http:// or https://: {shown!r}"))
    return url


def params_of(values: Any) -> list[tuple[str, str]]:
    """Query parameters as text: None is left out, lists repeat, booleans are ``true`` and ``false``, mappings JSON."""
    if is_blank(values):
        return []
    if isinstance(values, str):
        raise bad_config("`params` has to be a mapping, not text; put a ready query string into the URL")
    pairs = values.items() if isinstance(values, Mapping) else _pairs(values)
    found: list[tuple[str, str]] = []
    for key, value in pairs:
        items = value if isinstance(value, list | tuple) else [value]
        found += [(str(key), _text(item)) for item in items if item is not None]
    return found


def _pairs(values: Any) -> list[tuple[Any, Any]]:
    if isinstance(values, list | tuple) and all(isinstance(item, list | tuple) and len(item) == 2 for item in values):
        return [(item[0], item[1]) for item in values]
    raise bad_config(f"`params` has to be a mapping, not {type(values).__name__}")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    return _json(value)


def _json(value: Any) -> str:
    try:
        return to_json(value)
    except TypeError as error:
        raise bad_config(f"the request cannot be made: {error}") from None


def headers_of(values: Any) -> dict[str, str]:
    """Request headers as text; None is left out. Raises ``ToolError`` for what cannot travel in a header."""
    if is_blank(values):
        return {}
    if not isinstance(values, Mapping):
        raise bad_config(f"`headers` has to be a mapping, not {type(values).__name__}")
    headers = {str(name): _text(value).strip() for name, value in values.items() if value is not None}
    for name, text in headers.items():
        if any(character in text for character in "\r\n\0"):
            raise bad_config(f"the header `{name}` has a line break in its value")
    return headers


def body_of(config: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    """The body as arguments of an httpx request.

    ``json`` is always JSON, ``form`` always a form. Of the others, text goes as it is and data as JSON, unless a
    content type asks for a form.
    """
    given = present(config, BODY_KEYS) or [key for key in BODY_KEYS if config.get(key) is not None]
    if not given:
        return {}
    key, value = given[0], config[given[0]]
    content_type = next((text for name, text in headers.items() if name.lower() == "content-type"), "")
    as_form = key == "form" or (key != "json" and "x-www-form-urlencoded" in content_type)
    if as_form and isinstance(value, Mapping):
        return {"data": _form(value)}
    if isinstance(value, str) and key != "json":
        return {"content": value.encode()}
    added = {} if content_type else {"headers": {"Content-Type": "application/json"}}
    return {"content": _json(value).encode(), **added}


def _form(values: Mapping[str, Any]) -> dict[str, Any]:
    form: dict[str, list[str]] = {}
    for key, text in params_of(values):
        form.setdefault(key, []).append(text)
    return form


def timeouts_of(config: Mapping[str, Any]) -> dict[str, float]:
    """Seconds for each of connect, read, write and pool (waiting for a free connection)."""
    given = _timeout(config)
    if not isinstance(given, Mapping):
        return dict.fromkeys(PHASES, seconds(given, "timeout") or DEFAULT_TIMEOUT_SECONDS)
    unknown = [str(key) for key in given if key not in PHASES]
    if unknown:
        raise bad_config(f"`timeout` has no part `{unknown[0]}`; it has {', '.join(PHASES)}")
    return {phase: seconds(given.get(phase), f"timeout.{phase}") or DEFAULT_TIMEOUT_SECONDS for phase in PHASES}


def deadline_of(config: Mapping[str, Any], deadline: float | None) -> float:
    """When the whole request has to have ended: a ``timeout`` that is a number counts for all of it."""
    given = _timeout(config)
    own = None if isinstance(given, Mapping) else seconds(given, "timeout")
    end = time.monotonic() + (own or DEFAULT_TOTAL_SECONDS)
    return end if deadline is None else min(end, deadline)


def _timeout(config: Mapping[str, Any]) -> Any:
    given = config.get("timeout")
    return config.get("timeout_seconds") if is_blank(given) else given


def flag(config: Mapping[str, Any], key: str, default: bool) -> bool:
    """A rendered true or false, also as text."""
    value = config.get(key)
    if is_blank(value):
        return default
    text = str(value).strip().lower()
    if text not in {"true", "false", "1", "0", "yes", "no"}:
        raise bad_config(f"`{key}` has to be true or false, not {value!r}")
    return text in {"true", "1", "yes"}


def authorization(config: Mapping[str, Any], credential: Callable[[str], Mapping[str, Any]]) -> Authorization:
    """What ``auth`` asks for: a credential's name, a mapping, or a mapping that names a credential.

    Understood are a bearer token (``token``, ``access_token``), basic (``username``, ``password``), an API key
    (``header`` and ``value``; ``in: query`` puts it into the URL, and out of every message) and ``headers``. Raises
    ``ToolError`` of kind ``credential`` that names the keys which are missing.
    """
    auth = auth_of(config)
    if is_blank(auth):
        return Authorization()
    fields = dict(credential(auth)) if isinstance(auth, str) else _looked_up(auth, credential)
    scheme = str(fields.get("type") or "").lower().replace("-", "_")
    if scheme in {"basic", "http_basic"} or (not scheme and "username" in fields):
        return Authorization(basic=(_field(fields, ("username", "user")), _field(fields, ("password",))))
    if scheme in {"header", "api_key", "apikey"} or any(key in fields for key in _HEADER_KEYS):
        return _api_key(fields)
    token = next((fields[key] for key in _TOKEN_KEYS if not is_blank(fields.get(key))), None)
    if token is not None:
        return Authorization(headers={"Authorization": f"Bearer {_secret(token)}"})
    if isinstance(fields.get("headers"), Mapping):
        return Authorization(headers={str(name): _secret(value) for name, value in fields["headers"].items()})
    if scheme in {"bearer", "oauth2"}:
        return Authorization(headers={"Authorization": f"Bearer {_field(fields, ('value',), named=_TOKEN_KEYS[:2])}"})
    raise _bad_credential("`auth` has to give a token, a username and password, or a header and its value")


def _looked_up(auth: Any, credential: Callable[[str], Mapping[str, Any]]) -> dict[str, Any]:
    if not isinstance(auth, Mapping):
        raise bad_config(f"`auth` has to be the name of a credential or a mapping, not {type(auth).__name__}")
    own = dict(auth)
    name = own.pop("credential", None)
    if name is None and own.get("source") == "credential":
        name = own.pop("key", None)
    own.pop("source", None)
    return own if name is None else {**credential(str(name)), **own}


def _api_key(fields: Mapping[str, Any]) -> Authorization:
    value = _field(fields, _VALUE_KEYS)
    name = next((str(fields[key]) for key in (*_HEADER_KEYS, "name") if fields.get(key)), "X-API-Key")
    if str(fields.get("in") or fields.get("location") or "header") == "query":
        return Authorization(params={name: value})
    return Authorization(headers={name: value})


def _field(fields: Mapping[str, Any], keys: tuple[str, ...], named: tuple[str, ...] | None = None) -> str:
    value = next((fields[key] for key in keys if not is_blank(fields.get(key))), None)
    if value is None:
        raise _bad_credential("`auth` needs " + " or ".join(f"`{key}`" for key in named or keys[:2]))
    return _secret(value)


def _secret(value: Any) -> str:
    text = str(value).strip()
    if not text.isprintable():
        raise _bad_credential("a value of `auth` has a character that cannot travel in a header")
    hiding.learn(text)
    return text


def _bad_credential(message: str) -> ToolError:
    return ToolError(ErrorInfo("credential", message))
