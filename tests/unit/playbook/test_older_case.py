"""The older `case`: what follows a call, read as a retry, a sink and arcs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from older_cases import compiled, document, failed, http, older_warnings, refused, run, step

from noetl_celery.playbook.rewrite import rewrite

PAGES = """
- step: fetch
  tool:
    kind: http
    url: u
    params: {page: 1}
  case:
    - when: "{{ event.name == 'call.error' and error.status in [500, 503] }}"
      then:
        retry: {max_attempts: 2, initial_delay: 0.5}
    - when: "{{ event.name == 'call.done' and response is defined and response.paging.hasMore == true }}"
      then:
        collect: {strategy: append, path: data, into: pages}
        retry: {max_attempts: 10, params: {page: "{{ (response.paging.page | int) + 1 }}"}}
    - when: "{{ event.name == 'call.done' and response is defined and response.paging.hasMore != true }}"
      then:
        - collect: {strategy: append, path: data, into: pages}
        - next:
            - step: end
- step: end
"""


def test_pages() -> None:
    answers = iter([1, None, 2])

    def answer(config: Mapping[str, Any], _: Any) -> Any:
        if next(answers) is None:
            return http(None, 503)
        page = config["params"]["page"]
        return http({"data": [page], "paging": {"hasMore": page < 2, "page": page}})

    plan = step(PAGES)
    ran = run(plan, {"http": answer})
    assert (ran.data, ran.waits) == ([1, 2], [0.5])
    assert [(arc.step, arc.when.raw if arc.when else None) for arc in plan.next.arcs] == [
        ("end", "{{ output.data.paging.hasMore != true }}")
    ]


@pytest.mark.parametrize(
    ("when", "arc"),
    [
        ("event.name == 'step.exit' and response is defined", None),
        ("event.name == 'loop.done'", None),
        ("event.name == 'call.done' and (result.a or ctx.b)", "{{ (output.data.a or ctx.b) }}"),
        ("response.n > 1", "{{ output.data.n > 1 }}"),
        ("event.name == 'call.error'", "{{ event.name == 'step.failed' }}"),
        (
            "event.name == 'call.error' and error.status == 404",
            "{{ event.name == 'step.failed' and (error.status == 404) }}",
        ),
    ],
)
def test_where_it_goes_on(when: str, arc: str | None) -> None:
    plan = step(f"""
    - step: s
      tool: {{kind: noop}}
      case: [{{when: "{{{{ {when} }}}}", then: {{next: [{{step: a, args: {{x: "{{{{ response.y }}}}"}}}}]}}}}]
      next: b
    - step: a
    - step: b
    """)
    first, second = plan.next.arcs
    assert (first.step, first.when.raw if first.when else None) == ("a", arc)
    assert first.args is not None
    assert first.args.raw == {"x": "{{ output.data.y }}"}
    assert (second.step, second.when) == ("b", None)
    assert first.sees_outcome is (arc is not None)


def test_what_is_saved_after_the_call() -> None:
    plan = step("""
    - step: s
      tool: {kind: python, code: c}
      case:
        - when: "{{ event.name == 'call.done' }}"
          then:
            - sink: {tool: postgres, auth: d, table: t, args: {a: "{{ response.a }}"}}
            - tell: {tool: {kind: http, url: "http://y/{{ result.a }}"}}
            - set: {ctx.a: "{{ response.a }}"}
    """)
    ran = run(plan, {"python": lambda *_: {"a": 1}, "transfer": lambda *_: {}, "http": lambda *_: http(None)})
    assert ran.of("s_sink")[0]["source"]["data"] == {"a": 1}
    assert ran.of("s_sink_2")[0]["url"] == "http://y/1"
    assert [(target, value.raw) for target, value in plan.set] == [("ctx.a", "{{ output.data.a }}")]
    assert run(plan, {"python": lambda *_: failed()}).error.kind == "sql"


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("{when: true}", "`case` is a list of `{when, then}`"),
        (
            "[{when: \"{{ event.name == 'step.enter' }}\", then: {next: s}}]",
            "this condition on `event.name` cannot be read",
        ),
        (
            "[{when: \"{{ event.name == 'call.done' or event.name == 'call.error' }}\", then: {next: s}}]",
            "this condition on `event.name` cannot be read",
        ),
        ('[{when: "{{ response.a }}", then: {sink: {tool: http}}}]', "`sink` with a condition cannot be read"),
        ("[{then: {call: {step: s}}}]", "`call` in a `case` cannot be read"),
        ("[{then: {collect: {path: a}}}]", "a `collect` without a next call cannot be read"),
    ],
)
def test_what_cannot_be_read(case: str, said: str) -> None:
    assert refused(f"- step: s\n  tool: {{kind: noop}}\n  case: {case}") == [said]


def test_it_is_written_in_the_form_of_today() -> None:
    text = document(PAGES)
    written = rewrite(text, file="f.yaml")
    assert "case:" not in written
    assert older_warnings(written) == []
    assert compiled(written).plan.steps["fetch"].next == compiled(text).plan.steps["fetch"].next
