"""Who may look and act: whoever has the token. Without one, only programs and browsers of the same machine.

Programs send it as ``Authorization: Bearer …``; browsers give it once and get a cookie, which names the end of its time
and is signed with a key made from the token: a new token ends all sessions. What a browser sends to change something
must come from a page of ours: the cookie is ``SameSite=Strict``, and an ``Origin`` that is another one is refused (in
the form without a token so is any ``Host`` that is not this machine, which ends DNS rebinding).
"""

from __future__ import annotations

import hashlib
import hmac
import time
from urllib.parse import urlsplit

from fastapi import Request
from starlette.responses import Response

COOKIE = "noetl_session"
SESSION_SECONDS = 12 * 3600
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class Refused(Exception):
    """The request may not be answered: ``status`` 401 (nobody known), 403 (known, but not from there)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Access:
    """The doorkeeper of an application. ``token``: None lets everybody of this machine in."""

    def __init__(self, token: str | None) -> None:
        self._token = token
        self._key = hashlib.sha256(f"noetl-celery session {token}".encode()).digest()

    @property
    def needs_token(self) -> bool:
        """Is there a token to be given?"""
        return self._token is not None

    def knows(self, token: str) -> bool:
        """Is this the token? Takes equally long for every wrong one."""
        return self._token is not None and hmac.compare_digest(token.encode(), self._token.encode())

    def check(self, request: Request) -> None:
        """Raises :class:`Refused` unless this request may be answered."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.knows(given.strip()):
            return
        if self._token is None:
            self._check_here(request)
        elif not self._signed_in(request):
            raise Refused(401, "a token is needed: send it as `Authorization: Bearer …`")
        self.check_origin(request)

    def check_origin(self, request: Request) -> None:
        """Raises :class:`Refused` for what a page of somebody else makes a browser send."""
        origin = request.headers.get("origin")
        if request.method not in _SAFE and origin and urlsplit(origin).netloc != request.headers.get("host"):
            raise Refused(403, f"it comes from a page of {origin}")

    def sign_in(self, response: Response, *, secure: bool) -> None:
        """Gives the browser its session."""
        until = str(int(time.time()) + SESSION_SECONDS)
        value = f"{until}.{self._signature(until)}"
        response.set_cookie(
            COOKIE, value, max_age=SESSION_SECONDS, httponly=True, samesite="strict", secure=secure, path="/"
        )

    def _check_here(self, request: Request) -> None:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname
        if host not in LOOPBACK:
            raise Refused(403, f"without a token only this machine is answered, not {host}")

    def _signed_in(self, request: Request) -> bool:
        until, _, signature = request.cookies.get(COOKIE, "").partition(".")
        good = hmac.compare_digest(signature.encode(), self._signature(until).encode())
        return good and int(until) > time.time()

    def _signature(self, until: str) -> str:
        return hmac.new(self._key, until.encode(), hashlib.sha256).hexdigest()
