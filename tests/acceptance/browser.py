"""A real Chromium, without a window, for tests of the console."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
#: how long a page may take to show what it is expected to
WAIT_MS = 30_000
expect.set_options(timeout=WAIT_MS)
#: no sandbox, as tests may run as root; and nothing of its own that wants the network
_SWITCHES = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
#: a form that has to be corrected
_FORM = "status of 422"
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; `make browser` installs Debian's")


@contextmanager
def page(*, width: int = 1280, height: int = 900, dark: bool = False) -> Iterator[Page]:
    """A page of a new browser. At its end: nothing was asked of another host, no script failed, nothing was refused."""
    wrong: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_SWITCHES))
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        made = context.new_page()
        made.set_default_timeout(WAIT_MS)
        made.on("pageerror", lambda error: wrong.append(str(error)))
        made.on(
            "console", lambda said: wrong.append(said.text) if said.type == "error" and _FORM not in said.text else None
        )
        made.on("request", lambda request: wrong.append(request.url) if _is_elsewhere(request.url) else None)
        yield made
        browser.close()
    assert wrong == []


def _is_elsewhere(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme.startswith("http") and parts.hostname != "127.0.0.1"


def overflow(made: Page) -> Any:
    """By how many pixels the page is wider than its window."""
    return made.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
