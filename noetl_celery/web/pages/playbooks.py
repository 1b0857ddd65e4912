"""The catalog, and starting an execution: of a registered playbook with its workload as a form, or of a new text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.responses import RedirectResponse, Response

from noetl_celery.client import Noetl
from noetl_celery.errors import InputError, NoetlError, PlaybookInvalid
from noetl_celery.hiding import is_named
from noetl_celery.submission import read_playbook
from noetl_celery.web import problems
from noetl_celery.web.render import page
from noetl_celery.web.shared import Client, client_of

router = APIRouter()
LISTED = 500
#: what a text is called that comes from no file
TEXT = "console"


@dataclass(frozen=True, slots=True)
class Field:
    """A key of a workload in a form; ``kind``: text, secret, number, check or json."""

    name: str
    kind: str
    value: Any


@router.get("/playbooks")
def listed(request: Request, client: Client) -> Response:
    """All registered playbooks."""
    return page(request, "playbooks.html", playbooks=client.playbooks(LISTED))


@router.get("/start")
def form(request: Request, client: Client, path: str) -> Response:
    """The form for the workload of a registered playbook."""
    entry = client.registered(path)
    plan = client.plan(entry["catalog_id"])
    return page(request, "start.html", entry=entry, fields=fields_of(plan.workload), wrong=None)


@router.post("/start")
async def start(request: Request) -> Response:
    """Starts an execution with what the form says."""
    form_ = await request.form(max_files=0)
    return await run_in_threadpool(_start, request, client_of(request), form_)


def _start(request: Request, client: Noetl, form_: FormData) -> Response:
    entry = client.registered(str(form_.get("path", "")))
    fields = fields_of(client.plan(entry["catalog_id"]).workload)
    try:
        execution = client.submit(entry["path"], given(fields, form_))
    except InputError as error:
        filled = [Field(field.name, field.kind, form_.get(f"w.{field.name}", "")) for field in fields]
        return page(request, "start.html", problems.status_of(error), entry=entry, fields=filled, wrong=error)
    return RedirectResponse(f"/executions/{execution.id}", 303)


@router.get("/register")
def text_form(request: Request) -> Response:
    """The form for a new playbook, or a new version of one."""
    return page(request, "register.html", text="", wrong=None, found=())


@router.post("/register")
async def register(request: Request) -> Response:
    """Registers a text, and goes on to its workload."""
    form_ = await request.form(max_files=0)
    return await run_in_threadpool(_register, request, client_of(request), str(form_.get("text", "")))


def _register(request: Request, client: Noetl, text: str) -> Response:
    try:
        registered = client.register_playbook(read_playbook(TEXT, text=text.replace("\r\n", "\n")))
    except NoetlError as error:
        found = error.problems if isinstance(error, PlaybookInvalid) else ()
        return page(request, "register.html", problems.status_of(error), text=text, wrong=error, found=found)
    return RedirectResponse(str(request.url_for("form").include_query_params(path=registered.path)), 303)


def fields_of(workload: Mapping[str, Any]) -> list[Field]:
    """A field for each key, of the kind of its default."""
    return [_field(name, value) for name, value in workload.items()]


def _field(name: str, value: Any) -> Field:
    if isinstance(value, bool):
        return Field(name, "check", value)
    if isinstance(value, int | float):
        return Field(name, "number", value)
    if isinstance(value, str):
        return Field(name, "secret" if is_named(name) else "text", value)
    return Field(name, "json", json.dumps(value, indent=2, ensure_ascii=False))


def given(fields: list[Field], form_: Mapping[str, Any]) -> dict[str, Any]:
    """The workload that a form says. Raises ``InputError`` that names the field."""
    workload = {
        field.name: _value(field, form_) for field in fields if f"w.{field.name}" in form_ or field.kind == "check"
    }
    more = _json("more", str(form_.get("more", "")).strip() or "{}")
    if not isinstance(more, dict):
        raise InputError("more: a JSON object is expected, {…}")
    return {**workload, **more}


def _value(field: Field, form_: Mapping[str, Any]) -> Any:
    if field.kind == "check":
        return f"w.{field.name}" in form_
    text = str(form_[f"w.{field.name}"])
    return text if field.kind in ("text", "secret") else _json(field.name, text)


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{name}: this is no JSON: {error}") from None
