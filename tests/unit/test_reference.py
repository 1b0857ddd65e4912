"""The pages that are made of the code are as the code is: `make reference` writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

import noetl_celery
from tools import reference, reference_api, reference_keys, reference_settings

PAGES = sorted(reference.DOCS.glob("*.md"))
MADE = [page for page in PAGES if "<!-- made: " in page.read_text()]


def page_of(name: str) -> str:
    return (reference.DOCS / name).read_text()


@pytest.mark.parametrize("page", MADE, ids=lambda page: page.name)
def test_pages_are_as_the_code_is(page: Path) -> None:
    assert page.read_text() == reference.made(page.read_text()), "run: make reference"


def test_the_made_pages_are_these() -> None:
    assert {page.name for page in MADE} == {"cli.md", "keys.md", "python-api.md", "settings.md"}


def test_what_stands_around_a_made_part_stays() -> None:
    text = "before\n<!-- made: settings lane_width … lane_seconds -->\nold\n<!-- end -->\nafter\n"
    after = reference.made(text)
    assert after.startswith("before\n<!-- made: settings lane_width … lane_seconds -->\n\n| variable |")
    assert after.endswith("\n\n<!-- end -->\nafter\n")
    assert "`NOETL_LANE_WIDTH` | `16` | number ≥ 1 |" in after
    assert "old" not in after
    assert reference.made(after) == after


def test_a_page_that_asks_for_what_nothing_makes_is_refused() -> None:
    with pytest.raises(KeyError):
        reference.made("<!-- made: nonsense -->\n<!-- end -->\n")


def test_every_command_is_on_its_page() -> None:
    text = page_of("cli.md")
    for name in ("run", "retry", "worker", "dev", "credential set", "db upgrade"):
        assert f"# noetl-celery {name}\n" in text
    assert "`--grace" in text


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    text = page_of("python-api.md")
    named = {name for name in noetl_celery.__all__ if f"### {name}\n" in text}
    assert set(noetl_celery.__all__) - named == {"Settings", "__version__"}


def test_markup_of_docstrings_becomes_markdown() -> None:
    text = "Like :meth:`wait <a.b.wait>`, raises :class:`~a.b.Late` or ``None``."
    assert reference_api._prose(text) == "Like `wait`, raises `Late` or `None`."


@pytest.mark.parametrize(
    ("default", "expected"), [(None, "–"), (True, "`true`"), (60.0, "`60`"), (0.1, "`0.1`"), (16, "`16`")]
)
def test_defaults_as_people_write_them(default: object, expected: str) -> None:
    assert reference_settings.shown(default) == expected


def test_keys_say_what_they_take() -> None:
    text = reference_keys.tables("")
    assert "| `process` | `row`, `frame`; `row` if not given |" in text
    assert "| `frame` | [frame](#frame) |" in text
    assert "## Cursor\n" in text
