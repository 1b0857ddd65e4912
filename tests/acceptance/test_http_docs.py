"""Every example of docs/http-api.md, as it is printed there, against a real server and a real worker."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from running import ROOT, TOKEN, System

pytestmark = pytest.mark.acceptance

PAGE = (ROOT / "docs" / "http-api.md").read_text()
EXAMPLES = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the examples need curl")
def test_the_examples_work_as_printed(system: System) -> None:
    assert len(EXAMPLES) >= 7
    # each is said before it runs; the execution has ended before its result is asked for: the stream ends with it
    script = "set -euo pipefail\n" + "\n".join(f"echo '== example {n}'\n{text}" for n, text in enumerate(EXAMPLES))
    with system.console() as address:
        done = subprocess.run(
            ["bash", "-c", script],
            env=system.env | {"URL": address, "NOETL_CONSOLE_TOKEN": TOKEN},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    parts = done.stdout.split("== example ")
    assert '"path":"examples/hello"' in parts[2]
    assert "/api/executions/" in parts[3]
    assert "event: end" in parts[4]
    assert "Welcome, Ada!" in parts[5]
    assert '"accepted":false' in parts[6]
    assert "s3cret" not in done.stdout + done.stderr
    assert '"next":null' in parts[8]
