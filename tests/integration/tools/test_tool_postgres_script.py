"""SQL from a file: as one command, with values, and never rendered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from noetl_celery.tools.base import ToolCall
from noetl_celery.tools.limits import Limits, limits, set_limits
from noetl_celery.tools.outcome import run_tool
from noetl_celery.tools.postgres import PostgresTool

pytestmark = pytest.mark.integration


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    before = limits()
    set_limits(Limits(script_folders=(tmp_path,)))
    yield tmp_path
    set_limits(before)


def run(tool: PostgresTool, credential: dict[str, Any], **config: Any) -> Any:
    call = ToolCall({"auth": "pg", "script": {"uri": "work.sql"}, **config}, {}, lambda name: credential, print, {})
    return run_tool(tool, call)


def test_a_file_is_a_command(folder: Path, tool: PostgresTool, credential: dict[str, Any]) -> None:
    (folder / "work.sql").write_text(
        "-- it's a comment; really\nCREATE TEMP TABLE t (a int, b text);\n"
        "INSERT INTO t VALUES (%(a)s, '{{ b }} 100%');\nSELECT * FROM t;\n"
    )
    outcome = run(tool, credential, params={"a": 7})
    assert outcome.error is None, outcome.error
    assert outcome.data["rows"] == [{"a": 7, "b": "{{ b }} 100%"}]
    assert outcome.data["command_1"]["row_count"] == 1


def test_an_error_names_the_line_of_the_file(folder: Path, tool: PostgresTool, credential: dict[str, Any]) -> None:
    (folder / "work.sql").write_text("SELECT 1;\n\nSELECT no_such_column;\n")
    outcome = run(tool, credential)
    assert outcome.error.code == "42703"
    assert "line 3" in outcome.error.message


def test_transactions_of_a_file_are_refused(folder: Path, tool: PostgresTool, credential: dict[str, Any]) -> None:
    (folder / "work.sql").write_text("SELECT 1;\nCOMMIT;\nSELECT 2;\n")
    outcome = run(tool, credential)
    assert (outcome.error.kind, "line 2: `COMMIT`" in outcome.error.message) == ("config", True)
