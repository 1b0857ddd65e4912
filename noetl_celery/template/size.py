"""How large data is as JSON, as far as that matters, without making the text.

One call of ``json.dumps`` stops every thread of its process until it is through: for the text of 200 MB that takes
seconds. Counting does not.
"""

from __future__ import annotations

from typing import Any


def least_bytes(value: Any, most: int) -> int:
    """A number of bytes that the JSON text of ``value`` has at least; stops counting once it is over ``most``."""
    kind = type(value)
    if kind is str:
        return len(value) + 2
    if kind is list or kind is tuple:
        size = 1
        for item in value:
            size += 1 + (len(item) if type(item) is str else least_bytes(item, most - size))
            if size > most:
                break
        return size
    if kind is dict:
        size = 2
        for key, item in value.items():
            size += len(key) + 3 if type(key) is str else 4
            size += len(item) if type(item) is str else least_bytes(item, most - size)
            if size > most:
                break
        return size
    return 1
