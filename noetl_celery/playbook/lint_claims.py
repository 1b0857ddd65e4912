"""Claims of cursor loops: do they meet, do they follow the frame's size, do they come back to what was left behind?"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

from noetl_celery.playbook.plan import CursorPlan, FramePlan, Plan, StepPlan
from noetl_celery.template import Value

#: code, message, where in the step, hint
Finding = tuple[str, str, tuple[str | int, ...], str | None]

_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.S)
_CHANGES = re.compile(
    r"\b(update\s+(only\s+)?(?P<updated>[\w.\"]+)\s|delete\s+from\s+(only\s+)?(?P<deleted>[\w.\"]+))", re.I
)
_LOCKING = re.compile(r"\bfor\s+(no\s+key\s+)?update\b", re.I)
_SKIPPING = re.compile(r"\bskip\s+locked\b|advisory\w*lock", re.I)
_SELECT = re.compile(r"\bselect\b", re.I)
_LIMITING = re.compile(r"\blimit\s+(?P<limit>\{\{.*?\}\}|%\(\w+\)s|[^\s;)]+)|\bfetch\s+(first|next)\b", re.I | re.S)
_AGING = re.compile(
    r"\bnow\s*\(|\bcurrent_timestamp\b|\b\w*_timestamp\s*\(|\binterval\b|\w*(lease|expire|stale|heartbeat|deadline|visible)\w*",
    re.I,
)
_WHERE = re.compile(r"\bwhere\b(.*?)(?=\breturning\b|\bset\b|;|\Z)", re.I | re.S)
_SIZE = "__frame_max_rows"


def check_cursor(step: StepPlan, plan: Plan, frame_keys: Collection[str]) -> Iterator[Finding]:
    """What is worth a look in a cursor loop; claims that only call a function are believed.

    ``frame_keys``: what the author wrote in ``frame``; of defaults nobody needs to hear.
    """
    assert step.loop is not None
    assert step.loop.cursor is not None
    cursor, frame = step.loop.cursor, step.loop.frame
    if "heartbeat_seconds" in frame_keys:
        yield from _heartbeat(frame)
    if cursor.kind != "postgres" or not isinstance(cursor.claim.raw, str):
        return
    claim = _COMMENT.sub(" ", cursor.claim.raw)
    changed = _CHANGES.search(_LOCKING.sub(" ", claim))
    if changed is not None:
        yield from _locking(claim)
    yield from _limit(claim, frame, changes=changed is not None)
    if changed is not None and not _comes_back(claim, cursor, step, plan, changed):
        message = "rows that a cancelled or failed execution has claimed are never claimed again"
        hint = "let the claim take rows whose claim is older than a lease, too, or give `cursor.reclaim`"
        yield "claim-stale", message, ("loop", "cursor", "claim"), hint


def _heartbeat(frame: FramePlan) -> Iterator[Finding]:
    lease, beat = _number(frame.lease_seconds), _number(frame.heartbeat_seconds)
    if lease is not None and beat is not None and beat >= lease:
        message = f"`heartbeat_seconds` ({beat:g}) is not less than `lease_seconds` ({lease:g})"
        hint = f"a lease should outlive several heartbeats: `heartbeat_seconds: {max(lease / 3, 1):g}` or less"
        yield "heartbeat-lease", message, ("loop", "spec", "frame", "heartbeat_seconds"), hint


def _locking(claim: str) -> Iterator[Finding]:
    where = ("loop", "cursor", "claim")
    if _SKIPPING.search(claim):
        return
    hint = "write `FOR UPDATE SKIP LOCKED` in the SELECT that chooses the rows"
    if _LOCKING.search(claim):
        yield "claim-skip-locked", "`FOR UPDATE` without `SKIP LOCKED`: claims wait for each other", where, hint
    elif _SELECT.search(claim):
        message = "rows are chosen without a lock: two claims at the same time may take the same ones"
        yield "claim-skip-locked", message, where, hint


def _limit(claim: str, frame: FramePlan, *, changes: bool) -> Iterator[Finding]:
    where = ("loop", "cursor", "claim")
    limits = [match["limit"] for match in _LIMITING.finditer(claim)]
    if _SIZE in claim:
        return
    if changes and not limits:
        message = "the claim has no `LIMIT`: the first one takes all rows there are"
        yield "claim-limit", message, where, f"write `LIMIT {{{{ {_SIZE} }}}}`"
        return
    rows = frame.max_rows.raw
    if rows == 1 or str(rows) in limits:
        return
    message = f"the claim does not follow `frame.max_rows` ({rows}): it never says `{_SIZE}`"
    yield "claim-limit", message, where, f"write `LIMIT {{{{ {_SIZE} }}}}`"


def _comes_back(claim: str, cursor: CursorPlan, step: StepPlan, plan: Plan, changed: re.Match[str]) -> bool:
    """Whether something claims rows again whose execution has gone.

    Rows that belong to this execution go with it. A look at a time or a lease, a `reclaim`, or another step that
    writes to the same table before or after are all taken for a way back.
    """
    if cursor.reclaim is not None or "execution_id" in claim:
        return True
    if any(_AGING.search(part) for part in _WHERE.findall(claim)):
        return True
    table = (changed["updated"] or changed["deleted"]).replace('"', "").lower()
    others = (task for other in plan.steps.values() if other is not step for task in other.tasks)
    return any(_resets(task.config.raw, table) for task in others)


def _resets(config: Any, table: str) -> bool:
    texts = config.values() if isinstance(config, dict) else ()
    wanted = re.compile(
        rf"\b(update|truncate|delete\s+from|drop\s+table|insert\s+into)\b[^;]*\b{re.escape(table)}\b", re.I
    )
    return any(isinstance(text, str) and wanted.search(text.replace('"', "")) for text in texts)


def _number(value: Value) -> float | None:
    raw = value.raw
    return float(raw) if value.constant and isinstance(raw, int | float) and not isinstance(raw, bool) else None
