"""A hook of mkdocs: files outside of ``docs/`` that pages link to are pages of the site as well.

So a link to ``../README.md`` works where the files are read as they are, and on the site, which needs no other server.
Markdown is taken as it is, any other text is shown as code, a folder as a list.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).parents[1]
DOCS = "docs"
#: the folder of the site that holds files from outside of ``docs/``
OUTSIDE = "project"
_FENCED = re.compile(r"(^ *```.*?^ *```)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()[^)\s#]+(?=[)#])")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".sql": "sql", ".toml": "toml"}


def on_files(files: Any, *, config: Any) -> Any:
    """Adds what the pages link to, and what that links to."""
    waiting = [f"{DOCS}/{page.src_uri}" for page in files.documentation_pages()]
    known = set(waiting)
    while waiting:
        for target in _targets(waiting.pop()):
            if target in known or target.startswith(f"{DOCS}/"):
                continue
            known.add(target)
            files.append(
                File.generated(config, _page_of(target), content=_shown(target), inclusion=InclusionLevel.NOT_IN_NAV)
            )
            if target.endswith(".md"):
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Leads the links of a page to where their targets are on the site."""
    here = page.file.src_uri
    source = _source_of(here)

    def led(target: str) -> str:
        found = _resolved(source, target)
        return posixpath.relpath(_page_of(found), posixpath.dirname(here) or ".") if found else target

    return _with_links(markdown, led)


def _with_links(text: str, led: Callable[[str], str]) -> str:
    """The text with its relative links replaced; code stays as it is."""
    parts = _FENCED.split(text)
    parts[::2] = [_LINK.sub(lambda match: led(match[0]), part) for part in parts[::2]]
    return "".join(parts)


def _targets(source: str) -> list[str]:
    found: list[str] = []

    def note(target: str) -> str:
        if there := _resolved(source, target):
            found.append(there)
        return target

    _with_links((ROOT / source).read_text(), note)
    return found


def _resolved(source: str, target: str) -> str | None:
    """The file of the project that a link in ``source`` leads to; None: it leads elsewhere, or nowhere."""
    if "://" in target or target.startswith("mailto:"):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if (ROOT / path / "README.md").is_file():
        path = posixpath.join(path, "README.md")
    return path if (ROOT / path).exists() else None


def _page_of(path: str) -> str:
    """Where a file of the project is on the site, as mkdocs names its source."""
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    return f"{OUTSIDE}/{path}" if path.endswith(".md") else f"{OUTSIDE}/{path}.md"


def _source_of(page: str) -> str:
    """The inverse of :func:`_page_of`."""
    if not page.startswith(f"{OUTSIDE}/"):
        return f"{DOCS}/{page}"
    path = page.removeprefix(f"{OUTSIDE}/")
    return path if (ROOT / path).exists() else path.removesuffix(".md")


def _shown(path: str) -> str:
    if (ROOT / path).is_dir():
        names = sorted(file.name for file in (ROOT / path).iterdir() if file.suffix in _LANGUAGES)
        return "\n".join([f"# {path}", "", *(f"- `{name}`" for name in names)])
    text = (ROOT / path).read_text()
    if path.endswith(".md"):
        return text
    language = _LANGUAGES.get(posixpath.splitext(path)[1], "text")
    return f"# {path}\n\n````{language}\n{text.rstrip()}\n````\n"
