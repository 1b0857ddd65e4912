"""How far an execution is, in numbers and words."""

from __future__ import annotations

import pytest
from looks import step

from noetl_celery.progress import Rate, Rates, seconds_left, share, step_words, summary_words
from noetl_celery.report import StepProgress, Summary


@pytest.mark.parametrize(
    ("shown", "rate", "words"),
    [
        (step(), 250.4, "1,200 rows, 250/s, 24 frames (2 open), 5.1 s"),
        (step(failed=3, open_frames=0), None, "1,203 rows, 3 failed, 24 frames, 5.1 s"),
        (step(kind="collection"), 2.34, "1,200 rows, 2.3/s, 5.1 s"),
        (step(kind="single", ok=0, seconds=75), None, "1 min 15 s"),
        (
            step(total=5000, retries=12, max_in_flight=4, at_work=16),
            253.0,
            "1,200 of 5,000 rows, 24%, 253/s, 16 s left, 12 retries, 24 frames (2 of 4 open), 16 at work, 5.1 s",
        ),
        (step(kind="collection", ok=1, retries=1), 0.04, "1 row, 2.4/min, 1 retry, 5.1 s"),
        (
            step(parked=8, throttled=3, next_seconds=3.2, paced=True),
            None,
            "1,200 rows, 24 frames (2 open), pace: auto, 8 wait (3 throttled, next in 4 s), 5.1 s",
        ),
        (
            step(parked=1000, more_parked=True, next_seconds=-1.0),
            None,
            "1,200 rows, 24 frames (2 open), 1,000+ wait (next now), 5.1 s",
        ),
        (step(waiting=1), None, "1,200 rows, 24 frames (2 open), 1 lane waits for a worker, 5.1 s"),
        (step(waiting=2, at_work=4), None, "1,200 rows, 24 frames (2 open), 4 at work, 5.1 s"),
        (step(total=0, ok=0, frames=0, open_frames=0), None, "0 of 0 rows, 100%, 0 frames, 5.1 s"),
        (step(total=1000), 10.0, "1,200 of 1,000 rows, 100%, 10/s, 24 frames (2 open), 5.1 s"),
    ],
)
def test_step_words(shown: StepProgress, rate: float | None, words: str) -> None:
    assert step_words(shown, rate) == words


@pytest.mark.parametrize(
    ("total", "done", "part"), [(None, 5, None), (10, 0, 0.0), (10, 5, 0.5), (10, 15, 1.0), (0, 0, 1.0), (0, 3, 1.0)]
)
def test_share(total: int | None, done: int, part: float | None) -> None:
    assert share(step(total=total, ok=done)) == part


@pytest.mark.parametrize(
    ("total", "rate", "seconds"),
    [(None, 5.0, None), (1300, 10.0, 10.0), (1300, 0.0, None), (1300, None, None), (1200, 5.0, None), (7, 5.0, None)],
)
def test_seconds_left(total: int | None, rate: float | None, seconds: float | None) -> None:
    assert seconds_left(step(total=total), rate) == seconds


def test_what_takes_for_ever_is_not_foretold() -> None:
    assert seconds_left(step(total=10**12), 0.001) is None


def test_rate_is_that_of_the_last_seconds() -> None:
    rate = Rate()
    assert rate.per_second() is None
    rate.add(0.0, 0)
    assert rate.per_second() is None
    for second in range(1, 30):
        rate.add(float(second), 10 * second)
    for second in range(30, 41):
        rate.add(float(second), 290 + 100 * (second - 29))
    assert rate.per_second() == 100


def test_of_rows_that_end_seldom_it_is_that_of_the_last_minute() -> None:
    rate = Rate()
    for second in range(200):
        rate.add(float(second), second // 20)
    assert rate.per_second() == pytest.approx(0.05, rel=0.1)


def test_a_standstill_is_seen() -> None:
    rate = Rate()
    rate.add(0.0, 0)
    for second in range(1, 100):
        rate.add(float(second), 1000)
    assert rate.per_second() == 0


def test_a_step_that_begins_again_has_no_rate_at_first() -> None:
    rates = Rates()
    rates.add(0.0, [step(ok=10)])
    rates.add(1.0, [step(ok=20)])
    assert rates.per_second(step()) == 10
    rates.add(2.0, [step(ok=15)])  # its failed rows are run again
    assert rates.per_second(step()) is None
    rates.add(3.0, [step(ok=18)])
    assert rates.per_second(step()) == 3
    rates.add(4.0, [])
    assert rates.per_second(step()) is None


@pytest.mark.parametrize(
    ("summary", "words"),
    [
        (Summary(0.3, 0, 0, 0, 0), "done in 0.3 s"),
        (Summary(3.0, 0, 0, 1, 0, "a", 2.5), "1 retry; slowest step: a (2.5 s)"),
        (Summary(12.5, 5000, 0, 0, 1, "drain", 12.1), "5,000 rows in 12.5 s (400/s); slowest step: drain (12.1 s)"),
        (
            Summary(10.0, 17, 3, 1200, 2, "x", 9.0),
            "20 rows in 10.0 s (2.0/s): 17 ok, 3 failed; 1,200 retries; slowest step: x (9.0 s)",
        ),
        (Summary(0.0, 0, 0, 0, 1), "0 rows in 0.0 s"),
    ],
)
def test_summary_words(summary: Summary, words: str) -> None:
    assert summary_words(summary) == words
