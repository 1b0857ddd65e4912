"""The tool that fetches a kept result by its reference: all of it, or a part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.template.lazy import at, parse_path
from noetl_celery.tools.base import Reply, ToolCall
from noetl_celery.tools.keys import Complaint, is_template, unknown_keys

_KEYS = frozenset({"action", "result_ref", "path"})


class ArtifactTool:
    """``action: get``: ``{data}`` of the result that ``result_ref`` names; ``path`` (``a.b[3]``) of it only.

    The data is not copied and not loaded here: a later template loads what it needs of it.
    """

    kind = "artifact"
    raw_keys: frozenset[str] = frozenset()

    def check(self, config: Mapping[str, Any]) -> Sequence[Complaint]:
        """Unknown keys, another ``action`` than ``get``, a ``path`` that is none."""
        found = unknown_keys(config, _KEYS)
        action = config.get("action", "get")
        if action != "get" and not is_template(action):
            found.append(("action", f"`action` can only be `get`, not {action!r}"))
        path = config.get("path")
        if isinstance(path, str) and not is_template(path):
            try:
                parse_path(path)
            except ValueError as error:
                found.append(("path", str(error)))
        return found

    def run(self, call: ToolCall) -> Reply:
        """Raises ``ToolError``: kind ``config`` for what is no reference or path, ``not_found``."""
        given = {key: call.config.get(key, call.input.get(key)) for key in ("action", "result_ref", "path")}
        place, path = given["result_ref"], given["path"]
        if given["action"] not in (None, "get"):
            raise ToolError(ErrorInfo("config", f"`action` can only be `get`, not {given['action']!r}"))
        if not isinstance(place, Mapping) or not {"result_id", "stage_id"} & place.keys():
            message = (
                "`result_ref` must be what `_ref` of a result says; a result that is small has none: use it by its name"
            )
            raise ToolError(ErrorInfo("config", message))
        try:
            keys = parse_path(str(path)) if path is not None else ()
            value = call.kept(place)
        except ValueError as error:
            raise ToolError(ErrorInfo("config", str(error))) from None
        except KeyError:
            raise ToolError(ErrorInfo("not_found", "there is no result with that reference: was it deleted?")) from None
        try:
            return Reply({"data": at(value, keys)}, kept=True)
        except KeyError as error:
            raise ToolError(ErrorInfo("not_found", str(error.args[0]))) from None

    def close(self) -> None:
        """Nothing to end."""
