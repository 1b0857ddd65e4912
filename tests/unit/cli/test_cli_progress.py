"""The words that show how far an execution is."""

import io
import sys

import pytest

from noetl_celery.cli import console
from noetl_celery.cli.progress import PLAIN_SECONDS, ProgressView, Rate, step_words
from noetl_celery.report import Snapshot, StepProgress


def step(**changes: object) -> StepProgress:
    values: dict[str, object] = {
        "stage_id": 1,
        "step": "drain",
        "visit": 1,
        "kind": "cursor",
        "ok": 1200,
        "failed": 0,
        "frames": 24,
        "open_frames": 2,
        "open_rows": 7,
        "seconds": 5.12,
    }
    return StepProgress(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shown", "rate", "words"),
    [
        (step(), 250.4, "1,200 rows, 250/s, 24 frames (2 open), 5.1 s"),
        (step(failed=3, open_frames=0), None, "1,203 rows, 3 failed, 24 frames, 5.1 s"),
        (step(kind="collection"), 2.34, "1,200 rows, 2.3/s, 5.1 s"),
        (step(kind="single", seconds=75), None, "1 min 15 s"),
    ],
)
def test_step_words(shown: StepProgress, rate: float | None, words: str) -> None:
    assert step_words(shown, rate) == words


def test_rate_is_that_of_the_last_seconds() -> None:
    rate = Rate()
    rate.add(0.0, 0)
    assert rate.per_second() is None
    rate.add(1.0, 100)
    assert rate.per_second() == 100
    for second in range(2, 40):
        rate.add(float(second), 100)
    assert rate.per_second() == 0


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
    assert PLAIN_SECONDS == 2
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


def test_on_a_terminal_lines_are_live(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    with ProgressView(4711) as view:
        view.show(Snapshot("PENDING"))
        view.show(Snapshot("RUNNING", (step(), step(stage_id=2, step="other"))))
    assert "drain" in terminal.getvalue()
    assert "1,200 rows" in terminal.getvalue()
    assert "\x1b[31m" not in terminal.getvalue()


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
