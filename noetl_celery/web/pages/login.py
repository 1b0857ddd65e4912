"""Signing in and out, and the files that pages are made of. Open to everybody."""

from __future__ import annotations

import mimetypes
from typing import Annotated

from fastapi import APIRouter, Form, Request
from starlette.responses import RedirectResponse, Response

from noetl_celery.web.access import COOKIE
from noetl_celery.web.render import page, static
from noetl_celery.web.shared import access_of

router = APIRouter()
_FILES = frozenset({"console.css", "console.js", "htmx.min.js", "htmx-sse.min.js", "idiomorph.min.js", "icon.svg"})


@router.get("/static/{version}/{name}")
def static_file(version: str, name: str) -> Response:
    """A style sheet or script. Its address holds the version, so that it may be kept for long."""
    if name not in _FILES:
        return Response(status_code=404)
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response(static(name), media_type=kind, headers={"Cache-Control": "public, max-age=86400"})


@router.get("/login")
def login_page(request: Request, to: str = "/") -> Response:
    """Asks for the token."""
    return page(request, "login.html", to=_inside(to), wrong=False)


@router.post("/login")
def login(request: Request, token: Annotated[str, Form()] = "", to: Annotated[str, Form()] = "/") -> Response:
    """Lets a browser in that knows the token."""
    access = access_of(request)
    access.check_origin(request)
    if not access.knows(token.strip()):
        return page(request, "login.html", 401, to=_inside(to), wrong=True)
    response = RedirectResponse(_inside(to), 303)
    access.sign_in(response, secure=request.url.scheme == "https")
    return response


@router.post("/logout")
def logout(request: Request) -> Response:
    """Ends the browser's session."""
    access = access_of(request)
    access.check_origin(request)
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE, path="/")
    return response


def _inside(to: str) -> str:
    """A place of ours: nobody is sent elsewhere after signing in."""
    return to if to.startswith("/") and not to.startswith(("//", "/\\")) else "/"
