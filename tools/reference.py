"""Writes what pages of the documentation take from the code: ``python -m tools.reference``, or ``make reference``.

A page says where, with ``<!-- made: NAME ARGUMENT -->`` and ``<!-- end -->``; what stands between is written anew, the
rest of the page stays as it is. A test compares the pages with what this gives.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tools import reference_api, reference_cli, reference_keys, reference_settings

DOCS = Path(__file__).parents[1] / "docs"
_BLOCK = re.compile(r"^<!-- made: (?P<name>[\w-]+) ?(?P<argument>.*?) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)

MAKERS: Mapping[str, Callable[[str], str]] = {
    "settings": reference_settings.table,
    "commands": reference_cli.commands,
    "api": reference_api.members,
    "keys": reference_keys.tables,
}


def made(text: str) -> str:
    """A page with its made parts as the code is now. ``KeyError``: it asks for something that nothing here makes."""

    def block(match: re.Match[str]) -> str:
        begin, _, _ = match[0].partition("\n")
        return f"{begin}\n\n{MAKERS[match['name']](match['argument']).strip()}\n\n<!-- end -->"

    return _BLOCK.sub(block, text)


def main() -> None:
    """Writes the pages that have changed, and names them."""
    for page in sorted(DOCS.glob("*.md")):
        before = page.read_text()
        after = made(before)
        if after != before:
            page.write_text(after)
            sys.stdout.write(f"{page.name}\n")


if __name__ == "__main__":
    main()
