"""The shape of the package: who may import whom, how long a module and a function may be, errors that travel."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import noetl_celery
from noetl_celery import errors

ROOT = Path(noetl_celery.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
MODULE_LINES = 500
FUNCTION_LINES = 60

#: what each part may import of this package (besides itself); the arrows of the design, downwards only
BASE = {"errors", "hiding", "ids", "faults", "outcome", "session"}
MAY_IMPORT = {
    "hiding": set(),
    "errors": {"hiding"},
    "ids": set(),
    "session": set(),
    "faults": set(),
    "outcome": BASE | {"template"},
    "template": BASE,
    "playbook": BASE | {"template"},
    "engine": BASE | {"template", "playbook"},
    "tools": BASE | {"template"},
    "cursors": BASE | {"template", "tools"},
    "settings": BASE,
    "store": BASE | {"template", "playbook", "engine", "settings"},
    #: looks and tells as any client does: whatever it needs of the tables goes through those who know them
    "web": BASE
    | {
        "template",
        "playbook",
        "engine",
        "settings",
        "store",
        "client",
        "execution",
        "report",
        "progress",
        "words",
        "submission",
        "explanation",
        "telemetry",
        "aio",
        "__version__",
    },
    "telemetry": BASE | {"playbook", "engine", "settings", "store"},
}
#: parts that only some parts may import
ASKED_BY = {"telemetry": {"runtime", "app", "cli", "web"}}
#: packages from outside that only some parts may import
ONLY_IN = {
    "fastapi": {"web"},
    "starlette": {"web"},
    "uvicorn": {"cli"},
    "celery": {"app", "runtime", "cli", "client"},  # the client: only when it publishes, see below
    "kombu": {"app", "runtime", "cli", "client", "telemetry"},
    "opentelemetry": {"telemetry"},
    "prometheus_client": {"telemetry"},
    "pythonjsonlogger": {"telemetry"},
    "redis": {"app", "runtime", "cli", "cursors", "telemetry"},
    "sqlalchemy": {"store", "runtime", "cli", "client", "execution"},
    "psycopg": {"session", "store", "runtime", "cli", "client", "tools", "cursors", "telemetry"},
    "httpx": {"tools", "cli"},
    "typer": {"cli"},
    "rich": {"cli"},
    "jinja2": {"template", "playbook", "web"},
    "yaml": {"playbook", "cli", "client"},
    "pydantic": {"playbook", "settings", "web"},
}
#: modules that no part of the engine needs: it neither waits, nor asks the clock, nor talks to anybody
IMPURE = {"time", "random", "threading", "asyncio", "os", "socket", "subprocess", "logging", "secrets"}


def part_of(path: Path) -> str:
    """``engine`` for ``engine/decide.py``, ``app`` for ``app.py``."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path, *, lazy: bool = True) -> Iterator[str]:
    """Names of imported modules; without ``lazy`` only those that are imported with the module."""
    nodes = ast.walk(tree(path)) if lazy else iter(_at_import(tree(path)))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            assert node.module is not None
            yield node.module
            if node.module == "noetl_celery":
                yield from (f"noetl_celery.{alias.name}" for alias in node.names)


def _at_import(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _at_import(child)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [path for path in MODULES if part_of(path) in MAY_IMPORT], ids=name)
def test_a_dependency_points_downwards(path: Path) -> None:
    part = part_of(path)
    ours = {module.split(".")[1] for module in imports(path) if module.startswith("noetl_celery.")}
    above = ours - MAY_IMPORT[part] - {part}
    assert not above, f"{part} imports {', '.join(sorted(above))}"


@pytest.mark.parametrize("part", ASKED_BY)
def test_a_part_is_imported_where_it_belongs(part: str) -> None:
    wanted = f"noetl_celery.{part}"
    importing = {part_of(path) for path in MODULES if any(name.startswith(wanted) for name in imports(path))}
    assert importing - {part} <= ASKED_BY[part]


@pytest.mark.parametrize("package", ONLY_IN)
def test_a_package_is_imported_where_it_belongs(package: str) -> None:
    importing = {part_of(path) for path in MODULES if package in {module.split(".")[0] for module in imports(path)}}
    assert importing <= ONLY_IN[package]


def test_the_engine_is_pure() -> None:
    for path in (path for path in MODULES if part_of(path) == "engine"):
        assert not IMPURE & {module.split(".")[0] for module in imports(path)}, name(path)
        assert not re.search(r"date(time)?\.(now|utcnow|today)\b", path.read_text()), f"{name(path)} asks the clock"


def test_importing_the_package_does_not_import_celery() -> None:
    eager = [path for path in MODULES if part_of(path) in {"__init__", "client", "execution"}]
    for path in eager:
        found = set(imports(path, lazy=False))
        assert not {module for module in found if module.split(".")[0] in {"celery", "kombu"}}, name(path)
        assert "noetl_celery.app" not in found, name(path)


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_modules_and_functions_are_short(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MODULE_LINES
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            assert length <= FUNCTION_LINES, f"{node.name} has {length} lines"


# -- errors ------------------------------------------------------------------------------------------------------------

PROBLEM = errors.Problem("wrong", "f.yaml", 3, 4, "s", "right")
INFO = errors.ErrorInfo("rate_limit", "slow down", status=429, retryable=True, retry_after=3.0)
EXAMPLES: list[Exception] = [
    errors.NoetlError("no", hint="try again"),
    errors.PlaybookInvalid([PROBLEM]),
    errors.ExecutionFailed("failed", error={"kind": "bad"}),
    errors.TemplateError("undefined", expression="{{ x }}", place="step 's'"),
    errors.ToolError(INFO, extra={"http": {"status": 429}}),
]


def error_classes() -> list[type[Exception]]:
    found = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, Exception)]
    return [value for value in found if value.__module__ == errors.__name__]


#: those above, and every other class with a message only
ALL_ERRORS = EXAMPLES + [kind("no") for kind in error_classes() if kind not in map(type, EXAMPLES)]


@pytest.mark.parametrize("error", ALL_ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_travels_between_processes(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def test_every_error_has_a_code_and_an_exit_code_of_its_family() -> None:
    shown = [value for value in error_classes() if issubclass(value, errors.NoetlError)]
    assert len({value.code for value in shown}) == len(shown)
    assert {value.exit_code for value in shown if issubclass(value, errors.InputError)} == {2}
    assert {value.exit_code for value in shown} == {1, 2, 3}
