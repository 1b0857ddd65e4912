"""The socket of ``noetl-celery console``."""

from __future__ import annotations

import asyncio
import socket

from noetl_celery.cli.web import _listen


def test_small_answers_are_sent_at_once() -> None:
    async def accepted() -> int:
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def met(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            own = writer.get_extra_info("socket")
            told.set_result(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with _listen("127.0.0.1", 0) as listening:
            async with await asyncio.start_server(met, sock=listening):
                _, writer = await asyncio.open_connection(*listening.getsockname())
                answer = await told
                writer.close()
                await writer.wait_closed()
                return answer

    assert asyncio.run(accepted()) != 0
