"""The older `sink`: a task behind the one whose result it saves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from older_cases import compiled, document, failed, http, older_warnings, refused, run, step

LOOPED = """
- step: users
  tool: http
  url: "http://x/{{ user }}"
  loop: {collection: [1, 2], element: user, mode: async, concurrency: 10}
  sink:
    tool: postgres
    table: public.users
    auth: {type: postgres, credential: main_db}
    mode: upsert
    key: id
    args: {id: "{{ user }}", name: "{{ result.data.name }}", all: "{{ response.body }}", code: "{{ data.status_code }}"}
"""
BODY = {"name": "Ada"}


def test_a_table_is_the_target_of_a_transfer() -> None:
    plan = step(LOOPED)
    ran = run(plan, {"http": lambda *_: http(BODY), "transfer": lambda *_: {"rows": 1}}, iter_={"user": 7, "index": 0})
    assert ran.of("users_sink") == [
        {
            "source": {"kind": "data", "data": {"id": 7, "name": "Ada", "all": BODY, "code": 200}},
            "target": {"kind": "postgres", "table": "public.users", "auth": "main_db", "mode": "upsert", "key": "id"},
            "input": {},
        }
    ]
    assert ran.data["body"] == BODY, "the result is that of the main task"
    assert [task.name for task in plan.tasks] == ["users", "users_sink", "users_result"]
    assert plan.loop is not None
    assert (plan.loop.mode, plan.loop.max_in_flight.raw if plan.loop.max_in_flight else None) == ("parallel", 10)


def test_a_sink_that_fails_fails_the_row() -> None:
    ran = run(step(LOOPED), {"http": lambda *_: http(BODY), "transfer": lambda *_: failed()}, iter_={"user": 7})
    assert (ran.error.kind, ran.error.message) == ("sql", "no")


@pytest.mark.parametrize(
    ("tool", "answer", "saved"),
    [
        ("{kind: http, url: u}", http([{"a": 1}]), [{"a": 1}]),
        ("{kind: postgres, auth: d, query: Q}", {"rows": [{"a": 1}], "row_count": 1}, [{"a": 1}]),
        ("{kind: python, code: c}", {"a": 2}, {"a": 2}),
    ],
)
def test_without_data_it_saves_the_rows_of_the_result(tool: str, answer: Any, saved: Any) -> None:
    plan = step(f"- step: s\n  tool: {tool}\n  sink: {{tool: {{kind: duckdb}}, table: t, database: f.db}}")
    tools: dict[str, Any] = dict.fromkeys(("http", "postgres", "python"), lambda *_: answer)
    ran = run(plan, tools | {"transfer": lambda *_: {}})
    assert ran.of("s_sink")[0]["source"]["data"] == saved
    assert ran.of("s_sink")[0]["target"] == {"kind": "duckdb", "table": "t", "database": "f.db"}


def test_a_statement_stays_one() -> None:
    plan = step("""
    - step: s
      tool: {kind: python, code: c}
      sink:
        tool:
          kind: postgres
          auth: d
          statement: |
            {% for data in result.items %}INSERT INTO t VALUES ({{ data.n }}, '{{ data | tojson }}');{% endfor %}
    """)
    ran = run(plan, {"python": lambda *_: {"items": [{"n": 1}]}, "postgres": lambda *_: {}})
    assert ran.of("s_sink")[0]["command"].strip() == "INSERT INTO t VALUES (1, '{\"n\": 1}');"


def test_other_tools_get_the_result_under_the_names_that_they_knew() -> None:
    plan = step("""
    - step: s
      tool: {kind: python, code: c}
      sink:
        - {tool: http, endpoint: http://y, method: POST, payload: {a: "{{ data.a }}", result: 1}}
        - {tool: python, code: "def main(data, extra): ...", args: {extra: "{{ dict(result=1).result + response.a }}"}}
        - {tool: event_log, args: "{{ result }}"}
    """)
    ran = run(plan, {"python": lambda *_: {"a": 5}, "http": lambda *_: http(None)})
    assert ran.of("s_sink")[0]["payload"] == {"a": 5, "result": 1}
    assert ran.of("s_sink_2")[0]["input"] == {"data": {"a": 5}, "extra": 6}
    assert ran.data == {"a": 5}


def test_every_page_is_saved_before_the_next_is_asked_for() -> None:
    plan = step("""
    - step: s
      tool: http
      url: u
      params: {page: 1}
      retry:
        - when: "{{ response.more }}"
          then:
            max_attempts: 9
            next_call: {params: {page: "{{ response.page + 1 }}"}}
            collect: {strategy: append, path: data}
            sink: {tool: postgres, table: raw, auth: d, mode: append}
        - when: "{{ error.kind == 'sql' }}"
          then: {max_attempts: 2, delay: 0}
    """)

    def page(config: Mapping[str, Any], _: Any) -> Any:
        number = config["params"]["page"]
        return http({"data": [{"n": number}], "more": number < 3, "page": number})

    answers = iter([{}, failed(), {}, {}])
    ran = run(plan, {"http": page, "transfer": lambda *_: next(answers)})
    pages = [["s_call", "s_sink"], ["s_call", "s_sink", "s_sink"], ["s_call", "s_sink"]]
    assert [name for name, _ in ran.calls] == [name for page in pages for name in page]
    assert [call["source"]["data"] for call in ran.of("s_sink")] == [[{"n": n}] for n in (1, 2, 2, 3)]
    assert ran.data == [{"n": 1}, {"n": 2}, {"n": 3}]
    ran = run(plan, {"http": page, "transfer": lambda *_: failed()})
    assert (ran.error.kind, len(ran.of("s_call")), len(ran.of("s_sink"))) == ("sql", 1, 2)


def test_a_sink_may_stand_in_the_loop_or_in_the_tool() -> None:
    sink = "sink: {tool: postgres, table: t, auth: d}"
    for text in (
        f"- step: s\n  loop: {{in: [1], iterator: i, {sink}}}\n  tool: {{kind: noop}}",
        f"- step: s\n  tool: {{kind: noop, {sink}}}",
        f"- step: s\n  tool:\n    - a: {{kind: noop}}\n    - s: {{kind: noop}}\n  {sink}",
        f"- step: s\n  tool:\n    - s: {{kind: noop, spec: {{{sink}}}}}\n    - {{kind: noop}}",
    ):
        assert [task.kind for task in step(text).tasks if task.kind == "transfer"] == ["transfer"], text


def test_what_a_sink_cannot_be() -> None:
    tool = "- step: s\n  tool: {kind: noop}\n  sink: "
    assert refused(tool + "postgres") == ["`sink` is a mapping"]
    assert refused(tool + "{tool: postgres, table: t, auth: d, modes: x}") == ["unknown key `modes` in `sink`"]
    assert refused(tool + "{tool: http, url: u, retry: 2}") == ["unknown key `retry` in `sink`"]
    assert refused("- step: s\n  sink: {tool: postgres, table: t}") == ["`sink` in a step without a tool"]


def test_events_are_no_sink() -> None:
    found = compiled(document("- step: s\n  tool: {kind: noop}\n  sink: {tool: event_log, args: 1}"))
    assert [(problem.code, problem.message) for problem in found.warnings] == [
        ("no-effect", "a `sink` to event_log has no effect")
    ]
    assert len(found.plan.steps["s"].tasks) == 1


def test_the_warning_shows_what_to_write() -> None:
    assert older_warnings(document(LOOPED))[-1].startswith(
        "f.yaml:10:5: step 'users': older form `sink` (write a task of its own behind this one: "
        "`{kind: transfer, source: {kind: data, data: …}, target: {kind: postgres, table: …}}`; "
    )


@pytest.mark.parametrize(
    ("loop", "mode", "flight"),
    [
        ("{collection: '{{ x }}', element: i}", "sequential", None),
        ("{collection: [1], element: i, mode: sequential}", "sequential", None),
        ("{in: [1], iterator: i, spec: {mode: async}}", "parallel", None),
        ("{collection: [1], element: i, mode: async, concurrency: 3}", "parallel", 3),
        ("{collection: [1], element: i, mode: chunked, chunk_size: 10}", "parallel", 10),
        ("{collection: [1], element: i, mode: chunked, chunk_size: 10, concurrency: 4}", "parallel", 4),
        ("{collection: [1], element: i, mode: chunked, chunk_size: 2, concurrency: 4}", "parallel", 2),
        ("{collection: [1], element: i, chunk_size: '{{ n }}'}", "parallel", "{{ n }}"),
    ],
)
def test_loops(loop: str, mode: str, flight: Any) -> None:
    found = step(f"- step: s\n  loop: {loop}\n  tool: {{kind: noop}}").loop
    assert found is not None
    assert (found.mode, found.iterator) == (mode, "i")
    assert (found.max_in_flight.raw if found.max_in_flight else None) == flight


@pytest.mark.parametrize("data", ["", ", data: '{{ result.rows }}'"])
def test_rows_for_a_table_of_the_same_database_are_part_of_the_task(data: str) -> None:
    plan = step(f"""
    - step: s
      tool: postgres
      auth: db
      command: UPDATE a SET b = 1 RETURNING id
      sink: {{tool: postgres, table: t, mode: upsert, key: id, auth: {{type: postgres, credential: db}}{data}}}
    """)
    assert [task.name for task in plan.tasks] == ["s"]
    assert plan.tasks[0].config.raw["into"] == {"table": "t", "mode": "upsert", "key": "id"}


@pytest.mark.parametrize("sink", ["auth: other", "auth: db, args: {a: '{{ result.row_count }}'}"])
def test_any_other_sink_is_a_task_of_its_own(sink: str) -> None:
    plan = step(
        f"- step: s\n  tool: {{kind: postgres, auth: db, command: C}}\n  sink: {{tool: postgres, table: t, {sink}}}"
    )
    assert [task.kind for task in plan.tasks] == ["postgres", "transfer", "noop"]


@pytest.mark.parametrize("retry", ["2", "{on_success: {while: response.more, max_attempts: 2}}"])
def test_a_task_of_the_workbook_is_saved_under_its_own_name(retry: str) -> None:
    text = document(f"""
    - step: s
      tool: {{kind: workbook, name: ask}}
      retry: {retry}
      sink: {{tool: postgres, table: t, auth: d, args: {{a: "{{{{ result.data.a }}}}"}}}}
    """)
    plan = compiled(text + "\nworkbook: [{name: ask, tool: {kind: http, url: u}}]\n").plan.steps["s"]
    ran = run(plan, {"http": lambda *_: http({"a": 1}), "transfer": lambda *_: {}})
    assert ran.of("s_sink")[0]["source"]["data"] == {"a": 1}
    assert ran.data["body"] == {"a": 1}
