"""Pages that follow what happens: a part of them is sent anew whenever it has changed, as a server-sent event."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from noetl_celery.errors import NoetlError

#: between two looks; more where a look takes long, so that watching costs at most a tenth of a core
PAUSE_SECONDS = 1.0
_SHARE = 10
#: what tells a page that nothing more will come
_OVER = "over"


def changes(look: Callable[[], tuple[str, bool]]) -> Response:
    """Sends what ``look`` returns whenever it is another text, until it says that this was the last one.

    ``look`` runs in a thread, a second apart. PostgreSQL may be away meanwhile; the page stays as it is.
    """
    return EventSourceResponse(_changes(look), headers={"X-Accel-Buffering": "no"})


async def _changes(look: Callable[[], tuple[str, bool]]) -> AsyncIterator[ServerSentEvent]:
    import anyio

    sent, last = None, False
    while not last:
        begun = time.monotonic()
        try:
            text, last = await run_in_threadpool(look)
        except NoetlError:
            text = sent or ""
        if text != sent:
            sent = text
            yield ServerSentEvent(text, event="look")
        await anyio.sleep(max(PAUSE_SECONDS, _SHARE * (time.monotonic() - begun)))
    yield ServerSentEvent("", event=_OVER)
