"""What a run says: a table per case, all of it as JSON, and which goals were reached."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.figures import Verdict, judge, ratio, spread, summary
from benchmarks.model import CaseResult, Values

#: columns of a table: figure, title, digits
COLUMNS = (
    ("messages_per_row", "messages", 2),
    ("statements_per_row", "SQL", 2),
    ("own_statements_per_row", "own SQL", 2),
    ("transactions_per_row", "commits", 2),
    ("wal_bytes_per_row", "WAL B", 0),
    ("events_per_row", "events", 3),
    ("cpu_ms_per_row", "CPU ms", 2),
    ("pss_mb", "MB", 0),
)


def verdicts(result: CaseResult) -> list[Verdict]:
    found = summary(result)
    return [judge(goal, found) for goal in result.case.goals]


def case_table(result: CaseResult) -> Table:
    """One line per contestant: the figure, the range of its runs, and how many times that we have."""
    case, found = result.case, summary(result)
    table = _table(("", "rows", case.unit, "range", "ours is", *(title for _, title in case.more)))
    for name, values in found.items():
        times = ratio(found, name, case.figure)
        low, high = spread(result.samples[name], case.figure)
        table.add_row(
            name,
            f"{values['rows']:,.0f}",
            amount(values.get(case.figure)),
            f"{amount(low)}–{amount(high)}" if len(result.samples[name]) > 1 else "",
            "" if times is None else f"{times:.2f} ×",
            *(amount(values.get(figure)) for figure, _ in case.more),
        )
    return table


def costs_table(result: CaseResult) -> Table:
    """What a row costs: one line per contestant, medians. The memory is that of all worker processes at the end."""
    found = summary(result)
    shown = [column for column in COLUMNS if any(column[0] in values for values in found.values())]
    table = _table(("per row", *(title for _, title, _ in shown)))
    for name, values in found.items():
        cells = ("" if figure not in values else f"{values[figure]:,.{digits}f}" for figure, _, digits in shown)
        table.add_row(name, *cells)
    return table


def _table(heads: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left", no_wrap=True)
    return table


def amount(value: float | None) -> str:
    """A number with about three digits that matter."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def verdict_text(verdict: Verdict) -> str:
    if verdict.met is None:
        return f"[dim]– not measured: {escape(verdict.goal.text)}[/dim]"
    mark, colour = ("✓", "green") if verdict.met else ("✗", "red")
    return f"[{colour}]{mark} {amount(verdict.value)}[/{colour}]  goal: {escape(verdict.goal.text)}"


def show_case(console: Console, result: CaseResult) -> None:
    console.print(f"\n{result.case.title}", style="bold", highlight=False, markup=False)
    console.print(case_table(result))
    if any(result.samples.values()):
        console.print(costs_table(result))
    for verdict in verdicts(result):
        console.print(verdict_text(verdict), highlight=False)
    for problem in result.problems:
        console.print(f"failed: {problem}", style="red", highlight=False, markup=False)
    for note in result.case.notes:
        console.print(f"[dim]{escape(note)}[/dim]", highlight=False)


def show_goals(console: Console, results: Sequence[CaseResult]) -> None:
    """All goals once more, together."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("case", "goal", "measured", ""):
        table.add_column(title, justify="right" if title == "measured" else "left")
    for result in results:
        for verdict in verdicts(result):
            mark = {True: "[green]✓[/green]", False: "[red]✗[/red]", None: "–"}[verdict.met]
            table.add_row(result.case.name, escape(verdict.goal.text), amount(verdict.value), mark)
    if table.row_count:
        console.print("\nGoals", style="bold")
        console.print(table)


def document(results: Sequence[CaseResult], about: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that was measured, as JSON takes it."""
    return {"about": dict(about), "cases": [_case(result) for result in results]}


def _case(result: CaseResult) -> dict[str, Any]:
    case, found = result.case, summary(result)
    contestants: dict[str, dict[str, Any]] = {
        name: {"median": values, "runs": result.samples[name], "ratio": ratio(found, name, case.figure)}
        for name, values in found.items()
    }
    goals = [
        {"text": verdict.goal.text, "value": verdict.value, "met": verdict.met, **_limits(verdict)}
        for verdict in verdicts(result)
    ]
    head = {"name": case.name, "title": case.title, "figure": case.figure, "unit": case.unit}
    return {**head, "contestants": contestants, "goals": goals, "problems": result.problems}


def _limits(verdict: Verdict) -> Values:
    limits = {"least": verdict.goal.least, "most": verdict.goal.most}
    return {name: value for name, value in limits.items() if value is not None}


def write_json(path: Path, results: Sequence[CaseResult], about: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document(results, about), indent=1) + "\n")
