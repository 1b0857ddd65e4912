"""What the handlers of one application share: its client, and the check who may ask."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from noetl_celery.client import Noetl
from noetl_celery.web.access import Access


def client_of(request: Request) -> Noetl:
    """The client that all requests share."""
    client: Noetl = request.app.state.client
    return client


def access_of(request: Request) -> Access:
    """The doorkeeper."""
    access: Access = request.app.state.access
    return access


def allowed(request: Request) -> None:
    """For routers: answers only who may ask."""
    access_of(request).check(request)


#: as an argument of a handler
Client = Annotated[Noetl, Depends(client_of)]
