"""The older ``sink``: a task of its own behind the one whose result it saves, so that its failure fails the row.

``sink: {tool: postgres, table, auth, mode, key, args}`` is a ``transfer`` of that data into the table; a sink with a
statement, or of another kind, is that tool. In its templates ``result``, ``response`` and ``data`` mean the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from noetl_celery.playbook.older_parts import FIX, Findings, braces, made, rename_all, without
from noetl_celery.playbook.older_retry import value_at
from noetl_celery.playbook.source import YamlList, YamlMap

if TYPE_CHECKING:
    from noetl_celery.playbook.source import Mark

    Found = tuple[Any, Mark]

#: sinks that only wrote an event: every result is on record anyway
_EVENTS = frozenset({"event", "events", "event_log", "log"})
_STATEMENTS = ("statement", "statements", "command", "commands", "query", "sql", "script")
_TARGET = ("auth", "credential", "table", "mode", "key", "keys", "mapping", "database")
_ROWS = ("args", "data", "input")
_INTO = ("table", "mode", "key", "keys", "mapping")
_ALL_ROWS = frozenset({f"{name}.rows" for name in ("result", "response", "data", "result.data", "response.data")})


class SinkReader:
    """Reads sinks; what is wrong goes to ``findings``."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    def tasks(
        self, sinks: list[tuple[Any, Mark]], name: str, result: str, kind: str, path: str | None
    ) -> list[YamlMap]:
        """The tasks that save the result of the task ``result`` of this ``kind``; ``path`` leads to its rows."""
        found: list[YamlMap] = []
        for value, mark in sinks:
            for sink in value if isinstance(value, YamlList) else [value]:
                if not isinstance(sink, YamlMap):
                    hint = "write `sink: {tool: postgres, table: …}`"
                    self._findings.problem("`sink` is a mapping", mark, hint=hint, code="wrong-type")
                    continue
                number = f"_{len(found) + 1}" if found else ""
                task = self._task(_flat(sink), mark, f"{name}_sink{number}", result, kind, path)
                if task is not None:
                    found.append(task)
        return found

    def joined(self, task: YamlMap, sinks: list[Found]) -> tuple[YamlMap, list[Found]]:
        """The task with the sink that is part of its own transaction, and the others.

        That is one that puts the rows of a postgres task into a table of the same database.
        """
        for number, (value, mark) in enumerate(sinks):
            sink = _flat(value) if isinstance(value, YamlMap) else None
            if sink is None or not _is_same_database(task, sink) or not _is_all_rows(sink):
                continue
            into = sink.derived(*(key for key in sink if key in _INTO))
            rest = without(sink, *_INTO, "kind", "auth", "credential", "desc", *_ROWS)
            self._findings.unknown(rest, _TARGET, "sink")
            task = task.derived(*task)
            task.put("into", into, mark)
            self._findings.older("sink", mark, hint=f"write `into: {{table: …}}` in the postgres task; {FIX}")
            return task, [*sinks[:number], *sinks[number + 1 :]]
        return task, sinks

    @staticmethod
    def answer(name: str, result: str, mark: Mark) -> YamlMap:
        """The last task, whose result is that of the task ``result``: a sink adds nothing to a step's result."""
        answer: YamlMap = made({"name": f"{name}_result", "kind": "noop", "result": braces(result)}, mark)
        return answer

    def _task(self, sink: YamlMap, mark: Mark, name: str, result: str, kind: str, path: str | None) -> YamlMap | None:
        tool = str(sink.get("kind", ""))
        if tool in _EVENTS or (not tool and "table" not in sink):
            message = f"a `sink` to {tool or 'nowhere'} has no effect"
            self._findings.no_effect(message, mark, hint="remove it: results are kept with their events")
            return None
        names = {"result": result, "response": result, "data": result}
        if "table" in sink and not any(key in sink for key in _STATEMENTS):
            task = self._transfer(sink, name, tool or "postgres", value_of(result, kind, path), names)
            shown = (
                f"{{kind: transfer, source: {{kind: data, data: …}}, target: {{kind: {tool or 'postgres'}, table: …}}}}"
            )
        else:
            task = self._tool(sink, name, result, names)
            shown = f"{{kind: {tool}, …}}"
        self._findings.older("sink", mark, hint=f"write a task of its own behind this one: `{shown}`; {FIX}")
        return task

    def _transfer(self, sink: YamlMap, name: str, tool: str, rows: str, names: dict[str, str]) -> YamlMap:
        """Rows into a table."""
        mark = sink.mark
        given = next((key for key in _ROWS if sink.get(key) is not None), None)
        source = made({"kind": "data"}, mark)
        data = braces(rows) if given is None else rename_all(sink[given], names)
        source.put("data", data, sink.mark_of(given) if given is not None else mark)
        target = made({"kind": tool}, sink.mark_of("kind"))
        for key in _TARGET:
            if key in sink:
                target.put("auth" if key == "credential" else key, rename_all(sink[key], names), sink.mark_of(key))
        for key in sink:
            if key not in (*_TARGET, *_ROWS, "kind", "name", "desc"):
                hint = f"known keys: {', '.join(sorted((*_TARGET, *_ROWS, 'tool')))}"
                message = f"unknown key `{key}` in `sink`"
                self._findings.problem(message, sink.mark_of(key), hint=hint, code="unknown-key")
        task: YamlMap = made({"name": name, "kind": "transfer", "source": source, "target": target}, mark)
        return task

    def _tool(self, sink: YamlMap, name: str, result: str, names: dict[str, str]) -> YamlMap:
        """Any other tool, with the result as its input `data` where that is how it is given."""
        kind = str(sink.get("kind"))
        for key in ("sink", "retry"):
            if key in sink:
                hint = "give it to the task whose result is saved"
                message = f"unknown key `{key}` in `sink`"
                self._findings.problem(message, sink.mark_of(key), hint=hint, code="unknown-key")
        sink = without(sink, "sink", "retry")
        task = made({"name": name, "kind": kind}, sink.mark)
        for key in sink:
            new = {"statement": "command", "statements": "commands", "credential": "auth", "args": "input"}.get(
                key, key
            )
            if key == "data" and kind != "http":
                new = "input"
            if key not in ("kind", "name"):
                task.put(new, rename_all(sink[key], names, skip={"code"}), sink.mark_of(key))
        if kind == "python":
            given = task.get("input")
            inputs = made({"data": braces(result)}, sink.mark)
            for key in given if isinstance(given, YamlMap) else ():
                inputs.put(key, given[key], given.mark_of(key))
            task.put("input", inputs, task.mark_of("input"))
        found: YamlMap = task
        return found


def _is_same_database(task: YamlMap, sink: YamlMap) -> bool:
    auth = _part(task, "auth", "credential")
    if isinstance(auth, YamlMap):
        auth = auth.get("credential")
    same = auth is not None and auth == sink.get("auth", sink.get("credential"))
    return same and task.get("kind") == "postgres" and sink.get("kind", "postgres") == "postgres" and "into" not in task


def _is_all_rows(sink: YamlMap) -> bool:
    """Whether it saves the result's rows as they are."""
    given = next((sink[key] for key in _ROWS if sink.get(key) is not None), None)
    whole = given is None or (isinstance(given, str) and given.strip("{} ") in _ALL_ROWS)
    return whole and "table" in sink and not any(key in sink for key in _STATEMENTS)


def _part(task: YamlMap, *keys: str) -> Any:
    spec = task.get("spec")
    owners = [owner for owner in (task, spec) if isinstance(owner, YamlMap)]
    return next((owner[key] for owner in owners for key in keys if owner.get(key) is not None), None)


def value_of(result: str, kind: str, path: str | None) -> str:
    """The rows of a task's result, where a sink does not say what to save: the body, the rows, or all of it."""
    if path is not None:
        return value_at(result, path, kind)
    return {"http": f"{result}.data", "postgres": f"{result}.rows"}.get(kind, result)


def _flat(sink: YamlMap) -> YamlMap:
    """One mapping with ``kind``, whether the tool is a name, or a mapping with keys of its own."""
    flat = YamlMap(mark=sink.mark)
    tool = sink.get("tool")
    if isinstance(tool, str):
        flat.put("kind", tool, sink.mark_of("tool"))
    for owner in (tool, sink.get("spec"), without(sink, "tool", "spec")):
        if isinstance(owner, YamlMap):
            for key in owner:
                flat.put(key, owner[key], owner.mark_of(key))
    auth = flat.get("auth")
    if isinstance(auth, YamlMap) and isinstance(name := auth.get("credential", auth.get("name")), str):
        flat.put("auth", name, auth.mark_of("credential" if "credential" in auth else "name"))
    return flat
