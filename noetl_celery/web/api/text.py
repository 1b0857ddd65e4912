"""Text that PostgreSQL can store, and ids as text."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field


def _storable(text: str) -> str:
    if "\0" in text:
        raise ValueError("it holds the character U+0000")
    return text


#: without U+0000; halves of surrogate pairs are refused by pydantic itself
Text = Annotated[str, AfterValidator(_storable), Field(json_schema_extra={"pattern": r"^[^\u0000]*$"})]
#: of an id that there may be
ID_PATTERN = r"^([0-9]{1,18}|[0-8][0-9]{18})$"
