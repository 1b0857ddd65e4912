"""Writes the tables of docs/performance.md from what runs have left: ``python -m benchmarks.page bench.json …``.

Of a case that several of them have, the last one counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.marks import Marked
from benchmarks.report import COLUMNS, amount

PAGE = Marked(
    Path(__file__).parents[1] / "docs" / "performance.md",
    "<!-- tables of `make bench` -->",
    "<!-- end of the tables -->",
)

Document = Mapping[str, Any]


def tables(documents: Sequence[Document]) -> str:
    """The goals of all cases, and a table for each."""
    cases = {case["name"]: (case, document["about"]) for document in documents for case in document["cases"]}
    goals = [_goal(case, goal) for case, _ in cases.values() for goal in case["goals"]]
    parts = [_table(("case", "goal", "measured", ""), goals)]
    parts += [_case(case, about) for case, about in cases.values()]
    return "\n".join(parts)


def _goal(case: Document, goal: Document) -> list[str]:
    mark = {True: "✓", False: "✗", None: "–"}[goal["met"]]
    return [case["title"], goal["text"], amount(goal["value"]), mark]


def _case(case: Document, about: Document) -> str:
    found = case["contestants"].items()
    shown = [column for column in COLUMNS if any(column[0] in one["median"] for _, one in found)]
    head = ["", "rows", case["unit"], "range", "ours is", *(title for _, title, _ in shown)]
    lines = [_line(name, one, case["figure"], shown) for name, one in found]
    arguments = f"{'--quick ' if about['quick'] else ''}--repeat {about['repeat']} {case['name']}"
    head_line = f'`make bench ARGS="{arguments}"`, {about["repeat"]} runs of each, {about["date"][:10]}:'
    return f"### {case['title']}\n\n{head_line}\n\n{_table(head, lines)}"


def _line(name: str, one: Document, figure: str, shown: Iterable[tuple[str, str, int]]) -> list[str]:
    median, ratio = one["median"], one["ratio"]
    values = [run[figure] for run in one["runs"] if figure in run]
    spread = f"{amount(min(values))}–{amount(max(values))}" if len(values) > 1 else ""
    costs = (f"{median[column]:,.{digits}f}" if column in median else "" for column, _, digits in shown)
    times = "" if ratio is None else f"{ratio:.2f} ×"
    return [name, f"{median['rows']:,.0f}", amount(median.get(figure)), spread, times, *costs]


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    ruler = ["---", *["---:"] * (len(head) - 1)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ruler, *lines))


def main() -> None:
    documents = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    PAGE.write(tables(documents))


if __name__ == "__main__":
    main()
