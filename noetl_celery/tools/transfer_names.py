"""Names of tables as playbooks write them: ``table``, ``schema.table``, ``"Quoted.Schema"."Table"``."""

from __future__ import annotations

import re
from typing import Any

from noetl_celery.tools.keys import bad_config

_PART = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^".\s][^".]*?))\s*(\.|\Z)')

#: a name, and whether it was quoted
Part = tuple[str, bool]


def split_name(table: Any) -> tuple[Part | None, Part]:
    """Schema (or None) and table. Raises ``ToolError`` of kind ``config`` for what is no name of a table."""
    parts: list[Part] = []
    text = table if isinstance(table, str) else ""
    position = 0
    while True:
        match = _PART.match(text, position)
        if match is None or "\0" in match.group():
            raise bad_config(f"`target.table` has to be `table` or `schema.table`, not {table!r}")
        parts.append((match[1].replace('""', '"'), True) if match[1] is not None else (match[2], False))
        position = match.end()
        if not match[3]:
            break
    if len(parts) > 2:
        raise bad_config(f"`target.table` has to be `table` or `schema.table`, not {table!r}")
    return (parts[0] if len(parts) == 2 else None), parts[-1]
