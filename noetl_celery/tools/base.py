"""What a tool is: the protocol, the call it gets and the outcome that policies see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

Credential = Mapping[str, Any]


def _nothing_kept(place: Mapping[str, Any]) -> Any:
    raise KeyError(place)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One run of a task.

    ``config``: the tool's keys, rendered (keys named in ``Tool.raw_keys`` are as written). ``input``: the rendered
    ``input`` of step and task, merged. ``credential``: looks a credential up by name (raises ``ToolError`` of kind
    ``credential`` for an unknown one); its answer never reaches a log. ``print``: where a task's own output goes,
    line by line. ``names``: ``execution_id``, ``step``, ``task``, ``row`` for log lines.
    ``deadline``: ``time.monotonic()`` value at which the call has to give up, or None: the end of the step's time. A
    tool's own ``timeout`` may come before it, see ``deadline_of`` in ``tools/keys.py``.
    ``context``: what python code sees as ``context`` (execution_id, step, workload, ctx, iter …), JSON values.
    ``kept``: opens the result that a ``_ref`` names (raises ``KeyError`` if there is none); it may be lazy.
    """

    config: Mapping[str, Any]
    input: Mapping[str, Any]
    credential: Callable[[str], Credential]
    print: Callable[[str], None]
    names: Mapping[str, str]
    deadline: float | None = None
    context: Mapping[str, Any] = field(default_factory=dict)
    kept: Callable[[Mapping[str, Any]], Any] = _nothing_kept


@runtime_checkable
class Tool(Protocol):
    """A task kind. One instance serves all threads of a process; it keeps no state of a call.

    ``check`` runs when a playbook is registered, on the keys as written (templates unrendered), and returns what
    is wrong as ``(key or None, message)`` pairs. ``run`` does the work and returns JSON-safe data, or raises
    ``ToolError``; any other exception is a bug and becomes an error outcome of kind ``internal``. It may be run
    again for the same row after a crash: it promises at-least-once, no more.
    ``raw_keys`` are never rendered (code). A tool may name its keys in ``keys`` (a frozenset), for editors; the common
    ones of ``tools/keys.py`` are known. ``close`` ends pooled connections; it may be called twice.

    A tool whose target may send requests away when there are too many has a method ``target(config)`` as well: the name
    of what the rendered ``config`` addresses (a host), or None. Loops that say ``auto`` keep to the pace it bears.
    """

    kind: str
    raw_keys: frozenset[str]

    def check(self, config: Mapping[str, Any]) -> Sequence[tuple[str | None, str]]: ...

    def run(self, call: ToolCall) -> Any: ...

    def close(self) -> None: ...


def target_of(tool: Tool, config: Mapping[str, Any]) -> str | None:
    """What a call addresses whose pace may have to be kept; None if that is no matter for its tool."""
    target = getattr(tool, "target", None)
    return None if target is None else target(config)


@dataclass(slots=True)
class Reply:
    """What a tool's ``run`` may return instead of bare data, to fill the envelope's ``http``, ``pg`` or ``py`` too.

    ``kept``: ``data`` is a mapping of JSON data and values from :attr:`ToolCall.kept`, which are not loaded. ``plain``:
    it is JSON data as :func:`~noetl_celery.template.jsonable.jsonable` returns it, so that nobody need look again.
    """

    data: Any = None
    http: Mapping[str, Any] = field(default_factory=dict)
    pg: Mapping[str, Any] = field(default_factory=dict)
    py: Mapping[str, Any] = field(default_factory=dict)
    kept: bool = False
    plain: bool = False
