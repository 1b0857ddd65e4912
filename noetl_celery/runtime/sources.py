"""The source of a cursor stage: its driver with claim, credential and options, rendered."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from noetl_celery.cursors.base import ClaimRequest, Cursor, Keeper
from noetl_celery.errors import ErrorInfo, TemplateError, ToolError
from noetl_celery.playbook.plan import CursorPlan
from noetl_celery.runtime.names import StageNames
from noetl_celery.runtime.process import Process

log = logging.getLogger(__name__)

#: a source that did not answer is told again after so many seconds
KEEP_AGAIN_SECONDS = 1.0
#: a dead letter statement is tried this often while its error is a passing one
DEAD_LETTER_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Source:
    """What a driver is asked with. ``auth`` is as rendered, ``credential`` what it stands for; ``names`` is what the
    cursor's templates see."""

    driver: Cursor
    claim: str
    auth: Any
    credential: Mapping[str, Any]
    options: Mapping[str, Any]
    names: Mapping[str, Any]


def source_of(process: Process, stage: StageNames, bindings: Mapping[str, Any]) -> Source:
    """Renders the cursor of a stage. Raises ``TemplateError``, and ``ToolError`` for an unknown credential."""
    cursor = cursor_of(stage)
    keychain = stage.keychain(process, bindings)
    names = stage.of_stage({**bindings, "keychain": keychain})
    auth = cursor.auth.render(names) if cursor.auth is not None else None
    credential = auth if isinstance(auth, Mapping) else {}
    if auth and not isinstance(auth, Mapping):
        credential = keychain.credential(str(auth))
    options = cursor.options.render(names) if cursor.options is not None else {}
    given = options if isinstance(options, Mapping) else {}
    return Source(
        process.cursors.get(cursor.kind),
        str(cursor.claim.render(names)),
        auth,
        credential,
        {"lease_seconds": stage.settings.lease_seconds, **given},
        names,
    )


def cursor_of(stage: StageNames) -> CursorPlan:
    """The cursor of a stage that has one."""
    loop = stage.step.loop
    assert loop is not None
    assert loop.cursor is not None
    return loop.cursor


def acknowledge(source: Source, rows: Sequence[Any]) -> None:
    """Tells the source which rows are done. Never raises: what it was not told it hands out again."""
    flat = _flat(rows)
    try:
        source.driver.acknowledge(source.claim, source.options, source.credential, flat)
    except ToolError as error:
        log.warning("%s rows could not be acknowledged and will be handed out again: %s", len(flat), error)


def keep(process: Process, source: Source, execution_id: int, rows: Sequence[Any]) -> float:
    """Tells the source which rows are still at work. Returns after how many seconds to do so again. Never raises."""
    driver = source.driver
    if not isinstance(driver, Keeper):
        return math.inf
    request = ClaimRequest(
        source.claim,
        {"execution_id": str(execution_id)},
        source.credential,
        timeout_seconds=process.settings.claim_timeout_seconds,
        options=source.options,
    )
    try:
        return driver.keep(request, _flat(rows))
    except ToolError as error:
        log.warning("%s rows at work may be handed out again: %s", len(rows), error)
        return KEEP_AGAIN_SECONDS


def _flat(payloads: Sequence[Any]) -> list[Any]:
    return [row for payload in payloads for row in (payload if isinstance(payload, list) else [payload])]


def dead_letter(process: Process, stage: StageNames, names_of: Callable[[], Mapping[str, Any]]) -> str | None:
    """Runs the cursor's dead letter statement for a row that failed for good; what ``names_of`` returns has ``iter``
    and ``error``.

    Returns what went wrong, or None; never raises. At least once: a row that is run again after a crash comes here
    again.
    """
    statement = cursor_of(stage).dead_letter
    if statement is None:
        return None
    try:
        names = names_of()
        source = source_of(process, stage, {name: value for name, value in names.items() if name.startswith("__")})
        text = str(statement.render(names))
        for attempt in range(1, DEAD_LETTER_ATTEMPTS + 1):
            try:
                source.driver.dead_letter(text, source.options, source.credential, names["iter"], names["error"])
                return None
            except ToolError as error:
                if not error.info.retryable or attempt == DEAD_LETTER_ATTEMPTS:
                    raise
    except (ToolError, TemplateError) as error:
        log.warning("step %s: the dead letter of a row was not written: %s", stage.step.name, error)
        return str(error)
    except Exception as error:
        log.exception("step %s: the dead letter of a row was not written", stage.step.name)
        return ErrorInfo("internal", f"{type(error).__name__}: {error}").message
    return None
