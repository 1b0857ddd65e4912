"""Ids: unique, increasing, 63 bits, roughly ordered by time."""

from __future__ import annotations

import itertools
import os
import threading
import time

import pytest

from noetl_celery import ids
from noetl_celery.ids import IdGenerator, new_id

_SHIFT = ids._PROCESS_BITS + ids._SEQUENCE_BITS


def test_ids_increase_strictly() -> None:
    drawn = [new_id() for _ in range(20_000)]
    assert all(later > earlier for earlier, later in itertools.pairwise(drawn))


def test_ids_fit_into_a_signed_64_bit_column() -> None:
    assert all(0 < new_id() < 2**63 for _ in range(1000))


def test_ids_of_many_threads_are_unique_and_increase_in_each() -> None:
    draw = IdGenerator()
    drawn: list[list[int]] = []

    def work() -> None:
        mine = [draw() for _ in range(2000)]
        drawn.append(mine)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({value for mine in drawn for value in mine}) == 8 * 2000
    assert all(mine == sorted(mine) for mine in drawn)


def test_an_id_tells_when_it_was_drawn() -> None:
    before = time.time_ns() // 1_000_000
    milliseconds = (IdGenerator()() >> _SHIFT) + ids._EPOCH_MS
    assert before <= milliseconds <= time.time_ns() // 1_000_000


def test_a_clock_that_goes_back_repeats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = IdGenerator()
    now = time.time_ns()
    drawn = []
    for offset_ms in (0, 0, -5000, -5000, 1, -1):
        monkeypatch.setattr(ids.time, "time_ns", lambda offset_ms=offset_ms: now + offset_ms * 1_000_000)
        drawn += [draw() for _ in range(5000)]  # more than a millisecond has numbers
    assert all(later > earlier for earlier, later in itertools.pairwise(drawn))


def test_a_forked_process_draws_as_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = iter([17, 23])
    monkeypatch.setattr(ids.secrets, "randbelow", lambda _: next(processes))
    draw = IdGenerator()
    first = draw()
    pid = os.getpid()
    monkeypatch.setattr(ids.os, "getpid", lambda: pid + 1)
    second = draw()
    mask = (1 << ids._PROCESS_BITS) - 1
    assert [value >> ids._SEQUENCE_BITS & mask for value in (first, second)] == [17, 23]
