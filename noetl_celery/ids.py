"""64-bit ids, roughly ordered by time: 41 bits of milliseconds since 2024, 10 of process, 12 of sequence.

Drawn without asking the database, so that a transaction can name what it is about to write. Two processes
share their 10 bits once in a thousand times and would then still have to draw in the same millisecond with the
same sequence; primary keys turn that into a retried transaction, never into a mix-up.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any

_EPOCH_MS = 1_704_067_200_000
_SEQUENCE_BITS = 12
_PROCESS_BITS = 10

#: set in no id that is drawn by the clock for the next decades
_DERIVED = 1 << 62


class IdGenerator:
    """Draws ids; safe to share between threads and to carry across a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._process = 0
        self._last = 0

    def __call__(self) -> int:
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._process = os.getpid(), secrets.randbelow(1 << _PROCESS_BITS)
            tick = (time.time_ns() // 1_000_000 - _EPOCH_MS) << _SEQUENCE_BITS
            # A clock that stands still or goes back borrows from the future instead of repeating itself.
            self._last = max(tick, self._last + 1)
            milliseconds, sequence = self._last >> _SEQUENCE_BITS, self._last & ((1 << _SEQUENCE_BITS) - 1)
            return (milliseconds << (_PROCESS_BITS + _SEQUENCE_BITS)) | (self._process << _SEQUENCE_BITS) | sequence


new_id = IdGenerator()


def id_of(*words: str) -> int:
    """An id that is always the same for the same words, and none that is drawn."""
    digest = hashlib.sha256("\0".join(words).encode()).digest()
    return _DERIVED | int.from_bytes(digest[:8], "big") >> 3


_WIDE = frozenset({"execution_id", "parent_execution_id", "catalog_id", "stage_id", "frame_id", "waits_for"})


def with_text_ids(row: Mapping[str, Any]) -> dict[str, Any]:
    """64-bit ids as text: as numbers they would lose digits in JavaScript, jq and everything else that uses doubles."""
    return {key: str(value) if key in _WIDE and value is not None else value for key, value in row.items()}
