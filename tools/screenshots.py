"""``make screenshots``: the pictures of the documentation, taken of the console and of Flower while the demo runs.

To be run inside ``noetl-celery dev --fresh --workers 2 --``; it needs a Chromium.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

from noetl_celery import Noetl
from noetl_celery.cli.dev import FLOWER_COLUMNS
from noetl_celery.cli.embedded import free_port

IMAGES = Path(__file__).parents[1] / "docs" / "images"
DEMO = Path(__file__).parents[1] / "playbooks" / "patient_flow" / "demo.py"
SWITCHES = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


def main() -> None:
    """Takes all of them."""
    with sync_playwright() as playwright, console() as url, flower() as flower_url:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=SWITCHES)
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        demo = subprocess.Popen([sys.executable, str(DEMO)], stdout=subprocess.DEVNULL)
        with Noetl() as client:
            execution = _first(client)
            here = f"{url}/executions/{execution}"
            page.goto(here)
            expect(page.locator("g.box.completed").nth(2)).to_be_visible(timeout=60_000)
            expect(page.get_by_text("retries").first).to_be_attached(timeout=60_000)
            page.wait_for_timeout(6_000)  # for a plot that shows something
            _take(page, "console-overview")
            page.goto(f"{here}/timeline")
            _take(page, "console-timeline")
            demo.wait()
        page.goto(f"{url}/")
        _take(page, "console-executions", height=420)
        page.goto(f"{here}/rows")
        _take(page, "console-rows", height=640)
        page.goto(f"{url}/start?path=examples/patient_flow")
        _take(page, "console-start", height=900)
        phone = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark", device_scale_factor=2)
        phone.goto(here)
        _take(phone, "console-phone")
        page.set_viewport_size({"width": 1520, "height": 860})
        page.goto(f"{flower_url}/tasks")
        page.get_by_placeholder("state:FAILURE").fill(f"kwargs:{execution}")
        expect(page.get_by_text("noetl.body").first).to_be_visible()
        _take(page, "flower-tasks")
        page.get_by_role("row", name="noetl.body").first.get_by_role("link").nth(1).click()
        _take(page, "flower-task", height=700)
        page.goto(f"{flower_url}/workers")
        _take(page, "flower-workers", height=420)
        browser.close()


def _first(client: Noetl) -> int:
    """The id of the first execution, once it is there."""
    while not (found := client.executions(limit=1)):
        time.sleep(0.1)
    return int(found[0]["execution_id"])


def _take(page: Page, name: str, *, height: int | None = None) -> None:
    size = page.viewport_size
    assert size is not None
    if height is not None:
        page.set_viewport_size({"width": size["width"], "height": height})
    page.wait_for_timeout(500)  # for what is drawn after the page is there
    page.screenshot(path=IMAGES / f"{name}.png", animations="disabled")
    page.set_viewport_size(size)


@contextmanager
def console() -> Iterator[str]:
    """A console; its address."""
    command = [sys.executable, "-m", "noetl_celery", "console", "--no-token", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = re.search(r"http://[\d.:]+", process.stderr.readline())
        assert found is not None
        try:
            yield found[0]
        finally:
            process.terminate()


@contextmanager
def flower() -> Iterator[str]:
    """A Flower that answers; its address."""
    url = f"http://127.0.0.1:{free_port()}"
    options = ["--address=127.0.0.1", f"--port={url.rpartition(':')[2]}", FLOWER_COLUMNS]
    with subprocess.Popen([sys.executable, "-m", "celery", "-A", "noetl_celery", "flower", *options]) as process:
        while True:
            try:
                urllib.request.urlopen(f"{url}/healthcheck", timeout=5).close()
                break
            except urllib.error.URLError:
                time.sleep(0.2)
        try:
            yield url
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
