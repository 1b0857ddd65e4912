"""Cursor drivers: how they are found, and what they refuse before anything runs."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from noetl_celery.cursors.base import Claimed, ClaimRequest, Cursor, Record, Verdict
from noetl_celery.cursors.registry import BUILT_IN, GROUP, CursorRegistry
from noetl_celery.errors import InputError
from noetl_celery.tools import plugins


class Numbers(Cursor):
    """A driver that leaves out what it may leave out."""

    kind = "numbers"

    def check(self, config: Mapping[str, Any]) -> Sequence[tuple[str | None, str]]:
        if "bug" in config:
            raise ZeroDivisionError("division by zero")
        return []

    def same_place(self, credential: Mapping[str, Any], conninfo: str) -> bool:
        return False

    def claim(self, request: ClaimRequest, record: Record) -> Claimed:
        return Claimed((), dry=True)

    def settle(self, source: Mapping[str, Any], credential: Mapping[str, Any]) -> Verdict:
        return "unknown"


def entry_points(monkeypatch: pytest.MonkeyPatch, **targets: str) -> None:
    points = [importlib.metadata.EntryPoint(name, target, GROUP) for name, target in targets.items()]
    monkeypatch.setattr(plugins, "entry_points", lambda group: points)


def test_built_in_kinds_need_no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    entry_points(monkeypatch)
    registry = CursorRegistry()
    assert registry.kinds() == sorted(BUILT_IN)
    for kind in BUILT_IN:
        driver = registry.get(kind)
        assert isinstance(driver, Cursor)
        assert driver.kind == kind
        assert registry.get(kind) is driver
    assert {kind for kind in BUILT_IN if registry.get(kind).acknowledges} == {"redis_stream"}


def test_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    entry_points(monkeypatch, numbers=f"{__name__}:Numbers", broken="no_such_module:X", odd="builtins:dict")
    registry = CursorRegistry()
    assert registry.kinds() == sorted([*BUILT_IN, "broken", "numbers", "odd"])
    driver = registry.get("numbers")
    assert not driver.acknowledges
    driver.acknowledge("", {}, {}, [])
    assert registry.check("numbers", {}) == []
    with pytest.raises(
        InputError, match=r"cursor kind `broken` cannot be loaded: ModuleNotFoundError.*no_such_module:X"
    ):
        registry.get("broken")
    with pytest.raises(InputError, match="cursor kind `odd` is not a cursor: dict"):
        registry.get("odd")


def test_what_a_plugin_gets_wrong_is_a_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    entry_points(monkeypatch, numbers=f"{__name__}:Numbers", broken="no_such_module:X")
    registry = CursorRegistry()
    assert registry.check("numbers", {"bug": 1}) == [
        ("kind", "the cursor kind `numbers` cannot check this: ZeroDivisionError: division by zero")
    ]
    [(key, message)] = registry.check("broken", {})
    assert (key, "repair or uninstall" in message) == ("kind", True)
    assert registry.check("postgres", {"auth": "a", "claim": "UPDATE t SET a = 1 RETURNING *"}) == []


def test_unknown_kinds() -> None:
    with pytest.raises(InputError, match=r"unknown cursor kind `redis` .*redis_stream"):
        CursorRegistry().get("redis")
    assert CursorRegistry().check("qqqq", {})[0][0] == "kind"


# -- redis_stream, as written ------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"auth": "queue", "claim": "orders"}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"claim": "{{ workload.stream }}"},
        {"options": {"group": "a", "start": "$", "create": False, "lease_seconds": 30}},
        {"options": {"group": "{{ g }}", "start": "{{ s }}", "create": "{{ c }}", "lease_seconds": "{{ l }}"}},
        {"options": {"start": "1526919030474-55"}},
        {"options": "{{ workload.options }}"},
        {"options": None},
    ],
)
def test_streams_that_are_fine(more: dict[str, Any]) -> None:
    assert CursorRegistry().check("redis_stream", GOOD | more) == []


@pytest.mark.parametrize(
    ("config", "key", "says"),
    [
        ({"claim": "orders"}, "auth", "needs `auth`"),
        ({"auth": "queue"}, "claim", "the name of a stream"),
        (GOOD | {"claim": " "}, "claim", "the name of a stream"),
        (GOOD | {"reclaim": "UPDATE t"}, "reclaim", "lease_seconds"),
        (GOOD | {"options": {"gruop": "a"}}, "options", "unknown option `gruop`: did you mean `group`?"),
        (GOOD | {"options": {"start": "now"}}, "options", "`options.start` has to be"),
        (GOOD | {"options": {"create": "maybe"}}, "options", "true or false"),
        (GOOD | {"options": {"lease_seconds": 0}}, "options", "above 0, not 0"),
        (GOOD | {"options": {"lease_seconds": "soon"}}, "options", "above 0, not 'soon'"),
        (GOOD | {"options": ["group"]}, "options", "has to be a mapping"),
    ],
)
def test_streams_that_are_refused(config: dict[str, Any], key: str, says: str) -> None:
    [(where, message)] = CursorRegistry().check("redis_stream", config)
    assert where == key
    assert says in message
