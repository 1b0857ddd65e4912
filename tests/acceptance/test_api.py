"""The Python API on a running system, synchronous and asynchronous."""

import asyncio
import subprocess
import sys
import time

import pytest
from running import ROOT, System, until

from noetl_celery import AsyncNoetl, ExecutionFailed, InputError, NotFound, WaitTimeout

pytestmark = pytest.mark.acceptance

HELLO = ROOT / "playbooks" / "hello.yaml"
#: as the README shows it
TEN_LINES = f"""\
from noetl_celery import Noetl

with Noetl() as noetl:
    registered = noetl.register({str(HELLO)!r})
    execution = noetl.submit(registered.path, workload={{"greeting": "Welcome"}})
    print(execution.wait(timeout=60))
    print(execution.result()["text"])
    for event in execution.events():
        print(event["event_type"], event["node_name"])
"""
COUNTS = """\
  - step: start
    loop:
      in: "{{ range(workload.n) | list }}"
      iterator: i
      spec: {mode: parallel, max_in_flight: 2}
    tool: {kind: python, input: {pause: "{{ workload.pause }}"}, code: "import time; time.sleep(pause)"}
    next: {arcs: [{step: sum}]}
  - step: sum
    tool: {kind: python, input: {n: "{{ start.count }}"}, code: "result = n"}
    next: {arcs: [{step: end}]}
  - step: end
"""
FAILS = "  - step: start\n    tool: {kind: python, code: 'raise KeyError(1)'}\n"


@pytest.fixture
def counts(system: System) -> str:
    return system.playbook("counts", COUNTS, "{n: 4, pause: 0.05}")


def test_ten_lines(system: System) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TEN_LINES],
        capture_output=True,
        text=True,
        env=system.env,
        cwd=system.folder,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    status, text, first, *_, last = done.stdout.splitlines()
    assert (status, text) == ("COMPLETED", "Welcome, Ada! Welcome, Grace! Welcome, Katherine!")
    assert first == "playbook.started None"
    assert last == "playbook.completed None"
    assert done.stderr == ""


def test_from_submission_to_result(system: System, counts: str) -> None:
    with system.client() as client:
        registered = client.register(counts)
        assert client.register(counts).new is False
        assert (registered.path, registered.warnings) == ("acceptance/counts", ())
        execution = client.submit(registered.path, {"n": 3})
        assert execution.announced
        statuses = [snapshot.status for snapshot in execution.watch(60)]
        assert statuses[-1] == "COMPLETED"
        # The last step is a router, so the result is that of the last one with a task.
        assert execution.result() == 3
        report = execution.report()
        assert report["execution_id"] == str(execution.id)
        assert list(report["steps"]) == ["start", "sum", "end"]
        assert execution.progress() == ()
        again = client.execution(str(execution.id))
        assert again.status() == "COMPLETED"
        assert client.executions(limit=1)[0]["execution_id"] == execution.id
        assert again.cancel() is False
        assert again.pause() is False
        events = list(again.events())
        assert [event["event_id"] for event in events] == sorted(event["event_id"] for event in events)
        assert [event["event_id"] for event in again.events(after=events[2]["event_id"])] == [
            event["event_id"] for event in events[3:]
        ]


def test_a_failure_is_raised_when_its_result_is_asked_for(system: System) -> None:
    with system.client() as client:
        path = client.register(system.playbook("raises", FAILS)).path
        with pytest.raises(ExecutionFailed, match="FAILED") as failed:
            client.submit(path).result(60)
        assert failed.value.error["step"] == "start"
        assert failed.value.error["kind"] == "python"


def test_cancel_pause_and_resume(system: System, counts: str) -> None:
    with system.client() as client:
        path = client.register(counts).path
        execution = client.submit(path, {"n": 1000, "pause": 0.2})
        with pytest.raises(WaitTimeout):
            execution.wait(0.2)
        until(execution.progress, "an open step")
        assert execution.progress()[0].step == "start"
        assert execution.pause()
        until(lambda: execution.status() == "PAUSED", "a pause")
        assert execution.resume()
        until(lambda: execution.status() == "RUNNING", "its end")
        assert execution.cancel("enough")
        assert execution.cancel()
        assert execution.wait(60) == "CANCELLED"
        with pytest.raises(ExecutionFailed, match="CANCELLED"):
            execution.result()


def test_bad_input(system: System) -> None:
    with system.client() as client:
        client.register(HELLO)
        with pytest.raises(NotFound, match="did you mean examples/hello"):
            client.submit("examples/helo")
        with pytest.raises(InputError, match="workload"):
            client.submit("examples/hello", {"greeting": object()})
        with pytest.raises(NotFound):
            client.execution(4711)
        before = client.executions(limit=1)
        with pytest.raises(InputError):
            client.submit("examples/hello", ["no mapping"])  # type: ignore[arg-type]
        assert client.executions(limit=1) == before


def test_asynchronous(system: System, counts: str) -> None:
    settings = system.client().settings

    async def main() -> None:
        async with AsyncNoetl(settings) as client:
            path = (await client.register(counts)).path
            started = [await client.submit(path, {"n": n}) for n in (1, 2, 3)]
            assert await asyncio.gather(*(execution.result(60) for execution in started)) == [1, 2, 3]
            events = [event["event_type"] async for event in started[0].events(follow=True)]
            assert events[-1] == "playbook.completed"
            assert [s.status async for s in started[1].watch()] == ["COMPLETED"]
            assert (await started[2].report())["status"] == "COMPLETED"

            endless = await client.submit(path, {"n": 1000, "pause": 0.2})
            begun = time.monotonic()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(endless.wait(), 0.3)
            assert time.monotonic() - begun < 5
            assert await endless.cancel()
            assert await endless.wait(60) == "CANCELLED"
            with pytest.raises(NotFound):
                await client.execution(4711)

    asyncio.run(main())
