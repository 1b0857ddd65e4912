"""The examples are scripts, not a package: they are loaded by path."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

PLAYBOOKS = Path(__file__).resolve().parents[3] / "playbooks"


def load(file: str) -> Iterator[ModuleType]:
    module_name = f"example_{Path(file).stem}"
    spec = importlib.util.spec_from_file_location(module_name, PLAYBOOKS / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[module_name]


@pytest.fixture(scope="session")
def playbooks() -> Path:
    return PLAYBOOKS


@pytest.fixture(scope="session")
def api() -> Iterator[ModuleType]:
    yield from load("api.py")


@pytest.fixture(scope="session")
def demo() -> Iterator[ModuleType]:
    yield from load("patient_flow/demo.py")
