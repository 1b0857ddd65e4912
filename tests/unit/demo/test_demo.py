"""The demo script, with a stand-in for the command line that records how it was called."""

import json
import os
import stat
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

STAND_IN = """#!{python}
import json, pathlib, sys, urllib.request
here = pathlib.Path({folder!r})
arguments = sys.argv[1:]
with (here / "calls").open("a") as calls:
    calls.write(json.dumps({{"arguments": arguments, "stdin": sys.stdin.read() if "-" in arguments else None}}) + "\\n")
if arguments[0] == "run":
    url = json.loads(arguments[arguments.index("--workload") + 1])["api_url"]
    for patient in (1, 1, 2):
        urllib.request.urlopen(f"{{url}}/patients/{{patient}}/allergies").close()
    print((here / "answer").read_text())
sys.exit(int((here / "code").read_text()))
"""


class Stage:
    """Where the demo runs: a folder with the stand-in, what it answers, and the calls that it got."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = folder / "noetl-celery"
        program.write_text(STAND_IN.format(python=sys.executable, folder=str(folder)))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.answer(json.dumps(outcome(done=2)))

    def answer(self, text: str, code: int = 0) -> None:
        (self.folder / "answer").write_text(text)
        (self.folder / "code").write_text(str(code))

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]


def outcome(done: int) -> dict[str, Any]:
    rows = [{"data_type": "allergies", "expected": 2, "done": done, "pages": 3, "records": 30}]
    report = {"rows": rows, "missing": [] if done == 2 else ["allergies"], "all_passed": done == 2}
    steps = {"report": {"status": "COMPLETED", "output": report}}
    return {"execution_id": "42", "status": "COMPLETED", "error": None, "steps": steps, "duration_seconds": 0.5}


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setenv("NOETL_DATABASE_URL", "postgresql+psycopg://user:secret@127.0.0.1/db")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("COLUMNS", "120")
    return Stage(tmp_path)


def run(demo: ModuleType, *arguments: str) -> int:
    options = demo.parse_options(["--error-rate", "0", "--patients", "2", *arguments])
    code: int = demo.demo(options, demo.Console())
    return code


def test_a_complete_run_ends_with_the_table(demo: ModuleType, stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(demo) == 0

    printed = capsys.readouterr().out
    [row] = [line for line in printed.splitlines() if "allergies" in line]
    # expected, done, pages; then what the API counted: requests, 429, 500, retried, fetched twice
    assert row.split() == [
        "allergies",
        "2",
        "2",
        "3",
        "3",
        "0",
        "0",
        "0",
        "1",
    ]
    assert "all_passed: true" in printed
    assert "2 rows in 0.5 s: 4.0 rows/s" in printed


def test_the_credential_travels_by_stdin_only(demo: ModuleType, stage: Stage) -> None:
    run(demo)

    credential, playbook = stage.calls
    assert credential["arguments"] == ["credential", "set", "demo_pg", "--type", "postgres", "--data", "-"]
    assert json.loads(credential["stdin"]) == {"dsn": "postgresql://user:secret@127.0.0.1/db"}
    assert "secret" not in json.dumps(playbook["arguments"])


def test_the_run_gets_the_workload_and_answers_in_json(demo: ModuleType, stage: Stage) -> None:
    run(demo, "--timeout", "77")

    arguments = stage.calls[-1]["arguments"]
    workload = json.loads(arguments[arguments.index("--workload") + 1])
    assert arguments[0] == "run"
    assert arguments[1].endswith("patient_flow.yaml")
    assert arguments[-3:] == ["--timeout", "77", "--json"]
    assert workload["patients"] == 2
    assert workload["api_url"].startswith("http://127.0.0.1:")


def test_an_incomplete_run_fails(demo: ModuleType, stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    stage.answer(json.dumps(outcome(done=1)))

    assert run(demo) == 1

    printed = capsys.readouterr().out
    assert "incomplete: allergies" in printed
    assert "all_passed: false" in printed


def test_a_failed_execution_is_named(demo: ModuleType, stage: Stage) -> None:
    failed = {"execution_id": "42", "status": "FAILED", "error": {"message": "no such table"}, "steps": {}}
    stage.answer(json.dumps(failed))

    with pytest.raises(demo.DemoError, match="execution 42 is FAILED: no such table"):
        run(demo)


def test_an_answer_that_is_no_json_is_shown(demo: ModuleType, stage: Stage) -> None:
    stage.answer("nothing to say")

    with pytest.raises(demo.DemoError, match="code 0: nothing to say"):
        run(demo)


def test_a_refused_credential_ends_the_demo(demo: ModuleType, stage: Stage) -> None:
    stage.answer("", code=2)

    with pytest.raises(demo.DemoError, match="credential"):
        run(demo)


def test_without_a_database_it_says_how_to_start(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NOETL_DATABASE_URL", raising=False)

    assert run(demo) == 2
    assert "make demo" in capsys.readouterr().out


def test_without_the_command_line_it_says_so(
    demo: ModuleType, stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")

    with pytest.raises(demo.DemoError, match="not on the PATH"):
        run(demo)


def test_the_api_ends_with_its_block(demo: ModuleType) -> None:
    options = demo.parse_options([])

    with demo.records_api(options) as url, demo.urlopen(f"{url}/health", timeout=10) as answer:
        assert json.load(answer) == {"status": "ok"}

    with pytest.raises(OSError, match="refused"):
        demo.urlopen(f"{url}/health", timeout=10)


def test_an_api_that_does_not_start_is_reported(demo: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    options = demo.parse_options(["--error-rate", "2"])

    with pytest.raises(demo.DemoError, match="did not start"), demo.records_api(options):
        pass

    assert "must be at least 0 and less than 1" in capfd.readouterr().err
