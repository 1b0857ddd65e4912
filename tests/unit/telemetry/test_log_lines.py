"""Log lines: what they are about, as text and as JSON, and never a secret."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator

import pytest

from noetl_celery import hiding
from noetl_celery.settings import load
from noetl_celery.telemetry import logs

SECRET = "Xk29-slumber-quay"


@pytest.fixture(autouse=True)
def _apart() -> Iterator[None]:
    with logs.apart():
        logs.about({})
        yield


def line(log_format: str, message: str = "hello", error: BaseException | None = None, **extra: object) -> str:
    record = logging.makeLogRecord(
        {"name": "noetl_celery.task", "levelname": "INFO", "levelno": logging.INFO, "msg": message, **extra}
    )
    record.exc_info = (type(error), error, error.__traceback__) if error else None
    return logs.formatter(load(log_format=log_format)).format(record)


def test_a_line_says_what_its_thread_works_on() -> None:
    logs.about({"execution_id": "382855451712229376", "step": "drain", "frame_id": "7"}, 3)
    assert line("text").endswith(
        "INFO noetl_celery.task: hello [execution_id=382855451712229376 step=drain frame_id=7 row=3]"
    )
    found = json.loads(line("json"))
    assert found.pop("time").endswith("+00:00")
    assert found == {
        "level": "INFO",
        "logger": "noetl_celery.task",
        "message": "hello",
        "execution_id": "382855451712229376",
        "step": "drain",
        "frame_id": "7",
        "row": "3",
    }


def test_what_is_given_with_a_line_wins() -> None:
    logs.about({"execution_id": "1", "step": "a"}, 3)
    found = json.loads(line("json", execution_id=2, task="save", row="0"))
    assert (found["execution_id"], found["step"], found["row"], found["task"]) == ("2", "a", "0", "save")


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert line("text").endswith(": hello")
    assert set(json.loads(line("json"))) == {"time", "level", "logger", "message"}


def test_other_threads_work_on_something_else() -> None:
    logs.about({"step": "mine"})
    seen = []
    other = threading.Thread(target=lambda: seen.append(line("text")))
    other.start()
    other.join()
    assert "mine" not in seen[0]
    with logs.apart():
        logs.about({"step": "inner"})
    assert "step=mine" in line("text")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_secrets_are_hidden(log_format: str) -> None:
    hiding.learn(SECRET)
    try:
        raise ValueError(f"at {SECRET}")
    except ValueError as error:
        text = line(log_format, f'"quoted" {SECRET}, password=hush-hush in it', error, step=f"s-{SECRET}")
    assert SECRET not in text
    assert "hush-hush" not in text
    assert "ValueError" in text
    if log_format == "json":
        found = json.loads(text)
        assert "\n" not in text
        assert found["message"].startswith('"quoted" ***')
        assert found["exception"].startswith("Traceback")


def test_a_process_without_a_logger_says_it_alike(capsys: pytest.CaptureFixture[str]) -> None:
    logs.say(load(), "bodies node ended")
    assert capsys.readouterr().err == "noetl-celery: bodies node ended\n"
    logs.say(load(log_format="json"), "bodies node ended")
    assert json.loads(capsys.readouterr().err)["message"] == "bodies node ended"
