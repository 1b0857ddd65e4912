"""``keychain``: names for secrets, resolved when a task asks for them and never stored with an execution.

An entry with ``credential`` or ``ref`` names a credential of the vault; ``map`` (and ``token``) give values of their
own, templates usually. Kinds that fetch secrets from a cloud's store need that cloud, and are refused by name.
"""

from __future__ import annotations

from noetl_celery.playbook import model
from noetl_celery.playbook.plan import KeychainPlan
from noetl_celery.playbook.problems import Path, Reporter
from noetl_celery.playbook.values import ValueCompiler

_FROM_A_STORE = frozenset({"secrets", "secret", "secret_manager", "vault"})


def keychain_plan(entry: model.KeychainEntry, values: ValueCompiler, report: Reporter, path: Path) -> KeychainPlan:
    """The plan of one entry; reports what it needs and does not say."""
    kind = entry.kind or entry.type or "credential"
    if kind in _FROM_A_STORE:
        of = f" (provider `{entry.provider}`)" if entry.provider else ""
        hint = f"store it here instead: `noetl-celery credential set {entry.name} …`, and `kind: credential`"
        message = f"keychain entry `{entry.name}` is of kind `{kind}`{of}, which needs a plugin that is not installed"
        report.error(message, (*path, "kind" if entry.kind else "type"), code="unknown-kind", hint=hint)
        return KeychainPlan(entry.name)
    named = "credential" if entry.credential is not None else "ref"
    fields = dict(entry.map)
    if entry.token is not None:
        fields |= {"token": entry.token, "access_token": entry.token}
    if getattr(entry, named) is None and not fields:
        hint = "write `credential: <name>` (one that is stored) or `map: {field: value}`"
        report.error(f"keychain entry `{entry.name}` gives no secret", path, code="missing-key", hint=hint)
    return KeychainPlan(
        entry.name,
        credential=values.optional(getattr(entry, named), (named,), "keychain"),
        fields=values.optional(fields or None, ("map",), "keychain"),
    )
