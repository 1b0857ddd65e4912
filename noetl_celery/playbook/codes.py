"""The codes of problems, once: stable words to search for, to filter by and to read about in ``docs/lint.md``.

A code is never given another meaning. Everything that says what is wrong with a playbook names one of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_ERRORS = {
    "yaml": "the text is not YAML, not UTF-8, empty, or uses a YAML feature that playbooks cannot have",
    "too-large": "the document is larger or nested more deeply than any playbook",
    "duplicate-key": "a key stands twice in one mapping",
    "not-a-playbook": "`apiVersion` or `kind` is not that of a playbook",
    "missing-key": "a key that has to be there is not",
    "unknown-key": "a key that means nothing here",
    "wrong-type": "a value of the wrong shape: a list where a mapping is expected, and so on",
    "wrong-value": "a value that is not one of those allowed, or out of range",
    "conflicting-keys": "two keys that cannot stand together",
    "duplicate-name": "two steps, or two tasks of a step, have the same name",
    "unknown-step": "an arc, or `entry_step`, leads to a step that is not there",
    "unknown-task": "`jump` leads to a task that is not in the step, or a workbook task is called that is not there",
    "unknown-kind": "a kind of tool or cursor that is not installed",
    "tool-config": "the tool or the cursor driver refuses its own keys",
    "template-syntax": "a template does not parse",
    "set-target": "`set` writes to something that cannot be set",
    "unread-form": "an older form that is not read",
}

_WARNINGS = {
    "older-form": "an older form that is read; the hint shows the one to write",
    "ambiguous-boolean": "`yes`, `no`, `on` or `off`, read as a boolean",
    "no-effect": "a key that is read and changes nothing",
    "shadowed-name": "a step or an iterator whose name templates use for something else",
    "unreachable-step": "no arc leads to the step",
    "uncalled-task": "a workbook task that no step calls: it is not checked",
    "unreachable-rule": "a rule or an arc that stands after one that always holds",
    "constant-condition": "a `when` that is always true, or never",
    "event-never": "a `when` that waits for an event which this step does not have",
    "unknown-name": "a template asks for a name that nothing sets",
    "claim-changes-nothing": "a claim that would lease the same rows for ever",
    "claim-skip-locked": "a claim that locks rows without `SKIP LOCKED`: claims wait for each other",
    "claim-limit": "a claim without a `LIMIT`, or with one that does not follow `frame.max_rows`",
    "claim-stale": "rows of a lost worker are never claimed again",
    "heartbeat-lease": "`heartbeat_seconds` is not less than `lease_seconds`",
    "retry-attempts": "a retry that does not say how often",
    "endless-jump": "a jump that nothing ends",
    "plain-secret": "a secret stands in the playbook as plain text",
}

#: code → what it means; errors first
ERRORS: Mapping[str, str] = MappingProxyType(_ERRORS)
WARNINGS: Mapping[str, str] = MappingProxyType(_WARNINGS)
CODES: Mapping[str, str] = MappingProxyType(_ERRORS | _WARNINGS)
