"""The table of docs/reliability.md is made of what the chaos tests recorded."""

from __future__ import annotations

import pytest
from table import PAGE, table

pytestmark = [pytest.mark.chaos, pytest.mark.short]


def record(fault: str, **found: float) -> dict[str, object]:
    return {"fault": fault, "seed": 1, "rows": 1000, "lost": 0, "rerun": 3, "stall": 1.25, "wrong": 0, **found}


def test_runs_of_a_fault_are_one_line() -> None:
    lines = table([record("fire"), record("water"), record("fire", seed=2, stall=4, lost=1)]).splitlines()
    assert lines[2:] == [
        "| fire | 2 | 2,000 | 1 | 6 | 4.0 s |",
        "| water | 1 | 1,000 | 0 | 3 | 1.2 s |",
        "| **all** | 3 | 3,000 | 1 | 9 | 4.0 s |",
    ]


def test_only_what_is_between_the_marks_is_replaced() -> None:
    page = PAGE.path.read_text()
    made = PAGE.replaced(page, "| new |\n")
    assert "| new |" in made
    assert PAGE.replaced(made, "| newer |\n") == made.replace("| new |", "| newer |")
    with pytest.raises(ValueError, match="lacks"):
        PAGE.replaced("a page without marks", "")
