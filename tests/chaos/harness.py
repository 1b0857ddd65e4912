"""Does harm to real workers while they work on rows that can be counted, and checks that nothing is lost.

    with arena(tmp_path) as system:                  # services, tables, playbooks; or the fixture `system`
        system.worker("a")                           # `noetl-celery worker`; or `system.start` for a plain Celery node
        trial = Trial(system, "SIGKILL of random pool processes")
        trial.submit(rows=500)
        for _ in trial.harm(seconds=15, every=2):    # work goes on meanwhile
            system.kill(trial.random.choice(worker.pool()))
        trial.check()                                # waits for the end, counts, compares, takes down the result

Each row writes a line into ``public.ledger`` whenever it is run. A run is a failure if a row is missing there or has no
final outcome, if lines are there twice that ``frame.reruns`` does not account for, if anything stays open, if the
replay of the events differs from the tables, or if a process died or complained that nobody has harmed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from nodes import Cluster, cluster, wait_for

from noetl_celery.errors import WaitTimeout
from noetl_celery.execution import Execution

PLAYBOOKS = Path(__file__).parent / "playbooks"
#: how long faults go on in the long form of a test, and what is random in it
SECONDS = float(os.environ.get("NOETL_CHAOS_SECONDS", "120"))
SEED = int(os.environ.get("NOETL_CHAOS_SEED", "1"))
#: parameters of a test whose faults go on for a while: the short form is part of `make test`
LENGTHS = [pytest.param(12.0, id="short", marks=pytest.mark.short), pytest.param(SECONDS, id="long")]
#: what is said where kills come at random: by a process of a pool that had just begun to start when its node was
#: killed, and by a node that finds, once it is ready, that one of its pool was killed already: it ends itself
NODE_KILLED = (
    r"^BrokenPipeError: \[Errno 32\] Broken pipe$",
    r"^billiard\.exceptions\.WorkerLostError: Could not start worker processes$",
    r"^noetl-celery: bodies node of worker \w+ ended with exit code 1; starting it again in ",
)
#: what Celery logs when a process of its pool was killed: its task, and the chord that it belonged to
ALWAYS_ALLOWED = (
    r"WorkerLostError.*Worker exited prematurely: signal 9 \(SIGKILL\)",
    r"^billiard\.einfo\.ExceptionWithTraceback:$",
)
#: what stands between the traceback of an error and that of the one it led to
CAUSES = ("During handling of the above exception,", "The above exception was the direct cause of")
FAMILY = """
  WITH RECURSIVE family AS (
    SELECT execution_id FROM noetl.execution WHERE execution_id = ANY(%s)
    UNION ALL SELECT e.execution_id FROM noetl.execution e JOIN family f ON e.parent_execution_id = f.execution_id)
"""
OPEN = """
  SELECT 'run' AS what, run_id AS id FROM noetl.run WHERE execution_id IN (SELECT * FROM family)
  UNION ALL SELECT 'outbox', outbox_id FROM noetl.outbox WHERE execution_id IN (SELECT * FROM family)
  UNION ALL SELECT 'signal ' || type, signal_id FROM noetl.signal WHERE execution_id IN (SELECT * FROM family)
  UNION ALL SELECT 'claim ' || status, claim_id FROM noetl.claim
    WHERE execution_id IN (SELECT * FROM family) AND status IN ('OPEN', 'TAKEN')
  UNION ALL SELECT 'frame ' || status, frame_id FROM noetl.frame
    WHERE execution_id IN (SELECT * FROM family) AND status <> 'COMPLETED'
  UNION ALL SELECT 'row ' || r.status, r.frame_id FROM noetl.row r JOIN noetl.frame f USING (frame_id)
    WHERE f.execution_id IN (SELECT * FROM family) AND r.status NOT IN ('OK', 'FAILED', 'SKIPPED')
  UNION ALL SELECT 'wakeup', w.frame_id FROM noetl.wakeup w JOIN noetl.frame f USING (frame_id)
    WHERE f.execution_id IN (SELECT * FROM family)
  UNION ALL SELECT 'stage ' || status, stage_id FROM noetl.stage
    WHERE execution_id IN (SELECT * FROM family) AND status = 'OPEN'
"""

#: for tests that kill at random every few seconds: a row that was at work three times is not to blame
INNOCENT = {"NOETL_MAX_CRASHES": "20"}

_batches = count(1)


@contextlib.contextmanager
def arena(folder: Path, **settings: str) -> Iterator[Cluster]:
    """Fresh services with the schema, the ledger and the playbooks of the chaos tests; no workers yet."""
    # Retries of a second park their rows.
    with cluster(folder, **({"NOETL_SHORT_WAIT_SECONDS": "0.5"} | settings)) as system:
        system.q(
            "CREATE TABLE public.ledger (batch text, id int, attempt int, worker int, "
            "at timestamptz NOT NULL DEFAULT clock_timestamp())"
        )
        system.q("CREATE INDEX ON public.ledger (batch, id)")
        for file in sorted(PLAYBOOKS.glob("*.yaml")):
            system.client.register(file)
        yield system


@dataclass
class Work:
    """One execution that works through a batch of rows."""

    batch: str
    rows: int
    execution: Execution
    #: rows that have to end FAILED
    failed: int = 0


@dataclass
class Verdict:
    """What was found at the end of a trial; a line of the table in docs/reliability.md."""

    fault: str
    seed: int
    rows: int = 0
    lost: int = 0
    rerun: int = 0
    #: the longest time, in seconds, in which no row of an execution got on
    stall: float = 0.0
    #: why the trial has failed, for people
    wrong: list[str] = field(default_factory=list)

    def record(self) -> None:
        """Adds the line to the file that NOETL_CHAOS_RECORD names, if it does."""
        file = os.environ.get("NOETL_CHAOS_RECORD")
        if file:
            line = {**vars(self), "wrong": len(self.wrong), "stall": round(self.stall, 2)}
            with Path(file).open("a") as out:
                out.write(json.dumps(line) + "\n")


class Trial:
    """One kind of fault, done to workloads on one system. ``fault`` names it in the table: plain words."""

    def __init__(self, system: Cluster, fault: str, *, seed: int = SEED) -> None:
        self.system, self.fault, self.seed = system, fault, seed
        self.random = Random(f"{seed} {fault}")
        self.works: list[Work] = []
        self._told = {node.log: len(node.text) for node in system.nodes}

    # -- work ----------------------------------------------------------------------------------------------------

    def submit(
        self, rows: int, *, path: str = "chaos/queue", source: str = "here", failed: int = 0, **workload: Any
    ) -> Work:
        """Fills a batch of the queue and starts an execution for it. ``source``: ``here`` or ``elsewhere``."""
        batch = f"batch-{next(_batches)}"
        self.system.fill(batch, rows, source)
        execution = self.system.client.submit(path, {"batch": batch, "source": source, **workload})
        self.works.append(Work(batch, rows, execution, failed))
        return self.works[-1]

    def done(self, work: Work | None = None) -> int:
        """Rows (of all work) that have left their mark so far."""
        batches = [one.batch for one in ([work] if work else self.works)]
        return int(
            self.system.value("SELECT count(DISTINCT (batch, id)) FROM public.ledger WHERE batch = ANY(%s)", batches)
        )

    def under_way(self, rows: int = 10) -> None:
        """Waits until some rows have left their mark."""
        wait_for(lambda: self.done() >= rows, f"{rows} rows are done")

    def harm(self, seconds: float, every: float, *, rows: int = 400, **workload: Any) -> Iterator[int]:
        """Moments to do harm at: random ones, about ``every`` so many seconds. There is always work meanwhile:
        whenever all that was submitted has ended, another batch of ``rows`` is."""
        until = time.monotonic() + seconds
        for number in count():
            pause = time.monotonic() + every * self.random.uniform(0.5, 1.5)
            while time.monotonic() < min(pause, until):
                if not self.works or self.works[-1].execution.status() == "COMPLETED":
                    self.submit(rows, **workload)
                time.sleep(0.1)
            if time.monotonic() >= until:
                return
            yield number

    # -- the verdict ---------------------------------------------------------------------------------------------

    def check(self, *, within: float = 120, again: int = 0, allowed: tuple[str, ...] = ()) -> Verdict:
        """Waits until all work has ended, then says what became of it; fails if anything is not as promised.

        ``again``: lines in the ledger that may be there twice although no worker died (say, after a lost reply to a
        COMMIT). ``allowed``: patterns of log lines that this fault explains: last lines of tracebacks, ends of
        processes.
        """
        verdict = Verdict(self.fault, self.seed)
        deadline = time.monotonic() + within
        for work in self.works:
            if not self._ends(work, deadline):
                verdict.wrong.append(f"{work.batch} has not ended within {within:g} s: {work.execution.progress()}")
        for work in self.works:
            self._count(work, verdict)
        verdict.wrong += self._left_open()
        extra = self._extra()
        if extra > verdict.rerun + again:
            verdict.wrong.append(f"{extra} effects too many, and only {verdict.rerun} rows were run again")
        verdict.wrong += self._complaints((*ALWAYS_ALLOWED, *allowed))
        verdict.record()
        assert not verdict.wrong, "\n".join(verdict.wrong)
        return verdict

    def _ends(self, work: Work, deadline: float) -> bool:
        with contextlib.suppress(WaitTimeout):
            work.execution.wait(timeout=max(0.1, deadline - time.monotonic()))
            return True
        return False

    def _count(self, work: Work, verdict: Verdict) -> None:
        system, report = self.system, work.execution.report()
        marked = self.done(work)
        outcomes = system.q(
            "SELECT (r.payload ->> 'id')::int AS id, r.status FROM noetl.row r JOIN noetl.frame f USING (frame_id) "
            "JOIN noetl.stage s USING (stage_id) WHERE s.execution_id = %s AND s.step_name = 'start'",
            work.execution.id,
        )
        final = {row["id"] for row in outcomes if row["status"] in ("OK", "FAILED")}
        lost = work.rows - min(marked, len(final))
        verdict.rows += work.rows
        verdict.lost += lost
        verdict.rerun += self._value(work, "SELECT coalesce(sum(reruns), 0) FROM noetl.frame WHERE execution_id IN ")
        verdict.stall = max(verdict.stall, self._stall(work))
        wrong = verdict.wrong
        if report["status"] != "COMPLETED":
            wrong.append(f"{work.batch} is {report['status']}: {report['error']}")
        if lost:
            wrong.append(f"{work.batch}: of {work.rows} rows {marked} left a mark, {len(final)} have a final outcome")
        if len(outcomes) != work.rows:
            wrong.append(f"{work.batch}: {len(outcomes)} outcomes for {work.rows} rows")
        failed = sum(row["status"] == "FAILED" for row in outcomes)
        output = (report["steps"].get("start") or {}).get("output") or {}
        counts = {name: output.get(name) for name in ("processed", "ok", "failed")}
        if counts != {"processed": work.rows, "ok": work.rows - work.failed, "failed": failed} or failed != work.failed:
            wrong.append(f"{work.batch}: the step's result says {counts}, {failed} rows have failed")
        wrong += [f"{work.batch}: verify: {difference}" for difference in differences(work.execution)]

    def _value(self, work: Work, head: str) -> int:
        statement = f"{FAMILY} {head} (SELECT * FROM family)"
        return int(self.system.value(statement, [work.execution.id]))

    def _stall(self, work: Work) -> float:
        statement = """
          SELECT coalesce(max(gap), 0) FROM (
            SELECT extract(epoch FROM at - lag(at) OVER (ORDER BY at)) AS gap FROM (
              SELECT at FROM public.ledger WHERE batch = %s
              UNION ALL SELECT unnest(ARRAY[created_at, finished_at]) FROM noetl.execution WHERE execution_id = %s
            ) AS moments) AS gaps
        """
        return float(self.system.value(statement, work.batch, work.execution.id))

    def _extra(self) -> int:
        batches = [work.batch for work in self.works]
        statement = "SELECT count(*) - count(DISTINCT (batch, id)) FROM public.ledger WHERE batch = ANY(%s)"
        return int(self.system.value(statement, batches))

    def _left_open(self) -> list[str]:
        """What is still open a moment later: a lane may be about to end, a signal to a final execution to be read."""
        ids = [work.execution.id for work in self.works]
        left: list[dict[str, Any]] = []

        def nothing() -> bool:
            left[:] = self.system.q(FAMILY + OPEN, ids)
            return not left

        with contextlib.suppress(AssertionError):
            wait_for(nothing, "nothing is left open", 20)
        return [f"left open: {row['what']} {row['id']}" for row in left]

    def _complaints(self, allowed: tuple[str, ...]) -> list[str]:
        """Processes that died unharmed, and tracebacks that nothing explains."""
        found = []
        for node in self.system.nodes:
            text = node.text[self._told.get(node.log, 0) :]
            complaints = [*tracebacks(text), *self._deaths(text)]
            if not node.ended and node.process.poll() is not None:
                complaints.append(f"has ended with {node.process.returncode}")
            unexplained = [line for line in complaints if not any(re.search(pattern, line) for pattern in allowed)]
            found += [f"{node.name} ({node.log}): {line}" for line in unexplained]
        return found

    def _deaths(self, text: str) -> Iterator[str]:
        for line in text.splitlines():
            pid = re.search(r"Process .* pid:(\d+) exited with '(?!exitcode 0)", line)
            died = pid is not None and int(pid[1]) not in self.system.killed
            node_died = "; starting it again in " in line and "was ended by SIGKILL" not in line
            if died or node_died:
                yield line


def tracebacks(text: str) -> Iterator[str]:
    """The last line of each traceback in a log: the error, without those that it came from."""
    lines = [line for line in text.splitlines() if line.strip()]
    for number, line in enumerate(lines):
        if line.lstrip(" |+-").startswith("Traceback (most recent call last)"):
            margin = len(line) - len(line.lstrip())
            after = (later for later in range(number + 1, len(lines)) if lines[later][: margin + 1].strip())
            last = next(after, None)
            if last is None:
                yield "cut off"
            elif not "".join(lines[last + 1 : last + 2]).strip().startswith(CAUSES):
                yield lines[last].strip()


def differences(execution: Execution) -> list[str]:
    """How the replay of an execution's events differs from its tables."""
    return [str(difference) for difference in execution.verify().differences]
