"""Something between us and PostgreSQL that fails as networks do: it cuts, refuses, and says nothing."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from psycopg import conninfo


class Proxy:
    """Passes connections on to the server of ``database_url``; ``url`` is the way through it.

    ``silent``: nothing passes, and nothing is said about that; connections stay open, and new ones are taken.
    """

    def __init__(self, database_url: str) -> None:
        fields = conninfo.conninfo_to_dict(database_url)
        host, port = str(fields.get("host") or "127.0.0.1"), int(fields.get("port") or 5432)
        self._server: str | tuple[str, int] = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)
        self._listener = self._listening(0)
        self._port = self._listener.getsockname()[1]
        password = f":{fields['password']}" if fields.get("password") else ""
        self.url = f"postgresql://{fields['user']}{password}@127.0.0.1:{self._port}/{fields['dbname']}"
        self._lock = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._speaks = threading.Event()
        self._speaks.set()
        #: a request with these bytes costs its connection: before it is passed on, or after the server has answered it
        self._lose: tuple[bytes, bool] | None = None
        #: connections that were lost so
        self.lost = 0
        #: connections that were asked for
        self.asked = 0
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    @property
    def silent(self) -> bool:
        return not self._speaks.is_set()

    @silent.setter
    def silent(self, wanted: bool) -> None:
        self._speaks.clear() if wanted else self._speaks.set()

    def cut(self) -> None:
        """Ends every connection."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for ends in pairs:
            for end in ends:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def refuse(self) -> None:
        """Ends every connection, and nothing listens any more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def listen(self) -> None:
        """After :meth:`refuse`: here it is again."""
        self._listener = self._listening(self._port)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def lose(self, request: bytes, *, answered: bool) -> None:
        """Cuts the connection of the next request that contains this: as ``answered`` says, after the server has done
        what it was asked for, or before it was told to."""
        with self._lock:
            self._lose = (request, answered)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.silent = False
        self.cut()

    def _listening(self, port: int) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(512)
        return listener

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.asked += 1
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._speaks.wait()
        server = socket.socket(socket.AF_UNIX if isinstance(self._server, str) else socket.AF_INET)
        try:
            server.connect(self._server)
        except OSError:
            server.close()
            client.close()
            return
        pair = (client, server)
        with self._lock:
            self._pairs.add(pair)
        doomed = threading.Event()
        back = threading.Thread(target=self._pass, args=(server, client, doomed, False), daemon=True)
        back.start()
        self._pass(client, server, doomed, True)
        back.join()
        with self._lock:
            self._pairs.discard(pair)
        for end in pair:
            end.close()

    def _pass(self, source: socket.socket, target: socket.socket, doomed: threading.Event, asks: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._speaks.wait()
                if asks and (answered := self._loses(data)) is not None:
                    doomed.set()
                    if not answered:
                        break
                elif not asks and doomed.is_set():
                    break
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _loses(self, data: bytes) -> bool | None:
        with self._lock:
            if self._lose is None or self._lose[0] not in data:
                return None
            self.lost += 1
            (_, answered), self._lose = self._lose, None
            return answered


@contextlib.contextmanager
def proxied(database_url: str) -> Iterator[Proxy]:
    """A proxy while it is needed."""
    proxy = Proxy(database_url)
    try:
        yield proxy
    finally:
        proxy.close()
