"""Code from files and servers: where it may be, how it is read, and what is said if it cannot be."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from noetl_celery.errors import ErrorInfo
from noetl_celery.outcome import Outcome
from noetl_celery.tools import script
from noetl_celery.tools.base import ToolCall
from noetl_celery.tools.limits import Limits, limits, set_limits
from noetl_celery.tools.outcome import run_tool
from noetl_celery.tools.postgres import PostgresTool
from noetl_celery.tools.python import PythonTool
from noetl_celery.tools.shell import ShellTool

FILE = {"type": "file"}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder for scripts, beside one that is not."""
    before = limits()
    inside = tmp_path / "scripts"
    (inside / "deep").mkdir(parents=True)
    (inside / "deep" / "add.py").write_text("return a + 1")
    (tmp_path / "outside.py").write_text("return 'outside'")
    set_limits(Limits(script_folders=(tmp_path / "missing", inside)))
    yield inside
    set_limits(before)
    script.close()


class Answers(BaseHTTPRequestHandler):
    """``/code.py`` for whoever knows the token, ``/data`` with JSON, ``/large``; else 404."""

    def do_GET(self) -> None:
        bodies = {"/code.py": b"return a + 2", "/data": b'{"a": 1}', "/large": b"#" * (script.MOST_BYTES + 1)}
        body = bodies.get(self.path.partition("?")[0])
        status = 404 if body is None else 200
        if self.path == "/code.py" and self.headers["Authorization"] != "Bearer hush":
            status = 401
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body or b"nothing here")

    def log_message(self, format: str, *args: Any) -> None:
        """Silence."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def run(uri: str | None = None, source: Any = None, tool: Any = None, **config: Any) -> Outcome:
    written = {key: value for key, value in {"uri": uri, "source": source}.items() if value is not None}
    call = ToolCall({"script": written, **config}, {"a": 1}, lambda name: {"token": "hush"}, print, {})
    return run_tool(tool or PythonTool(), call)


def failure(*args: Any, **config: Any) -> ErrorInfo:
    outcome = run(*args, **config)
    assert outcome.error is not None
    assert "hush" not in outcome.error.message
    return outcome.error


# -- files -------------------------------------------------------------------------------------------------------------


def test_paths_of_a_file(folder: Path) -> None:
    for uri in ("deep/add.py", "./deep/../deep/add.py", str(folder / "deep/add.py"), f"file://{folder}/deep/add.py"):
        assert run(uri, FILE).data == 2, uri
        assert run(uri).data == 2, "the type may be left out"
    assert run(source={"type": "file", "path": "deep/add.py"}).data == 2


def test_the_first_folder_that_has_it_wins(folder: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.mkdir()
    (first / "x.py").write_text("return 'first'")
    (folder / "x.py").write_text("return 'second'")
    set_limits(Limits(script_folders=(first, folder)))
    assert run("x.py").data == "first"
    assert run("deep/add.py").data == 2


def test_a_file_is_read_when_it_is_needed(folder: Path) -> None:
    assert run("deep/add.py").data == 2
    (folder / "deep" / "add.py").write_text("\ufeffreturn '{{ a }}'", encoding="utf-8")
    assert run("deep/add.py").data == "{{ a }}", "and never rendered"


@pytest.mark.parametrize("uri", ["../outside.py", "deep/../../outside.py", "link.py", "{outside}", "file://{outside}"])
def test_no_way_leads_out_of_the_folder(folder: Path, tmp_path: Path, uri: str) -> None:
    (folder / "link.py").symlink_to(tmp_path / "outside.py")
    uri = uri.replace("{outside}", str(tmp_path / "outside.py"))
    error = failure(uri, FILE)
    assert error.kind == "config"
    assert str(folder) in error.message
    assert "NOETL_SCRIPTS_ANYWHERE" in error.message
    set_limits(Limits(script_folders=(folder,), scripts_anywhere=True))
    assert run(uri, FILE).data == "outside"


def test_files_that_are_not_there(folder: Path) -> None:
    error = failure("deep/sub.py", FILE)
    assert error.kind == "not_found"
    assert error.message.startswith("there is no script deep/sub.py in ")
    assert f"{folder} (NOETL_SCRIPTS)" in error.message
    absolute = failure(str(folder / "no.py"), FILE)
    assert absolute.message == f"there is no script {folder}/no.py on this worker"
    assert failure("deep", FILE).kind == "not_found", "a folder is no script"


def test_files_that_are_no_scripts(folder: Path) -> None:
    (folder / "bytes.py").write_bytes(b"\xff\xfe")
    (folder / "large.py").write_bytes(b"#" * (script.MOST_BYTES + 1))
    for name, says in (("bytes.py", "not text in UTF-8"), ("large.py", "larger than 1048576 bytes")):
        error = failure(name, FILE)
        assert error.kind == "script"
        assert str(folder / name) in error.message
        assert says in error.message
    assert failure("a\0b", FILE).kind == "config"
    assert "another machine (host)" in failure("file://host/x.py").message


# -- servers -----------------------------------------------------------------------------------------------------------


def test_code_from_a_server(folder: Path, site: str) -> None:
    source = {"type": "http", "endpoint": f"{site}/code.py", "method": "GET", "timeout": 30, "auth": "name"}
    assert run("add.py", source).data == 3
    assert run(f"{site}/code.py", {"type": "http", "headers": {"Authorization": "Bearer hush"}}).data == 3


def test_what_servers_say(folder: Path, site: str) -> None:
    refused = failure(f"{site}/code.py")
    assert (refused.kind, refused.status) == ("auth", 401)
    missing = failure(f"{site}/no.py?key=hush")
    assert (missing.kind, missing.status, f"{site}/no.py" in missing.message) == ("not_found", 404, True)
    assert failure(f"{site}/large").kind == "too_large"
    data = failure(f"{site}/data?key=hush")
    assert (data.kind, data.message) == ("script", f"the script {site}/data is JSON data, and no code")
    away = failure("http://127.0.0.1:1/x.py")
    assert (away.kind, away.retryable) == ("connection", True)


# -- the tools that know it --------------------------------------------------------------------------------------------


def test_shell_scripts(folder: Path) -> None:
    (folder / "hello.sh").write_text("for x in 1 2\ndo echo $x\ndone\n")
    assert run("hello.sh", FILE, ShellTool()).data["stdout"] == "1\n2\n"
    assert failure("no.sh", FILE, ShellTool()).kind == "not_found"


def test_sql_that_is_not_there_needs_no_database(folder: Path) -> None:
    assert failure("no.sql", FILE, PostgresTool(), auth="pg").kind == "not_found"


@pytest.mark.parametrize("tool", [PythonTool(), PostgresTool(), ShellTool()], ids=lambda tool: str(tool.kind))
def test_what_is_refused_at_registration(tool: Any) -> None:
    def complaints(written: Any) -> list[str]:
        found = tool.check({"script": written, "auth": "pg"})
        assert {key for key, _ in found} <= {"script"}
        return [message for _, message in found]

    assert complaints({"uri": "{{ path }}", "source": {"type": "{{ type }}"}}) == []
    assert complaints({"uri": "a.file", "source": {"type": "file", "encoding": "utf-8"}}) == []
    for written in ({"uri": "s3://b/x", "source": {"type": "s3", "region": "r"}}, {"uri": "gs://b/x.py"}):
        [message] = complaints(written)
        assert "needs a plugin: built in are inline, file, http" in message
    assert complaints({"source": {"type": "file"}}) == ["`script` from a file needs `uri`: the path of the file"]
    [message] = complaints({"uri": "x.py", "source": {"type": "http"}})
    assert "`source.endpoint`" in message
    [message] = complaints({"uri": "x.py", "source": {"type": "file", "endcoding": 1}})
    assert "did you mean `encoding`?" in message
    [message] = complaints(["x.py"])
    assert "has to be text or a mapping" in message


def test_sql_is_looked_at_if_it_stands_there() -> None:
    [(key, message)] = PostgresTool().check(
        {"auth": "pg", "script": {"source": {"code": "SELECT 1; COMMIT; SELECT 2"}}}
    )
    assert key == "script"
    assert "COMMIT" in message
    [(key, message)] = PostgresTool().check({"auth": "pg", "script": "SELECT 1", "command": "SELECT 2"})
    assert "only one of" in message
