"""Older forms in a playbook's text to the canonical ones, keeping its comments: what ``lint --fix`` writes."""

from __future__ import annotations


def rewrite(text: str, *, file: str) -> str:
    """The text in canonical form, with its comments; unchanged if there is nothing old in it.

    ``file`` is how problems call it. Raises :class:`~noetl_celery.errors.PlaybookInvalid` for text that cannot be read.
    """
    return text
