"""All cases, in the order in which they are run."""

from benchmarks.cases import acceptance, cursor, executions, growth, loops

CASES = (*cursor.CASES, *loops.CASES, *executions.CASES, *growth.CASES, *acceptance.CASES)
