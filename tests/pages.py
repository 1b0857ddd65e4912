"""What pages show: fenced blocks, and whether a command printed what its page says.

A block may have a title, as ``yaml title="orders.yaml"``. In ``console`` blocks lines that begin with ``$`` are
commands, what stands below one is what it prints. ``…`` stands for any text within a line; a line ``…`` for any lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_BLOCK = re.compile(
    r'^```(?P<language>\w*)(?: title="(?P<title>[^"]*)")?\n(?P<body>.*?)^```$', re.MULTILINE | re.DOTALL
)
ANY = "…"


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, title (empty: none) and text."""

    language: str
    title: str
    body: str

    def commands(self) -> list[tuple[str, str]]:
        """Of a ``console`` block: each command with what is shown below it. ``ValueError``: it begins with none."""
        found: list[tuple[str, list[str]]] = []
        for line in self.body.splitlines():
            if line.startswith("$ "):
                found.append((line.removeprefix("$ "), []))
            elif found:
                found[-1][1].append(line)
            else:
                raise ValueError(f"no command is above {line!r}")
        return [(command, "\n".join(lines)) for command, lines in found]


def blocks(text: str) -> list[Block]:
    """The blocks of a page, in order."""
    return [Block(found["language"], found["title"] or "", found["body"]) for found in _BLOCK.finditer(text)]


def pattern(shown: str) -> re.Pattern[str]:
    """What matches all that a page allows a command to print; trailing blanks and the number of blanks do not count."""
    parts = []
    for line in shown.splitlines():
        if line.strip() == ANY:
            parts.append(r"(?:[^\n]*\n)*?")
        else:
            words = [re.escape(part) for part in re.split(r"\s+", line.strip())]
            parts.append(r"[ \t]*" + r"[ \t]+".join(words).replace(re.escape(ANY), r"[^\n]*?") + r"[ \t]*\n")
    return re.compile("".join(parts))


def matches(shown: str, printed: str) -> bool:
    """Whether a command printed what its page shows: all of it, and nothing else."""
    return pattern(shown).fullmatch(printed if not printed or printed.endswith("\n") else f"{printed}\n") is not None
