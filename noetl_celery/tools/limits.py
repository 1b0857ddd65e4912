"""What tools may use of their process. Set once where a process starts; the defaults do for everything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.template.size import least_bytes


@dataclass(frozen=True, slots=True)
class Limits:
    """``output_bytes``: what a command may write, or any task return, at most. ``script_folders``: where relative paths
    of scripts are looked up, in this order; ``scripts_anywhere`` allows paths that lead out of them. ``duckdb_dir``:
    where executions have duckdb files of their own (None: in the system's folder for temporary files)."""

    output_bytes: int = 16_777_216
    script_folders: tuple[Path, ...] = (Path(),)
    scripts_anywhere: bool = False
    duckdb_dir: Path | None = None


_limits = Limits()


def limits() -> Limits:
    """Those of this process."""
    return _limits


def set_limits(given: Limits) -> None:
    """Replaces them, for calls that begin from now on."""
    global _limits
    _limits = given


class Room:
    """Room for rows that come piece by piece: as much as a result may have, so that memory does not grow with them."""

    def __init__(self) -> None:
        self._most = self._left = limits().output_bytes
        self._rows = 0

    def take(self, rows: Sequence[Any]) -> None:
        """Counts rows as JSON. Raises ``ToolError`` of kind ``result_too_large`` once there is no room any more."""
        self._left -= least_bytes(rows, self._left)
        if self._left < 0:
            message = (
                f"the first {self._rows + len(rows):,} rows have more than {self._most:,} bytes as JSON, which is what "
                "NOETL_RESULT_MAX_BYTES allows: ask for less, or let a `transfer` write them to a table"
            )
            raise ToolError(ErrorInfo("result_too_large", message))
        self._rows += len(rows)
