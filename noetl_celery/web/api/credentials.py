"""Credentials: what is in them goes in and never comes out, in no answer and no error."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Response

from noetl_celery.client import Noetl
from noetl_celery.errors import NotFound
from noetl_celery.web.api import models
from noetl_celery.web.api.route import BODY_ERRORS, errors, make_router
from noetl_celery.web.api.text import Text
from noetl_celery.web.shared import Client

router = make_router("credentials")
Name = Annotated[Text, Path(min_length=1, max_length=200, description="What playbooks say in `auth`.")]


@router.get(
    "/credentials",
    operation_id="listCredentials",
    summary="List credentials, without what is secret",
    response_model=models.CredentialList,
)
def listed(client: Client) -> dict[str, Any]:
    """Names, types and times."""
    return {"items": [_shown(row) for row in client.credentials()]}


@router.get(
    "/credentials/{name}",
    operation_id="getCredential",
    summary="One credential, without what is secret",
    response_model=models.Credential,
    responses=errors(404),
)
def one(name: Name, client: Client) -> dict[str, Any]:
    """Is it there, of which type, since when?"""
    return _of(client, name)


@router.put(
    "/credentials/{name}",
    operation_id="setCredential",
    summary="Create or replace a credential",
    response_model=models.Credential,
    responses=BODY_ERRORS,
)
def set_(name: Name, asked: models.CredentialFields, client: Client) -> dict[str, Any]:
    """Encrypted with `NOETL_SECRET_KEY` before it is stored. Fields that are sure not to work are refused."""
    client.set_credential(name, asked.type, asked.data)
    return _of(client, name)


@router.post(
    "/credentials",
    operation_id="createCredential",
    summary="Create or replace a credential (NoETL)",
    response_model=models.Credential,
    responses=BODY_ERRORS,
)
def create(asked: models.CredentialRequest, client: Client) -> dict[str, Any]:
    """The same with the name in the body. NoETL's path."""
    client.set_credential(asked.name, asked.type, asked.data)
    return _of(client, asked.name)


@router.delete(
    "/credentials/{name}",
    status_code=204,
    operation_id="deleteCredential",
    summary="Delete a credential",
    response_class=Response,
    responses=errors(404),
)
def delete(name: Name, client: Client) -> None:
    """Tasks that name it fail from now on."""
    client.delete_credential(name)


def _of(client: Noetl, name: str) -> dict[str, Any]:
    found = next((row for row in client.credentials() if row["name"] == name), None)
    if found is None:
        raise NotFound(f"there is no credential '{name}'")
    return _shown(found)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["name"], **row}
