"""What shows how far a command is: bars and lines, on terminals of all sizes and elsewhere."""

from __future__ import annotations

import io
import re
import sys
import threading
from collections.abc import Iterator

import pytest
from looks import step
from rich.console import Console

from noetl_celery.cli import console, passing
from noetl_celery.cli.bars import Bars
from noetl_celery.cli.passing import Passing
from noetl_celery.cli.progress import FIRST_SECONDS, ProgressView
from noetl_celery.progress import Rates
from noetl_celery.report import Snapshot


def test_without_a_terminal_lines_come_seldom_and_only_with_news(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with ProgressView(4711) as view:
        for seconds, ok in ((0, 0), (1.9, 5), (2.0, 10), (3.9, 20), (4.1, 10), (7, 30)):
            now = 100.0 + seconds
            view.show(Snapshot("RUNNING", (step(ok=ok, frames=1, open_frames=0),)))
        now = 200.0
        view.show(Snapshot("COMPLETED"))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == ["drain: 10 rows", "drain: 30 rows"]


def test_an_absent_database_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressView(4711) as view:
        for away in (None, "PostgreSQL is not reachable: x", "PostgreSQL is not reachable: x", None, None):
            view.show(Snapshot("RUNNING", away=away))
    assert capsys.readouterr().err.splitlines() == [
        "PostgreSQL is not reachable: x; trying again",
        "PostgreSQL is back",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_terminal(monkeypatch: pytest.MonkeyPatch, **variables: str) -> Terminal:
    """What is written on stderr from now on; not a fixture, as pytest has its own stderr when the test begins."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    for name, value in {"TERM": "xterm", "NO_COLOR": "", **variables}.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def hushed() -> Iterator[None]:
    console.hush(True)
    yield
    console.hush(False)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def watched(clock: list[float]) -> None:
    with ProgressView(4711) as view:
        for _ in range(4):
            view.show(Snapshot("RUNNING", (step(total=5000), step(stage_id=2, step="other"))))
            clock[0] += 1.5


@pytest.mark.parametrize("no_color", ["", "1"])
def test_on_a_terminal_there_are_bars(no_color: str, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch, NO_COLOR=no_color)
    watched(clock)
    drawn = terminal.getvalue()
    assert "1,200 of 5,000 rows" in drawn
    assert "━" in drawn
    assert ("\x1b[36m" in drawn) == (not no_color), "the bar's colour"


def test_what_ends_at_once_shows_nothing(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)
    with ProgressView(4711) as view:
        view.show(Snapshot("RUNNING", (step(),)))
        clock[0] += FIRST_SECONDS - 0.1
        view.show(Snapshot("RUNNING", (step(),)))
    assert terminal.getvalue() == ""


def test_a_terminal_that_cannot_draw_gets_lines(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch, TERM="dumb")
    watched(clock)
    assert terminal.getvalue().splitlines()[0].startswith("drain: 1,200 of 5,000 rows, 24%")


def test_nothing_is_shown_where_notes_are_unwanted(
    clock: list[float], hushed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = at_terminal(monkeypatch)
    watched(clock)
    assert terminal.getvalue() == ""
    console.complain("what went wrong")
    assert "what went wrong" in terminal.getvalue()


def drawn(snapshot: Snapshot, width: int, height: int = 30) -> list[str]:
    """What a terminal of this size shows, without colours."""
    file = Terminal()
    bars = Bars(Console(file=file, width=width, height=height, no_color=True, force_terminal=True, highlight=False))
    bars.draw(snapshot, Rates())
    shown = file.getvalue()
    bars.close()
    return re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", shown).replace("\r", "").splitlines()


@pytest.mark.parametrize("width", [40, 120])
def test_bars_keep_to_the_width(width: int) -> None:
    long = step(step="a" * 200, total=5000, parked=8, throttled=3, next_seconds=3.0, retries=100_000, failed=9999)
    lines = drawn(Snapshot("RUNNING", (long, step())), width)
    assert max(map(len, lines)) <= width
    assert any("100,000" in line for line in lines)


def test_names_are_no_markup() -> None:
    assert any("[red]x[/red]" in line for line in drawn(Snapshot("RUNNING", (step(step="[red]x[/red]"),)), 120))


@pytest.mark.parametrize(("width", "height", "rest"), [(120, 40, 88), (120, 12, 95), (40, 30, 95), (40, 3, 99)])
def test_of_many_steps_the_first_are_shown(width: int, height: int, rest: int) -> None:
    many = tuple(step(stage_id=number, step=f"step {number}") for number in range(100))
    lines = drawn(Snapshot("RUNNING", many), width, height)
    assert lines[-1].rstrip() == f"… and {rest} more step{'' if rest == 1 else 's'}" or height == 3
    if height > 3:
        assert len(lines) <= height


@pytest.mark.parametrize("total", [0, 3, 1200, 10**9])
def test_any_total(total: int) -> None:
    (line, *_) = drawn(Snapshot("RUNNING", (step(total=total),)), 120)
    assert f"1,200 of {total:,} rows" in line


def test_a_status_that_is_no_work_is_named() -> None:
    assert drawn(Snapshot("PAUSED", (step(),)), 120)[0].rstrip() == "paused"
    assert drawn(Snapshot("PENDING"), 40)[0].rstrip() == "pending"


class Drawing(Terminal):
    """Says when a text has been written."""

    def __init__(self) -> None:
        super().__init__()
        self.news = threading.Event()

    def flush(self) -> None:
        self.news.set()

    def shows(self, text: str) -> None:
        while text not in self.getvalue():
            self.news.clear()
            assert self.news.wait(10), text


def test_a_long_command_says_what_it_does_and_clears_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "FIRST_SECONDS", 0.001)
    monkeypatch.setattr(passing, "AGAIN_SECONDS", 0.001)
    at_terminal(monkeypatch, COLUMNS="20")
    terminal = Drawing()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Passing("looking") as line:
        terminal.shows("looking")
        line.say("x" * 100)
        terminal.shows("xxx")
    shown = terminal.getvalue().split("\r")
    assert shown[-1] == "\x1b[K"
    assert max(len(part.removesuffix("\x1b[K")) for part in shown) == 19


def test_a_short_command_shows_no_such_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)
    with Passing("looking"):
        pass
    assert terminal.getvalue() == ""


@pytest.mark.parametrize(("variables", "painted"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colours(variables: dict[str, str], painted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (console.paint("x", console.RED, Terminal()) == "\x1b[31mx\x1b[0m") is painted
    assert console.paint("x", console.RED, io.StringIO()) == "x"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (59.94, "59.9 s"), (245, "4 min 05 s"), (7800, "2 h 10 min")]
)
def test_seconds(seconds: float, text: str) -> None:
    assert console.seconds_text(seconds) == text


def test_table() -> None:
    assert list(console.table(("ID", "NAME"), [("1", "long name"), ("200", "")])) == [
        "ID   NAME",
        "1    long name",
        "200",
    ]
