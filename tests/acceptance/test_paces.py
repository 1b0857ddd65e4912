"""``auto`` on real workers, against an API with a limit: it is used, and nearly nothing is sent away."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from nodes import PLAYBOOKS, Cluster, cluster, wait_for

pytestmark = pytest.mark.acceptance

LIMIT = 50
LATENCY_SECONDS = 0.05
#: the pace has to be found within this time, and is looked at for so long after it
COLD_SECONDS, WARM_SECONDS = 20.0, 8.0


@dataclass
class Limited:
    """At most LIMIT requests in any second; when each came, on the monotonic clock."""

    good: list[float] = field(default_factory=list)
    bad: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> bool:
        with self.lock:
            now = time.monotonic()
            free = len(self.good) < LIMIT or self.good[-LIMIT] <= now - 1
            (self.good if free else self.bad).append(now)
            return free


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Api)
        self.limited = Limited()

    def handle_error(self, *_: Any) -> None:
        pass  # clients hang up


class Api(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def do_GET(self) -> None:
        free = self.server.limited.take()
        if free:
            time.sleep(LATENCY_SECONDS)
        self.send_response(200 if free else 429)
        if not free:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def running() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("paces")) as made:
        made.client.register(PLAYBOOKS / "paced.yaml")
        made.worker("one")
        yield made


def used_and_sent_away(system: Cluster, batch: str, **workload: Any) -> tuple[float, float]:
    """How much of the limit was used after the cold start, and which part of all requests was sent away until then."""
    system.fill(batch, int(LIMIT * (COLD_SECONDS + WARM_SECONDS) * 1.2))
    with running() as api:
        limited = api.limited
        execution = system.submit(batch, path="test/paced", api=f"http://127.0.0.1:{api.server_port}", **workload)
        wait_for(lambda: limited.good, "the first request comes")
        begun = limited.good[0]
        warm, end = begun + COLD_SECONDS, begun + COLD_SECONDS + WARM_SECONDS
        wait_for(lambda: time.monotonic() >= end, "the limit was looked at", 60)
        execution.cancel()
        execution.wait(timeout=60)
    good, bad = ([moment for moment in came if moment < end] for came in (limited.good, limited.bad))
    used, away = sum(moment >= warm for moment in good) / (LIMIT * WARM_SECONDS), len(bad) / len(good + bad)
    print(f"{batch}: {used:.1%} of the limit used, {away:.2%} of the requests sent away")
    return used, away


def test_a_limit_that_nobody_told_is_found_and_kept(system: Cluster) -> None:
    """A machine that stands still for a moment makes it look worse, never better: so it has three cold starts."""
    for start in range(3):
        used, away = used_and_sent_away(system, f"auto {start}")
        assert away < 0.02
        if used >= 0.9:
            return
    raise AssertionError(f"only {used:.1%} of the limit was used")


def test_a_number_that_somebody_guessed_has_more_sent_away(system: Cluster) -> None:
    """What it is compared with: two frames for the worker's two processes, as many rows of each as a lane has."""
    _, away = used_and_sent_away(system, "fixed", in_flight=2, concurrency=16)
    assert away > 0.02
