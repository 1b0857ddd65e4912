"""What goes in and comes out, as the OpenAPI document describes it. Ids are text: they have 64 bits."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StrictInt, model_validator

from noetl_celery.web.api.text import ID_PATTERN, Text

ID_EXAMPLE = "322048811352834048"
_PLAYBOOK = (
    "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: hello, path: examples/hello}\n"
    "workflow: [{step: start, tool: {kind: noop}}]\n"
)
TIME_EXAMPLE = "2026-03-02T09:30:00.125000Z"

IdText = Annotated[str, Field(description="A 64-bit number, as text.", examples=[ID_EXAMPLE])]
CatalogId = (
    Annotated[str, Field(json_schema_extra={"pattern": ID_PATTERN})] | Annotated[StrictInt, Field(ge=0, le=9 * 10**18)]
)
Next = Annotated[str | None, Field(description="`cursor` of the next page; null on the last one.")]


class Given(BaseModel):
    """A body of our own: what it does not know is a mistake."""

    model_config = ConfigDict(extra="forbid")


# -- errors ------------------------------------------------------------------------------------------------------------


class Problem(BaseModel):
    """One thing that is wrong in a playbook, or worth a look, with its place (line and column from 1)."""

    message: str = Field(examples=["unknown key 'tol'"])
    code: str = Field(description="A stable word for this kind of problem.", examples=["unknown_key"])
    line: int | None = None
    column: int | None = None
    step: str | None = None
    hint: str | None = Field(None, examples=["did you mean 'tool'?"])


class Checked(Problem):
    """A problem that `lint` found."""

    warning: bool = Field(description="Worth a look; the playbook can be registered all the same.")


class ErrorDetail(BaseModel):
    """What went wrong, and what to do about it."""

    code: str = Field(description="A stable word to decide by.", examples=["not_found"])
    message: str = Field(description="For people.", examples=["there is no execution 17"])
    hint: str | None = Field(None, description="What to do.")
    problems: list[Problem] | None = Field(None, description="Of a playbook that was refused: all that is wrong.")


class ErrorAnswer(BaseModel):
    """The body of every error."""

    error: ErrorDetail


# -- catalog -----------------------------------------------------------------------------------------------------------

Content = Annotated[
    str,
    Field(min_length=1, description="The playbook: YAML, as it is or in base64.", examples=[_PLAYBOOK]),
]


class LintRequest(Given):
    """A playbook to check."""

    content: Content


class LintAnswer(BaseModel):
    """What `noetl-celery lint` finds."""

    valid: bool = Field(description="Would it be registered?")
    errors: int
    warnings: int
    problems: list[Checked]


class RegisterRequest(BaseModel):
    """A playbook to register. NoETL's clients send `resource_type` as well."""

    content: Content
    resource_type: str = Field("Playbook", description="Only playbooks are registered here.", examples=["Playbook"])


class RegisterAnswer(BaseModel):
    """The version that has this content: a new one, or the newest if it has the same."""

    status: Literal["success"] = "success"
    message: str = Field(examples=["'examples/hello' version 3 is registered"])
    path: str = Field(examples=["examples/hello"])
    version: int = Field(examples=[3])
    catalog_id: IdText
    kind: Literal["Playbook"] = "Playbook"
    new: bool = Field(description="False if the newest version has this content already.")
    warnings: list[Problem] = Field(description="What is worth a look.")


class CatalogEntry(BaseModel):
    """A version of a playbook."""

    catalog_id: IdText
    path: str = Field(examples=["examples/hello"])
    version: int = Field(examples=[3])
    kind: Literal["Playbook"] = "Playbook"
    created_at: datetime = Field(examples=[TIME_EXAMPLE])


class CatalogResource(CatalogEntry):
    """A version of a playbook with its text."""

    content: str = Field(examples=[_PLAYBOOK])


class CatalogPage(BaseModel):
    """Entries of the catalog."""

    entries: list[CatalogEntry]
    next: Next = None


class ListRequest(BaseModel):
    """NoETL's filter of the catalog."""

    resource_type: str | None = Field(None, description="Only playbooks are there.", examples=["Playbook"])
    path: Text | None = Field(None, description="All versions of this path.")


def _with(name: str) -> dict[str, Any]:
    """A document that says this."""
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}}}


class ResourceRequest(BaseModel):
    """A version of a playbook by its id, or by its path and version (the newest for none and `latest`)."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [_with("path"), _with("catalog_id")]})

    catalog_id: CatalogId | None = Field(None, examples=["12"])
    path: Text | None = Field(None, min_length=1, examples=["examples/hello"])
    version: Text | StrictInt | None = Field(None, examples=["latest"])

    @model_validator(mode="after")
    def _named(self) -> ResourceRequest:
        if self.catalog_id is None and self.path is None:
            raise ValueError("it needs a path or a catalog_id")
        return self


# -- credentials -------------------------------------------------------------------------------------------------------

Fields = Annotated[
    dict[str, Any],
    Field(
        description="What the type needs. It is encrypted, and never comes out again.",
        examples=[{"db_host": "warehouse", "db_user": "etl", "db_password": "…", "db_name": "sales"}],
    ),
]
Type = Annotated[Text, Field(min_length=1, max_length=100, examples=["postgres"])]


class CredentialFields(Given):
    """A credential's content."""

    type: Type
    data: Fields


class CredentialRequest(BaseModel):
    """A credential as NoETL's clients send it; `tags`, `meta` and `description` are not kept."""

    name: Text = Field(min_length=1, max_length=200, examples=["warehouse"])
    type: Type = Field("generic", validation_alias=AliasChoices("type", "credential_type"))
    data: Fields


class Credential(BaseModel):
    """A credential without what is secret."""

    id: str = Field(description="The name: what playbooks say in `auth`.", examples=["warehouse"])
    name: str = Field(examples=["warehouse"])
    type: str = Field(examples=["postgres"])
    created_at: datetime
    updated_at: datetime


class CredentialList(BaseModel):
    """All credentials, by name."""

    items: list[Credential]


class Health(BaseModel):
    """The process is alive."""

    status: Literal["ok"] = "ok"
