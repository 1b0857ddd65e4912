"""The names that a template sees, and which of them wins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

_NONE: Mapping[str, Any] = {}
_ABSENT = object()
#: names of the envelope: its ``data`` is the result anyway, a bare result answers for itself
_OUTPUTS = frozenset({"output", "outcome"})
#: in a policy rule: the bare result; elsewhere this is a name like any other
_RESPONSE = "response"
#: what `iter` holds besides the author's names; these give way to everything else as bare names
_ITER_OWN = frozenset({"index", "parent"})


class Scope(Mapping[str, Any]):
    """A read-only mapping of layers, asked one after the other; nothing is copied, a lazy layer is asked once per name.

    Besides the names it answers :meth:`is_result` and :meth:`task_results`, which ``X.data``, ``X.result`` and
    ``X.results`` ask for.
    """

    __slots__ = ("_by_task", "_iter", "_last", "_layers", "_pipeline", "_previous", "_results", "_set", "_specials")

    def __init__(
        self,
        *,
        specials: Mapping[str, Any],
        set_names: Mapping[str, Any],
        pipeline: Mapping[str, Any],
        iter_: Mapping[str, Any],
        iterator: str | None,
        args: Mapping[str, Any],
        ctx: Mapping[str, Any],
        results: Mapping[str, Any],
        workload: Mapping[str, Any],
        previous: Callable[[], Any] | None,
        by_task: Mapping[str, Mapping[str, Any]],
        last: Mapping[str, Any],
    ) -> None:
        self._specials = specials
        self._set = set_names
        self._pipeline = pipeline
        self._iter = _IterNames(iter_, iterator)
        self._layers = (specials, set_names, pipeline, self._iter, args, ctx, results, workload)
        self._results = results
        self._previous = previous
        self._by_task = by_task
        self._last = last

    def __getitem__(self, name: str) -> Any:
        for layer in self._layers:
            if name in layer:
                return layer[name]
        if name in _ITER_OWN and name in self._iter.source:
            return self._iter.source[name]
        if name == "result" and self._previous is not None:
            return self._previous()
        return self._last[name]

    def __contains__(self, name: object) -> bool:
        if any(name in layer for layer in self._layers):
            return True
        if (name in _ITER_OWN and name in self._iter.source) or (name == "result" and self._previous is not None):
            return True
        return name in self._last

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for layer in self._layers for name in layer))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def is_result(self, name: str) -> bool:
        """Whether the value that ``name`` gives is the result of a step or of a task of this pipeline."""
        if name in _OUTPUTS:
            return True
        for layer in self._layers:
            if name in layer:
                if layer is self._specials:
                    return name == _RESPONSE
                return layer is self._pipeline or layer is self._results
        return (name == "result" and self._previous is not None) or name in self._last

    def task_results(self, name: str) -> Mapping[str, Any] | None:
        """The results of a step's tasks by name, or None if the caller gave none for it."""
        return self._by_task.get(name)


class _IterNames(Mapping[str, Any]):
    """The keys of ``iter`` as bare names, without ``index`` and ``parent`` (unless the iterator is called so)."""

    __slots__ = ("_hidden", "source")

    def __init__(self, source: Mapping[str, Any], iterator: str | None) -> None:
        self.source = source
        self._hidden = _ITER_OWN if iterator not in _ITER_OWN else _ITER_OWN - {iterator}

    def __getitem__(self, name: str) -> Any:
        if name in self._hidden:
            raise KeyError(name)
        return self.source[name]

    def __contains__(self, name: object) -> bool:
        return name in self.source and name not in self._hidden

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.source if name not in self._hidden)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def scope(
    *,
    execution_id: int | str,
    workload: Mapping[str, Any],
    ctx: Mapping[str, Any],
    results: Mapping[str, Any],
    previous: Callable[[], Any] | None = None,
    task_results: Mapping[str, Mapping[str, Any]] | None = None,
    spec: Mapping[str, Any] = _NONE,
    pipeline: Mapping[str, Any] = _NONE,
    names: Mapping[str, Any] = _NONE,
    iter: Mapping[str, Any] | None = None,
    iterator: str | None = None,
    args: Mapping[str, Any] | None = None,
    output: Any = _ABSENT,
    event: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] = _NONE,
    last: Mapping[str, Any] = _NONE,
) -> Scope:
    """The names of one rendering, as a lazy mapping.

    ``results``: step results by step name (may load them when asked); ``task_results``: step → task → result, for
    ``<step>.results.<task>``; ``previous``: gives the previous step's result for ``{{ result }}``. ``pipeline``: this
    pipeline's results by task, ``names``: what its ``set`` wrote. ``iter``: the loop's mapping (``index``, ``parent``,
    the iterator's name, …). ``output``: the envelope, or the bare result; not given: there is none. ``extra``: further
    names that win over all (``_attempt``, …); ``last``: results under names that give way to all.
    Order: ``extra`` and the fixed names, ``names``, ``pipeline``, ``iter``, ``args``, ``ctx``, ``results``,
    ``workload``; then ``index`` and ``parent`` of ``iter``, ``result``, and ``last``.
    """
    specials: dict[str, Any] = {
        "execution_id": str(execution_id),
        "job": dict.fromkeys(("uuid", "execution_id"), str(execution_id)),
        "workload": workload,
        "ctx": ctx,
        "args": args if args is not None else _NONE,
        "spec": spec,
    }
    if iter is not None:
        specials["iter"] = iter
        if "index" in iter:
            specials["loop_index"] = iter["index"]
    if output is not _ABSENT:
        specials["output"] = specials["outcome"] = output
    if event is not None:
        specials["event"] = event
    specials.update(extra)
    return Scope(
        specials=specials,
        set_names=names,
        pipeline=pipeline,
        iter_=iter if iter is not None else _NONE,
        iterator=iterator,
        args=args if args is not None else _NONE,
        ctx=ctx,
        results=results,
        workload=workload,
        previous=previous,
        by_task=task_results if task_results is not None else _NONE,
        last=last,
    )
