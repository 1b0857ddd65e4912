"""``keychain`` of a playbook at work: secrets by name, looked up when a template or a tool asks, and kept nowhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from noetl_celery import hiding
from noetl_celery.errors import TemplateError, ToolError
from noetl_celery.playbook.plan import KeychainPlan

Lookup = Callable[[str], Mapping[str, Any]]


class Keychain(Mapping[str, Mapping[str, Any]]):
    """Entry name → its fields: those of the stored credential, and over them those that the playbook gives.

    ``names`` gives what an entry's own templates see, of which the other entries are a part. Looking an entry up raises
    ``TemplateError`` for a template that cannot be rendered and for a credential that is not stored.
    """

    def __init__(
        self, entries: Mapping[str, KeychainPlan], names: Callable[[Keychain], Mapping[str, Any]], stored: Lookup
    ) -> None:
        self._entries, self._names, self._stored = entries, names, stored

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        entry = self._entries[name]
        # Without this one, so that entries which name each other in a circle come to an end.
        others = {other: plan for other, plan in self._entries.items() if other != name}
        names = self._names(Keychain(others, self._names, self._stored))
        fields: dict[str, Any] = {}
        if entry.credential is not None:
            try:
                fields |= self._stored(str(entry.credential.render(names)))
            except ToolError as error:
                raise TemplateError(f"keychain entry '{name}': {error}") from error
        if entry.fields is not None:
            fields |= entry.fields.render(names)
        hiding.learn_credential(fields)
        return fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def credential(self, name: str) -> Mapping[str, Any]:
        """What ``auth: name`` means: an entry of the keychain, else a stored credential. Raises ``ToolError``."""
        return self[name] if name in self._entries else self._stored(name)
