"""All cases, in the order in which they are run: those that share worker processes beside each other."""

from benchmarks.cases import acceptance, cursor, executions, growth, loops

CASES = (
    *cursor.CASES,
    *loops.CASES,
    *executions.CASES,
    *growth.CASES,
    *acceptance.CASES,
    cursor.WAIT,
    *growth.SCALE,
)
