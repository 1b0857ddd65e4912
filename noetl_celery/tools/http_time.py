"""A limit for all of a request. httpx has limits for each wait, so a server that sends a byte now and then never ends.

The network itself is told: each wait of this thread is cut to what is left of its request's time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpcore
import httpx

#: what is written at once; the time that is left is looked at in between
_PIECE = 1 << 16


class _Current(threading.local):
    deadline: float | None = None
    connected = False


_current = _Current()


@contextmanager
def until(deadline: float) -> Iterator[None]:
    """Requests of this thread on a :func:`bounded` client time out at ``deadline`` (``time.monotonic()``)."""
    before, _current.deadline = _current.deadline, deadline
    _current.connected = False
    try:
        yield
    finally:
        _current.deadline = before


def connected() -> bool:
    """Whether this thread has asked for a new connection since :func:`until` began, and not only used a kept one."""
    return _current.connected


def bounded(client: httpx.Client) -> httpx.Client:
    """The client with a network that keeps to :func:`until`; also where the environment names proxies."""
    transports: list[Any] = [client._transport, *client._mounts.values()]
    for transport in transports:
        if transport is not None:
            # httpx has no parameter for what httpcore offers
            transport._pool._network_backend = _Network(transport._pool._network_backend)
    return client


def _cut(timeout: float | None, error: type[httpcore.TimeoutException]) -> float | None:
    if _current.deadline is None:
        return timeout
    left = _current.deadline - time.monotonic()
    if left <= 0:
        raise error("the time of the request was over")
    return left if timeout is None else min(timeout, left)


class _Network(httpcore.NetworkBackend):
    def __init__(self, network: httpcore.NetworkBackend) -> None:
        self._network = network

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, *args: Any, **more: Any) -> Any:
        _current.connected = True
        timeout = _cut(timeout, httpcore.ConnectTimeout)
        return _Stream(self._network.connect_tcp(host, port, timeout, *args, **more))

    def connect_unix_socket(self, path: str, timeout: float | None = None, *args: Any, **more: Any) -> Any:
        _current.connected = True
        timeout = _cut(timeout, httpcore.ConnectTimeout)
        return _Stream(self._network.connect_unix_socket(path, timeout, *args, **more))

    def sleep(self, seconds: float) -> None:
        self._network.sleep(seconds)


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _cut(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _PIECE):
            self._stream.write(buffer[start : start + _PIECE], _cut(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None) -> Any:
        timeout = _cut(timeout, httpcore.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
