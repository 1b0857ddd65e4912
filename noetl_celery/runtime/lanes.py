"""Starting a lane again: after its rows woke, or its holder ended or died."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl_celery.errors import NoetlError, ServiceError
from noetl_celery.runtime.process import Process
from noetl_celery.settings import BODY_QUEUE
from noetl_celery.store import outbox, stages
from noetl_celery.store.db import Connection
from noetl_celery.store.decisions import body_queue
from noetl_celery.store.outbox import Dispatch


def lane_again(process: Process, connection: Connection, frame: Mapping[str, Any]) -> Dispatch:
    """Notes that a lane ``{execution_id, stage_id, frame_id, lane, step_name}`` waits for a taker; to be published
    after the commit. Idempotent. A playbook that cannot be read here (it needs a plugin) goes to the common queue."""
    row = stages.load(connection, frame["stage_id"])
    assert row is not None, "a frame belongs to a stage"
    try:
        queue = body_queue(process.plans.get(connection, row["catalog_id"]), frame["step_name"], process.settings)
    except ServiceError:
        raise
    except NoetlError:
        queue = BODY_QUEUE
    place = (frame["execution_id"], frame["stage_id"], frame["frame_id"])
    again = process.settings.republish_seconds
    return outbox.add_lanes(connection, *place, [frame["lane"]], queue, delay_seconds=again)
