"""A described plan as a tree for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from noetl_celery.cli.console import coloured, out
from noetl_celery.playbook.outline import loop_text, shortened, task_text

_BOLD, _DIM, _ARROW = "bold", "dim", "cyan"


def show(data: Mapping[str, Any]) -> None:
    """Prints the tree; without colours where there is no terminal."""
    colours: Literal["auto"] | None = "auto" if coloured(sys.stdout) else None
    console = Console(file=sys.stdout, color_system=colours, highlight=False, soft_wrap=True)
    if not sys.stdout.isatty():
        console.width = 10_000  # whoever reads a pipe breaks lines as it likes
    with console.capture() as captured:
        console.print(_tree(data))
    for line in captured.get().splitlines():
        out(line.rstrip())


def _tree(data: Mapping[str, Any]) -> Tree:
    tree = Tree(_line((data["path"], _BOLD)))
    needs = {"workload": "workload", "credentials": "credentials", "playbooks": "playbooks"}
    for key, title in needs.items():
        if data[key]:
            tree.add(_line((f"{title}: ", _DIM), (", ".join(data[key]), "")))
    for step in data["steps"]:
        branch = tree.add(_line(*_title(step, data["entry"])))
        for line in _inside(step):
            branch.add(line)
    return tree


def _title(step: Mapping[str, Any], entry: str) -> Iterator[tuple[str, str]]:
    yield step["name"], _BOLD
    kinds = [task_text(task) for task in step["tasks"]]
    if len(kinds) == 1:
        yield f"  {kinds[0]}", ""
    elif not kinds:
        yield "  router", _DIM
    if step["name"] == entry:
        yield "  entry", _DIM
    if not step["reached"]:
        yield "  never reached", "yellow"
    if step["pool"]:
        yield f"  pool {step['pool']}", _DIM


def _inside(step: Mapping[str, Any]) -> Iterator[Text]:
    if step["loop"]:
        yield _line(("loop ", _DIM), (loop_text(step["loop"]), ""))
        if claim := step["loop"].get("claim"):
            yield _line(("claim ", _DIM), (shortened(claim, 100), ""))
    for rule in step["admission"]:
        yield _line(("admission ", _DIM), ("starts" if rule["allow"] else "is skipped", ""), *_when(rule["when"]))
    if len(step["tasks"]) > 1:
        for number, task in enumerate(step["tasks"], 1):
            yield _line((f"{number}. {task['name']}", ""), (f"  {task_text(task)}", _DIM))
    if step["sets"]:
        yield _line(("sets ", _DIM), (", ".join(step["sets"]), ""))
    arcs = step["next"]["arcs"]
    if len(arcs) > 1:
        yield _line(("all that match" if step["next"]["mode"] == "inclusive" else "the first that matches", _DIM))
    for arc in arcs:
        back = (("  (back)", _DIM),) if arc["back"] else ()
        yield _line(("→ ", _ARROW), (arc["step"], ""), *_when(arc["when"]), *back)


def _when(condition: str | None) -> tuple[tuple[str, str], ...]:
    return () if condition is None else (("  when ", _DIM), (shortened(condition, 100), ""))


def _line(*parts: tuple[str, str]) -> Text:
    """Text as it is: nothing in a name or condition is markup, and nothing in it reaches the terminal's own control."""
    clean = [("".join(char if char.isprintable() else " " for char in text), style) for text, style in parts]
    return Text.assemble(*clean)
