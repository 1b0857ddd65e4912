"""A small clinical records API that throttles and fails, for the examples beside it (standard library only).

    python playbooks/api.py --rate-limit 100 --error-rate 0.05

The first line on stdout is ``{"url": "http://127.0.0.1:<port>"}``. Then it answers

    GET /patients?size=10&next=<token>                     one page of all patients; ``next`` is null on the last one
    GET /patients/<id>/<data type>?size=10&next=<token>    one page of a patient's records
    GET /stats                                             what was asked of it, per data type
    GET /health

Records are a function of the seed, the patient and the data type, and a failure is a function of the page and of
how often it was asked for, so that two runs meet the same data and the same failures in whatever order they ask.
"""

import argparse
import base64
import binascii
import contextlib
import json
import math
import random
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

DATA_TYPES = ("allergies", "observations", "prescriptions")
#: the list of all patients is paged, throttled and counted like their records
PATIENTS = "patients"
DEFAULT_PATIENTS = 200
DEFAULT_PAGE_SIZE = 10
MAX_PAGE_SIZE = 100
#: with pages of the default size, a patient has 1 to 4 of them per data type
MAX_RECORDS = 4 * DEFAULT_PAGE_SIZE
WINDOW_SECONDS = 1.0

#: what a record says; apostrophes and percent signs are there because real notes have them
NOTES: Mapping[str, Sequence[str]] = {
    "allergies": ("penicillin, mother's report", "pollen", "latex (glove's inner side)", "none known"),
    "observations": ("oxygen saturation 97 %", "pulse regular", "patient's own reading", "weight down 2 %"),
    "prescriptions": ("twice a day", "until the doctor's next visit", "with food", "cream, 5 %"),
}


CITIES = ("Delft", "Gouda", "Leiden", "Utrecht")


class Refused(Exception):
    """An answer other than 200: its status, what it says, and headers to go with it."""

    def __init__(self, status: HTTPStatus, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})


class Throttle:
    """A sliding window: at most ``limit`` requests are let in during any second; 0 lets everything in."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._admitted: deque[float] = deque()

    def wait_seconds(self) -> float:
        """0.0 if the request is let in, else how long until there is room. Not safe to call from two threads."""
        now = self._clock()
        while self._admitted and now - self._admitted[0] >= WINDOW_SECONDS:
            self._admitted.popleft()
        if not self.limit or len(self._admitted) < self.limit:
            self._admitted.append(now)
            return 0.0
        return self._admitted[0] + WINDOW_SECONDS - now


@dataclass(slots=True)
class TypeStats:
    """What happened to the requests for one data type."""

    requests: int = 0
    throttled: int = 0
    failed: int = 0
    served: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, int]:
        return {
            "requests": self.requests,
            "pages": len(self.served),
            "pages_twice": sum(1 for times in self.served.values() if times > 1),
            "throttled": self.throttled,
            "failed": self.failed,
        }


def patient_records(seed: int, data_type: str, patient: int) -> list[dict[str, Any]]:
    """All records of one type of one patient; always the same ones, and at least one."""
    rng = random.Random(f"{seed}/{data_type}/{patient}")
    return [
        {
            "id": f"{data_type}-{patient}-{number}",
            "patient": patient,
            "recorded_on": f"2025-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}",
            "value": round(rng.uniform(1, 200), 1),
            "note": rng.choice(NOTES[data_type]),
        }
        for number in range(1, rng.randint(1, MAX_RECORDS) + 1)
    ]


def all_patients(seed: int, count: int) -> list[dict[str, Any]]:
    """Everybody whom the API knows, with numbers from 1."""
    rng = random.Random(f"{seed}/{PATIENTS}")
    return [{"id": n, "name": f"Patient {n}", "city": rng.choice(CITIES)} for n in range(1, count + 1)]


def make_token(data_type: str, patient: int, offset: int) -> str:
    """The ``next`` of a page: opaque to clients, and good for this patient and data type only."""
    return base64.urlsafe_b64encode(f"{data_type}/{patient}/{offset}".encode()).decode()


def read_token(token: str, data_type: str, patient: int) -> int:
    """The offset in ``token``, 0 for an empty one; refuses a token that was made for something else."""
    if not token:
        return 0
    try:
        of_type, of_patient, offset = base64.urlsafe_b64decode(token).decode().split("/")
        if (of_type, of_patient) == (data_type, str(patient)):
            return int(offset)
    except (binascii.Error, ValueError):
        pass
    raise Refused(HTTPStatus.BAD_REQUEST, f"'next' is not a token of {data_type} of patient {patient}")


class Clinic:
    """The API without HTTP: answers a path and its query, and counts. Safe to use from many threads."""

    def __init__(
        self,
        *,
        rate_limit: int = 0,
        error_rate: float = 0.0,
        latency_seconds: float = 0.0,
        seed: int = 1,
        patients: int = DEFAULT_PATIENTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._error_rate = error_rate
        self._latency_seconds = latency_seconds
        self._seed = seed
        self._patients = patients
        self._throttle = Throttle(rate_limit, clock)
        self._attempts: Counter[str] = Counter()
        self._stats = {name: TypeStats() for name in (PATIENTS, *DATA_TYPES)}
        self._lock = threading.Lock()

    def answer(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        """The body of a 200; raises ``Refused`` for everything else."""
        match [unquote(part) for part in path.strip("/").split("/")]:
            case ["health"]:
                return {"status": "ok"}
            case ["stats"]:
                return self.stats()
            case ["patients"]:
                return self._page(PATIENTS, 0, query)
            case ["patients", patient, data_type] if patient.isdecimal() and data_type in DATA_TYPES:
                return self._page(data_type, int(patient), query)
        raise Refused(HTTPStatus.NOT_FOUND, f"nothing is served at {path}")

    def stats(self) -> dict[str, Any]:
        with self._lock:
            return {name: stats.as_dict() for name, stats in self._stats.items()}

    def _page(self, data_type: str, patient: int, query: Mapping[str, str]) -> dict[str, Any]:
        raw_size = query.get("size") or str(DEFAULT_PAGE_SIZE)
        if not raw_size.isdecimal() or not 1 <= int(raw_size) <= MAX_PAGE_SIZE:
            raise Refused(
                HTTPStatus.BAD_REQUEST, f"'size' must be a number from 1 to {MAX_PAGE_SIZE}, not {raw_size!r}"
            )
        size = int(raw_size)
        offset = read_token(query.get("next", ""), data_type, patient)
        page = f"{patient}/{size}/{offset}"
        self._admit(data_type, page)
        if self._latency_seconds:
            time.sleep(self._latency_seconds)
        if data_type == PATIENTS:
            records = all_patients(self._seed, self._patients)
        else:
            records = patient_records(self._seed, data_type, patient)
        end = offset + size
        with self._lock:
            self._stats[data_type].served[page] += 1
        return {
            "page": offset // size + 1,
            "total": len(records),
            "records": records[offset:end],
            "next": make_token(data_type, patient, end) if end < len(records) else None,
        }

    def _admit(self, data_type: str, page: str) -> None:
        with self._lock:
            stats = self._stats[data_type]
            stats.requests += 1
            if wait := self._throttle.wait_seconds():
                stats.throttled += 1
                # the header takes whole seconds only
                headers = {"Retry-After": str(math.ceil(wait))}
                raise Refused(HTTPStatus.TOO_MANY_REQUESTS, "too many requests", headers)
            key = f"{self._seed}/{data_type}/{page}"
            self._attempts[key] += 1
            if random.Random(f"{key}/{self._attempts[key]}").random() < self._error_rate:
                stats.failed += 1
                raise Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "a failure made on purpose")


class Handler(BaseHTTPRequestHandler):
    """HTTP in front of a ``Clinic``; connections are kept open."""

    protocol_version = "HTTP/1.1"
    # head and body leave in one packet: two small ones would meet delayed acknowledgements, 40 ms each
    wbufsize = -1
    disable_nagle_algorithm = True
    server: "ApiServer"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        status, headers = HTTPStatus.OK, {}
        try:
            body = self.server.clinic.answer(url.path, query)
        except Refused as refused:
            status, headers, body = refused.status, refused.headers, {"error": refused.message}
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: whoever wants to know asks for /stats."""


class ApiServer(ThreadingHTTPServer):
    """A listening server; ``serve_forever`` answers until ``shutdown`` is called from another thread."""

    daemon_threads = True
    # the burst of connections at the start of a run does not fit into the default backlog of 5
    request_queue_size = 128

    def __init__(self, clinic: Clinic, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__((host, port), Handler)
        self.clinic = clinic

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no news; anything else is a bug of ours and is shown."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def stop_with_stdin(server: ApiServer) -> None:
    """Stop when stdin is closed: a parent that holds the other end takes us along however it dies."""

    def watch() -> None:
        sys.stdin.buffer.read()
        server.shutdown()

    threading.Thread(target=watch, daemon=True).start()


def share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 0 and less than 1, not {text}")
    return value


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8088, help="0 takes a free one (default: 8088)")
    parser.add_argument("--rate-limit", type=int, default=100, help="requests per second, 0 for no limit")
    parser.add_argument("--error-rate", type=share, default=0.05, help="share of requests that fail with a 500")
    parser.add_argument("--latency-ms", type=float, default=5, help="time that every page takes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--patients", type=int, default=DEFAULT_PATIENTS, help="how many patients GET /patients lists")
    parser.add_argument("--stop-with-stdin", action="store_true", help="end when stdin is closed")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    clinic = Clinic(
        rate_limit=options.rate_limit,
        error_rate=options.error_rate,
        latency_seconds=options.latency_ms / 1000,
        seed=options.seed,
        patients=options.patients,
    )
    with ApiServer(clinic, options.host, options.port) as server:
        if options.stop_with_stdin:
            stop_with_stdin(server)
        print(json.dumps({"url": server.url}), flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main()
