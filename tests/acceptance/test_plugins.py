"""The plugins of the documents: installed as anybody would, used by a real worker, beside one that is broken."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from running import CLI, ROOT

from noetl_celery.cursors.base import ClaimRequest, Cursor

PAGE = (ROOT / "docs" / "plugins.md").read_text()
RUN = """
from noetl_celery import Noetl
with Noetl() as noetl:
    print(noetl.submit(noetl.register("sum.yaml").path).result(timeout=60))
"""
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: sum, path: acceptance/sum}\n"


def block(language: str, starts: str) -> str:
    """The fenced block of the page that begins with these words."""
    found = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    [text] = [text for text in found if text.startswith(starts)]
    return str(text)


def install(package: Path, target: Path) -> None:
    """With pip and no network; by hand where a virtual environment has nothing to build with."""
    if can_build():
        flags = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
        subprocess.run([sys.executable, "-m", "pip", "install", *flags, "--target", target, package], check=True)
        return
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    by_hand(target, project["name"], project["entry-points"])
    for module in package.glob("*.py"):
        (target / module.name).write_text(module.read_text())


def can_build() -> bool:
    """Whether pip is there, and a setuptools that makes wheels by itself."""
    versions = {found.name: found.version for found in distributions()}
    return "pip" in versions and int(versions.get("setuptools", "0").partition(".")[0]) > 70


def by_hand(target: Path, name: str, groups: dict[str, dict[str, str]]) -> None:
    info = target / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the documented tool, and with a package whose modules are missing."""
    package, target = tmp_path_factory.mktemp("package"), tmp_path_factory.mktemp("installed")
    (package / "pyproject.toml").write_text(block("toml", "[build-system]"))
    (package / "noetl_checksum.py").write_text(block("python", "import hashlib"))
    install(package, target)
    broken = {"broken": "no_such_module:Tool"}
    by_hand(target, "noetl-broken", {"noetl_celery.tools": broken, "noetl_celery.cursors": broken})
    return target


def run(installed: Path, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NOETL_")}
    path = os.pathsep.join(filter(None, (str(installed), clean.get("PYTHONPATH"))))
    return subprocess.run(
        [*CLI, *command],
        capture_output=True,
        text=True,
        env=clean | {"PYTHONPATH": path},
        cwd=folder,
        timeout=120,
        check=False,
    )


def test_the_documented_tool_is_small() -> None:
    parts = block("toml", "[build-system]") + block("python", "import hashlib")
    assert len([line for line in parts.splitlines() if line.strip()]) <= 30


def test_a_worker_runs_the_documented_tool(installed: Path, tmp_path: Path) -> None:
    steps = block("yaml", "- step: sum").replace("- step: show", "  next: show\n- step: show")
    (tmp_path / "sum.yaml").write_text(f"{HEAD}workload: {{text: abc}}\nworkflow:\n{steps}")
    command = (sys.executable, "-c", RUN)
    done = run(installed, tmp_path, "dev", "--fresh", "--workers", "1", "-c", "1", "--", *command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [hashlib.sha256(b"abc").hexdigest()]


def test_what_its_check_finds_is_a_problem_of_the_playbook(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "sum.yaml").write_text(f"{HEAD}workflow:\n- step: sum\n  tool: {{kind: checksum}}\n")
    done = run(installed, tmp_path, "lint", "sum.yaml")
    assert done.returncode != 0
    assert "needs `text`" in done.stdout + done.stderr


def test_a_broken_plugin_says_which_package_to_repair(installed: Path, tmp_path: Path) -> None:
    cursor = "{cursor: {kind: broken, claim: x}, iterator: item}"
    steps = f"- step: sum\n  loop: {cursor}\n  tool: {{kind: broken}}\n"
    (tmp_path / "sum.yaml").write_text(f"{HEAD}workflow:\n{steps}")
    done = run(installed, tmp_path, "lint", "sum.yaml")
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0
    assert "Traceback" not in said
    for what in ("tool", "cursor"):
        assert f"the {what} kind `broken` cannot be loaded: ModuleNotFoundError" in said
    assert "entry point `broken = no_such_module:Tool` of the package noetl-broken 1.0" in said


def test_the_documented_cursor_driver(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(block("python", "from pathlib"), names)
    driver = names["FolderCursor"]()
    assert isinstance(driver, Cursor)
    assert [key for key, _ in driver.check({})] == ["claim"]
    for name in "abc":
        (tmp_path / f"{name}.todo").touch()
    request = ClaimRequest(str(tmp_path), {"__frame_max_rows": 2}, {}, timeout_seconds=1)
    recorded: list[Any] = []
    first, second, third = (driver.claim(request, lambda *given: recorded.append(given)) for _ in range(3))
    assert [row["path"] for row in first.rows] == [str(tmp_path / "a.taken"), str(tmp_path / "b.taken")]
    assert (len(second.rows), third.rows, third.dry) == (1, [], True)
    assert recorded == [(list(first.rows), {}), (list(second.rows), {})]
    for _ in range(2):
        driver.acknowledge(request.claim, {}, {}, first.rows)
    assert [path.name for path in tmp_path.iterdir()] == ["c.taken"]
    assert driver.settle({}, {}) == "committed"
