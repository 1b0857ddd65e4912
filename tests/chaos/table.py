"""Writes the table of docs/reliability.md from the results of the chaos tests: ``PYTHONPATH=. python
tests/chaos/table.py RECORDS``.

RECORDS is the file that NOETL_CHAOS_RECORD named while they ran, with one JSON object per line.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.marks import Marked

PAGE = Marked(
    Path(__file__).parents[2] / "docs" / "reliability.md",
    "<!-- table of `make chaos` -->",
    "<!-- end of the table -->",
)
HEAD = "| fault | runs | rows | lost | re-run | longest stall |\n|---|---:|---:|---:|---:|---:|\n"


def table(records: Iterable[Mapping[str, Any]]) -> str:
    """A line per fault, in the order in which they were first met, and their sum."""
    faults: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        faults[record["fault"]].append(record)
    every = [record for runs in faults.values() for record in runs]
    lines = [_line(fault, runs) for fault, runs in faults.items()]
    return HEAD + "\n".join([*lines, _line("**all**", every)]) + "\n"


def _line(fault: str, runs: list[Mapping[str, Any]]) -> str:
    rows, lost, rerun = (sum(run[name] for run in runs) for name in ("rows", "lost", "rerun"))
    stall = max((run["stall"] for run in runs), default=0)
    return f"| {fault} | {len(runs)} | {rows:,} | {lost} | {rerun:,} | {stall:.1f} s |"


def main() -> None:
    records = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    wrong = [record["fault"] for record in records if record["wrong"]]
    if wrong or not records:
        sys.exit(f"the table stays as it is: {', '.join(wrong) if wrong else 'nothing was recorded'}")
    PAGE.write(table(records))


if __name__ == "__main__":
    main()
