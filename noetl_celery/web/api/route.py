"""What all operations have in common: who may ask, what a body may be, how errors are described."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from noetl_celery.errors import InputError
from noetl_celery.web.api.models import ErrorAnswer
from noetl_celery.web.api.text import ID_PATTERN, Text
from noetl_celery.web.shared import allowed

#: what a body may have, in bytes
MAX_BODY = 16 * 1024 * 1024
LARGEST_PAGE = 1000
_MEANINGS = {
    401: "No token, or a wrong one.",
    403: "The request comes from a page of somebody else.",
    404: "There is nothing of that name.",
    409: "The execution is not in a state for that.",
    413: f"The body has more than {MAX_BODY // 1024 // 1024} MB.",
    415: "The body is not `application/json`.",
    422: "What was given cannot be used; the message says what.",
    503: "PostgreSQL is away. Try again after the seconds in `Retry-After`.",
}
_ALWAYS, _WITH_BODY = (401, 403, 422, 503), (413, 415)


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How answers with these statuses are described."""
    return {status: {"model": ErrorAnswer, "description": _MEANINGS[status]} for status in statuses}


def sent_as(kind: str, meaning: str) -> dict[int | str, dict[str, Any]]:
    """How an answer that is no model is described: its media type and what it is."""
    schema = {} if kind == "application/json" else {"type": "string"}
    return {200: {"description": meaning, "content": {kind: {"schema": schema}}}}


#: of an operation that takes a body
BODY_ERRORS = errors(*_WITH_BODY)
_bearer = HTTPBearer(auto_error=False, description="What `NOETL_CONSOLE_TOKEN` says.")


class GuardedRoute(APIRoute):
    """An operation that looks at who asks, and at what kind of body comes, before it reads any of it."""

    #: of each path, those of all its operations: Starlette names only those of the first
    _allowed: ClassVar[dict[str, set[str]]] = defaultdict(set)

    def __init__(self, path: str, *arguments: Any, **settings: Any) -> None:
        super().__init__(path, *arguments, **settings)
        self._allowed[path] |= self.methods or set()

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in (self.methods or ()):
            raise HTTPException(405, headers={"Allow": ", ".join(sorted(self._allowed[self.path]))})
        await super().handle(scope, receive, send)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            allowed(request)
            if self.body_field is None:
                return await answer(request)
            _check_body(request)
            try:
                return await answer(Request(request.scope, _limited(request)))
            except HTTPException as error:
                if error.status_code != 400:
                    raise
                # bytes that are no text, numbers without end: what the parser stumbles over
                raise InputError("the body is no JSON that can be read") from None

        return guarded


def make_router(tag: str) -> APIRouter:
    """A router for operations that are listed under ``tag``."""
    # The guard comes first; the dependency is for whoever adds an operation of another class.
    guards = [Depends(allowed), Depends(_bearer)]
    return APIRouter(tags=[tag], route_class=GuardedRoute, dependencies=guards, responses=errors(*_ALWAYS))


def _check_body(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    has_body = request.headers.get("content-length") != "0" and (
        "content-length" in request.headers or "transfer-encoding" in request.headers
    )
    if has_body and kind != "application/json":
        raise HTTPException(415, f"the body must be application/json, not {kind or 'of no type'}")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length[:20]) > MAX_BODY:
        raise _too_large()


def _limited(request: Request) -> Callable[[], Coroutine[Any, Any, Message]]:
    taken = 0

    async def receive() -> Message:
        nonlocal taken
        message = await request.receive()
        taken += len(message.get("body", b""))
        if taken > MAX_BODY:
            raise _too_large()
        return message

    return receive


def _too_large() -> HTTPException:
    return HTTPException(413, _MEANINGS[413])


Id = Annotated[
    str,
    Path(description="The execution's id.", json_schema_extra={"pattern": ID_PATTERN}, examples=["322048811352834048"]),
]
Limit = Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="At most so many.")]
Cursor = Annotated[
    str | None,
    Query(
        description="`next` of the page before; without it the first page.",
        json_schema_extra={"pattern": "^[A-Za-z0-9_-]+$"},
    ),
]
After = Annotated[
    str, Query(description="Only what has a higher id than this.", json_schema_extra={"pattern": ID_PATTERN})
]
Key = Annotated[
    Text | None,
    Header(
        alias="Idempotency-Key",
        max_length=200,
        description="Requests with the same key and path start one execution, and all answer with its id.",
    ),
]
