"""The files that deploy the project say what they should; they are not run here."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import unknown

from noetl_celery.settings import Settings

ROOT = Path(__file__).parents[2]
LONG_RUNNING = ["postgres", "redis", "worker", "beat", "flower", "console"]
OURS = ["worker", "beat", "flower", "console", "migrate", "cli"]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"])


def test_compose_has_every_service(services: dict[str, Any]) -> None:
    assert set(services) >= {*LONG_RUNNING, "migrate"}
    assert [name for name in LONG_RUNNING if "test" not in services[name].get("healthcheck", {})] == []


def test_compose_migrates_before_anything_works(services: dict[str, Any]) -> None:
    for name in ("worker", "beat", "flower", "console"):
        assert services[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    assert services["migrate"]["command"] == ["db", "upgrade"]
    assert services["migrate"]["restart"] == "no"


def test_compose_has_no_default_secret() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    assert not re.search(r"\$\{(NOETL_SECRET_KEY|NOETL_CONSOLE_TOKEN|POSTGRES_PASSWORD)(:-|-|\})", text)


def test_compose_sets_only_what_exists(services: dict[str, Any]) -> None:
    known = {f"NOETL_{name.upper()}" for name in Settings.model_fields}
    for name in OURS:
        assert set(services[name]["environment"]) <= known, name
    assert [name for name in OURS if "NOETL_CONSOLE_TOKEN" in services[name]["environment"]] == ["console"]


def test_compose_runs_two_workers(services: dict[str, Any]) -> None:
    assert services["worker"]["deploy"]["replicas"] == 2
    assert "container_name" not in services["worker"]


def test_compose_opens_ports_to_this_machine_only(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert sorted(ports) == ["127.0.0.1:5555:5555", "127.0.0.1:8080:8080"]


def test_compose_writes_only_where_it_may(services: dict[str, Any]) -> None:
    """Workers of several containers share the duckdb files of an execution; all else is read-only."""
    for name in OURS:
        assert services[name]["read_only"] is True, name
        assert services[name]["volumes"] == [f"duckdb:{services[name]['environment']['NOETL_DUCKDB_DIR']}"], name
        assert services[name]["cap_drop"] == ["ALL"], name


def test_compose_runs_commands_that_exist(services: dict[str, Any]) -> None:
    assert {name: unknown(services[name]["command"]) for name in ("worker", "console", "migrate")} == {
        "worker": set(),
        "console": set(),
        "migrate": set(),
    }


def test_worker_has_longer_to_stop_than_its_own_grace_time(services: dict[str, Any]) -> None:
    assert (
        int(services["worker"]["stop_grace_period"].removesuffix("s")) > Settings.model_fields["grace_seconds"].default
    )


@pytest.fixture(scope="module")
def image() -> list[list[str]]:
    """The instructions of the Dockerfile as words, with lines that go on joined and without comments."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def test_image_does_not_run_as_root(image: list[list[str]]) -> None:
    [user] = [words[1] for words in image if words[0] == "USER"]
    assert user.isdecimal()
    assert int(user) > 0
    assert image.index(["USER", user]) < image.index(["ENTRYPOINT", '["noetl-celery"]'])


def test_image_has_nothing_of_its_build_but_the_environment(image: list[list[str]]) -> None:
    stages = [number for number, words in enumerate(image) if words[0] == "FROM"]
    assert len(stages) == 2
    final = image[stages[1] :]
    assert image[stages[0]][1] == image[stages[1]][1], "an environment is moved to the same Python only"
    assert not [words for words in final if "pip" in words or "gcc" in words]
    assert [words[1:3] for words in final if words[0] == "COPY"] == [
        ["--from=build", "/opt/noetl"],
        ["playbooks", "playbooks"],
    ]


def test_image_is_built_from_the_constraints_and_what_the_context_lets_in(image: list[list[str]]) -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {word for words in image if words[0] == "COPY" and "--from=build" not in words for word in words[1:-1]}
    assert copied == allowed
    assert [name for name in copied if not (ROOT / name).exists()] == []
    installs = [" ".join(words) for words in image if "install" in words and any("pip" in word for word in words)]
    assert len(installs) == 2
    assert "-c constraints.txt" in installs[0]
    assert "--no-deps" in installs[1]


def test_a_wheel_has_every_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {".".join(file.parent.relative_to(ROOT).parts) for file in ROOT.glob("noetl_celery/**/*.py")}
    listed = project["tool"]["setuptools"]["packages"]
    assert {name for name in listed if "migrations" not in name} == packages


def test_constraints_name_one_version_each_and_no_address() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+", line)] == []
