"""What one worker process has: settings, connections, plans, tools, its pulse. Made anew after a fork."""

from __future__ import annotations

import gc
import mmap
import os
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from noetl_celery import hiding
from noetl_celery.cursors.registry import CursorRegistry
from noetl_celery.errors import ErrorInfo, NoetlError, ToolError
from noetl_celery.ids import new_id
from noetl_celery.plans import Plans
from noetl_celery.runtime.beginnings import Beginnings
from noetl_celery.runtime.pace import Pace
from noetl_celery.runtime.pulse import Pulse
from noetl_celery.settings import Settings, load
from noetl_celery.store.credentials import Vault
from noetl_celery.store.db import Database
from noetl_celery.tools import pg
from noetl_celery.tools.limits import Limits, set_limits
from noetl_celery.tools.registry import ToolRegistry

#: seconds that a process remembers a credential, so that a changed one is soon used
CREDENTIAL_SECONDS = 30.0
STAGES_KEPT = 1000
#: Python looks for garbage in circles after so many new objects, and for older ones. A step makes a thousand objects,
#: hardly one of them in a circle: by the defaults (700, 10, 10) a fifth of its time went there
COLLECTS = 20_000, 20, 20
#: never reached by rows that end; those that never do may not be in the way of others
MOST_THREADS = 10_000

#: shared by a node's main process and the children it forks: when (on the monotonic clock, which is the machine's) what
#: is at work has to have ended; 0 while nobody has told the node to stop
_stop_at = mmap.mmap(-1, struct.calcsize("d"))
_rows_abandoned = False


def announce_stop(grace_seconds: float) -> None:
    """The node has been told to stop: lanes take no further rows and hand over those that have not begun, and after
    ``grace_seconds`` also those at work. Said again, it can only make that sooner."""
    at = time.monotonic() + grace_seconds
    struct.pack_into("d", _stop_at, 0, min(at, _stops_at() or at))


def stop_announced() -> bool:
    """Has the node been told to stop?"""
    return _stops_at() > 0


def grace_over() -> bool:
    """Has the node been told to stop so long ago that rows at work are handed over as well?"""
    return 0 < _stops_at() <= time.monotonic()


def pause(called_back: Callable[[], bool], seconds: float) -> bool:
    """Waits so long; true as soon as a row should wait no longer: its lane calls it back, or the node stops."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if called_back() or stop_announced():
            return True
        time.sleep(min(left, 0.25))
    return False


def abandon_rows() -> None:
    """Rows of this process were handed over while they were at work: it ends without waiting for them."""
    global _rows_abandoned
    _rows_abandoned = True


def rows_abandoned() -> bool:
    """Is something still running here that must not?"""
    return _rows_abandoned


def _stops_at() -> float:
    return float(struct.unpack_from("d", _stop_at)[0])


class Process:
    """Everything that tasks of this process share. Safe to share between threads."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.db = Database(settings)
        self.tools = ToolRegistry()
        self.cursors = CursorRegistry()
        self.plans = Plans(self.tools, self.cursors)
        pg.set_default_settings(pg.PoolSettings(max_size=settings.tool_pool_size))
        set_limits(
            Limits(settings.result_max_bytes, settings.script_folders, settings.scripts_anywhere, settings.duckdb_dir)
        )
        self.worker_id = new_id()
        self.beginnings = Beginnings(self.db)
        self.pace = Pace(settings.broker_url)
        self.pulse = Pulse(self.db, self.worker_id, settings.heartbeat_seconds)
        #: what rows run on: each lane sees to it that it has no more at work than it may
        self.threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="row")
        #: how long a row of a stage took lately, in seconds
        self.row_seconds: OrderedDict[int, float] = OrderedDict()
        self._credentials: dict[str, tuple[float, dict[str, Any]]] = {}

    def start(self) -> None:
        """Starts the pulse, without which this process may hold no lease."""
        self.pulse.start()

    def credential(self, name: str) -> Mapping[str, Any]:
        """Looks a credential up; raises ``ToolError`` of kind ``credential``. Opens a transaction of its own."""
        known = self._credentials.get(name)
        if known is not None and known[0] > time.monotonic():
            return known[1]
        try:
            vault = Vault(self.settings)
            fields = self.db.read(lambda connection: vault.fetch(connection, name))
        except NoetlError as error:
            raise ToolError(ErrorInfo("credential", str(error))) from error
        hiding.learn_credential(fields, lasting=True)
        self._credentials[name] = (time.monotonic() + CREDENTIAL_SECONDS, fields)
        return fields

    def remember_rows(self, stage_id: int, seconds: float | None) -> None:
        """Rows of this stage take so long now."""
        if seconds is not None:
            self.row_seconds[stage_id] = seconds
            self.row_seconds.move_to_end(stage_id)
            while len(self.row_seconds) > STAGES_KEPT:
                self.row_seconds.popitem(last=False)

    def close(self) -> None:
        self.pulse.stop()
        self.threads.shutdown(wait=False)
        self.beginnings.close()
        self.pace.close()
        self.tools.close()
        self.db.close()


_current: Process | None = None
_pid = 0
_lock = threading.Lock()


def current(settings: Settings | None = None) -> Process:
    """The process's own ``Process``, made and started at first use after a fork."""
    global _current, _pid
    with _lock:
        if _current is None or _pid != os.getpid():
            _current, _pid = Process(settings or load()), os.getpid()
            _current.start()
            gc.freeze()
            gc.set_threshold(*COLLECTS)
        return _current


def close() -> None:
    """Ends this process's pulse and connections, if it has any."""
    global _current
    with _lock:
        if _current is not None and _pid == os.getpid():
            _current.close()
        _current = None
