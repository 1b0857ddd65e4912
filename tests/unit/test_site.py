"""The documentation becomes a site without a warning, and the site needs nothing from elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools import site

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site; strict, so that a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there(built: Path) -> None:
    names = {page.stem for page in (ROOT / "docs").glob("*.md")}
    assert names <= {page.stem for page in built.glob("*.html")}


def test_what_is_linked_outside_of_the_docs_is_on_the_site(built: Path) -> None:
    assert 'href="project/index.html"' in (built / "index.html").read_text()
    assert "SKIP LOCKED" in (built / "project" / "playbooks" / "queue_drain.yaml.html").read_text()
    assert 'href="../index.html"' in (built / "project" / "index.html").read_text()


def test_pages_load_nothing_from_elsewhere(built: Path) -> None:
    loaded = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"?((?:https?:)?//[^\" >]+)")
    found = {page.name: loaded.findall(page.read_text()) for page in built.rglob("*.html")}
    assert {name: urls for name, urls in found.items() if urls} == {}
    styles = [file.read_text() for file in built.rglob("*.css")]
    assert not [text for text in styles if re.search(r"url\([\"']?(https?:)?//", text)]


def test_no_page_has_a_diagram_that_a_script_would_draw() -> None:
    assert [page.name for page in (ROOT / "docs").glob("*.md") if "```mermaid" in page.read_text()] == []


def test_pages_can_be_searched(built: Path) -> None:
    index = json.loads((built / "search" / "search_index.json").read_text())
    texts = {entry["location"]: entry["text"] for entry in index["docs"]}
    assert "SKIP LOCKED" in "".join(text for place, text in texts.items() if place.startswith("reliability.html"))


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("index.md", "[a](../README.md#two-commands)", "[a](project/README.md#two-commands)"),
        ("index.md", "[a](../playbooks/hello.yaml)", "[a](project/playbooks/hello.yaml.md)"),
        ("index.md", "[a](language.md#loops)", "[a](language.md#loops)"),
        ("project/README.md", "[a](docs/language.md)", "[a](../language.md)"),
        ("project/README.md", "[a](LICENSE)", "[a](LICENSE.md)"),
        ("index.md", "[a](https://example.org/x) [b](nowhere.md) [c](#here)", None),
        ("index.md", "```\n[a](../README.md)\n```", None),
    ],
)
def test_links_lead_to_the_page_of_a_file(page: str, text: str, expected: str | None) -> None:
    of_page = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    assert site.on_page_markdown(text, page=of_page, config=None, files=None) == (expected or text)


@pytest.mark.parametrize("path", ["docs/index.md", "README.md", "LICENSE", "playbooks/hello.yaml"])
def test_a_page_knows_its_file(path: str) -> None:
    assert site._source_of(site._page_of(path)) == path
