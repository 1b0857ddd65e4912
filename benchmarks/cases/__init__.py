"""All cases, in the order in which they are run."""

from benchmarks.cases import cursor

CASES = (*cursor.CASES,)
