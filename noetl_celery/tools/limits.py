"""What tools may use of their process. Set once where a process starts; the defaults do for everything else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Limits:
    """``output_bytes``: what a command may write at most. ``script_folders``: where relative paths of scripts are
    looked up, in this order; ``scripts_anywhere`` allows paths that lead out of them. ``duckdb_dir``: where
    executions have duckdb files of their own (None: in the system's folder for temporary files)."""

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
