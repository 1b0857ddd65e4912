"""Entries of a Redis stream as rows: shared, recorded, acknowledged, handed out again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from noetl_celery.cli.embedded import free_port
from noetl_celery.cursors.base import Claimed, ClaimRequest
from noetl_celery.cursors.redis_stream import ENTRY_ID, RedisStreamCursor, remove_silent_consumers
from noetl_celery.errors import ToolError

STREAM = "orders"
Ask = Callable[..., Claimed]


class Notes:
    """What was recorded, and when."""

    def __init__(self) -> None:
        self.made: list[tuple[list[Mapping[str, Any]], Mapping[str, Any]]] = []

    def __call__(self, rows: Sequence[Mapping[str, Any]], source: Mapping[str, Any]) -> None:
        self.made.append((list(rows), source))


@pytest.fixture
def ask(driver: RedisStreamCursor, redis_url: str, server: redis.Redis) -> Ask:
    """Claims: ``ask(max_rows=2, execution="1", group="g")``."""

    def claim(
        *,
        stream: str = STREAM,
        max_rows: int = 10,
        budget: int = 1,
        execution: str = "1",
        credential: Mapping[str, Any] | None = None,
        record: Any = None,
        **options: Any,
    ) -> Claimed:
        request = ClaimRequest(
            claim=stream,
            bindings={"__frame_max_rows": max_rows, "execution_id": execution},
            credential=credential or {"url": redis_url},
            timeout_seconds=5,
            budget=budget,
            options={"auth": "stream", **options},
        )
        return driver.claim(request, record or Notes())

    return claim


def fill(server: redis.Redis, count: int, stream: str = STREAM) -> list[str]:
    return [str(server.xadd(stream, {"n": n})) for n in range(count)]


def pending(server: redis.Redis, group: str = "noetl") -> int:
    answer: Any = server.xpending(STREAM, group)
    return int(answer["pending"])


def age(server: redis.Redis, ids: Sequence[str], seconds: float, group: str = "noetl", consumer: str = "lost") -> None:
    """Makes entries look as if they had been handed to ``consumer`` so long ago."""
    server.xclaim(STREAM, group, consumer, 0, list(ids), idle=int(seconds * 1000))


def numbers(claimed: Claimed) -> list[int]:
    return [int(row["n"]) for row in claimed.rows]


# -- rows --------------------------------------------------------------------------------------------------------------


def test_rows_come_in_order_and_then_no_more(server: redis.Redis, ask: Ask) -> None:
    ids = fill(server, 3)
    first, second, third = ask(max_rows=2), ask(max_rows=2), ask(max_rows=2)
    assert first.rows == [
        {"id": ids[0], "stream": STREAM, "n": "0", ENTRY_ID: ids[0]},
        {"id": ids[1], "stream": STREAM, "n": "1", ENTRY_ID: ids[1]},
    ]
    assert numbers(second) == [2]
    assert (third.batches, third.dry) == ((), True)
    assert (first.dry, second.dry) == (False, False)


@pytest.mark.parametrize(("entries", "sizes", "dry"), [(7, [3, 3, 1], False), (6, [3, 3], True), (0, [], True)])
def test_several_claims_in_one(server: redis.Redis, ask: Ask, entries: int, sizes: list[int], dry: bool) -> None:
    fill(server, entries)
    claimed = ask(max_rows=3, budget=3)
    assert ([len(batch) for batch in claimed.batches], claimed.dry) == (sizes, dry)


def test_fields_of_any_kind(server: redis.Redis, ask: Ask) -> None:
    fields = {"id": "7", "json": '{"a": 1}', "umlaut": "ä", "bytes": b"\xff\x00", "nul": b"a\x00b", "empty": ""}
    entry = server.xadd(STREAM, fields)  # type: ignore[arg-type]
    [row] = ask().rows
    assert row == {
        "id": "7",
        "stream": STREAM,
        "json": '{"a": 1}',
        "umlaut": "ä",
        "bytes": "/wA=",
        "nul": "YQBi",
        "empty": "",
        ENTRY_ID: entry,
    }


def test_rows_are_recorded_once_before_they_are_returned(server: redis.Redis, ask: Ask) -> None:
    fill(server, 5)
    notes = Notes()
    claimed = ask(max_rows=2, budget=2, record=notes)
    assert notes.made == [(claimed.rows, {"stream": STREAM, "group": "noetl"})]
    assert len(ask(record=notes).rows) == 1
    ask(record=notes)
    assert len(notes.made) == 2, "nothing is recorded of an empty claim"


def test_what_could_not_be_recorded_comes_back_after_the_lease(server: redis.Redis, ask: Ask) -> None:
    ids = fill(server, 2)

    def fails(rows: Any, source: Any) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        ask(record=fails)
    assert ask(lease_seconds=60).rows == []
    age(server, ids, 61)
    assert numbers(ask(lease_seconds=60)) == [0, 1]


# -- sharing and leases ------------------------------------------------------------------------------------------------


def test_two_executions_share_without_overlap(server: redis.Redis, ask: Ask) -> None:
    fill(server, 200)

    def drain(execution: str) -> list[int]:
        found: list[int] = []
        while claimed := numbers(ask(max_rows=7, execution=execution)):
            found += claimed
        return found

    with ThreadPoolExecutor(2) as threads:
        parts = list(threads.map(drain, ["1", "2"]))
    assert sorted(parts[0] + parts[1]) == list(range(200))


def test_groups_do_not_share(server: redis.Redis, ask: Ask) -> None:
    fill(server, 2)
    assert numbers(ask(group="a")) == numbers(ask(group="b")) == [0, 1]


def test_idle_entries_come_first_and_once(server: redis.Redis, ask: Ask) -> None:
    ids = fill(server, 4)
    ask(max_rows=3, execution="lost")
    age(server, ids[:2], 130)
    again = ask(max_rows=3)
    assert numbers(again) == [0, 1, 3], "two idle ones, and a new one; the third is still leased"
    assert ask().rows == []


def test_a_row_that_comes_again_is_the_same(server: redis.Redis, ask: Ask) -> None:
    ids = fill(server, 1)
    first = ask().rows
    age(server, ids, 130)
    assert ask().rows == first


def test_the_lease_is_an_option(server: redis.Redis, ask: Ask) -> None:
    ids = fill(server, 1)
    ask()
    age(server, ids, 5)
    assert ask(lease_seconds=10).rows == []
    assert numbers(ask(lease_seconds="4")) == [0]


def test_idle_entries_are_taken_over_by_one_of_many(server: redis.Redis, ask: Ask) -> None:
    ids = fill(server, 50)
    ask(max_rows=50, execution="lost")
    age(server, ids, 130)
    together = Barrier(4)

    def take(execution: int) -> list[int]:
        together.wait(10)
        found: list[int] = []
        for _ in range(6):
            found += numbers(ask(max_rows=10, execution=str(execution)))
        return found

    with ThreadPoolExecutor(4) as threads:
        parts = list(threads.map(take, range(4)))
    assert sorted(number for part in parts for number in part) == list(range(50))


def test_entries_that_were_deleted_while_pending_are_gone(server: redis.Redis, ask: Ask) -> None:
    ids = fill(server, 3)
    ask(execution="lost")
    age(server, ids, 130)
    server.xdel(STREAM, ids[1])
    assert numbers(ask()) == [0, 2]
    assert pending(server) == 2
    server.xdel(STREAM, ids[0], ids[2])
    age(server, ids, 130)
    assert ask().rows == []
    assert pending(server) == 0


# -- acknowledgement ---------------------------------------------------------------------------------------------------


def test_acknowledged_entries_do_not_come_back(
    server: redis.Redis, ask: Ask, driver: RedisStreamCursor, redis_url: str
) -> None:
    ids = fill(server, 3)
    rows = ask().rows
    for _ in range(2):  # the second time changes nothing
        driver.acknowledge(STREAM, {}, {"url": redis_url}, rows[:2])
        assert pending(server) == 1
    age(server, ids[2:], 130)
    assert numbers(ask()) == [2]
    driver.acknowledge(STREAM, {}, {"url": redis_url}, [])
    driver.acknowledge("no such stream", {"group": "none"}, {"url": redis_url}, rows)


def test_acknowledging_is_by_entry_not_by_a_field_called_id(
    server: redis.Redis, ask: Ask, driver: RedisStreamCursor, redis_url: str
) -> None:
    server.xadd(STREAM, {"id": "7", "stream": "mine"})
    driver.acknowledge(STREAM, {"group": "g"}, {"url": redis_url}, ask(group="g").rows)
    assert pending(server, "g") == 0


def test_thousands_are_acknowledged_at_once(
    server: redis.Redis, ask: Ask, driver: RedisStreamCursor, redis_url: str
) -> None:
    with server.pipeline() as pipe:
        for n in range(2500):
            pipe.xadd(STREAM, {"n": n})
        pipe.execute()
    driver.acknowledge(STREAM, {}, {"url": redis_url}, ask(max_rows=2500).rows)
    assert pending(server) == 0


def test_a_recorded_claim_stands(driver: RedisStreamCursor) -> None:
    assert driver.settle({"stream": STREAM, "group": "noetl"}, {"url": "redis://127.0.0.1:1"}) == "committed"


# -- the group ---------------------------------------------------------------------------------------------------------


def test_a_group_is_made_once_however_many_ask(server: redis.Redis, ask: Ask) -> None:
    fill(server, 8)
    together = Barrier(8)

    def take(execution: int) -> list[int]:
        together.wait(10)
        return numbers(ask(max_rows=1, execution=str(execution)))

    with ThreadPoolExecutor(8) as threads:
        taken = list(threads.map(take, range(8)))
    assert sorted(number for part in taken for number in part) == list(range(8))


def test_where_a_group_begins(server: redis.Redis, ask: Ask) -> None:
    ids = fill(server, 3)
    assert ask(group="new", start="$").rows == []
    server.xadd(STREAM, {"n": 3})
    assert numbers(ask(group="new", start="$")) == [3]
    assert numbers(ask(group="later", start=ids[0])) == [1, 2, 3]


def test_a_stream_that_does_not_exist_yet_is_empty(server: redis.Redis, ask: Ask) -> None:
    assert ask().dry
    fill(server, 1)
    assert numbers(ask()) == [0]


def test_a_group_that_may_not_be_made(server: redis.Redis, ask: Ask) -> None:
    fill(server, 1)
    with pytest.raises(ToolError, match=r"NOGROUP.*options\.create") as caught:
        ask(create=False)
    assert (caught.value.info.kind, caught.value.info.code, caught.value.info.retryable) == ("config", "NOGROUP", False)
    assert server.xinfo_groups(STREAM) == []


def test_silent_consumers_that_hold_nothing_are_removed(
    server: redis.Redis, ask: Ask, driver: RedisStreamCursor, redis_url: str
) -> None:
    def consumers() -> set[str]:
        answer: Any = server.xinfo_consumers(STREAM, "noetl")
        return {entry["name"] for entry in answer}

    fill(server, 2)
    driver.acknowledge(STREAM, {}, {"url": redis_url}, ask(max_rows=1, execution="done").rows)
    ask(max_rows=1, execution="busy")
    server.xgroup_createconsumer(STREAM, "noetl", "new")
    assert ask(execution="last").dry
    assert consumers() >= {"execution-done", "execution-busy", "new"}, "nobody was silent for a whole lease"
    with redis.Redis.from_url(redis_url) as client:
        remove_silent_consumers(client, STREAM, "noetl", silent_ms=0)
    assert consumers() == {"execution-busy"}
    assert pending(server) == 1


def test_a_server_that_allows_no_scripts_is_served(server: redis.Redis, ask: Ask, redis_url: str) -> None:
    server.acl_setuser("plain", enabled=True, passwords=["+p"], commands=["+@all", "-eval"], keys=["*"])
    place = urlsplit(redis_url)
    assert ask(credential={"host": place.hostname, "port": place.port, "username": "plain", "password": "p"}).dry


# -- what can go wrong -------------------------------------------------------------------------------------------------


def failure(ask: Ask, **request: Any) -> Any:
    with pytest.raises(ToolError) as caught:
        ask(**request)
    assert "hush" not in str(caught.value)
    return caught.value.info


def test_a_key_that_is_no_stream(server: redis.Redis, ask: Ask) -> None:
    server.set(STREAM, "text")
    info = failure(ask)
    assert (info.kind, info.code, info.retryable) == ("config", "WRONGTYPE", False)
    assert f"the stream `{STREAM}` cannot be read" in info.message
    assert "`claim` has to name a stream" in info.message


def test_credentials_that_are_refused(server: redis.Redis, ask: Ask, redis_url: str) -> None:
    place = urlsplit(redis_url)
    address = {"host": place.hostname, "port": str(place.port)}
    for credential in (address, {**address, "password": "hush"}, {**address, "username": "u", "password": "hush"}):
        info = failure(ask, credential=credential)
        assert (info.kind, info.retryable) == ("auth", False), credential
    server.acl_setuser("reader", enabled=True, passwords=["+hush"], commands=["-@all", "+ping"], keys=["*"])
    info = failure(ask, credential={**address, "username": "reader", "password": "hush"})
    assert (info.kind, info.retryable) == ("auth", False)


def test_fields_of_a_credential(server: redis.Redis, ask: Ask, redis_url: str) -> None:
    place = urlsplit(redis_url)
    with redis.Redis.from_url(redis_url.removesuffix("0") + "3") as other:
        other.xadd(STREAM, {"n": 42})
    credential = {"host": place.hostname, "port": place.port, "db": "3", "password": place.password}
    assert numbers(ask(credential=credential)) == [42]


@pytest.mark.parametrize(
    ("credential", "says"),
    [
        ({"token": "hush"}, "no `url` and no `host`"),
        ({"url": "mysql://:hush@h"}, "`url` is not a Redis URL"),
        ({"url": "redis://:p@h:hush"}, "`url` is not a Redis URL"),
        ({"host": "h", "port": "hush"}, "`port` or `db` is not a number"),
    ],
)
def test_credentials_that_cannot_be_used(ask: Ask, credential: dict[str, str], says: str) -> None:
    info = failure(ask, credential=credential)
    assert (info.kind, info.retryable) == ("credential", False)
    assert says in info.message


def test_redis_is_away(ask: Ask, driver: RedisStreamCursor) -> None:
    away = {"host": "127.0.0.1", "port": free_port(), "password": "hush"}
    info = failure(ask, credential=away)
    assert (info.kind, info.retryable) == ("connection", True)
    with pytest.raises(ToolError) as caught:
        driver.acknowledge(STREAM, {}, away, [{ENTRY_ID: "1-1"}])
    assert (caught.value.info.kind, caught.value.info.retryable) == ("connection", True)


def test_connections_that_were_cut_are_made_again(server: redis.Redis, ask: Ask) -> None:
    fill(server, 2)
    assert numbers(ask(max_rows=1)) == [0]
    server.client_kill_filter(_type="normal", skipme=True)
    assert numbers(ask(max_rows=1)) == [1]


@pytest.mark.parametrize(
    "request_",
    [{"stream": " "}, {"start": "now"}, {"lease_seconds": 0}, {"lease_seconds": "soon"}, {"create": "maybe"}],
)
def test_wrong_options_at_run_time(ask: Ask, request_: dict[str, Any]) -> None:
    assert failure(ask, **request_).kind == "config"


def test_only_redis_itself_can_be_at_the_same_place(driver: RedisStreamCursor, redis_url: str) -> None:
    assert driver.same_place({"url": redis_url}, "postgresql://h/d") is False


# -- keeping -----------------------------------------------------------------------------------------------------------


def test_entries_at_work_are_kept_from_others(
    driver: RedisStreamCursor, redis_url: str, server: redis.Redis, ask: Ask
) -> None:
    fill(server, 3)
    rows = ask(execution="1", lease_seconds=60).rows
    age(server, [row[ENTRY_ID] for row in rows], 3600)
    driver.acknowledge(STREAM, {}, {"url": redis_url}, rows[:1])
    request = ClaimRequest(
        STREAM, {"execution_id": "1"}, {"url": redis_url}, timeout_seconds=5, options={"lease_seconds": 60}
    )
    for _ in range(2):
        assert driver.keep(request, rows[:2]) == 20.0
    assert pending(server) == 2, "what is acknowledged stays so"
    assert numbers(ask(execution="2", lease_seconds=60)) == [2], "the one that nobody kept"
