"""One running system for all acceptance tests that do not break it: services, and a worker of two nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from running import CLI, HOLDER, System


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A system with one worker, shared by the session."""
    folder = tmp_path_factory.mktemp("system")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NOETL_")}
    command = [*CLI, "dev", "--fresh", "--workers", "1", "-c", "2", "--", sys.executable, "-c", HOLDER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean, cwd=folder
    ) as process:
        assert process.stdin
        assert process.stdout
        line = process.stdout.readline()
        assert line, f"dev ended with {process.wait()} before its command ran"
        try:
            yield System(clean | json.loads(line), folder)
        finally:
            process.stdin.close()
            process.wait(60)
