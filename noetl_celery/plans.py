"""Compiled plans by catalog id. A catalog version never changes, so a plan never goes stale."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from noetl_celery.errors import NotFound
from noetl_celery.playbook import compile_playbook
from noetl_celery.playbook.plan import Plan
from noetl_celery.store import catalog

if TYPE_CHECKING:
    from noetl_celery.cursors.registry import CursorRegistry
    from noetl_celery.store.db import Connection
    from noetl_celery.tools.registry import ToolRegistry

PLANS_KEPT = 64


class Plans:
    """The plans that were used last in this process. Safe to share between threads."""

    def __init__(self, tools: ToolRegistry, cursors: CursorRegistry) -> None:
        self._tools, self._cursors = tools, cursors
        self._plans: OrderedDict[int, Plan] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, connection: Connection, catalog_id: int) -> Plan:
        """The plan of a registered version; read and compiled at its first use. Raises ``NotFound``."""
        plan = self._known(catalog_id)
        if plan is not None:
            return plan
        entry = catalog.get(connection, catalog_id)
        if entry is None:
            raise NotFound(f"the catalog has no entry {catalog_id}; was it deleted while an execution used it?")
        return self.of(entry)

    def of(self, entry: Mapping[str, Any]) -> Plan:
        """The plan of an entry of the catalog. Raises ``PlaybookInvalid`` if this version cannot compile it."""
        catalog_id = entry["catalog_id"]
        plan = self._known(catalog_id)
        if plan is not None:
            return plan
        file = entry["file"] or entry["path"]
        plan = compile_playbook(entry["content"], file=file, tools=self._tools, cursors=self._cursors, warn=False).plan
        with self._lock:
            self._plans[catalog_id] = plan
            while len(self._plans) > PLANS_KEPT:
                self._plans.popitem(last=False)
        return plan

    def _known(self, catalog_id: int) -> Plan | None:
        with self._lock:
            plan = self._plans.get(catalog_id)
            if plan is not None:
                self._plans.move_to_end(catalog_id)
            return plan
