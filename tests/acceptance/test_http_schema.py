"""The HTTP API does what its OpenAPI document says: schemathesis asks a real server whatever the document allows, and
what it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from running import TOKEN, System

pytestmark = pytest.mark.acceptance

EXAMPLES = 4
#: Where what fits the schema may be refused all the same: a text need not be a playbook, a cursor of ours or a path
#: into a result, fields need not make a connection, and a workload may hold U+0000 at any depth.
CONFIG = """
[[operations]]
include-operation-id = [
  "registerPlaybook", "setCredential", "createCredential", "submitExecution", "executePlaybook",
  "listCatalog", "listExecutions", "listRows", "getResult",
]
checks.positive_data_acceptance.enabled = false
"""
#: the stream of an execution that is paused has no end
OPTIONS = (
    *("--include-path-regex", "^/(api/|healthz|readyz)", "--exclude-operation-id", "streamEvents"),
    *("--phases", "examples,coverage,fuzzing,stateful", "--workers", "1"),
    *("--generation-deterministic", "--max-examples", str(EXAMPLES), "--no-shrink"),
    *("--request-timeout", "20", "--no-color"),
)
PLAYBOOK = (
    "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: hello, path: examples/hello}\n"
    "workflow: [{step: start, tool: {kind: noop}}]\n"
)


def test_the_api_is_what_its_document_says(system: System, tmp_path: Path) -> None:
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run"]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with system.console() as address:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        # what the examples of the document name is there
        for path, body in (
            ("/api/catalog/register", {"content": PLAYBOOK}),
            ("/api/executions", {"path": "examples/hello"}),
            ("/api/credentials", {"name": "warehouse", "type": "http", "data": {"token": "x"}}),
        ):
            httpx.post(f"{address}{path}", json=body, headers=headers, timeout=30).raise_for_status()
        done = subprocess.run(
            [*command, f"{address}/api/openapi.json", "--header", f"Authorization: Bearer {TOKEN}", *OPTIONS],
            capture_output=True,
            text=True,
            env=clean,
            cwd=tmp_path,
            timeout=280,
            check=False,
        )
    report = done.stdout[-20_000:] + done.stderr[-2_000:]
    assert done.returncode == 0, report
    assert "Tested: 29" in done.stdout, report
