"""Pages of the documents whose tables are written by runs: what stands between two marks is replaced."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Marked:
    """A page, and the marks around its tables."""

    path: Path
    begin: str
    end: str

    def replaced(self, page: str, between: str) -> str:
        """The page with the text between the two marks replaced; ``ValueError`` if it has no such marks."""
        head, begin, rest = page.partition(self.begin)
        _, end, tail = rest.partition(self.end)
        if not begin or not end:
            raise ValueError(f"{self.path} lacks {self.begin} or {self.end}")
        return f"{head}{self.begin}\n\n{between}\n{self.end}{tail}"

    def write(self, between: str) -> None:
        """Writes the page anew."""
        self.path.write_text(self.replaced(self.path.read_text(), between))
