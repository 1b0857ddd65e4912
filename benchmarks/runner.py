"""Runs a case: its contestants in turns, each warmed up, each run measured."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.bench import Bench
from benchmarks.figures import derived, turns
from benchmarks.measure import Meter
from benchmarks.model import Case, CaseResult, Contestant, Values
from benchmarks.services import is_work
from benchmarks.systems import NOETL_GROUP

#: statements are counted on so many rows at most: each is a line in the log of PostgreSQL
COUNTED_ROWS = 10_000

Tell = Callable[[str], None]


def run_case(bench: Bench, case: Case, tell: Tell, *, flip: bool = False) -> CaseResult:
    """All rounds of a case. Whoever fails is named in ``problems``, and the others go on.

    ``flip`` begins with the last contestant: the system of the case before may still be up.
    """
    quick = bench.options.quick
    sizes = {contestant.name: contestant.size(case, quick) for contestant in case.contestants}
    taking_part = [contestant for contestant in case.contestants if sizes[contestant.name]]
    result = CaseResult(case, {contestant.name: [] for contestant in taking_part}, sizes)
    rounds = bench.options.repeat
    order = turns(taking_part, rounds + flip)[flip:]
    failed: set[str] = set()
    for number, contestants in enumerate(order):
        for contestant in contestants:
            if contestant.name in failed or number >= (contestant.repeat or rounds):
                continue
            try:
                counted = case.counted and not result.samples[contestant.name]
                values = _run(bench, case, contestant, sizes[contestant.name], counted)
            except Exception as error:
                failed.add(contestant.name)
                result.problems.append(f"{contestant.name}: {type(error).__name__}: {error}")
                tell(f"{case.name}: {contestant.name} failed: {type(error).__name__}: {error}")
                continue
            result.samples[contestant.name].append(values)
            tell(f"{case.name} {number + 1}/{rounds}: {contestant.name} {values[case.figure]:,.1f} {case.unit}")
    return result


def _run(bench: Bench, case: Case, contestant: Contestant, rows: int, count: bool) -> Values:
    system = contestant.system
    bench.fleet.need(system)
    if bench.fleet.first_time(system, f"{case.name}/{contestant.name}"):
        warm = min(rows, case.warm_rows)
        case.prepare(bench, warm)
        contestant.run(bench, warm)
    counted = _count(bench, case, contestant, rows) if count else {}
    case.prepare(bench, rows)
    command = system.message_command if system else "lpush"
    with Meter(bench.services, bench.fleet.processes(system), command) as meter:
        values = contestant.run(bench, rows)
    return {**derived({**meter.values, **values}), **counted}


def _count(bench: Bench, case: Case, contestant: Contestant, rows: int) -> Values:
    """SQL statements per row, from a run of its own. In a quick run our idle workers are there too: not theirs."""
    rows = min(rows, COUNTED_ROWS)
    case.prepare(bench, rows)
    with bench.services.statements() as statements:
        done = contestant.run(bench, rows)["rows"]
    if contestant.system is not None and contestant.system.group != NOETL_GROUP:
        statements = [statement for statement in statements if "noetl." not in statement]
    own = [statement for statement in statements if not is_work(statement)]
    return {"statements_per_row": len(statements) / done, "own_statements_per_row": len(own) / done}
