"""Task policies: which rule applies, and how long a retry waits. Pure; the lane supplies randomness."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from noetl_celery.errors import TemplateError
from noetl_celery.playbook.plan import Rule
from noetl_celery.template import Value

DEFAULT_ATTEMPTS = 3
DEFAULT_DELAY = 1.0
DEFAULT_MAX_DELAY = 300.0
#: share of a delay that is random, so that rows that failed together do not come back together
JITTER = 0.2

_CONTINUE = Rule(when=None, do="continue")
_FAIL = Rule(when=None, do="fail")


def choose(rules: Sequence[Rule] | None, names: Mapping[str, Any], *, ok: bool) -> Rule:
    """The rule that applies: the first that holds. No policy: continue when ok, else fail. None holds: continue."""
    if rules is None:
        return _CONTINUE if ok else _FAIL
    for rule in rules:
        if rule.when is None and rule.do == "retry" and ok:
            continue  # a bare `do: retry` is written for failures; nobody means to repeat a success
        if rule.when is None or rule.when.test(names):
            return rule
    return _CONTINUE


def attempts_allowed(rule: Rule, names: Mapping[str, Any]) -> int:
    """How often the task may run in all. Raises ``TemplateError`` for what is no whole number."""
    attempts = _number(rule.attempts, names, "attempts", DEFAULT_ATTEMPTS)
    if attempts != int(attempts):
        raise TemplateError(f"policy `attempts` must be a whole number, not {attempts}")
    return int(attempts)


def retry_delay(
    rule: Rule, names: Mapping[str, Any], attempt: int, least: float | None, random: Callable[[], float]
) -> float:
    """Seconds to wait after the failed ``attempt`` (from 1): jittered, never less than ``least`` (``Retry-After``)."""
    base = _number(rule.delay, names, "delay", 0.0 if rule.backoff == "none" else DEFAULT_DELAY)
    match rule.backoff:
        case "linear":
            base *= attempt
        case "exponential":
            base *= 2 ** min(attempt - 1, 30)
        case _:
            pass
    delay = min(base, _number(rule.max_delay, names, "max_delay", DEFAULT_MAX_DELAY))
    delay *= 1 + JITTER * (random() - 0.5)
    # A server that names a time is believed; the jitter above it keeps a crowd from returning at one instant.
    return max(delay, least * (1 + JITTER * random())) if least else delay


def _number(value: Value | None, names: Mapping[str, Any], name: str, default: float) -> float:
    if value is None:
        return default
    raw = value.render(names)
    try:
        number = float(str(raw))
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise TemplateError(f"policy `{name}` must be a number of at least 0, not {raw!r}")
    return number
