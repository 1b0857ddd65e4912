"""docs/tutorial.md, followed: every file is written, every command run in order, everything printed compared."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes import wait_for
from pages import Block, blocks, matches, pattern

from noetl_celery.cli.embedded import free_port

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
#: the service of the page listens here; a test takes whatever is free
PORT = "8090"
DONE = "--- done"
SECONDS = 120.0


class Terminal:
    """A shell that runs commands one after the other; what they print to either stream comes together."""

    def __init__(self, folder: Path) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("NOETL_")}
        self._shell = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=env | {"PYTHONPATH": str(ROOT)},
            process_group=0,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.printed = ""

    def _read(self) -> None:
        assert self._shell.stdout
        for line in self._shell.stdout:
            self._lines.put(line)

    def type(self, command: str) -> None:
        """Begins a command."""
        assert self._shell.stdin
        self.printed = ""
        self._shell.stdin.write(f"{command}\n")
        self._shell.stdin.flush()

    def run(self, command: str) -> str:
        """Runs a command to its end; what it printed."""
        self.type(f"{command}\necho '{DONE}'")
        wait_for(lambda: DONE in self.look(), f"the end of {command!r}", SECONDS)
        return self.printed.replace(f"{DONE}\n", "")

    def look(self) -> str:
        """What was printed since the last command began."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.printed += self._lines.get_nowait()
        return self.printed

    def close(self) -> None:
        """Ctrl-C, and the end of the shell with all that it started."""
        assert self._shell.stdin
        with contextlib.suppress(BrokenPipeError):
            self._shell.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGINT)
        deadline = time.monotonic() + 30
        while self._reader.is_alive() and time.monotonic() < deadline:
            self._reader.join(1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait(10)
        assert self._shell.stdout
        self._shell.stdout.close()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the project in which `make setup` has nothing left to do."""
    folder = tmp_path / "noetl-celery"
    left_out = shutil.ignore_patterns(".*", "__pycache__", "build", "tests", "*.egg-info")
    shutil.copytree(ROOT, folder, ignore=left_out)
    (folder / ".venv").mkdir()
    (folder / ".venv" / "bin").symlink_to(Path(sys.prefix) / "bin")
    (folder / ".venv" / ".installed").touch()
    return folder


@pytest.fixture
def terminals(clone: Path) -> Iterator[dict[str, Terminal]]:
    """The terminals by their title; the one that commands are usually typed in has none."""
    with contextlib.ExitStack() as stack:
        opened = {title: Terminal(clone) for title in ("Terminal 1", "Terminal 3", "")}
        for terminal in opened.values():
            stack.callback(terminal.close)
            terminal.run(". .venv/bin/activate")
        yield opened


def page(port: int) -> list[Block]:
    text = (ROOT / "docs" / "tutorial.md").read_text().replace(PORT, str(port))
    return blocks(text)


def pasted(command: str, offered: str) -> str:
    """A command with a gap is one that was offered before: the reader copies that."""
    if "…" not in command:
        return command
    [line] = [line for line in offered.splitlines() if matches(command, line)]
    return line.strip()


def test_every_command_prints_what_the_page_shows(clone: Path, terminals: dict[str, Terminal]) -> None:
    for block in page(free_port(0)):
        if block.language != "console":
            assert block.title, block.body
            (clone / block.title).write_text(block.body)
            continue
        terminal = terminals[block.title]
        *_, last = block.commands()
        for command, shown in block.commands():
            stays = command.endswith(" &") or (block.title and (command, shown) == last)
            if stays:
                terminal.type(command)
                wait_for(lambda t=terminal, s=shown: pattern(s).fullmatch(t.look()), f"{command}: {shown}", SECONDS)
            else:
                printed = terminal.run(pasted(command, terminals["Terminal 1"].printed))
                assert matches(shown, printed), f"$ {command}\n{printed}"


def test_the_five_mistakes_are_there() -> None:
    text = (ROOT / "docs" / "tutorial.md").read_text()
    assert [text.count(f"### Mistake {number}: ") for number in range(1, 6)] == [1] * 5
