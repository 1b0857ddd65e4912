"""`lint --fix`: what it writes means the same, has nothing old in it, and keeps the rest of the text."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Any

import pytest
from older_cases import compiled, document, older_warnings
from test_older_retry import PAGES
from test_older_sink import LOOPED

from noetl_celery.playbook.plan import Plan
from noetl_celery.playbook.rewrite import rewrite

COMMENTED = """\
# head
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: test}   # what it is called
workload:   {api:   'http://x'}

workflow:

  # the first
  - step: users
    tool: http  # beside
    # where from
    url: "{{ workload.api }}/users"
    params:
      page: 1  # from one
    # why
    retry:
      # not too many
      max_attempts: 3
  # behind the first

  -   step: 'odd'
      tool:   {kind: noop}   # as   it was
  # the code
  - step: code
    tool: python
    code: |
      # a comment of the code
      result = {"a": 1}

      # the last line
    args: {a: 'x', b: "y"}

  - {step: flowed, tool: noop}
"""
CANONICAL = """\
# head
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: test}   # what it is called
workload:   {api:   'http://x'}

workflow:

  # the first
  # not too many
  - step: users
    tool:
      kind: http # beside
      # where from
      url: "{{ workload.api }}/users"
      params:
        page: 1 # from one
      # why
      spec:
        policy:
          rules:
            - when: "{{ output.status == 'error' }}"
              then: {do: retry, attempts: 3, backoff: exponential}
            - when: "{{ output.status == 'error' }}"
              then: {do: fail}
  # behind the first

  -   step: 'odd'
      tool:   {kind: noop}   # as   it was
  # the code
  - step: code
    tool:
      kind: python
      code: |
        # a comment of the code
        result = {"a": 1}

        # the last line
    args: {a: 'x', b: "y"}

  - step: flowed
    tool: {kind: noop}
"""
STEPS = [
    PAGES,
    LOOPED,
    "- {step: s, tool: http, url: u, retry: {on_success: {while: a, max_attempts: 2, next_call: {params: {p: 1}}}}}",
    "- step: s\n  tool:\n    - a: {kind: http, url: 'u'}\n    - b: {kind: noop, sink: {tool: http, url: '{{ data }}'}}",
    "- step: s\n  spec: {retry: 3}\n  tool: {kind: noop}\n- step: t\n  tool: noop",
    "- step: s\n  tool: &t {kind: http, url: u, retry: 2}\n- step: t\n  tool: *t",
    "- step: s\n  loop:\n    collection: [1]\n    element: i\n    mode: chunked\n    chunk_size: 4\n  tool: noop",
    "- step: s\n  tool: postgres\n  auth: d\n  command: |2\n      SELECT 1\n\n     AS x\n  sink: {tool: event_log}",
    "- step: s\n  tool: postgres\n  auth: d\n  command: C\n  sink: {tool: postgres, table: t, auth: d}",
    "- step: s\n  tool: python\n  code: >\n    a\n    b\n\n    c\n  retry: true\n",
    "- step: s\n  tool: http\n  url: 'http://x'\n  headers: {on: yes, X: \"012\", t: 12:30}\n  retry: 2",
]


def same(plan: Plan) -> Any:
    """A plan without its places in the text and without marks of older forms."""
    steps = {
        name: dataclasses.replace(
            step, line=None, tasks=tuple(dataclasses.replace(task, line=None, older=None) for task in step.tasks)
        )
        for name, step in plan.steps.items()
    }
    return dataclasses.replace(plan, steps=steps)


@pytest.mark.parametrize("text", [COMMENTED, *map(document, STEPS)], ids=range(len(STEPS) + 1))
def test_it_means_the_same_and_nothing_in_it_is_old(text: str) -> None:
    written = rewrite(text, file="f.yaml")
    assert written != text
    assert older_warnings(written) == []
    assert same(compiled(written).plan) == same(compiled(text).plan)
    assert rewrite(written, file="f.yaml") == written


def test_the_rest_of_the_text_stays() -> None:
    assert rewrite(COMMENTED, file="f.yaml") == CANONICAL


def test_windows_line_ends_stay() -> None:
    assert rewrite(COMMENTED.replace("\n", "\r\n"), file="f.yaml") == CANONICAL.replace("\n", "\r\n")


def test_nothing_old_nothing_new() -> None:
    assert rewrite(CANONICAL, file="f.yaml") == CANONICAL


def test_flow_style_is_written_whole() -> None:
    text = "{apiVersion: noetl.io/v2, kind: Playbook, metadata: {name: x}, workflow: [{step: s, tool: noop}]}  # all\n"
    written = rewrite(text, file="f.yaml")
    assert older_warnings(written) == []
    assert "# all" in written


@pytest.mark.parametrize("other", ["5", "text", "[1]", "{a: 1}", "null"])
def test_steps_of_another_shape_are_in_no_way(other: str) -> None:
    text = document(f"- {{step: s, tool: {other}}}\n- {other}\n- step: t\n  tool: noop")
    assert "kind: noop" in rewrite(text, file="f.yaml")


def test_a_step_that_cannot_be_read_stays_as_it_is() -> None:
    text = document("- step: s\n  tool: {kind: noop}\n  retry: {max_attempt: 3}\n- step: t\n  tool: noop")
    written = rewrite(text, file="f.yaml")
    assert "retry: {max_attempt: 3}" in written
    assert "tool: noop" not in written


def test_tasks_of_the_workbook_too() -> None:
    text = textwrap.dedent("""\
        apiVersion: noetl.io/v2
        kind: Playbook
        metadata: {name: x}
        workbook:
          - name: add
            tool: python
            code: |
              result = a
            args: {a: 1}
        workflow:
          - step: s
            tool: workbook
            name: add
        """)
    written = rewrite(text, file="f.yaml")
    assert older_warnings(written) == []
    assert same(compiled(written).plan) == same(compiled(text).plan)
    assert "tool: {kind: workbook, name: add}" in " ".join(written.split()).replace(
        "tool: kind: workbook name: add", "tool: {kind: workbook, name: add}"
    )
