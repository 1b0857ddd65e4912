"""``noetl-celery plan``: the tree, the graphs and the data, and that nothing in a playbook can break them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from noetl_celery import cli

PLAYBOOKS = Path(__file__).parents[3] / "playbooks"
EXAMPLES = sorted(PLAYBOOKS.rglob("*.yaml"))
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: test}\n"
HOSTILE = '"]; x --> y; %% <b>&amp;\\ | {{ [[ )) ` # end'
NASTY = f"""\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: 'a "quoted" \\path'}}
workload: {{auth: 'pg "x"'}}
workflow:
  - step: start
    tool: {{kind: postgres, auth: "{{{{ workload.auth }}}}", command: SELECT 1}}
    next:
      spec: {{mode: inclusive}}
      arcs:
        - {{step: end, when: '{{{{ workload.auth == "<b>|]\\"" }}}}'}}
        - {{step: sub-graph.x, when: 'event.name == "step.done" and args.a[0] == {{"k": 1}}'}}
        - step: start
          when: >-
            args.many
            or
            args.lines
  - step: end
  - step: sub-graph.x
    loop: {{in: [1], iterator: i, spec: {{mode: parallel}}}}
    tool: {{kind: noop, result: '{HOSTILE.replace("{{", "")}'}}
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("NOETL_DEBUG", raising=False)

    def call(*arguments: object) -> tuple[int, str, str]:
        code = cli.run(["plan", *map(str, arguments)])
        printed = capfd.readouterr()
        return code, printed.out, printed.err

    return call


@pytest.fixture
def nasty(tmp_path: Path) -> Path:
    file = tmp_path / "nasty.yaml"
    file.write_text(NASTY)
    return file


def data_of(run: Run, file: Path) -> dict[str, Any]:
    code, printed, error = run(file, "--format", "json")
    assert (code, error) == (0, "")
    found: dict[str, Any] = json.loads(printed)
    return found


def test_a_tree_for_people(run: Run) -> None:
    code, printed, error = run(PLAYBOOKS / "queue_drain.yaml")
    assert (code, error) == (0, "")
    assert printed.splitlines() == [
        "examples/queue_drain",
        "├── workload: pg_auth, rows",
        "├── credentials: demo_pg",
        "├── start  postgres  entry",
        "│   └── → drain",
        "├── drain  postgres",
        "│   ├── loop cursor postgres (demo_pg) as item, frames of 50, 2 of them open, 4 at once in each",
        printed.splitlines()[7],
        '│   └── → end  when event.name == "loop.done"',
        "└── end",
        "    ├── 1. counts  postgres",
        "    └── 2. check  python",
    ]
    assert printed.splitlines()[7].startswith("│   ├── claim UPDATE public.queue_drain SET status = 'claimed' WHERE")


def test_a_tree_shows_what_is_unusual(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text(
        HEAD + "workflow:\n"
        "  - step: start\n    spec: {policy: {admit: {rules: [{when: workload.go, then: {allow: false}}]}}}\n"
        "    tool: [{name: a, kind: noop}, {name: b, kind: noop}]\n    set: {x: 1}\n"
        "    next: {spec: {mode: inclusive}, arcs: [{step: start, when: args.again}, {step: then}]}\n"
        "  - {step: then, spec: {pool: gpu}}\n"
        "  - {step: lost, tool: {kind: noop}, next: then}\n"
        "  - {step: each, loop: {in: '{{ workload.x }}', iterator: i, spec: {mode: parallel}}, tool: {kind: noop}}\n"
    )
    lines = [re.sub("[│├└─ ]+ ", "", line, count=1) for line in run(file)[1].splitlines()]
    assert lines == [
        "test",
        "start  entry",
        "admission is skipped  when workload.go",
        "1. a  noop",
        "2. b  noop",
        "sets ctx.x",
        "all that match",
        "→ start  when args.again  (back)",
        "→ then",
        "then  router  pool gpu",
        "lost  noop  never reached",
        "→ then",
        "each  noop  never reached",
        "loop parallel over workload.x as i, 16 at once",
    ]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda path: path.name)
def test_the_data_is_whole(run: Run, file: Path) -> None:
    data = data_of(run, file)
    names = [step["name"] for step in data["steps"]]
    assert names[0] == data["entry"]
    assert len(set(names)) == len(names)
    assert all(arc["step"] in names for step in data["steps"] for arc in step["next"]["arcs"])
    assert all(step["line"] > 3 for step in data["steps"])


def test_what_is_needed_from_outside(run: Run, nasty: Path) -> None:
    data = data_of(run, nasty)
    assert (data["workload"], data["credentials"], data["playbooks"]) == (["auth"], ['pg "x"'], [])
    data = data_of(run, PLAYBOOKS / "patient_flow" / "patient_flow.yaml")
    assert data["credentials"] == ["demo_pg"]
    assert "page_size" in data["workload"]


def test_an_arc_that_goes_back_is_marked(run: Run) -> None:
    data = data_of(run, PLAYBOOKS / "patient_flow" / "patient_flow.yaml")
    back = [(step["name"], arc["step"]) for step in data["steps"] for arc in step["next"]["arcs"] if arc["back"]]
    assert back == [("fetch_pages", "next_type")]


NODE = r's\d+(\[\["[^"\[\]{}()|<>&`]*"\]\]|\["[^"\[\]{}()|<>&`]*"\]|\{\{"[^"\[\]{}()|<>&`]*"\}\})'
EDGE = r's\d+ (-->|-\.->)(\|"[^"|\[\]{}()<>`]*"\|)? s\d+'


@pytest.mark.parametrize("file", [*EXAMPLES, None], ids=lambda path: path.name if path else "nasty")
def test_mermaid(run: Run, file: Path | None, nasty: Path) -> None:
    code, printed, _ = run(file or nasty, "--format", "mermaid")
    assert code == 0
    head, *lines, style = printed.replace("<br/>", " ").replace("&amp;", "").splitlines()
    assert head == "flowchart TD"
    assert re.fullmatch(r"  style s0 stroke-width:3px", style)
    assert all(re.fullmatch(f"  ({NODE}|{EDGE})", line) for line in lines), printed


def test_labels_of_mermaid_say_what_was_written(run: Run, nasty: Path) -> None:
    printed = run(nasty, "--format", "mermaid")[1]
    assert 's0 -->|"workload.auth == #quot;#lt;b#gt;#124;#93;#92;#quot;#quot;"| s1' in printed
    assert 's0 -.->|"args.many or args.lines"| s0' in printed
    assert 's2[["sub-graph.x<br/>parallel<br/>noop"]]' in printed


TEXT = r'"(?:[^"\\]|\\.)*"'


@pytest.mark.parametrize("file", [*EXAMPLES, None], ids=lambda path: path.name if path else "nasty")
def test_dot(run: Run, file: Path | None, nasty: Path) -> None:
    code, printed, _ = run(file or nasty, "--format", "dot")
    assert code == 0
    head, *lines, last = printed.splitlines()
    assert re.fullmatch(rf"digraph {TEXT} \{{", head)
    assert last == "}"
    attributes = rf"\[\w+=(\w+|{TEXT})(, \w+=(\w+|{TEXT}))*\]"
    assert all(
        re.fullmatch(rf"  (rankdir=TB|node {attributes}|s\d+( -> s\d+)?( {attributes})?)", line) for line in lines
    )


def test_labels_of_dot_say_what_was_written(run: Run, nasty: Path) -> None:
    printed = run(nasty, "--format", "dot")[1]
    assert printed.startswith('digraph "a \\"quoted\\" \\\\path" {')
    assert 's0 -> s1 [label="workload.auth == \\"<b>|]\\\\\\"\\""]' in printed
    assert 's0 -> s0 [label="args.many or args.lines", style=dashed]' in printed


def test_a_playbook_that_is_refused_has_no_plan(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(HEAD + "workflow: [{step: a, next: b}]\n")
    code, printed, error = run(file)
    assert (code, printed) == (2, "")
    assert "an arc to `b`, which is no step" in error


def test_nothing_that_a_terminal_would_obey_is_printed(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "esc.yaml"
    file.write_text(
        HEAD + 'workload: {"\\e[31mred": 1}\nworkflow: [{step: a, next: [{step: a, when: "x == \'\\e\'"}]}]\n'
    )
    for kind in ("tree", "mermaid", "dot", "json"):
        code, printed, _ = run(file, "--format", kind)
        assert code == 0
        assert "\x1b" not in printed
