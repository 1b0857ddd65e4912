"""Rows of a table that grows, page by page, for those who stay and pause in their own way."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

#: the first pause of those who wait for something, and the longest
FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS = 0.05, 0.5
#: rows that commit late may have an earlier id than ones already seen; so far back we look again
OVERLAP = 10_000


def feed(
    read: Callable[[int], list[dict[str, Any]]], ended: Callable[[], bool], key: str, after: int, *, follow: bool
) -> Generator[dict[str, Any] | float, None, None]:
    """Each row once, by ``key`` from behind ``after``; with ``follow`` also those that come until it has ``ended``, and
    between them seconds to pause.

    ``read`` returns the next page of rows behind an id, in order; an empty one at the end.
    """
    seen: set[int] = set()
    start, pause = after, FIRST_POLL_SECONDS
    while True:
        # Asked before reading: what has ended writes nothing further.
        final = not follow or ended()
        position, fresh = start, False
        while page := read(position):
            for row in page:
                if row[key] not in seen:
                    fresh = True
                    yield row
            if follow:
                seen.update(row[key] for row in page)
            position = page[-1][key]
        if final:
            return
        start = max(after, position - OVERLAP)
        seen = {id_ for id_ in seen if id_ > start}
        pause = FIRST_POLL_SECONDS if fresh else min(pause * 1.5, LONGEST_POLL_SECONDS)
        yield pause
