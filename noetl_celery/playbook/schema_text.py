"""What each key means, in a line: shown by editors. One table, by model and key; a test compares it with the models."""

from __future__ import annotations

from collections.abc import Mapping

_EXTRAS = {"version": "for people", "description": "for people", "labels": "for people", "tags": "for people"}
_FREE = {"tracing": "accepted, for other systems", "spec": "free", "exposes_as_mcp": "accepted, for other systems"}
_RESULT = {
    "output": "how the result is stored",
    "output_select": "fields of a stored result that templates see",
    "inline_max_bytes": "results above this size are stored apart",
}
_SET = "values to write when it ends: `ctx.x`, `iter.x` or a bare name, each a template"

TEXTS: Mapping[str, Mapping[str, str]] = {
    "Metadata": {"name": "what the playbook is called", "path": "its key in the catalog; else the name"}
    | _EXTRAS
    | _FREE,
    "ExecutorSpec": {
        "entry_step": "the first step; else the one called `start`, else the first in the list",
        "pool": "the workers that run the rows of all steps",
    },
    "Executor": {
        "profile": "accepted, for other systems",
        "version": "accepted, for other systems",
        "requires": "accepted, for other systems",
        "spec": "where it begins, and which workers run it",
    },
    "Document": {
        "apiVersion": "always noetl.io/v2",
        "kind": "always Playbook",
        "metadata": "what the playbook is called and where the catalog keeps it",
        "keychain": "names for secrets, looked up when a task asks for them",
        "executor": "where the playbook begins, and which workers run it",
        "workload": "the inputs with their defaults; what a run gives is merged over them",
        "workflow": "the steps",
        "workbook": "named tasks that steps call with `tool: {kind: workbook, name: …}`",
        "tracing": "accepted, for other systems",
        "spec": "free; templates read it as spec.x",
        "labels": "for people",
        "tags": "for people",
        "exposes_as_mcp": "accepted, for other systems",
    },
    "Then": {
        "do": "what happens next",
        "to": "for jump: the name of a task of this step",
        "attempts": "for retry: how often it is tried in all (3)",
        "backoff": "for retry: how the delay grows",
        "delay": "for retry: seconds before the next attempt",
        "max_delay": "for retry: no delay is longer, in seconds (300)",
        "set": "values to write before the next task: `ctx.x`, `iter.x` or a bare name",
        "set_iter": "values to write to `iter`: of this row",
        "set_ctx": "values to write to `ctx`: of the execution",
    },
    "PolicyRule": {"when": "a condition; without it the rule always holds", "then": "what is done if it holds"},
    "TaskPolicy": {"rules": "asked in order after each attempt; the first that holds applies"},
    "Task": {
        "name": "what the task is called; a single task is called like its step",
        "kind": "which tool",
        "input": "values for the tool: names for its other keys, variables of its code",
        "set": _SET,
        "policy": "what follows a success or an error",
    },
    "Call": {
        "path": "the child playbook's key in the catalog",
        "version": "which version of it; else the newest",
        "return_step": "the step whose result the call has; else the last one",
        "timeout": "seconds",
        "task": "accepted",
        "pool": "accepted",
    },
    "KeychainEntry": {
        "name": "what tasks call the secret in `auth`",
        "kind": "what kind of secret it is",
        "type": "the same as kind",
        "ref": "the name of a stored credential",
        "credential": "the name of a stored credential",
        "map": "values of its own, templates usually",
        "token": "a token, a template usually",
        "provider": "of a cloud's store of secrets",
        "scope": "of a cloud's store of secrets",
    },
    "AdmitThen": {"allow": "may the step start"},
    "Admit": {"when": "a condition; without it the rule always holds", "then": "what is decided if it holds"},
    "AdmitRules": {
        "mode": "the first rule that holds decides",
        "rules": "may the step start? If none holds, it may",
    },
    "Lifecycle": {
        "timeout_s": "seconds for the whole step",
        "deadline_s": "seconds for the whole step",
    },
    "Failure": {"mode": "what a failed row means: the loop fails, or the others go on"},
    "StepPolicy": {
        "lifecycle": "how long the step may take",
        "failure": "what a failed row means",
        "admit": "whether the step may start",
    },
    "StepSpec": {
        "timeout": "seconds for the whole step",
        "pool": "the workers that run its rows",
        "policy": "admission, failures, time",
    },
    "Frame": {
        "max_rows": "rows in a frame; the claim reads it as {{ __frame_max_rows }} (1)",
        "row_concurrency": "rows of a frame at work at once (1: in order; auto: as many as their targets bear)",
        "lease_seconds": "how long rows belong to a worker that gives no sign of life (120)",
        "heartbeat_seconds": "seconds between the events frame.heartbeat (30)",
        "max_seconds": "after this no further row starts in the same lane",
        "max_bytes": "a claim with more becomes several frames",
        "process": "row: the pipeline runs for each row; frame: once, with the list of rows",
        "ack": "row: each outcome is written by itself; batch: together with others",
    },
    "LoopPolicy": {
        "exec": "accepted",
        "mode": "accepted",
        "max_in_flight": "the same as max_in_flight beside it",
        "results": "accepted; results keep the order of the items anyway",
    },
    "LoopSpec": {
        "mode": "one after the other, or several at once; cursor follows from `cursor`",
        "max_in_flight": "items at work at once (parallel: 16), or frames open (cursor: 1); auto: as targets bear",
        "frame": "how claimed rows are worked",
        "policy": "accepted",
    },
    "Cursor": {
        "kind": "which driver claims",
        "auth": "the name of the credential of the source",
        "claim": "what leases rows and returns them; asked again until it returns none",
        "reclaim": "gives back rows that were left claimed, at the beginning and now and then",
        "reclaim_after": "seconds between reclaims",
        "dead_letter": "run for each row that failed for good; sees `iter` and `error`",
        "count": "how many rows there are, for showing progress",
        "options": "the driver's own",
    },
    "Reduction": {
        "count": "how many values are true",
        "sum": "of the values",
        "min": "the smallest value",
        "max": "the largest value",
        "mean": "of the values",
        "first": "the first value",
        "last": "the last value",
        "sample": "some of the values",
        "limit": "values that a sample keeps (20)",
    },
    "Loop": {
        "in": "a collection: a list, or a template for one",
        "cursor": "a source that rows are claimed from",
        "iterator": "what an item is called: iter.<name>, and the bare name",
        "spec": "how many at once, in which frames",
        "aggregate": "values folded over all rows, by name",
    },
    "ArcModel": {
        "step": "where it leads",
        "when": "a condition; without it the arc is always followed",
        "set": "values to write when it is followed",
        "args": "names for the step that it leads to: args.x",
    },
    "NextSpec": {
        "mode": "exclusive: the first arc that matches; inclusive: all that do",
        "on_no_match": "what happens if no arc matches: the branch ends, or the step fails",
    },
    "Next": {"spec": "how arcs are followed", "arcs": "where it goes on"},
    "Step": {
        "step": "what the step is called; templates read its result by this name",
        "desc": "for people",
        "spec": "time, workers, admission, failures",
        "loop": "runs the tasks for each item or claimed row",
        "input": "values for every task; merged under their own",
        "tool": "a task, or a list of named tasks; none: the step only routes",
        "set": _SET,
        "next": "where it goes on; without it to a step called `end`, if there is one",
        "labels": "for people",
        "tags": "for people",
    }
    | _RESULT,
}

#: other names for keys, and older forms that are read: by definition, key → what to write today (None: either will do)
ALSO_READ: Mapping[str, Mapping[str, str | None]] = {
    "Step": {
        "name": None,
        "args": None,
        "sink": "a task that saves, after the one that fetches",
        "retry": "`spec.policy.rules` with `do: retry` in the task",
    },
    "Task": {
        "args": None,
        "credential": None,
        "spec": None,
        "desc": None,
        "sink": "a task that saves, after this one",
        "retry": "`spec.policy.rules` with `do: retry`",
    },
    "Loop": {
        "collection": "`in`",
        "element": "`iterator`",
        "mode": "`spec: {mode: …}`",
        "concurrency": "`spec: {max_in_flight: …}`",
        "chunk_size": "`spec: {max_in_flight: …}`",
    },
    "Cursor": {"credential": None},
    "ArcModel": {"cond": None},
}
