"""The console as people use it: in a browser, by mouse, by keyboard, on a phone, live."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import needs_chromium, overflow, page
from playwright.sync_api import Page, expect
from running import TOKEN, System

pytestmark = needs_chromium

QUEUE = """apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: browsed, path: acceptance/browsed}
workload: {rows: 60, bad: 7, wait: 0.1, label: "x < y", again: true}
workflow:
  - step: start
    tool:
      kind: postgres
      auth: console_pg
      command: |
        CREATE TABLE IF NOT EXISTS browsed (execution_id bigint, id int, status text);
        INSERT INTO browsed SELECT {{ execution_id }}, i, 'open' FROM generate_series(1, {{ workload.rows }}) i;
    next: {arcs: [{step: drain}]}
  - step: drain
    loop:
      cursor:
        kind: postgres
        auth: console_pg
        count: SELECT count(*) FROM browsed WHERE execution_id = {{ execution_id }} AND status = 'open'
        claim: |
          UPDATE browsed SET status = 'claimed' WHERE (execution_id, id) IN (
            SELECT execution_id, id FROM browsed WHERE execution_id = {{ execution_id }} AND status = 'open'
            ORDER BY id LIMIT {{ __frame_max_rows }} FOR UPDATE SKIP LOCKED) RETURNING id
      iterator: item
      spec: {mode: cursor, max_in_flight: 1, frame: {max_rows: 10, row_concurrency: 2}}
    tool:
      kind: python
      args: {i: "{{ iter.item.id }}", bad: "{{ workload.bad }}", wait: "{{ workload.wait }}"}
      code: |
        def main(i, bad, wait):
            import time
            time.sleep(float(wait))
            if int(i) == int(bad):
                raise ValueError("this one is bad")
    next: {arcs: [{step: check, when: "{{ event.name == 'loop.done' }}"}]}
  - step: check
    tool: {kind: python, args: {bad: "{{ workload.bad }}"}, code: "def main(bad): assert int(bad) == 0, 'not all'"}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: noop}
"""


@pytest.fixture(scope="module")
def url(system: System) -> Iterator[str]:
    """A console, and the credential that the playbook names."""
    dsn = f'{{"dsn": "{system.env["NOETL_DATABASE_URL"]}"}}'
    assert system.cli("credential", "set", "console_pg", "--type", "postgres", "--data", "-", stdin=dsn).returncode == 0
    with system.console() as made:
        yield made


def test_from_signing_in_to_the_failed_row(system: System, url: str, tmp_path: Path) -> None:
    with page() as browser:
        browser.goto(f"{url}/playbooks")
        browser.get_by_label("Token").fill(TOKEN)
        browser.keyboard.press("Enter")
        expect(browser.get_by_role("heading", name="Playbooks")).to_be_visible()

        # A mistake is named with its line; the corrected text is registered.
        browser.get_by_role("link", name="Register one").first.click()
        browser.get_by_label("YAML").fill(QUEUE.replace("iterator: item", "iterater: item"))
        browser.get_by_role("button", name="Register").click()
        expect(browser.get_by_role("alert")).to_contain_text("iterater")
        expect(browser.get_by_role("alert")).to_contain_text("line 24")
        browser.get_by_label("YAML").fill(QUEUE)
        browser.get_by_role("button", name="Register").click()

        # The workload is a form; what is no number is said, and nothing of it is lost.
        expect(browser.get_by_label("label")).to_have_value("x < y")
        browser.get_by_label("rows").fill("forty")
        browser.get_by_role("button", name="Start", exact=True).click()
        expect(browser.get_by_role("alert")).to_contain_text("rows: this is no JSON")
        browser.get_by_label("rows").fill("40")
        browser.get_by_role("button", name="Start", exact=True).click()

        # It is followed without a reload, to its end.
        browser.evaluate("window.sameAsBefore = true")
        expect(browser.get_by_role("progressbar", name="drain")).to_be_visible()
        expect(browser.locator("h1")).to_contain_text("failed")
        assert browser.evaluate("window.sameAsBefore") is True
        expect(browser.locator("g.box.completed", has_text="drain")).to_contain_text("39 ok · 1 failed")
        expect(browser.locator("g.box.failed", has_text="check")).to_be_visible()
        browser.screenshot(path=tmp_path / "overview.png", full_page=True)

        browser.get_by_role("cell", name="1", exact=True).get_by_role("link").click()
        expect(browser.get_by_role("cell", name="this one is bad")).to_be_visible()
        browser.get_by_role("link", name="Timeline").click()
        expect(browser.locator("rect.failed").first).to_be_visible()
        expect(browser.get_by_text("1 × 2")).to_have_count(4)

        browser.get_by_role("link", name="Start again…").click()
        browser.get_by_label("bad").fill("0")
        browser.get_by_label("wait").fill("0")
        browser.get_by_role("button", name="Start", exact=True).click()
        expect(browser.locator("h1")).to_contain_text("completed")


def test_pause_resume_and_cancel(system: System, url: str) -> None:
    registered = system.cli("register", str(_file(system)))
    assert registered.returncode == 0, registered.stderr
    id_ = system.cli("run", "acceptance/browsed", "--set", "rows=500", "--detach").stdout.strip()
    with page() as browser:
        _sign_in(browser, url, f"/executions/{id_}")
        expect(browser.locator("h1")).to_contain_text("running")
        browser.get_by_role("button", name="Pause").click()
        expect(browser.locator("h1")).to_contain_text("paused")
        browser.get_by_role("button", name="Resume").click()
        expect(browser.locator("h1")).to_contain_text("running")

        # What a person has opened and written stays while the page around it is renewed.
        browser.get_by_text("Cancel…").click()
        browser.get_by_label("Reason").fill("too many")
        rows = browser.get_by_role("region", name="Steps under way")
        before = rows.inner_text()
        expect(rows).not_to_have_text(before)
        expect(browser.get_by_label("Reason")).to_have_value("too many")
        browser.get_by_role("button", name="Cancel the execution").click()
        expect(browser.locator("h1")).to_contain_text("cancelled")
        expect(browser.get_by_role("alert")).to_contain_text("too many")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_page_fits_a_phone(system: System, url: str, dark: bool) -> None:
    id_ = system.json("run", str(_file(system)), "--set", "rows=20", "--set", "wait=0")["execution_id"]
    pages = ["/", "/playbooks", "/register", "/start?path=acceptance/browsed", f"/executions/{id_}"]
    pages += [f"/executions/{id_}/{tab}" for tab in ("timeline", "rows", "logs", "events", "playbook")]
    with page(width=360, height=740, dark=dark) as browser:
        _sign_in(browser, url, "/")
        for path in pages:
            browser.goto(f"{url}{path}")
            expect(browser.get_by_role("navigation").first).to_be_visible()
            assert overflow(browser) <= 0, path
        colour = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", colour)[:3])) < 384) is dark


def test_by_keyboard_alone(system: System, url: str) -> None:
    id_ = system.json("run", str(_file(system)), "--set", "rows=1", "--set", "wait=0")["execution_id"]
    with page() as browser:
        _sign_in(browser, url, "/")
        browser.keyboard.press("Tab")
        expect(browser.get_by_role("link", name="To the content")).to_be_focused()
        browser.keyboard.press("/")
        expect(browser.get_by_label("Execution", exact=True)).to_be_focused()
        browser.keyboard.type(id_)
        browser.keyboard.press("Enter")
        expect(browser.locator(".id").first).to_have_text(id_)
        browser.get_by_role("link", name="Logs").focus()
        browser.keyboard.press("Enter")
        expect(browser.get_by_role("link", name="Logs")).to_have_attribute("aria-current", "page")


def _file(system: System) -> Path:
    file = system.folder / "browsed.yaml"
    file.write_text(QUEUE)
    return file


def _sign_in(browser: Page, url: str, to: str) -> None:
    browser.goto(f"{url}/login?to={to}")
    browser.get_by_label("Token").fill(TOKEN)
    browser.keyboard.press("Enter")
    browser.wait_for_url(f"{url}{to}")
