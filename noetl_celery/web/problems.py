"""Errors as answers: JSON for programs, a page for people, never a traceback."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import urlencode

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, RedirectResponse, Response

from noetl_celery.errors import (
    ExecutionFailed,
    InputError,
    InternalConflict,
    NoetlError,
    NotFound,
    PlaybookInvalid,
    ServiceError,
    WaitTimeout,
    WrongState,
)
from noetl_celery.hiding import hidden
from noetl_celery.web.access import Refused
from noetl_celery.web.render import page

log = logging.getLogger(__name__)
API = "/api"
_TITLES = {404: "Nothing is here", 403: "Not from there", 503: "A service is away"}


def install(app: FastAPI) -> None:
    """Every error of ours, of FastAPI and any other becomes an answer."""
    app.add_exception_handler(NoetlError, _ours)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


def status_of(error: NoetlError) -> int:
    """The HTTP status that goes with an error."""
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, WrongState | ExecutionFailed | WaitTimeout):
        return 409
    if isinstance(error, InputError):
        return 422
    return 503 if isinstance(error, ServiceError) else 500


def document(error: NoetlError) -> dict[str, Any]:
    """``{error: {code, message, hint, problems}}``: the body of an error for programs."""
    found: dict[str, Any] = {"code": error.code, "message": error.message, "hint": error.hint}
    if isinstance(error, PlaybookInvalid):
        names = ("message", "line", "column", "step", "hint", "code")
        found["problems"] = [{name: getattr(problem, name) for name in names} for problem in error.problems]
    return {"error": found}


def answer(request: Request, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    """An error as the one who asked reads it: JSON for programs; for people a page, or the way to sign in."""
    path = request.url.path
    if path.startswith(API) or "text/html" not in request.headers.get("accept", ""):
        return JSONResponse(body, status, headers)
    if status == 401:
        return RedirectResponse(f"/login?{urlencode({'to': path})}", 303)
    said = body["error"]
    title = _TITLES.get(status, "This did not work")
    return page(request, "error.html", status, headers, title=title, message=said["message"], hint=said["hint"])


def _said(code: str, message: str, hint: str | None = None) -> dict[str, Any]:
    return {"error": {"code": code, "message": hidden(message), "hint": hint}}


async def _ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, NoetlError)
    headers = {"Retry-After": "5"} if isinstance(error, ServiceError) else None
    return answer(request, status_of(error), document(error), headers)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
    return answer(request, error.status, _said("refused", error.message), headers)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = [f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()]
    return answer(request, 422, _said("invalid_input", "; ".join(found)))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    return answer(request, error.status_code, _said("http", str(error.detail)), headers)


async def _unexpected(request: Request, error: Exception) -> Response:
    if isinstance(error, InternalConflict):
        return answer(request, 409, _said("conflict", "somebody else changed it meanwhile", "look again"))
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return answer(request, 500, _said("internal", f"{type(error).__name__}; the log of the console says where"))
