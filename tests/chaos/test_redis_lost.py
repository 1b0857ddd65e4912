"""Redis forgets everything, restarts, is away or another one, in the middle of a loop: nobody has to do anything."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator

import pytest
import redis
from harness import LENGTHS, Trial, arena
from nodes import Cluster, wait_for

from noetl_celery.cli.supervisor import Child

pytestmark = pytest.mark.chaos

#: seconds that Redis is away
AWAY = 10.0
#: seconds that a frame is leased: nobody needs to wait so long for anything
LEASE = 30
#: what Celery logs of a broker that is away: it is told what it could not do, and does it again
ALLOWED = (
    r"^redis\.exceptions\.(Connection|Timeout|BusyLoading)Error",
    r"^(kombu|amqp)\.exceptions\.OperationalError",
    r"^(ConnectionRefused|ConnectionReset|BrokenPipe|Timeout)Error",
    r"^AttributeError: 'NoneType' object has no attribute 'hostname'",  # of an acknowledgement, see runtime/consumer.py
)


class Server:
    """The Redis of a system, and what may befall it."""

    def __init__(self, system: Cluster) -> None:
        self.child: Child = next(child for child in system.services.children if child.program.name == "Redis")
        self.url = system.env["NOETL_BROKER_URL"]
        self.results = system.env["NOETL_RESULT_BACKEND_URL"]
        self.dump = system.services.folder / "redis" / "dump.rdb"

    @contextlib.contextmanager
    def client(self, url: str = "") -> Iterator[redis.Redis]:
        with redis.Redis.from_url(url or self.url, socket_timeout=10) as made:
            yield made

    def start(self) -> None:
        self.child.start()
        wait_for(self.answers, "Redis answers")

    def answers(self) -> bool:
        with contextlib.suppress(redis.RedisError), self.client() as client:
            return bool(client.ping())
        return False

    def stop(self, *, save: bool = False) -> None:
        """An orderly end; what it knows is there again after its next start only with ``save``."""
        with self.client() as client, contextlib.suppress(redis.ConnectionError):
            client.shutdown(save=save, nosave=not save)
        assert self.child.process is not None
        self.child.process.wait()

    # -- faults --------------------------------------------------------------------------------------------------

    def emptied(self) -> None:
        with self.client() as client:
            client.flushall()

    def results_emptied(self) -> None:
        with self.client(self.results) as client:
            client.flushdb()

    def killed(self) -> None:
        """It keeps nothing on disk: it comes back empty."""
        self.child.kill()
        self.start()

    def restarted(self) -> None:
        """With all that it knew."""
        self.stop(save=True)
        self.start()
        self.dump.unlink(missing_ok=True)

    def restored(self) -> None:
        """With what it knew some time before."""
        with self.client() as client:
            client.save()
        time.sleep(2)
        self.killed()
        self.dump.unlink(missing_ok=True)

    def away(self) -> None:
        """Nobody answers at its address; then an empty one does."""
        self.child.kill()
        time.sleep(AWAY)
        self.start()

    def silent(self) -> None:
        """Connections stay, and nothing comes back."""
        assert self.child.process is not None
        self.child.process.send_signal(signal.SIGSTOP)
        time.sleep(AWAY)
        self.child.process.send_signal(signal.SIGCONT)

    def disconnected(self) -> None:
        """All connections are cut at once."""
        with self.client() as client:
            for kind in ("normal", "pubsub"):
                client.client_kill_filter(_type=kind, skipme=True)


FAULTS: dict[str, tuple[Callable[[Server], None], float]] = {
    "Redis: FLUSHALL": (Server.emptied, 0),
    "Redis: the results are flushed": (Server.results_emptied, 0),
    "Redis: all connections are cut": (Server.disconnected, 0),
    "Redis: killed, and empty afterwards": (Server.killed, 0),
    "Redis: restarted with all it knew": (Server.restarted, 0),
    "Redis: restarted with older data": (Server.restored, 2),
    f"Redis: {AWAY:g} s away": (Server.away, AWAY),
    f"Redis: {AWAY:g} s without a word": (Server.silent, AWAY),
}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With the times that people have, and chords in a database of their own."""
    times = {"HEARTBEAT": "5", "DEAD_AFTER": "10", "LEASE": "120", "REPUBLISH": "10", "SWEEP": "1"}
    settings = {f"NOETL_{name}_SECONDS": value for name, value in times.items()}
    with arena(tmp_path_factory.mktemp("redis"), **settings) as made:
        made.env["NOETL_RESULT_BACKEND_URL"] = made.env["NOETL_BROKER_URL"].removesuffix("/0") + "/1"
        yield made


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS)
def test_redis_fails_in_the_middle_of_a_loop(fault: str, system: Cluster) -> None:
    worker = system.worker("minded")
    try:
        act, seconds = FAULTS[fault]
        trial = Trial(system, fault)
        trial.submit(rows=400, lease=LEASE, pause=0.1)
        trial.under_way()
        act(Server(system))
        verdict = trial.check(allowed=ALLOWED)
        assert verdict.rerun == 0, "no worker died, so no row is run again"
        assert verdict.stall < seconds + LEASE
    finally:
        worker.kill()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seconds", LENGTHS)
def test_redis_fails_again_and_again(seconds: float, system: Cluster) -> None:
    """Under nodes that nobody would start again."""
    nodes = [
        system.start("decides", "-P", "threads", "-c", "4", queues="noetl.control", wait=False),
        system.start("works", "-P", "prefork", "-c", "2", queues="noetl.body", wait=False),
    ]
    try:
        for node in nodes:
            system.ready(node)
        server, trial = Server(system), Trial(system, "Redis: emptied, cut off, killed, restarted again and again")
        faults = [Server.emptied, Server.results_emptied, Server.disconnected, Server.killed, Server.restarted]
        for number in trial.harm(seconds, every=2, lease=LEASE):
            (faults[number % len(faults)] if number < len(faults) else trial.random.choice(faults))(server)
        verdict = trial.check(allowed=ALLOWED)
        assert verdict.rerun == 0, "no worker died, so no row is run again"
        assert verdict.stall < LEASE
    finally:
        for node in nodes:
            node.kill()
