"""An application on a port of its own, in a thread of the test."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import uvicorn
from fastapi import FastAPI

from noetl_celery.settings import Settings
from noetl_celery.web.app import create

TOKEN = "a-token-of-the-tests"


@contextmanager
def serving(settings: Settings, *, token: str | None = TOKEN) -> Iterator[httpx.Client]:
    """A client of the application for these settings, which has the token."""
    with running(create(settings, token=token)) as address:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with httpx.Client(base_url=address, headers=headers, timeout=30) as client:
            yield client


@contextmanager
def running(app: FastAPI) -> Iterator[str]:
    """Its address."""
    listening = socket.socket(proto=socket.IPPROTO_TCP)  # as `noetl-celery console` does, so that nothing waits
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()
        assert not thread.is_alive()
