"""The Jinja environment of playbooks: sandboxed, keys before attributes, filters that refuse missing values."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, date, datetime, time
from typing import Any

from jinja2 import Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace, pass_context
from jinja2.utils import missing as _nothing

from noetl_celery.template.jsonable import to_json
from noetl_celery.template.lazy import LazySequence
from noetl_celery.template.missing import Missing

#: the filter that `X.data`, `X.result` and `X.results` of a top-level name X become; no author can type this name
RESULT_KEY_FILTER = "key of a result"
RESULT_KEYS = frozenset({"data", "result", "results"})

_HTTP_RESULT = ("status_code", "headers", "url", "body", "data")
_LAST_FALLBACKS: Mapping[str, Any] = {"range": safe_range, "dict": dict, "namespace": Namespace}
_REPEATED = (str, list, tuple, LazySequence)
_MAX_TEXT = 50_000_000
_MAX_EXPONENT = 10_000


class Names(Context):
    """The names of one rendering: ``parent`` holds the used ones; ``scope`` is what the caller gave."""

    __slots__ = ("scope",)

    def __init__(self, environment: Environment, used: dict[str, Any], scope: Mapping[str, Any]) -> None:
        # Not super().__init__: it copies globals and blocks that these templates do not have, for every rendering.
        self.parent = used
        self.vars = {}
        self.environment = environment
        self.eval_ctx = EvalContext(environment)
        self.exported_vars = set()
        self.name = None
        self.globals_keys = set()
        self.blocks = {}
        self.scope = scope

    def resolve_or_missing(self, key: str) -> Any:
        if key in self.vars:
            return self.vars[key]
        found = self.parent.get(key, _nothing)
        if found is not _nothing:
            return found
        if key == "now":
            return now
        return _LAST_FALLBACKS.get(key, _nothing)


class Environment(ImmutableSandboxedEnvironment):
    """One instance serves the process: it holds no state of a rendering."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        # Not optimized: folding constants takes cubic time in a long expression, and playbooks have little to fold.
        super().__init__(
            undefined=Missing, autoescape=False, keep_trailing_newline=True, finalize=as_text, optimized=False
        )
        self.globals = {"now": now}
        self.filters = {name: _refusing_missing(name, function) for name, function in self.filters.items()}
        self.filters.update({name: _refusing_missing(name, function) for name, function in _FILTERS.items()})
        self.filters[RESULT_KEY_FILTER] = _key_of_result

    def getattr(self, obj: Any, attribute: str) -> Any:
        """``obj.attribute`` that is called: a method of text, lists and mappings, or a missing value."""
        if isinstance(obj, Missing):
            return obj.child(attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """``obj[argument]`` and ``obj.argument``: a key (also of an HTTP body or a lone ``data``), index or attribute.

        A method is not found here, so a missing key is missing even if mappings have a method of that name.
        """
        if type(obj) is dict or isinstance(obj, Mapping):  # asking an abstract class takes longer than the rest
            try:
                return obj[argument]
            except (KeyError, TypeError):
                return self._key_of_body(obj, argument)
        if isinstance(obj, Missing):
            return obj.child(argument)
        if isinstance(argument, Missing):
            argument.fail()
        found = super().getitem(obj, argument)
        if callable(found) and not isinstance(found, Undefined):
            return self.undefined(obj=obj, name=argument)
        return found

    def _key_of_body(self, obj: Mapping[Any, Any], key: Any) -> Any:
        if isinstance(key, Missing):
            key.fail()
        if "status_code" in obj and "body" in obj and all(part in obj for part in _HTTP_RESULT):
            inner = obj["body"]
        else:
            inner = obj["data"] if len(obj) == 1 and "data" in obj else None
        if isinstance(inner, Mapping) and key in inner:
            return inner[key]
        return self.undefined(obj=obj, name=key)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Multiplication and powers within bounds, so that a template cannot eat the worker's memory."""
        if operator == "**" and isinstance(right, int | float) and abs(right) > _MAX_EXPONENT:
            raise SecurityError(f"an exponent of {right} is too large")
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, _REPEATED) and isinstance(times, int) and len(many) * times > _MAX_TEXT:
                    raise SecurityError(f"repeating a value {times} times makes it too large")
        return super().call_binop(context, operator, left, right)


#: what templates of this thread are to take for the current time; None: ask the clock
_time: ContextVar[datetime | None] = ContextVar("time", default=None)


@contextmanager
def time_is(moment: datetime) -> Iterator[None]:
    """Meanwhile it is ``moment`` in templates that this thread renders, so that they can be rendered again later."""
    token = _time.set(moment)
    try:
        yield
    finally:
        _time.reset(token)


def now() -> datetime:
    """The current time, aware, in UTC."""
    return _time.get() or datetime.now(UTC)


def as_text(value: Any) -> Any:
    """A value in the middle of text, as Jinja prints it; times in ISO 8601. Raises for a missing one."""
    if isinstance(value, str):
        return value
    if isinstance(value, Missing):
        value.fail()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value)


def resultify(expression: nodes.Node) -> None:
    """Rewrites an expression in place, so that data wins over Python.

    ``X.data``, ``X.result`` and ``X.results`` of a top-level name X ask whether X is a result; ``a.b`` that is not
    called becomes ``a['b']``, which never finds a method.
    """
    called = expression.node if isinstance(expression, nodes.Call) else None
    for field, value in list(expression.iter_fields()):
        if isinstance(value, nodes.Node):
            setattr(expression, field, _resultified(value, called=value is called))
        elif isinstance(value, list):
            value[:] = [_resultified(item) if isinstance(item, nodes.Node) else item for item in value]


def result_key(node: nodes.Node) -> tuple[str, str] | None:
    """``(X, key)`` if ``node`` is ``X.key`` or ``X['key']`` with a key that results answer for themselves."""
    if isinstance(node, nodes.Getattr):
        key: Any = node.attr
    elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        key = node.arg.value
    else:
        return None
    if key in RESULT_KEYS and isinstance(node.node, nodes.Name):
        return node.node.name, key
    return None


def _resultified(node: nodes.Node, called: bool = False) -> nodes.Node:
    found = result_key(node)
    if found is None or called:
        resultify(node)
        if isinstance(node, nodes.Getattr) and not called:
            return nodes.Getitem(node.node, nodes.Const(node.attr), "load", lineno=node.lineno)
        return node
    name, key = found
    arguments: list[nodes.Expr] = [nodes.Const(name), nodes.Const(key)]
    source: Any = node
    return nodes.Filter(source.node, RESULT_KEY_FILTER, arguments, [], None, None, lineno=node.lineno)


@pass_context
def _key_of_result(context: Names, value: Any, name: str, key: str) -> Any:
    environment: Any = context.environment
    found = environment.getitem(value, key)
    if not isinstance(found, Missing):
        return found
    is_result = getattr(context.scope, "is_result", None)
    if is_result is None or isinstance(value, Missing) or not is_result(name):
        return found
    if key != "results":
        return value
    by_task = context.scope.task_results(name)  # type: ignore[attr-defined]
    return found if by_task is None else by_task


def _refusing_missing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Jinja's ``int``, ``join``, ``length`` … turn a missing value into 0 or nothing; ours say that it is missing."""
    if name in ("default", "d"):
        return function
    position = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if len(args) > position and isinstance(args[position], Undefined):
            _use(args[position])
        return function(*args, **kwargs)

    return checked


def _use(value: Undefined) -> None:
    if isinstance(value, Missing):
        value.fail()
    str(value)


def _to_json(value: Any, indent: int | None = None) -> str:
    return to_json(value, indent)


def _from_json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str | bytes | bytearray) else value


def _b64encode(value: Any) -> str:
    data = value if isinstance(value, bytes) else str(value).encode()
    return base64.b64encode(data).decode("ascii")


def _b64decode(value: str) -> str:
    return base64.b64decode(value, validate=True).decode()


_FILTERS: Mapping[str, Callable[..., Any]] = {
    "tojson": _to_json,
    "to_json": _to_json,
    "fromjson": _from_json,
    "from_json": _from_json,
    "b64encode": _b64encode,
    "b64decode": _b64decode,
}
