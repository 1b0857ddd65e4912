"""The graph of steps: which arcs close a cycle, and what is reached from where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

Arcs = Mapping[str, Sequence[str]]


def back_edges(arcs: Arcs, entry: str) -> frozenset[tuple[str, str]]:
    """The arcs that close a cycle in a depth-first search from ``entry``, then from steps not reached from it."""
    found: set[tuple[str, str]] = set()
    done: set[str] = set()
    for root in (entry, *arcs):
        if root not in done:
            _search(arcs, root, done, found)
    return frozenset(found)


def _search(arcs: Arcs, root: str, done: set[str], found: set[tuple[str, str]]) -> None:
    """Depth first without recursion: playbooks may be long chains."""
    open_: set[str] = {root}
    stack = [(root, iter(arcs.get(root, ())))]
    while stack:
        step, targets = stack[-1]
        target = next(targets, None)
        if target is None:
            stack.pop()
            open_.discard(step)
            done.add(step)
        elif target in open_:
            found.add((step, target))
        elif target in arcs and target not in done:
            open_.add(target)
            stack.append((target, iter(arcs[target])))


def forward(arcs: Arcs, without: frozenset[tuple[str, str]]) -> dict[str, frozenset[str]]:
    """For each step, every step reached from it by arcs that are not in ``without`` (which leaves no cycle)."""
    acyclic = _pruned(arcs, without)
    found: dict[str, frozenset[str]] = {}
    for step in _last_first(acyclic):
        targets = [target for target in acyclic[step] if target in acyclic]
        found[step] = frozenset(targets).union(*(found[target] for target in targets))
    return {step: found[step] for step in arcs}


def _last_first(acyclic: Arcs) -> Iterator[str]:
    """Every step after all those that it leads to."""
    seen: set[str] = set()
    for root in acyclic:
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(acyclic[root]))]
        while stack:
            step, targets = stack[-1]
            target = next(targets, None)
            if target is None:
                stack.pop()
                yield step
            elif target in acyclic and target not in seen:
                seen.add(target)
                stack.append((target, iter(acyclic[target])))


def reached(arcs: Arcs, start: str) -> frozenset[str]:
    """Every step reached from ``start``, itself included."""
    seen = {start}
    waiting = [start]
    while waiting:
        for target in arcs.get(waiting.pop(), ()):
            if target in arcs and target not in seen:
                seen.add(target)
                waiting.append(target)
    return frozenset(seen)


def _pruned(arcs: Arcs, without: frozenset[tuple[str, str]]) -> Arcs:
    return {step: [target for target in targets if (step, target) not in without] for step, targets in arcs.items()}
