"""Where the steps of a playbook stand in a drawing."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from noetl_celery.playbook import graph as arcs_of
from noetl_celery.web.graph import GAP_X, Drawing, draw


def outline(arcs: dict[str, list[str]], entry: str = "s0") -> dict[str, Any]:
    """What a plan with these arcs is described as, as far as it is drawn."""
    back = arcs_of.back_edges(arcs, entry)
    steps = [
        {"name": name, "next": {"arcs": [{"step": to, "when": None, "back": (name, to) in back} for to in targets]}}
        for name, targets in arcs.items()
    ]
    return {"steps": steps}


@st.composite
def graphs(draw_: st.DrawFn) -> dict[str, list[str]]:
    names = [f"s{number}" for number in range(draw_(st.integers(1, 12)))]
    return {name: draw_(st.lists(st.sampled_from(names), max_size=4)) for name in names}


def rows_of(drawing: Drawing) -> list[list[Any]]:
    found: dict[int, list[Any]] = {}
    for node in drawing.nodes:
        found.setdefault(node.layer, []).append(node)
    return [sorted(row, key=lambda node: node.x) for row in found.values()]


@given(graphs())
def test_every_drawing_can_be_read(arcs: dict[str, list[str]]) -> None:
    drawing = draw(outline(arcs))
    assert [node.step["name"] for node in drawing.nodes] == list(arcs)
    for row in rows_of(drawing):
        for left, right in pairwise(row):
            assert right.left - (left.left + left.width) >= GAP_X - 0.01
    layer = {node.step["name"]: node.layer for node in drawing.nodes}
    assert len(drawing.edges) == sum(map(len, arcs.values()))
    for edge in drawing.edges:
        assert edge.back or layer[edge.source] < layer[edge.target]
        assert edge.path.startswith("M")
    for node in drawing.nodes:
        assert node.left >= 0
        assert node.left + node.width <= drawing.width
        assert 0 <= node.y < drawing.height


def test_what_leads_back_is_told_apart() -> None:
    drawing = draw(outline({"s0": ["s1"], "s1": ["s2", "s0"], "s2": ["s2"]}))
    assert [(edge.source, edge.target) for edge in drawing.edges if edge.back] == [("s1", "s0"), ("s2", "s2")]


def test_arcs_back_that_do_not_meet_share_a_lane() -> None:
    apart = draw(outline({"s0": ["s1"], "s1": ["s0", "s2"], "s2": ["s3"], "s3": ["s2"]}))
    inside = draw(outline({"s0": ["s1"], "s1": ["s2"], "s2": ["s1", "s3"], "s3": ["s0"]}))
    assert inside.width > apart.width


def test_branches_stand_beside_each_other_and_meet_again() -> None:
    nodes = {
        node.step["name"]: node for node in draw(outline({"s0": ["a", "b"], "a": ["z"], "b": ["z"], "z": []})).nodes
    }
    assert nodes["a"].layer == nodes["b"].layer == 1
    assert nodes["a"].x < nodes["s0"].x < nodes["b"].x
    assert abs(nodes["s0"].x - nodes["z"].x) < 1
