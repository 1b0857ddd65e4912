"""The examples of docs/language.md, cursor-loops.md and howto.md: every ``yaml`` block is a playbook that can be run.

A block is a list of steps, or the root keys of a playbook; documents before the last one (``---``) are registered
first. The comment lines at its end say what comes of it:

=========================  =====================================================================
``# step.path → JSON``     that value of the step's result at its last visit
``# ctx.path → JSON``      that value of ``ctx`` at the end
``# steps → [names]``      the steps that were entered, in this order
``# table → [rows]``       all rows of a table, in their order; ``# table.0 → [row]`` one of them
``# FAILED: part``         the status, and words of the error's message; else it is ``COMPLETED``
=========================  =====================================================================
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "language.md"
#: others with such examples
OTHERS = (PAGE.with_name("cursor-loops.md"), PAGE.with_name("howto.md"))
_PART = re.compile(
    r"^#+ (?P<heading>[^\n]+)$|^```(?P<language>\w*)[^\n`]*\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
_EXPECTED = re.compile(r"# (?P<where>[\w.]+) → (?P<value>.+)\Z")
_STATUS = re.compile(r"# (?P<status>COMPLETED|FAILED|CANCELLED)(?:: (?P<part>.+))?\Z")


@dataclass(frozen=True)
class Example:
    """A block of the page. ``documents``: whole playbooks as text, the last of them is the one to run."""

    name: str
    documents: tuple[str, ...]
    status: str
    part: str
    values: tuple[tuple[str, Any], ...]

    @property
    def says_something(self) -> bool:
        return bool(self.values or self.part)


def examples(text: str | None = None) -> list[Example]:
    """Every example of the page, or of ``text``, named after the heading above it.

    ``ValueError``: the comments at the end of a block are not what a reader could check.
    """
    heading, found = "", []
    numbers: Counter[str] = Counter()
    for match in _PART.finditer(PAGE.read_text() if text is None else text):
        if match["heading"]:
            heading = re.sub(r"[^a-z0-9]+", "-", match["heading"].lower()).strip("-")
        if match["language"] != "yaml":
            continue
        numbers[heading] += 1
        name = heading if numbers[heading] == 1 else f"{heading}-{numbers[heading]}"
        found.append(_example(name, match["body"]))
    return found


def _example(name: str, body: str) -> Example:
    lines = body.rstrip().splitlines()
    comments: list[str] = []
    while lines and lines[-1].startswith("#"):
        comments.insert(0, lines.pop())
    status, part, values = "COMPLETED", "", []
    for comment in comments:
        if told := _STATUS.match(comment):
            status, part = told["status"], told["part"] or ""
        elif told := _EXPECTED.match(comment):
            values.append((told["where"], json.loads(told["value"])))
        else:
            raise ValueError(f"{name}: {comment!r} is no expectation")
    parts = re.split(r"^---\n", "\n".join(lines) + "\n", flags=re.MULTILINE)
    documents = tuple(_whole(part, f"{name}-{number}" if number else name) for number, part in enumerate(parts))
    return Example(name, documents, status, part, tuple(values))


def _whole(text: str, name: str) -> str:
    """The playbook with the head that the page leaves out."""
    head = "apiVersion: noetl.io/v2\nkind: Playbook\n"
    if not re.search(r"^metadata:", text, re.MULTILINE):
        head += f"metadata: {{name: {name}, path: language/{name}}}\n"
    steps = re.search(r"^- ", text, re.MULTILINE) and not re.search(r"^workflow:", text, re.MULTILINE)
    return head + (f"workflow:\n{text}" if steps else text)


def at(value: Any, path: str) -> Any:
    """The value at a dotted path; numbers are indices of lists. ``KeyError``, ``IndexError``: there is none."""
    for key in path.split(".") if path else ():
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value
