"""Loops over collections and long chains, beside what Celery calls group and chain."""

from __future__ import annotations

from benchmarks.bench import Bench, BenchError
from benchmarks.cases import drains
from benchmarks.model import OURS, Case, Contestant, Goal, Values
from benchmarks.systems import CELERY, NOETL

GROUP, GROUP_SENT = "celery group", "celery group, no results"
CHAIN = "celery chain"
CHAIN_STEPS = 100


def sent(bench: Bench, rows: int) -> Values:
    from benchmarks.baselines import celery_group

    values = bench.drained(lambda: celery_group.send(rows))
    drains.settle_celery(bench)
    return values


def gathered(bench: Bench, rows: int) -> Values:
    from benchmarks.baselines import celery_group

    began = bench.now()
    celery_group.gather(celery_group.body_with_result, rows)
    return bench.work_done(began, bench.now())


def celery_rows(bench: Bench, rows: int) -> Values:
    from benchmarks.baselines import celery_chain

    began = bench.now()
    celery_chain.rows_in_order(rows)
    return bench.work_done(began, bench.now())


def celery_steps(bench: Bench, steps: int) -> Values:
    from benchmarks.baselines import celery_chain

    began = bench.now()
    celery_chain.steps(steps)
    return {"rows": float(steps), "seconds": bench.now() - began}


def chain_text(steps: int) -> str:
    """A playbook with so many steps, each of which adds one to what the step before gave."""
    lines = [
        "apiVersion: noetl.io/v2",
        "kind: Playbook",
        f"metadata: {{name: chain_{steps}, path: bench/chain_{steps}}}",
        "workflow:",
    ]
    for number in range(1, steps + 1):
        before = f"{{{{ step_{number - 1} }}}}" if number > 1 else "0"
        lines.append(f"- step: step_{number}")
        lines.append(f'  tool: {{kind: python, input: {{number: "{before}"}}, code: "result = int(number) + 1"}}')
        if number < steps:
            lines.append(f"  next: step_{number + 1}")
    return "\n".join(lines) + "\n"


def register_chain(bench: Bench, steps: int) -> None:
    bench.client.register(f"chain_{steps}.yaml", text=chain_text(steps))


def chain_of_steps(bench: Bench, steps: int) -> Values:
    values, execution = bench.execute(f"bench/chain_{steps}", {})
    if execution.outcome() != steps:
        raise BenchError(f"the chain gave {execution.outcome()}")
    return {**values, "rows": float(steps)}


PARALLEL = Case(
    "parallel",
    "parallel loop over a collection, 1 UPDATE per item",
    (
        Contestant(OURS, drains.collection("bench/parallel"), NOETL),
        Contestant(GROUP, gathered, CELERY),
        Contestant(GROUP_SENT, sent, CELERY),
    ),
    rows=10_000,
    quick_rows=1_000,
    warm_rows=200,
    prepare=drains.fill,
    goals=(Goal("≥ 5 × celery group", OURS, "rate", GROUP, least=5),),
    notes=("Our loop keeps the results in order; so does the group, whose caller waits for them.",),
)

SEQUENTIAL = Case(
    "sequential",
    "sequential loop, 1 UPDATE per item",
    (Contestant(OURS, drains.collection("bench/sequential"), NOETL), Contestant(CHAIN, celery_rows, CELERY)),
    rows=500,
    quick_rows=100,
    warm_rows=20,
    prepare=drains.fill,
    goals=(Goal("≥ 2 × celery chain of the same length", OURS, "rate", CHAIN, least=2),),
)

STEPS = Case(
    "chain",
    f"{CHAIN_STEPS}-step chain",
    (Contestant(OURS, chain_of_steps, NOETL), Contestant(CHAIN, celery_steps, CELERY)),
    rows=CHAIN_STEPS,
    quick_rows=CHAIN_STEPS,
    warm_rows=10,
    prepare=register_chain,
    figure="seconds",
    unit="s",
    goals=(Goal("≤ 1.5 × celery chain", OURS, "seconds", CHAIN, most=1.5),),
)

CASES = (PARALLEL, SEQUENTIAL, STEPS)
