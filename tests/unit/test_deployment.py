"""The files that deploy the project say what they should; they are not run here."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from noetl_celery.settings import Settings

ROOT = Path(__file__).parents[2]
LONG_RUNNING = ["postgres", "redis", "worker", "beat", "flower"]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"])


def test_compose_has_every_service(services: dict[str, Any]) -> None:
    assert set(services) >= {*LONG_RUNNING, "migrate"}
    assert [name for name in LONG_RUNNING if "test" not in services[name].get("healthcheck", {})] == []


def test_compose_migrates_before_anything_works(services: dict[str, Any]) -> None:
    for name in ("worker", "beat", "flower"):
        assert services[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    assert services["migrate"]["command"] == ["db", "upgrade"]
    assert services["migrate"]["restart"] == "no"


def test_compose_has_no_default_secret() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    assert not re.search(r"\$\{(NOETL_SECRET_KEY|POSTGRES_PASSWORD)(:-|-|\})", text)


def test_compose_sets_only_what_exists(services: dict[str, Any]) -> None:
    known = {f"NOETL_{name.upper()}" for name in Settings.model_fields}
    assert set(services["worker"]["environment"]) <= known


def test_worker_has_longer_to_stop_than_its_own_grace_time(services: dict[str, Any]) -> None:
    assert (
        int(services["worker"]["stop_grace_period"].removesuffix("s")) > Settings.model_fields["grace_seconds"].default
    )


def test_image_does_not_run_as_root() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("USER")] == ["USER noetl"]


def test_a_wheel_has_every_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {".".join(file.parent.relative_to(ROOT).parts) for file in ROOT.glob("noetl_celery/**/*.py")}
    listed = project["tool"]["setuptools"]["packages"]
    assert {name for name in listed if "migrations" not in name} == packages


def test_constraints_name_one_version_each_and_no_address() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+", line)] == []
