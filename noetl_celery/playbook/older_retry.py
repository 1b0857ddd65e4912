"""The older ``retry``: rules after an error become policy rules, rules after a success a short pipeline that jumps.

``retry: [{when, then: {max_attempts, next_call, collect, …}}]``, ``{on_error, on_success}`` or ``5``. A rule with
``next_call``, ``collect`` or ``while`` is for successes: the task is called again, with other parameters, while its
condition holds, and what the calls returned is put together. ``max_attempts`` counts all calls.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from noetl_celery.playbook.older_parts import (
    FIX,
    Findings,
    Unreadable,
    all_of,
    braces,
    key_of,
    made,
    rename_all,
    with_rules,
    without,
)
from noetl_celery.playbook.source import Mark, YamlList, YamlMap
from noetl_celery.template import TemplateSyntax, expression_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_DELAYS = ("initial_delay", "delay", "backoff_seconds")
_PACE = frozenset({*_DELAYS, "backoff", "max_delay", "backoff_multiplier", "jitter"})
_GROWING = frozenset({"backoff", "backoff_multiplier", "max_delay"})
_BODY = frozenset({"max_attempts", "attempts", "next_call", "collect", "retry_on", "retry_on_status", "sink"}) | _PACE
_CONDITIONS = frozenset({"when", "while", "retry_when", "stop_when"})
_STRATEGIES = ("append", "replace", "collect")
_ATTEMPTS = 3
#: calls of a sequence that waits and does not say how many there may be
_MANY = 10_000
#: several names for the body of a request: what `next_call` calls one of them is the one that the task has
_BODIES = ("json", "body", "payload", "data", "form")
_INPUTS = ("input", "args")
_NOWHERE = Mark(1, 1, 1)
_KINDS = {"connection_error": "connection", "timeout_error": "timeout", "rate_limited": "rate_limit"}
#: what conditions could say besides `response` and `error`
_NAMES = {"result": "response"}
_OLDEST_NAMES = {"status_code": "output.http.status", "success": "(output.status == 'ok')"}
_BY_ATTEMPT = {"_retry.index": "(_attempt - 1)"}
#: for what is rendered before the first call as well
INDEX = {"_retry.index": "(_retry.index | default(0))"}
_FAIL = {"when": "{{ output.status == 'error' }}", "then": {"do": "fail"}}


@dataclass(slots=True)
class Success:
    """Goes on with another call while ``when`` holds, up to ``limit`` calls (an expression, or empty)."""

    when: str
    limit: str
    pace: dict[str, Any]
    next_call: YamlMap | None
    mark: Mark


@dataclass(slots=True)
class Retry:
    """A ``retry`` as read: policy rules for errors, and what follows a success."""

    mark: Mark
    errors: list[YamlMap] = field(default_factory=list)
    successes: list[Success] = field(default_factory=list)
    strategy: str | None = None
    path: str | None = None
    into: str = "_collected"
    #: ``(sink, mark)`` that stand in the rules: they save each call
    sinks: list[tuple[Any, Mark]] = field(default_factory=list)

    @property
    def collects(self) -> bool:
        """Whether the result is put together of several; the last response alone needs no collecting."""
        return self.strategy in ("append", "collect") or (self.strategy == "replace" and self.path is not None)


@dataclass(slots=True)
class _Item:
    """One rule as written: its conditions and its body in one mapping."""

    keys: YamlMap
    success: bool


class RetryReader:
    """Reads the shapes of ``retry``; what is wrong goes to ``findings``."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    def read(self, value: Any, mark: Mark) -> Retry:
        """The retry. Raises :class:`Unreadable` after reporting what cannot be read."""
        retry = Retry(mark)
        items = list(self._items(value, mark))
        sequence = any(item.success for item in items)
        for item in items:
            self._findings.unknown(item.keys, _BODY | _CONDITIONS, "retry")
            if "sink" in item.keys:
                retry.sinks.append((item.keys["sink"], item.keys.mark_of("sink")))
            if item.success:
                retry.successes.append(self._success(item.keys))
                self._collect(item.keys, retry)
            else:
                retry.errors.append(self._error(item.keys, sequence))
        if items:
            shown = (
                "write a task that jumps to itself while there is more, and collects"
                if sequence
                else "write `spec: {policy: {rules: [{when: …, then: {do: retry, attempts: …}}]}}` in the tool"
            )
            self._findings.older("retry", mark, hint=f"{shown}; {FIX}")
        return retry

    def _items(self, value: Any, mark: Mark) -> Iterator[_Item]:
        if value is None or value is False:
            return
        if isinstance(value, bool | int) or (isinstance(value, str) and "{{" in value):
            yield _Item(made({} if value is True else {"max_attempts": value}, mark), False)
        elif isinstance(value, YamlMap) and ("on_error" in value or "on_success" in value):
            self._findings.unknown(value, {"on_error", "on_success"}, "retry")
            for key in ("on_error", "on_success"):
                if key in value:
                    for item in self._items(value[key], value.mark_of(key)):
                        yield _Item(item.keys, key == "on_success")
        elif isinstance(value, YamlMap):
            yield self._item(value)
        elif isinstance(value, YamlList) and all(isinstance(item, YamlMap) for item in value):
            for item in value:
                yield self._item(item)
        else:
            message = "`retry` is true, a number of attempts, a mapping or a list of rules"
            hint = "write `retry: {max_attempts: 3}`"
            self._findings.problem(message, mark, hint=hint, code="wrong-type")
            raise Unreadable

    def _item(self, item: YamlMap) -> _Item:
        keys = without(item, "then")
        if isinstance(then := item.get("then"), YamlMap):
            for key in then:
                keys.put(key, then[key], then.mark_of(key))
        elif "then" in item:
            self._findings.problem("`then` of a `retry` is a mapping", item.mark_of("then"), code="wrong-type")
        return _Item(keys, any(key in keys for key in ("next_call", "collect", "while")))

    # -- after an error ------------------------------------------------------------------------------------------------

    def _error(self, keys: YamlMap, sequence: bool) -> YamlMap:
        """``{when: output.status == 'error' and …, then: {do: retry, …}}``."""
        names = _NAMES | _OLDEST_NAMES | ({} if sequence else _BY_ATTEMPT)
        given = next((key for key in ("when", "retry_when") if key in keys), "when")
        parts = ["output.status == 'error'", self._findings.condition(keys.get(given), keys.mark_of(given), names)]
        if kinds := _listed(keys.get("retry_on")):
            parts.append(f"output.error.kind in {[_KINDS.get(str(kind), str(kind)) for kind in kinds]!r}")
        if statuses := _listed(keys.get("retry_on_status")):
            parts.append(f"output.http.status in {statuses!r}")
        if stop := self._findings.condition(keys.get("stop_when"), keys.mark_of("stop_when"), names):
            parts.append(f"not ({stop})")
        then = YamlMap(mark=keys.mark)
        then.put("do", "retry")
        key = "attempts" if "attempts" in keys else "max_attempts"
        then.put("attempts", keys.get(key, _ATTEMPTS), keys.mark_of(key))
        pace = self._pace(keys)
        for name, value in (pace or {"backoff": "exponential"}).items():
            source = next((key for key in _DELAYS if key in keys), name) if name == "delay" else name
            then.put(name, value, keys.mark_of(source))
        rule = YamlMap(mark=keys.mark)
        rule.put("when", all_of(*parts), keys.mark_of(given))
        rule.put("then", then)
        return rule

    def _pace(self, keys: YamlMap) -> dict[str, Any]:
        """``backoff``, ``delay`` and ``max_delay``; empty if nothing is said of them."""
        pace: dict[str, Any] = {}
        delay = next((keys[key] for key in _DELAYS if keys.get(key) is not None), None)
        backoff, factor = keys.get("backoff"), keys.get("backoff_multiplier")
        if isinstance(backoff, int | float) and not isinstance(backoff, bool):
            delay, backoff = backoff if delay is None else delay, "fixed"
        if backoff is not None:
            pace["backoff"] = {"constant": "fixed"}.get(str(backoff), backoff)
        elif isinstance(factor, int | float) and factor <= 1:
            pace["backoff"] = "fixed"
        elif delay is not None or factor is not None:
            pace["backoff"] = "exponential"
        if delay is not None:
            pace["delay"] = delay
        if "max_delay" in keys:
            pace.setdefault("backoff", "exponential")
            pace["max_delay"] = keys["max_delay"]
        return pace

    # -- after a success -----------------------------------------------------------------------------------------------

    def _success(self, keys: YamlMap) -> Success:
        given = next((key for key in ("while", "when", "retry_when") if key in keys), "when")
        when = self._findings.condition(keys.get(given), keys.mark_of(given), _NAMES)
        if stop := self._findings.condition(keys.get("stop_when"), keys.mark_of("stop_when"), _NAMES):
            when = f"({when}) and not ({stop})" if when else f"not ({stop})"
        key = "attempts" if "attempts" in keys else "max_attempts"
        limit = self._limit(keys.get(key), keys.mark_of(key))
        if not when and not limit:
            hint = "add `while: …`, `max_attempts`, or both"
            self._findings.problem("this `retry` after a success has no end", keys.mark, hint=hint)
            raise Unreadable
        next_call = keys.get("next_call")
        if next_call is not None and not isinstance(next_call, YamlMap):
            mark = keys.mark_of("next_call")
            self._findings.problem("`next_call` is a mapping", mark, hint="write `{params: …}`", code="wrong-type")
            raise Unreadable
        pace = self._pace(keys)
        if pace and next_call is not None:
            mark = next(keys.mark_of(key) for key in keys if key in _PACE)
            hint = "leave it out: the next call follows at once"
            self._findings.no_effect("a delay between the calls of a sequence has no effect", mark, hint=hint)
            pace = {}
        if pace and not _GROWING & keys.keys():
            pace["backoff"] = "fixed"  # asking again and again, not giving way to a target in trouble
        return Success(when, limit, pace, rename_all(next_call, _NAMES), keys.mark)

    def _limit(self, raw: Any, mark: Mark) -> str:
        if raw is None or isinstance(raw, int):
            return "" if raw is None else str(raw)
        try:
            found = expression_of(raw) if isinstance(raw, str) else None
        except TemplateSyntax:
            found = None
        if found is None:
            self._findings.problem("`max_attempts` is a number, or a template for one", mark, code="wrong-value")
            raise Unreadable
        return f"({found} | int)"

    def _collect(self, keys: YamlMap, retry: Retry) -> None:
        given = keys.get("collect")
        if given is None:
            return
        mark = keys.mark_of("collect")
        if isinstance(given, str):
            given = made({"strategy": given}, mark)
        if not isinstance(given, YamlMap):
            hint = "write `{strategy: append, path: …}`"
            self._findings.problem("`collect` is a mapping", mark, hint=hint, code="wrong-type")
            raise Unreadable
        self._findings.unknown(given, {"strategy", "path", "into"}, "collect")
        strategy = given.get("strategy", "append")
        if strategy not in _STRATEGIES:
            hint = f"one of: {', '.join(_STRATEGIES)}"
            self._findings.problem(f"unknown strategy {strategy!r}", given.mark_of("strategy"), hint=hint)
            raise Unreadable
        found = strategy, _path(given.get("path")), str(given.get("into", "_collected"))
        if retry.strategy is not None and found != (retry.strategy, retry.path, retry.into):
            self._findings.problem("two different `collect` in one `retry`", mark, hint="keep one of them")
            raise Unreadable
        retry.strategy, retry.path, retry.into = found


def with_error_rules(task: YamlMap, retry: Retry) -> YamlMap:
    """The task with the rules for errors; any error that none of them matches fails it."""
    if not retry.errors:
        return task
    task = with_rules(task, retry.errors, [_FAIL], retry.mark)
    if not retry.successes:
        task = rename_all(task, _BY_ATTEMPT, skip={"code"})
    task = task.derived(*task)
    task.put("older", "retry", retry.mark)
    return task


def sequence(task: YamlMap, name: str, call: str, retry: Retry, saving: list[YamlMap]) -> list[YamlMap]:
    """The pipeline of a retry after success: start, the call, what saves it, the decision, and the result.

    Raises ValueError, in words for the author, for a ``next_call`` that cannot be merged into the task.
    """
    mark = retry.mark
    first = {key: _first(key, _part(task, key), retry) for key in _changing(task, retry)}
    start: dict[str, Any] = {"name": f"{name}_start", "kind": "noop"}
    if first:
        if given := _part(task, "input", "args"):
            start["input"] = rename_all(given, INDEX)
        start["result"] = {key: rename_all(made(value, mark), INDEX) for key, value in first.items()}
    start["set"] = {"_retry": {"index": 0}}
    if retry.strategy in ("append", "collect"):
        start["set"][retry.into] = []
    if first:
        start["set"]["_call"] = "{{ output }}"
    calling = _collecting(_calling(task, call, first), retry)
    rules = [_goes_on(success, calling, first, retry, alone=not saving) for success in retry.successes]
    result = braces(retry.into if retry.collects else call)
    end = made({"name": name, "kind": "noop", "result": result, "older": "sequence"}, mark)
    if saving:
        decide = made({"name": f"{name}_next", "kind": "noop", "result": braces(call)}, mark)
        return [made(start, mark), with_error_rules(calling, retry), *saving, with_rules(decide, rules, [], mark), end]
    # The rules for errors come first: what is left for the others is a success.
    calling = with_rules(calling, [*retry.errors, _FAIL, *rules], [], mark)
    if retry.errors:
        calling.put("older", "retry", mark)
    return [made(start, mark), calling, end]


def _changing(task: YamlMap, retry: Retry) -> list[str]:
    """The keys of the task that some ``next_call`` changes."""
    found = [_own_key(task, key) for success in retry.successes for key in success.next_call or ()]
    return list(dict.fromkeys(found))


def _own_key(task: YamlMap, key: str) -> str:
    """What the task itself calls the part that ``next_call`` calls ``key``."""
    for names in (_BODIES, ("url", "endpoint"), _INPUTS):
        if key in names:
            return next((name for name in names if _part(task, name) is not None), key)
    return key


def _part(task: YamlMap, *keys: str) -> Any:
    """The first of these keys that the task has, or its ``spec``."""
    for key in keys:
        for owner in (task, task.get("spec")):
            if isinstance(owner, YamlMap) and owner.get(key) is not None:
                return owner[key]
    return None


def _changes(key: str, retry: Retry) -> list[Any]:
    """What each ``next_call`` says of a key of the task."""
    calls = [success.next_call for success in retry.successes if success.next_call is not None]
    return [_said(call, key) for call in calls if _said(call, key) is not None]


def _said(call: YamlMap, key: str) -> Any:
    """What a ``next_call`` says of the task's ``key``, under whatever name."""
    alike = next((names for names in (_BODIES, ("url", "endpoint"), _INPUTS) if key in names), (key,))
    return next((call[name] for name in (key, *alike) if name in call), None)


def _first(key: str, value: Any, retry: Retry) -> Any:
    """What a key that changes is at the first call."""
    said = _changes(key, retry)
    names = dict.fromkeys(name for given in said if isinstance(given, YamlMap) for name in given)
    if not names:
        return value
    own = value if isinstance(value, YamlMap) else {}
    if key in _INPUTS:
        # Not in the task's own input: a name from elsewhere (the step's input), or nothing at the first call.
        return {name: own.get(name, braces(f"{name} | default(none)")) for name in names}
    if own and own.keys() >= names.keys():
        return {name: own[name] for name in names}
    if value is not None and not isinstance(value, YamlMap):
        raise ValueError(f"`next_call.{key}` cannot be merged into `{key}`, which is no mapping")
    return value if value is not None else {}


def _calling(task: YamlMap, call: str, first: dict[str, Any]) -> YamlMap:
    """The task called ``call``, with what changes from call to call taken from ``_call``."""
    found = YamlMap(mark=task.mark)
    found.put("name", call, task.mark_of("name"))
    for key in task:
        if key != "name":
            found.put(key, task[key], task.mark_of(key))
    spec = task.get("spec")
    inner = spec.derived(*spec) if isinstance(spec, YamlMap) else None
    for key, value in first.items():
        owner = inner if inner is not None and key in inner and key not in task else found
        owner.put(key, _taken(key, owner.get(key), value), owner.mark_of(key))
    if inner is not None:
        found["spec"] = inner
    return found


def _taken(key: str, own: Any, first: Any) -> Any:
    """A key that changes, as the task says it: ``_call.url``; of a mapping only the names that change, if they can."""
    if not isinstance(first, dict) or isinstance(first, YamlMap) or not first:
        return braces(key_of("_call", key))
    changed = own.derived(*own) if isinstance(own, YamlMap) else made({}, _NOWHERE)
    for name in first:
        changed.put(name, braces(key_of("_call", key, name)), changed.mark_of(name))
    return changed


def _collecting(task: YamlMap, retry: Retry) -> YamlMap:
    """The task with the ``set`` that collects its result, before its own."""
    if not retry.collects:
        return task
    both = made({retry.into: _collected(retry, "output", str(task.get("kind")))}, retry.mark)
    own = task.get("set")
    if isinstance(own, YamlMap):
        for key in own:
            both.put(key, own[key], own.mark_of(key))
    task = task.derived(*task)
    task.put("set", both, task.mark_of("set") if own is not None else retry.mark)
    return task


def _collected(retry: Retry, root: str, kind: str) -> str:
    value = value_at(root, retry.path, kind)
    if retry.strategy == "append":
        return braces(f"{retry.into} + ({value} | default([], true))")
    if retry.strategy == "collect":
        return braces(f"{retry.into} + [{value} | default(none)]")
    return braces(f"{value} | default(none)")


def value_at(root: str, path: str | None, kind: str) -> str:
    """The value at ``path`` of a result: of an HTTP reply first in its body. No path: the body, or the whole result."""
    if path is None:
        return f"{root}.data" if kind == "http" else root
    keys = path.split(".")
    if kind == "http":
        return f"({key_of(f'{root}.body', *keys)} | default({key_of(root, *keys)}))"
    return key_of(root, *keys)


def _goes_on(success: Success, calling: YamlMap, first: dict[str, Any], retry: Retry, *, alone: bool) -> YamlMap:
    """The rule that makes the next call."""
    following: dict[str, Any] = {}
    if first:
        following["_call"] = {key: _next_value(key, value, success.next_call) for key, value in first.items()}
    following["_retry"] = {"index": "{{ _retry.index + 1 }}"}
    bound = f"_retry.index + 1 < {success.limit}" if success.limit else ""
    then: dict[str, Any] = {"do": "jump", "to": calling["name"]}
    if success.pace and alone:
        # A jump has no delay. A repeated task has not moved on, so its own `set` is not applied: collect here.
        attempts = int(success.limit) if success.limit.isdigit() else braces(success.limit) if success.limit else _MANY
        then = {"do": "retry", "attempts": attempts} | success.pace
        if retry.collects:
            following = {retry.into: _collected(retry, "response", str(calling.get("kind"))), **following}
    then["set"] = following
    rule: YamlMap = made({"when": all_of(success.when, bound), "then": then}, success.mark)
    return rule


def _next_value(key: str, first: Any, call: YamlMap | None) -> Any:
    """What a key of the task is at the next call: what ``next_call`` says of it, over what it was."""
    said = _said(call, key) if call is not None else None
    if said is None:
        return braces(key_of("_call", key))
    if not isinstance(said, YamlMap) or not isinstance(first, dict):
        return said
    kept = {name: braces(key_of("_call", key, name)) for name in first if name not in said}
    return {name: said.get(name, kept.get(name)) for name in dict.fromkeys([*first, *said])}


def _listed(raw: Any) -> list[Any]:
    return list(raw) if isinstance(raw, list) else [] if raw is None else [raw]


def _path(raw: Any) -> str | None:
    text = str(raw).strip() if raw is not None else ""
    return text.removeprefix("$").removeprefix(".") or None
