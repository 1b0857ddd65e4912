"""The older `retry`: what it becomes, and what that does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from older_cases import compiled, document, failed, http, older_warnings, refused, run, step

PAGES = """
- step: users
  tool: http
  url: "{{ workload.api }}/users"
  params: {page: 1, size: 2}
  retry:
    - when: "{{ response.paging.hasMore }}"
      then:
        max_attempts: 10
        next_call: {params: {page: "{{ response.paging.page + 1 }}"}}
        collect: {strategy: append, path: data}
"""


def pages(count: int, failing: Mapping[int, int] | None = None) -> Any:
    """A server of pages with two rows each; ``failing``: page → how often it answers 503 first."""
    left = dict(failing or {})

    def answer(config: Mapping[str, Any], _: Any) -> Any:
        page = config["params"]["page"]
        if left.get(page, 0):
            left[page] -= 1
            return http(None, 503)
        rows = [{"id": 2 * page - 1}, {"id": 2 * page}]
        return http({"data": rows, "paging": {"hasMore": page < count, "page": page}})

    return answer


def test_pages_are_collected_under_the_name_of_the_step() -> None:
    ran = run(step(PAGES), {"http": pages(3)})
    assert [row["id"] for row in ran.data] == [1, 2, 3, 4, 5, 6]
    assert [call["params"] for call in ran.of("users_call")] == [{"page": n, "size": 2} for n in (1, 2, 3)]
    assert [task.older for task in step(PAGES).tasks] == [None, None, "sequence"]


def test_max_attempts_bounds_the_calls_and_keeps_what_there_is() -> None:
    ran = run(step(PAGES.replace("max_attempts: 10", "max_attempts: 2")), {"http": pages(3)})
    assert [row["id"] for row in ran.data] == [1, 2, 3, 4]
    ran = run(step(PAGES.replace("max_attempts: 10", 'max_attempts: "{{ workload.most }}"')), {"http": pages(3)})
    assert len(ran.data) == 4


@pytest.mark.parametrize(
    ("collect", "result"),
    [
        ("{strategy: collect, path: paging.page}", [1, 2, 3]),
        ("{strategy: replace, path: data}", [{"id": 5}, {"id": 6}]),
        ("{strategy: replace, path: $.paging}", {"hasMore": False, "page": 3}),
        ("{path: data.data, into: rows}", [{"id": n} for n in range(1, 7)]),
        ("{strategy: append, path: nothing}", []),
    ],
)
def test_ways_of_collecting(collect: str, result: Any) -> None:
    assert run(step(PAGES.replace("{strategy: append, path: data}", collect)), {"http": pages(3)}).data == result


def test_without_collect_the_last_response_is_the_result() -> None:
    plan = step("\n".join(line for line in PAGES.split("\n") if "collect" not in line))
    assert run(plan, {"http": pages(2)}).data["body"]["paging"]["page"] == 2


def test_errors_between_the_pages_are_retried_by_rules_of_their_own() -> None:
    rule = """
    - when: "{{ error.status == 503 }}"
      then: {max_attempts: 2, backoff: fixed, initial_delay: 0.5}
"""
    plan = step(PAGES.rstrip("\n") + rule)
    ran = run(plan, {"http": pages(3, {1: 1, 3: 1})})
    assert len(ran.data) == 6
    assert ran.waits == [0.5, 0.5]
    assert [task.older for task in plan.tasks] == [None, "retry", "sequence"]
    assert run(plan, {"http": pages(3, {2: 2})}).error.status == 503


def test_everything_of_a_call_may_change() -> None:
    plan = step("""
    - step: s
      tool:
        kind: http
        method: POST
        url: http://x/1
        spec: {headers: {A: "1"}, json: {cursor: null, n: 5}}
      retry:
        on_success:
          while: "{{ result.next is not none }}"
          next_call: {url: "http://x/{{ response.next }}", body: {cursor: "{{ response.next }}"}, headers: {X-B: c}}
          collect: {strategy: collect}
          max_attempts: 9
    """)
    answers = iter([{"next": 2}, {"next": 3}, {"next": None}])
    ran = run(plan, {"http": lambda *_: http(next(answers))})
    assert [call["url"] for call in ran.of("s_call")] == ["http://x/1", "http://x/2", "http://x/3"]
    assert [call["json"] for call in ran.of("s_call")] == [{"cursor": n, "n": 5} for n in (None, 2, 3)]
    assert ran.of("s_call")[2]["headers"] == {"A": "1", "X-B": "c"}
    assert ran.data == [{"next": 2}, {"next": 3}, {"next": None}]


def test_the_index_of_the_call_counts_from_zero() -> None:
    plan = step("""
    - step: s
      tool: {kind: python, input: {n: "{{ _retry.index }}", k: 7}, code: "return n"}
      retry: {on_success: {while: "{{ _retry.index < 2 }}", next_call: {args: {k: "{{ response }}"}}, collect: collect}}
    """)
    ran = run(plan, {"python": lambda _, given: given["n"]})
    assert ran.data == [0, 1, 2]
    assert [call["input"]["k"] for call in ran.of("s_call")] == [7, 0, 1]
    plan = step("""
    - step: s
      tool: http
      url: u
      params: {offset: "{{ _retry.index * 10 }}", n: "{{ skip }}"}
      args: {skip: "{{ _retry.index }}"}
      retry: [{when: "{{ _retry.index < 1 }}", then: {next_call: {params: {offset: 10}}}}]
    """)
    ran = run(plan, {"http": lambda *_: http({})})
    assert [call["params"] for call in ran.of("s_call")] == [{"offset": 0, "n": 0}, {"offset": 10, "n": 1}]


def test_asking_again_waits_between_the_calls() -> None:
    plan = step("""
    - step: job
      tool: {kind: http, url: http://x}
      retry: {on_success: {while: "{{ response.state == 'busy' }}", max_attempts: 3, delay: 2}}
    """)
    answers = iter(["busy", "busy", "done"])
    ran = run(plan, {"http": lambda *_: http({"state": next(answers)})})
    assert (ran.data["body"], ran.waits) == ({"state": "done"}, [2, 2])
    ran = run(plan, {"http": lambda *_: http({"state": "busy"})})
    assert ran.data["body"] == {"state": "busy"}, "used up, it goes on with what it has"
    assert len(ran.calls) == 3


def test_each_row_of_a_loop_has_pages_of_its_own() -> None:
    plan = step(
        PAGES.replace("retry:", "loop: {collection: [1], element: size}\n  retry:").replace("2}", '"{{ size }}"}')
    )
    ran = run(plan, {"http": pages(2)}, iter_={"size": 50, "index": 0})
    assert [call["params"]["size"] for call in ran.of("users_call")] == [50, 50]
    assert len(ran.data) == 4


@pytest.mark.parametrize(
    ("retry", "calls", "waits"),
    [
        ("true", 3, [1, 2]),
        ("5", 5, [1, 2, 4, 8]),
        ("{max_attempts: 3, initial_delay: 0.5, backoff_multiplier: 2.0, max_delay: 0.6, jitter: true}", 3, [0.5, 0.6]),
        ("{max_attempts: 2, delay: 3, backoff: linear}", 2, [3]),
        ("{max_attempts: 3, backoff: 4}", 3, [4, 4]),
        ("{max_attempts: 3, delay: 4, backoff_multiplier: 1}", 3, [4, 4]),
        ("{max_attempts: 2, retry_on_status: [500, 503], backoff_seconds: 2}", 2, [2]),
        ("{max_attempts: 2, retry_on_status: 500}", 1, []),
        ("{max_attempts: 2, retry_on: [timeout]}", 1, []),
        ("{max_attempts: 2, retry_on: server_error, delay: 0}", 2, [0]),
        ("{max_attempts: 3, retry_when: '{{ status_code >= 500 }}', delay: 0}", 3, [0, 0]),
        ("{max_attempts: 3, retry_when: '{{ error != None or success == False }}', delay: 0}", 3, [0, 0]),
        ("{max_attempts: 3, retry_when: error is defined, stop_when: '{{ status_code == 503 }}'}", 1, []),
        ("[{when: '{{ error.kind == \"auth\" }}', then: {max_attempts: 9}}]", 1, []),
        ("[{when: _retry.index < 1, then: {max_attempts: 9, delay: 0}}]", 2, [0]),
        ("{on_error: {when: true, max_attempts: 2, delay: 0}}", 2, [0]),
        ("false", 1, []),
    ],
)
def test_errors_are_retried(retry: str, calls: int, waits: list[float]) -> None:
    plan = step(f"- step: s\n  tool: {{kind: http, url: http://x}}\n  retry: {retry}")
    ran = run(plan, {"http": lambda *_: http(None, 503)})
    assert ran.error.status == 503
    assert (len(ran.calls), ran.waits) == (calls, waits)
    assert run(plan, {"http": lambda *_: http({"a": 1})}).data["body"] == {"a": 1}


@pytest.mark.parametrize(
    "workflow",
    [
        "- step: s\n  tool: {kind: http, url: u, retry: 2}",
        "- step: s\n  tool: {kind: http, url: u, spec: {retry: {max_attempts: 2}}}",
        "- step: s\n  spec: {retry: 2}\n  tool: {kind: http, url: u}",
        "- step: s\n  retry: 2\n  tool: http\n  url: u",
        "- step: s\n  tool: [{s: {kind: http, url: u, retry: 2}}]",
    ],
)
def test_a_retry_may_stand_in_several_places(workflow: str) -> None:
    plan = step(workflow)
    assert (len(plan.tasks), plan.tasks[0].name, plan.tasks[0].older) == (1, "s", "retry")
    assert len(run(plan, {"http": lambda *_: http(None, 500)}).calls) == 2


def test_rules_of_the_task_follow_those_of_its_retry() -> None:
    plan = step("""
    - step: s
      tool:
        kind: http
        url: u
        retry: {max_attempts: 2, retry_on: timeout, delay: 0}
        spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: continue}}]}}
    """)
    assert run(plan, {"http": lambda *_: http(None, 500)}).data is None
    assert run(plan, {"http": lambda *_: failed("timeout")}).error.kind == "timeout"


def test_a_pipeline_keeps_its_names_around_a_sequence() -> None:
    plan = step("""
    - step: s
      tool:
        - first: {kind: python, code: x}
        - all:
            kind: http
            url: "u/{{ first }}"
            retry: {on_success: {while: response.more, next_call: {params: {p: 2}}, collect: {path: rows}}}
        - last: {kind: python, input: {n: "{{ all | length }}"}, code: x}
    """)
    answers = iter([{"more": True, "rows": [1]}, {"more": False, "rows": [2, 3]}])
    ran = run(plan, {"python": lambda _, given: given.get("n", "one"), "http": lambda *_: http(next(answers))})
    assert (ran.data, ran.of("all_call")[0]["url"], ran.of("all_call")[0]["params"]) == (3, "u/one", {})


def test_problems() -> None:
    tool = "- step: s\n  tool: {kind: http, url: u}\n  retry: "
    assert refused(tool + "{max_attempt: 3}") == ["unknown key `max_attempt` in `retry`"]
    assert refused(tool + "{on_success: {collect: {}}}") == ["this `retry` after a success has no end"]
    assert refused(tool + "{on_success: {while: a, collect: {strategy: all}}}") == ["unknown strategy 'all'"]
    assert refused(tool + "{on_success: {while: a, next_call: [1]}}") == ["`next_call` is a mapping"]
    assert refused(tool + "{when: 'a {{ b }}'}") == ["this condition is not one expression"]
    assert refused(tool + "{when: '{{ b | }}'}")[0].startswith("the template `b |` does not parse")
    assert refused("- step: s\n  tool: [{a: {kind: noop}}, {b: {kind: noop}}]\n  retry: 2") == [
        "`retry` on a step with several tasks"
    ]
    template = "- step: s\n  tool: {kind: http, url: u, params: '{{ p }}'}\n  retry: "
    assert refused(template + "{on_success: {while: a, next_call: {params: {b: 1}}}}") == [
        "`next_call.params` cannot be merged into `params`, which is no mapping"
    ]


def test_the_warning_is_at_the_retry() -> None:
    found = [line for line in older_warnings(document(PAGES)) if "`retry`" in line]
    assert found[0].startswith("f.yaml:10:5: step 'users': older form `retry` (write a task that jumps to itself")


def test_there_are_no_other_warnings() -> None:
    assert {problem.code for problem in compiled(document(PAGES)).warnings} == {"older-form"}
