"""What `noetl-celery prune` takes for a time, and what it refuses before it touches anything."""

from __future__ import annotations

from datetime import timedelta

import pytest

from noetl_celery.cli import run
from noetl_celery.cli.prune import duration
from noetl_celery.errors import InputError


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("30d", timedelta(days=30)),
        ("12h", timedelta(hours=12)),
        ("90m", timedelta(minutes=90)),
        ("45s", timedelta(seconds=45)),
        ("2w", timedelta(weeks=2)),
        (" 1.5 h ", timedelta(minutes=90)),
    ],
)
def test_a_time_is_a_number_and_a_unit(text: str, time: timedelta) -> None:
    assert duration(text) == time


@pytest.mark.parametrize(
    "text", ["", "30", "d", "30 days", "-3d", "3x", "1d12h", "1e3d", "nan d", "३d", "9" * 400 + "d"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        duration(text)


@pytest.mark.parametrize("text", ["soon", "0d", "40000d", "99999999999999d"])
def test_the_command_refuses_nonsense(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prune", f"--older-than={text}"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_the_time_has_to_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prune"]) == 2
    assert "--older-than" in capsys.readouterr().err
