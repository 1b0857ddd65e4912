"""The pace of requests, against targets in simulated time: how much of their limit is used, how many are sent away."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import redis

from noetl_celery.runtime import pace as runtime_pace
from noetl_celery.runtime.pace import Pace, Slot

pytestmark = pytest.mark.integration

LIMIT = 50
WORKERS = 64
#: rows share processes; how late a thread is on average, and how long one process stands still now and then
PROCESSES, LATE, STILL = 2, 0.004, 0.1

#: says whether a request at this time is within the limit
Target = Callable[[float], bool]


def sliding_window(limit: Callable[[float], float] = lambda now: LIMIT) -> Target:
    """At most so many requests in any second."""
    seen: deque[float] = deque()

    def take(now: float) -> bool:
        while seen and seen[0] <= now - 1:
            seen.popleft()
        if len(seen) >= limit(now):
            return False
        seen.append(now)
        return True

    return take


def fixed_window() -> Target:
    """At most LIMIT requests in each second of the clock."""
    second, count = 0, 0

    def take(now: float) -> bool:
        nonlocal second, count
        if int(now) != second:
            second, count = int(now), 0
        count += 1
        return count <= LIMIT

    return take


def token_bucket() -> Target:
    """LIMIT tokens a second, a fifth of a second's in store."""
    tokens, filled = LIMIT / 5, 0.0

    def take(now: float) -> bool:
        nonlocal tokens, filled
        tokens, filled = min(LIMIT / 5, tokens + (now - filled) * LIMIT), now
        if tokens < 1:
            return False
        tokens -= 1
        return True

    return take


@dataclass
class Simulation:
    """Rows of busy processes that keep asking a target: each for a slot, for an answer, and again."""

    pace: Pace
    clock: list[float]
    target: Target
    latency: float
    retry_after: float | None = None
    good: list[float] = field(default_factory=list)
    bad: list[float] = field(default_factory=list)
    chance: random.Random = field(default_factory=lambda: random.Random(1))

    def run(self, seconds: float, *, workers: int = WORKERS) -> None:
        end = self.clock[0] + seconds
        #: until when a process stands still, and when the next one does
        still, pause = [0.0] * PROCESSES, self.clock[0]
        queue: list[tuple[float, int, str, Slot | None]] = [
            (self.clock[0] + self.chance.random() / 100, worker, "asks", None) for worker in range(workers)
        ]
        heapq.heapify(queue)
        while queue[0][0] < end:
            now, worker, what, slot = heapq.heappop(queue)
            if now >= pause:
                still[self.chance.randrange(PROCESSES)] = now + self.chance.uniform(0, STILL)
                pause = now + self.chance.expovariate(1 / 3)
            if what != "arrives" and now < still[worker % PROCESSES]:
                heapq.heappush(queue, (still[worker % PROCESSES], worker, what, slot))
                continue
            self.clock[0] = now
            after, *next_ = self._does(now, what, slot)
            heapq.heappush(queue, (now + after + self.chance.expovariate(1 / LATE), worker, *next_))

    def _does(self, now: float, what: str, slot: Slot | None) -> tuple[float, str, Slot | None]:
        """What a row does now, and what it does next after so many seconds."""
        if what == "asks":
            found = self.pace.slot("t", slot)
            return (found.seconds, "asks", found) if found.seconds > 0 else (0.0, "arrives", found)
        if what == "arrives":
            done = self.target(now)
            (self.good if done else self.bad).append(now)
            return (self.latency, "good", slot) if done else (0.0, "bad", slot)
        assert slot is not None
        if what == "good":
            self.pace.good("t")
            return 0.0, "asks", None
        self.pace.bad("t", slot, self.retry_after)
        return self.retry_after or 0.5, "asks", None

    def rate(self, start: float, end: float) -> float:
        """Good answers per second."""
        return sum(start <= moment < end for moment in self.good) / (end - start)


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


@pytest.fixture
def pace(broker: str, clock: list[float]) -> Iterator[Pace]:
    with redis.Redis.from_url(broker) as client:
        client.flushdb()
    made = Pace(broker, clock=lambda: clock[0])
    yield made
    made.close()


@pytest.mark.parametrize("seed", [2, 4])
@pytest.mark.parametrize("retry_after", [None, 1.0])
@pytest.mark.parametrize("target", [sliding_window, fixed_window, token_bucket])
def test_a_limit_is_found_from_a_cold_start(
    pace: Pace, clock: list[float], target: Callable[[], Target], retry_after: float | None, seed: int
) -> None:
    found = Simulation(pace, clock, target(), 0.05, retry_after, chance=random.Random(seed))
    found.run(40, workers=32)
    assert found.rate(1020, 1040) >= 0.9 * LIMIT
    assert len(found.bad) < 0.005 * (len(found.good) + len(found.bad))


def test_a_slow_target_is_not_overrun_before_it_answers(pace: Pace, clock: list[float]) -> None:
    found = Simulation(pace, clock, sliding_window(), 0.3)
    found.run(40)
    assert found.rate(1020, 1040) >= 0.8 * LIMIT
    assert len(found.bad) < 0.03 * (len(found.good) + len(found.bad))


def test_a_limit_that_changes_is_found_again(pace: Pace, clock: list[float]) -> None:
    found = Simulation(pace, clock, sliding_window(lambda now: 50 if now < 1030 else 20 if now < 1060 else 40), 0.05)
    found.run(140)
    assert found.rate(1050, 1060) >= 0.85 * 20
    assert found.rate(1130, 1140) >= 0.85 * 40
    assert len(found.bad) < 0.02 * len(found.good)


def test_a_target_that_was_away_is_asked_at_the_pace_that_it_bore(pace: Pace, clock: list[float]) -> None:
    """And seldom, while it is away."""
    found = Simulation(pace, clock, sliding_window(lambda now: -1 if 1030 <= now < 1090 else LIMIT), 0.05)
    found.run(110)
    away = sum(1040 <= moment < 1090 for moment in found.bad)
    assert 5 <= away <= 50
    assert found.rate(1100, 1110) >= 0.85 * LIMIT


def test_all_wait_for_what_one_was_told(pace: Pace, clock: list[float]) -> None:
    """And they come back one after the other."""
    Simulation(pace, clock, sliding_window(), 0.02).run(20)
    given = [pace.slot("t") for _ in range(20)]
    pace.bad("t", given[0], 30.0)
    clock[0] += 0.5
    assert min(pace.slot("t", slot).seconds for slot in given) == pytest.approx(29.5, abs=0.01)
    assert pace.slot("another").seconds == 0
    clock[0] += 29.6
    waits = sorted(pace.slot("t").seconds for _ in range(20))
    assert all(later - sooner > 0.01 for sooner, later in pairwise(waits))


def test_what_was_sent_before_the_bad_news_is_no_news(pace: Pace, clock: list[float]) -> None:
    slots = [pace.slot("t") for _ in range(10)]
    pace.bad("t", slots[0])
    clock[0] += 5
    before = pace.slot("t")
    for slot in slots[1:]:
        pace.bad("t", slot)
    assert pace.slot("t").epoch == before.epoch


def test_what_was_sent_without_redis_is_news_when_it_is_back(pace: Pace) -> None:
    pace.bad("t", Slot(0.0, True), 3.0)
    assert pace.slot("t").seconds == pytest.approx(3.0)


def test_nothing_is_learned_while_nobody_asks(pace: Pace, clock: list[float]) -> None:
    found = Simulation(pace, clock, lambda now: True, 0.02)
    found.run(60, workers=1)  # which never has to wait for long
    clock[0] += 600
    slots = [pace.slot("t") for _ in range(200)]
    assert slots[-1].seconds > 0.5, "no herd may start at a rate that was never tried"


def test_a_row_that_is_late_for_its_slot_gets_another_once(pace: Pace, clock: list[float]) -> None:
    given = [pace.slot("t") for _ in range(8)]  # a tenth of a second apart
    clock[0] += 0.25
    assert [pace.slot("t", slot).seconds > 0 for slot in given[:5]] == [True, True, False, False, False]
    again = pace.slot("t", given[0])
    clock[0] += 60
    assert pace.slot("t", again).seconds == 0


def test_a_process_remembers_the_targets_that_it_asked_for_last(pace: Pace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_pace, "TARGETS_KEPT", 2)
    for target in ("a", "b", "a", "c"):
        pace.slot(target)
        pace.good(target)
    pace.good("b")  # is forgotten, and stays so
    pace.close()
    monkeypatch.setattr(pace, "_url", "redis://127.0.0.1:1/0")
    waits = {target: [pace.slot(target).seconds for _ in range(3)] for target in ("a", "b", "c")}
    assert waits["b"] == [0, 0, 0]
    for target in ("a", "c"):
        assert waits[target] == pytest.approx([0, 0.1, 0.2], abs=0.05)


def test_without_redis_requests_go_at_the_last_pace() -> None:
    pace = Pace("redis://127.0.0.1:1/0")
    assert pace.slot("t") == Slot(0.0, True)
    pace.good("t")
    pace.bad("t", pace.slot("t"), 5.0)


def test_without_redis_a_row_that_has_waited_goes(pace: Pace, monkeypatch: pytest.MonkeyPatch) -> None:
    pace.slot("t")
    pace.close()
    monkeypatch.setattr(pace, "_url", "redis://127.0.0.1:1/0")
    pace.slot("t")
    waits = pace.slot("t")
    assert waits.seconds > 0
    assert pace.slot("t", waits).seconds == 0
