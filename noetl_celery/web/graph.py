"""Where the steps of a playbook stand in a drawing: in layers, from top to bottom. Pure.

The layered drawing of Sugiyama, Tagawa and Toda (1981): arcs that close a cycle are set aside, each step goes below all
that lead to it, arcs over several layers get a bend in each, layers are ordered by the mean place of their neighbours.
Arcs that were set aside go back on the right-hand side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from noetl_celery.playbook.outline import CONDITION, shortened

WIDTH, HEIGHT = 184, 60
GAP_X, GAP_Y = 26, 46
#: room that a bend takes in its layer; distance between arcs that go back
BEND, LANE = 22, 18
MARGIN = 12
#: passes over all layers: more change little
_PASSES = 8


@dataclass(slots=True)
class Node:
    """A step's box, or (``step`` None) a bend of an arc; ``x`` is its middle, ``y`` its top."""

    layer: int
    step: Mapping[str, Any] | None = None
    place: int = 0
    x: float = 0.0
    y: float = 0.0
    above: list[Node] = field(default_factory=list, repr=False)
    below: list[Node] = field(default_factory=list, repr=False)

    @property
    def width(self) -> int:
        return BEND if self.step is None else WIDTH

    @property
    def left(self) -> float:
        return self.x - self.width / 2

    def near(self, what: str, others: Sequence[Node]) -> float:
        """The mean ``place`` or ``x`` of its neighbours; its own if there are none."""
        values: list[float] = [getattr(node, what) for node in others or (self,)]
        return sum(values) / len(values)


@dataclass(frozen=True, slots=True)
class Edge:
    """An arc: the ``d`` of its SVG path, its condition in short and whole, and whether it goes back."""

    source: str
    target: str
    path: str
    when: str
    condition: str
    back: bool


@dataclass(frozen=True, slots=True)
class Drawing:
    """Everything placed, in a field of ``width`` × ``height``."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    width: float
    height: float


def draw(outline: Mapping[str, Any]) -> Drawing:
    """Places a playbook's outline (:func:`noetl_celery.playbook.outline.described`)."""
    nodes = {step["name"]: Node(0, step) for step in outline["steps"]}
    arcs = [(name, arc) for name, node in nodes.items() for arc in _steps_of(node)["next"]["arcs"]]
    forward = [(a, arc["step"]) for a, arc in arcs if not arc["back"] and a != arc["step"]]
    _assign_layers(nodes, forward)
    layers: list[list[Node]] = [[] for _ in range(1 + max(node.layer for node in nodes.values()))]
    for node in nodes.values():
        layers[node.layer].append(node)
    chains = {pair: _chain(nodes[pair[0]], nodes[pair[1]], layers) for pair in dict.fromkeys(forward)}
    _order(layers)
    _place(layers)
    right = max(node.left + node.width for layer in layers for node in layer)
    lanes: list[list[tuple[int, int]]] = []
    edges = []
    for source, arc in arcs:
        chain = chains.get((source, arc["step"]))
        if chain is None:
            lane = _free_lane(lanes, nodes[arc["step"]].layer, nodes[source].layer)
            path = _path_back(nodes[source], nodes[arc["step"]], right + (1 + lane) * LANE)
        else:
            path = _path(chain)
        text = str(arc["when"] or "")
        edges.append(Edge(source, arc["step"], path, shortened(text, CONDITION), text, chain is None))
    height = len(layers) * (HEIGHT + GAP_Y) - GAP_Y
    return Drawing(tuple(nodes.values()), tuple(edges), right + len(lanes) * LANE + MARGIN, height + 2 * MARGIN)


def _free_lane(lanes: list[list[tuple[int, int]]], top: int, bottom: int) -> int:
    """The first lane beside the steps in which no arc goes back between these layers; it is taken then."""
    for number, taken in enumerate(lanes):
        if all(bottom < upper or top > lower for upper, lower in taken):
            taken.append((top, bottom))
            return number
    lanes.append([(top, bottom)])
    return len(lanes) - 1


def _steps_of(node: Node) -> Mapping[str, Any]:
    assert node.step is not None
    return node.step


def _assign_layers(nodes: Mapping[str, Node], forward: Iterable[tuple[str, str]]) -> None:
    """Each step below all those that lead to it: the longest way from the top."""
    targets: dict[str, list[str]] = {name: [] for name in nodes}
    waits = dict.fromkeys(nodes, 0)
    for source, target in forward:
        targets[source].append(target)
        waits[target] += 1
    ready = [name for name, count in waits.items() if not count]
    for name in ready:
        for target in targets[name]:
            nodes[target].layer = max(nodes[target].layer, nodes[name].layer + 1)
            waits[target] -= 1
            if not waits[target]:
                ready.append(target)


def _chain(source: Node, target: Node, layers: list[list[Node]]) -> list[Node]:
    """The nodes that an arc passes, a bend in every layer between; neighbours know each other."""
    chain = [source]
    for number in range(source.layer + 1, target.layer):
        bend = Node(number)
        layers[number].append(bend)
        chain.append(bend)
    chain.append(target)
    for upper, lower in pairwise(chain):
        upper.below.append(lower)
        lower.above.append(upper)
    return chain


def _order(layers: Sequence[list[Node]]) -> None:
    """Neighbours come to stand near each other, which leaves few crossings."""
    for number in range(_PASSES + 1):
        down = number % 2 == 0
        for layer in layers if down else reversed(layers):
            if number:
                layer.sort(key=lambda node: node.near("place", node.above if down else node.below))
            for index, node in enumerate(layer):
                node.place = index


def _place(layers: Sequence[list[Node]]) -> None:
    """Every node as near to the middle of its neighbours as those beside it allow."""
    for number, layer in enumerate(layers):
        at = 0.0
        for node in layer:
            node.x, node.y = at + node.width / 2, MARGIN + number * (HEIGHT + GAP_Y)
            at += node.width + GAP_X
    for number in range(_PASSES):
        down = number % 2 == 0
        for layer in layers if down else reversed(layers):
            _shift(layer, [node.near("x", node.above if down else node.below) for node in layer])
    left = min(node.left for layer in layers for node in layer)
    for layer in layers:
        for node in layer:
            node.x += MARGIN - left


def _shift(layer: Sequence[Node], wanted: Sequence[float]) -> None:
    """Moves nodes to where they want to be; those that would overlap share the place around their common middle."""
    groups: list[list[tuple[Node, float]]] = []
    for node, x in zip(layer, wanted, strict=True):
        groups.append([(node, x)])
        while len(groups) > 1 and _span(groups[-2])[1] + GAP_X > _span(groups[-1])[0]:
            last = groups.pop()
            groups[-1] += last
    for group in groups:
        at = _span(group)[0]
        for node, _ in group:
            node.x = at + node.width / 2
            at += node.width + GAP_X


def _span(group: Sequence[tuple[Node, float]]) -> tuple[float, float]:
    """Left and right end of nodes that stand side by side, in the middle of where they want to be."""
    total = sum(node.width for node, _ in group) + GAP_X * (len(group) - 1)
    middle = sum(x for _, x in group) / len(group)
    return middle - total / 2, middle + total / 2


def _path(chain: Sequence[Node]) -> str:
    points = [(chain[0].x, chain[0].y + HEIGHT)]
    points += [(bend.x, bend.y + HEIGHT / 2) for bend in chain[1:-1]]
    points.append((chain[-1].x, chain[-1].y - 2))
    path = f"M{points[0][0]:.0f} {points[0][1]:.0f}"
    for (x1, y1), (x2, y2) in pairwise(points):
        bow = (y2 - y1) / 2
        path += f"C{x1:.0f} {y1 + bow:.0f} {x2:.0f} {y2 - bow:.0f} {x2:.0f} {y2:.0f}"
    return path


def _path_back(source: Node, target: Node, x: float) -> str:
    """From the right side of a step to the right side of one above it (or its own)."""
    y1, y2 = source.y + HEIGHT * 0.7, target.y + HEIGHT * 0.3
    x1, x2 = source.x + WIDTH / 2, target.x + WIDTH / 2 + 2
    bow = 10
    return (
        f"M{x1:.0f} {y1:.0f}H{x - bow:.0f}Q{x:.0f} {y1:.0f} {x:.0f} {y1 - bow:.0f}"
        f"V{y2 + bow:.0f}Q{x:.0f} {y2:.0f} {x - bow:.0f} {y2:.0f}H{x2:.0f}"
    )
