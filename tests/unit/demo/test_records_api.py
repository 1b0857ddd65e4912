"""The records API of the demo: what it serves, how it throttles, how it fails, what it counts."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def all_pages(clinic: Any, data_type: str, patient: int, size: int = 10) -> list[dict[str, Any]]:
    pages: list[dict[str, Any]] = []
    token = ""
    while token is not None:
        pages.append(clinic.answer(f"/patients/{patient}/{data_type}", {"size": str(size), "next": token}))
        token = pages[-1]["next"]
    return pages


def test_pages_are_the_same_in_every_run_and_differ_between_patients(api: ModuleType) -> None:
    first, second = api.Clinic(seed=3), api.Clinic(seed=3)

    assert all_pages(first, "allergies", 7) == all_pages(second, "allergies", 7)
    assert all_pages(first, "allergies", 7) != all_pages(first, "allergies", 8)
    assert all_pages(first, "allergies", 7) != all_pages(api.Clinic(seed=4), "allergies", 7)


@pytest.mark.parametrize("size", [1, 7, 10, 100])
def test_paging_yields_every_record_once_in_order(api: ModuleType, size: int) -> None:
    clinic = api.Clinic()
    pages = all_pages(clinic, "observations", 5, size)
    records = [record["id"] for page in pages for record in page["records"]]

    assert records == [f"observations-5-{number}" for number in range(1, pages[0]["total"] + 1)]
    assert [page["page"] for page in pages] == list(range(1, len(pages) + 1))
    assert {page["total"] for page in pages} == {len(records)}


def test_the_list_of_patients_is_paged_like_their_records(api: ModuleType) -> None:
    clinic = api.Clinic(patients=25)
    pages = []
    token = ""
    while token is not None:
        pages.append(clinic.answer("/patients", {"next": token}))
        token = pages[-1]["next"]

    assert [len(page["records"]) for page in pages] == [10, 10, 5]
    assert [patient["id"] for page in pages for patient in page["records"]] == list(range(1, 26))
    assert clinic.stats()["patients"]["pages"] == 3


def test_patients_have_one_to_four_pages_of_the_default_size(api: ModuleType) -> None:
    clinic = api.Clinic()
    counts = {len(all_pages(clinic, data_type, patient)) for data_type in api.DATA_TYPES for patient in range(1, 60)}

    assert counts == {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/patients/1/shoe-sizes", {}, HTTPStatus.NOT_FOUND),
        ("/patients/one/allergies", {}, HTTPStatus.NOT_FOUND),
        ("/", {}, HTTPStatus.NOT_FOUND),
        ("/patients/1/allergies", {"size": "0"}, HTTPStatus.BAD_REQUEST),
        ("/patients/1/allergies", {"size": "ten"}, HTTPStatus.BAD_REQUEST),
        ("/patients/1/allergies", {"next": "bm90LWEtdG9rZW4="}, HTTPStatus.BAD_REQUEST),
        ("/patients/1/allergies", {"next": "%%%"}, HTTPStatus.BAD_REQUEST),
    ],
)
def test_what_cannot_be_answered_is_refused(
    api: ModuleType, path: str, query: dict[str, str], status: HTTPStatus
) -> None:
    clinic = api.Clinic(rate_limit=1)

    with pytest.raises(api.Refused) as refused:
        clinic.answer(path, query)

    assert refused.value.status == status
    assert all(stats["requests"] == 0 for stats in clinic.stats().values())


def test_a_token_is_good_for_its_own_patient_only(api: ModuleType) -> None:
    with pytest.raises(api.Refused, match="not a token of allergies of patient 2"):
        api.Clinic().answer("/patients/2/allergies", {"next": api.make_token("allergies", 1, 10)})


def test_throttle_lets_in_what_the_window_has_room_for(api: ModuleType) -> None:
    clock = Clock()
    throttle = api.Throttle(2, clock)

    assert throttle.wait_seconds() == 0
    clock.now += 0.25
    assert throttle.wait_seconds() == 0
    assert throttle.wait_seconds() == pytest.approx(0.75)
    clock.now += 0.75
    assert throttle.wait_seconds() == 0
    assert throttle.wait_seconds() == pytest.approx(0.25)


def test_a_throttled_request_is_told_when_to_come_back(api: ModuleType) -> None:
    clock = Clock()
    clinic = api.Clinic(rate_limit=1, clock=clock)
    clinic.answer("/patients/1/allergies", {})

    with pytest.raises(api.Refused) as refused:
        clinic.answer("/patients/2/allergies", {})

    assert refused.value.status == HTTPStatus.TOO_MANY_REQUESTS
    assert refused.value.headers == {"Retry-After": "1"}
    clock.now += 1
    clinic.answer("/patients/2/allergies", {})


def failures(api: ModuleType, patients: list[int]) -> set[int]:
    clinic = api.Clinic(error_rate=0.3, seed=11)
    failed = set()
    for patient in patients:
        try:
            clinic.answer(f"/patients/{patient}/prescriptions", {})
        except api.Refused as refused:
            failed.add((patient, refused.status))
    assert {status for _, status in failed} == {HTTPStatus.INTERNAL_SERVER_ERROR}
    assert clinic.stats()["prescriptions"]["failed"] == len(failed)
    return {patient for patient, _ in failed}


def test_failures_do_not_depend_on_the_order_of_requests(api: ModuleType) -> None:
    patients = list(range(1, 201))
    failed = failures(api, patients)

    assert failed == failures(api, patients[::-1])
    assert 30 < len(failed) < 90


def test_stats_count_per_data_type(api: ModuleType) -> None:
    clock = Clock()
    clinic = api.Clinic(rate_limit=3, clock=clock)
    for patient in (1, 2, 1):
        clinic.answer(f"/patients/{patient}/allergies", {})
    with pytest.raises(api.Refused):
        clinic.answer("/patients/3/observations", {})

    assert clinic.answer("/stats", {}) == {
        "patients": {"requests": 0, "pages": 0, "pages_twice": 0, "throttled": 0, "failed": 0},
        "allergies": {"requests": 3, "pages": 2, "pages_twice": 1, "throttled": 0, "failed": 0},
        "observations": {"requests": 1, "pages": 0, "pages_twice": 0, "throttled": 1, "failed": 0},
        "prescriptions": {"requests": 0, "pages": 0, "pages_twice": 0, "throttled": 0, "failed": 0},
    }


@pytest.fixture
def server(api: ModuleType) -> Iterator[Any]:
    with api.ApiServer(api.Clinic(rate_limit=2, clock=Clock())) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_over_http(server: Any) -> None:
    with httpx.Client(base_url=server.url) as client:
        page = client.get("/patients/1/allergies", params={"size": 1, "next": ""})
        following = client.get("/patients/1/allergies", params={"size": 1, "next": page.json()["next"]})
        throttled = client.get("/patients/1/allergies")
        unknown = client.get("/nothing")
        stats = client.get("/stats")

    assert page.status_code == 200
    assert page.json()["page"] == 1
    assert following.json()["page"] == 2
    assert throttled.status_code == 429
    assert throttled.headers["Retry-After"] == "1"
    assert unknown.status_code == 404
    assert "/nothing" in unknown.json()["error"]
    assert stats.json()["allergies"]["throttled"] == 1


def test_as_a_program_it_says_where_it_is_and_ends_with_its_parent(playbooks: Path) -> None:
    command = [sys.executable, str(playbooks / "api.py"), "--port", "0", "--stop-with-stdin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}
        process.stdin.close()
        assert process.wait(timeout=20) == 0


@pytest.mark.parametrize("rate", ["1", "-0.1", "half"])
def test_an_impossible_error_rate_is_refused(api: ModuleType, rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        api.parse_options(["--error-rate", rate])

    assert stopped.value.code == 2
    assert "--error-rate" in capsys.readouterr().err
