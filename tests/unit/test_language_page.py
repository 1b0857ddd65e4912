"""docs/language.md has all of the language, and its examples are as they should be written."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples import OTHERS, PAGE, Example, at, examples
from pydantic import BaseModel

from noetl_celery.cursors.registry import CursorRegistry
from noetl_celery.faults import POINTS
from noetl_celery.playbook import compile_playbook, model
from noetl_celery.tools.registry import BUILT_IN, ToolRegistry

TEXT = PAGE.read_text()
TODAY, _, OLDER = TEXT.partition("\n## Older forms\n")
SOURCES = Path(model.__file__).parents[1]
EVENT = re.compile(
    r"(playbook|step|loop|frame|cursor\.item|task|claim|next)\.[a-z]+|(iterator|iteration|retry_[a-z]+)_(started|completed)|retry_scheduled"
)
SIGNALS = {"claim.filled", "claim.empty", "claim.failed", "claim.recalled", "frame.done"}


def codes(example: Example) -> Iterator[tuple[str, str]]:
    """What lint says of an example, but that nothing in it sets `api`."""
    for text in example.documents:
        compiled = compile_playbook(text, file=example.name, tools=ToolRegistry(), cursors=CursorRegistry())
        for warning in compiled.warnings:
            if warning.message != "nothing sets `api`":
                yield warning.code or "", warning.message


def test_examples_of_today_are_as_lint_wants_them() -> None:
    """But for the stale rows, of which the page says that the shorter examples leave them out."""
    found = {example.name: {code for code, _ in codes(example)} - {"claim-stale"} for example in examples(TODAY)}
    assert {name: said for name, said in found.items() if said} == {}


@pytest.mark.parametrize("page", OTHERS, ids=lambda page: page.stem)
def test_examples_of_other_pages_are_as_lint_wants_them(page: Path) -> None:
    """With nothing left out: these are for copying."""
    found = {example.name: set(codes(example)) for example in examples(page.read_text())}
    assert {name: said for name, said in found.items() if said} == {}
    assert len(found) >= 6


def test_examples_of_older_forms_are_of_older_forms() -> None:
    older = "## Older forms\n" + OLDER.partition("\n## ")[0]
    found = [{code for code, _ in codes(example)} for example in examples(older)]
    assert all(said <= {"older-form"} for said in found)
    assert sum(bool(said) for said in found) >= 6


@pytest.mark.parametrize(
    "comments", ["# what happens then", "# a -> 1", "# a → {not JSON}", "# COMPLETE", "# a → 1\n# and more"]
)
def test_comments_at_the_end_have_to_be_expectations(comments: str) -> None:
    with pytest.raises(ValueError, match=r"is no expectation|Expecting"):
        examples(f"## A\n```yaml\n- step: a\n{comments}\n```\n")


def test_how_an_example_is_read() -> None:
    body = "metadata: {name: x}\nworkflow: []\n---\n# why\n- step: a\n# a.b → [1]\n# FAILED: no\n"
    text = f"## A b!\n```text\n# no heading\n```\n```yaml\n{body}```\n"
    [example] = examples(text)
    first, second = example.documents
    assert (example.name, example.status, example.part) == ("a-b", "FAILED", "no")
    assert example.values == (("a.b", [1]),)
    assert "metadata: {name: x}\nworkflow: []" in first
    assert "workflow:\n# why\n- step: a" in second
    assert at({"a": [{"b": 1}]}, "a.0.b") == 1


def test_names_of_examples_are_one_each() -> None:
    names = [example.name for example in examples()]
    assert len(names) == len(set(names)) > 50


def test_every_key_of_the_model_is_on_the_page() -> None:
    code = re.findall(r"`[^`\n]+`|^```yaml\n.*?^```", TEXT, re.MULTILINE | re.DOTALL)
    words = set(re.findall(r"\w+", " ".join(code)))
    models = [found for found in vars(model).values() if isinstance(found, type) and issubclass(found, BaseModel)]
    keys = {field.alias or name for found in models for name, field in found.model_fields.items()}
    assert keys - words - {"older"} == set()


def test_every_kind_of_tool_and_cursor_has_an_example() -> None:
    kinds = {
        kind for example in examples() for text in example.documents for kind in re.findall(r"\bkind: (\w+)", text)
    }
    assert {*BUILT_IN, *CursorRegistry().kinds(), "playbook", "workbook"} <= kinds


def test_every_event_is_on_the_page() -> None:
    assert sorted(event for event in told() if f"`{event}`" not in TEXT) == []


def told() -> set[str]:
    """The types of all events that anything writes: constants of that form, but for signals and fault points."""
    constants = {
        node.value
        for file in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {value for value in constants if EVENT.fullmatch(value)} - SIGNALS - set(POINTS)
