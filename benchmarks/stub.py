"""The API of the acceptance playbook, as fast as it gets: no throttle, no failures, answers made beforehand.

    python -m benchmarks.stub PORT

``GET /patients/<id>/<data type>?size=10&next=<token>`` answers like playbooks/patient_flow/api.py: patient *n* has
1 + *n* % 4 full pages of 10 records, of whatever type.
"""

from __future__ import annotations

import asyncio
import json
import sys
from functools import cache
from urllib.parse import parse_qs, urlsplit

PAGE_RECORDS = 10


def pages_of(patient: int) -> int:
    return 1 + patient % 4


@cache
def records(page: int) -> list[dict[str, object]]:
    first = (page - 1) * PAGE_RECORDS
    return [
        {"id": f"record-{first + number}", "recorded_on": "2025-03-14", "value": 97.5, "note": "pulse regular"}
        for number in range(1, PAGE_RECORDS + 1)
    ]


@cache
def answer(page: int, pages: int) -> bytes:
    body = {
        "page": page,
        "total": pages * PAGE_RECORDS,
        "records": records(page),
        "next": str(page + 1) if page < pages else None,
    }
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def respond(target: str) -> bytes:
    url = urlsplit(target)
    parts = url.path.strip("/").split("/")
    if len(parts) != 3 or parts[0] != "patients" or not parts[1].isdecimal():
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    token = parse_qs(url.query).get("next", ["1"])[0]
    return answer(int(token), pages_of(int(parts[1])))


class Connection(asyncio.Protocol):
    """One client's connection, kept open; requests have no bodies."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.buffer = transport, b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while b"\r\n\r\n" in self.buffer:
            head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
            self.transport.write(respond(head.split(b" ", 2)[1].decode()))


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port)
    print("stub is ready", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
