"""Playbooks: registered, listed, read, checked."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Path, Query

from noetl_celery.errors import InputError, NotFound, PlaybookInvalid, Problem
from noetl_celery.ids import with_text_ids
from noetl_celery.submission import checked_id, read_playbook
from noetl_celery.web.api import models, views
from noetl_celery.web.api.paging import cursor_of, cut, parts_of
from noetl_celery.web.api.route import BODY_ERRORS, Cursor, Limit, errors, make_router
from noetl_celery.web.api.text import ID_PATTERN, Text
from noetl_celery.web.shared import Client

router = make_router("catalog")
_NAME = "playbook"
#: no playbook looks like this: it has at least a colon
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
CatalogId = Annotated[str, Path(description="The entry's id.", json_schema_extra={"pattern": ID_PATTERN})]


@router.post(
    "/catalog/register",
    operation_id="registerPlaybook",
    summary="Register a playbook",
    response_model=models.RegisterAnswer,
    responses=BODY_ERRORS,
)
def register(asked: models.RegisterRequest, client: Client) -> dict[str, Any]:
    """Puts a playbook into the catalog under the path that it names. Changed content makes a new version, unchanged
    content none. One that is not in order is refused with all that is wrong (422). NoETL's path.
    """
    if asked.resource_type.lower() != "playbook":
        raise InputError(f"only playbooks are registered here, no {asked.resource_type[:40]!r}")
    done = client.register(_NAME, text=text_of(asked.content))
    return {
        "message": f"'{done.path}' version {done.version} is registered",
        "path": done.path,
        "version": done.version,
        "catalog_id": str(done.catalog_id),
        "new": done.new,
        "warnings": views.problems(done.warnings),
    }


@router.post(
    "/catalog/lint",
    operation_id="lintPlaybook",
    summary="Check a playbook without registering it",
    response_model=models.LintAnswer,
    responses=BODY_ERRORS,
)
def lint(asked: models.LintRequest) -> dict[str, Any]:
    """All that is wrong with a playbook, and what is worth a look. It asks no service."""
    found = _problems_of(text_of(asked.content))
    wrong = sum(not problem.warning for problem in found)
    return {
        "valid": not wrong,
        "errors": wrong,
        "warnings": len(found) - wrong,
        "problems": views.problems(found),
    }


@router.get(
    "/catalog/entries",
    operation_id="listCatalog",
    summary="List playbooks, or the versions of one",
    response_model=models.CatalogPage,
)
def listed(
    client: Client,
    path: Annotated[Text | None, Query(description="All versions of this path, the newest first.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> dict[str, Any]:
    """The newest version of each playbook in the order of their paths; with `path` all versions of that one."""
    if path is None:
        [after] = parts_of(cursor, str) or ("",)
        found, last = cut(client.playbooks(limit + 1, after=after), limit)
        return _entries(found, cursor_of(last["path"]) if last else None)
    [before] = parts_of(cursor, int) or (None,)
    found, last = cut(client.versions(path, limit + 1, before=before), limit)
    return _entries(found, cursor_of(last["version"]) if last else None)


@router.get(
    "/catalog/entries/{catalog_id}",
    operation_id="getPlaybook",
    summary="One version of a playbook, with its content",
    response_model=models.CatalogResource,
    responses=errors(404),
)
def one(catalog_id: CatalogId, client: Client) -> dict[str, Any]:
    """The text as it was registered."""
    return with_text_ids(client.entry(checked_id(catalog_id, "id of the catalog")))


@router.post(
    "/catalog/list",
    operation_id="listCatalogEntries",
    summary="List playbooks (NoETL)",
    response_model=models.CatalogPage,
    responses=BODY_ERRORS,
)
def entries(client: Client, asked: models.ListRequest | None = None) -> dict[str, Any]:
    """The first thousand. NoETL's path; `GET /api/catalog/entries` has pages."""
    if asked is not None and (asked.resource_type or "playbook").lower() != "playbook":
        return _entries([], None)
    most = 1000
    return _entries(client.versions(asked.path, most) if asked and asked.path else client.playbooks(most), None)


@router.post(
    "/catalog/resource",
    operation_id="getCatalogResource",
    summary="One version of a playbook, with its content (NoETL)",
    response_model=models.CatalogResource,
    responses=BODY_ERRORS | errors(404),
)
def resource(asked: models.ResourceRequest, client: Client) -> dict[str, Any]:
    """By `catalog_id`, or by `path` and `version`. NoETL's path."""
    return with_text_ids(entry_of(asked, client))


def entry_of(asked: models.ResourceRequest, client: Client) -> Mapping[str, Any]:
    """The entry of the catalog that somebody asks for. Raises ``NotFound``, ``InputError``."""
    if asked.catalog_id is not None:
        return client.entry(checked_id(asked.catalog_id, "id of the catalog"))
    assert asked.path is not None
    version = None if asked.version in (None, "latest") else str(asked.version)
    if version is None:
        return client.registered(asked.path)
    if not re.fullmatch(r"[0-9]{1,9}", version):
        raise NotFound(f"'{asked.path}' has no version {version[:40]!r}", hint="a version is a number, or `latest`")
    return client.registered(asked.path, int(version))


def text_of(content: str) -> str:
    """A playbook's text: as it is, or out of base64, as NoETL's command line sends it."""
    if _BASE64.fullmatch(content):
        try:
            return base64.b64decode(content).decode()
        except (binascii.Error, UnicodeDecodeError):
            pass
    return content


def _problems_of(text: str) -> list[Problem]:
    try:
        return list(read_playbook(_NAME, text=text).compiled.warnings)
    except PlaybookInvalid as error:
        return [*error.problems, *error.warnings]


def _entries(found: list[dict[str, Any]], following: str | None) -> dict[str, Any]:
    return {"entries": [with_text_ids(entry) for entry in found], "next": following}
