"""What an author writes, in every spelling, and the plan that comes of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playbook_cases import HEAD, compiled, plan, warned

from noetl_celery.playbook import Arc, Plan, Rule, TaskPlan, graph
from noetl_celery.playbook.steps import changes_rows


def task(text: str) -> TaskPlan:
    """The single task of a step with this tool."""
    found = plan(f"- step: a\n  tool: {text}").steps["a"].tasks
    assert len(found) == 1
    return found[0]


def raw_arcs(found: Plan, step: str) -> list[tuple[str, Any]]:
    return [(arc.step, arc.when.raw if arc.when else None) for arc in found.steps[step].next.arcs]


def test_the_root_of_a_plan() -> None:
    found = plan("- {step: b}\n- {step: a}", HEAD + "workload: {x: '{{ literal }}'}\nspec: {deep: {y: 1}}\n")
    assert (found.path, found.name, found.entry) == ("tests/test", "test", "b")
    assert found.workload == {"x": "{{ literal }}"}
    assert type(found.workload) is dict
    assert found.spec == {"deep": {"y": 1}}
    assert list(found.steps) == ["b", "a"]
    assert found.steps["b"].line == 7


def test_the_path_is_the_name_if_there_is_none() -> None:
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: n}\n"
    done = compiled("- {step: a}", head)
    assert done.plan.path == "n"
    assert done.metadata == {"name": "n"}


@pytest.mark.parametrize(
    ("head", "entry"),
    [("", "start"), ("executor: {spec: {entry_step: c, pool: big, other: 1}}\n", "c")],
)
def test_the_entry(head: str, entry: str) -> None:
    found = plan("- {step: b, next: c}\n- {step: start, next: b}\n- {step: c, next: [start]}", HEAD + head)
    assert found.entry == entry
    assert found.pool == ("big" if head else None)


def test_keys_that_are_only_accepted() -> None:
    head = """apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: n, version: 2, description: d, labels: {a: b}, tags: [x], exposes_as_mcp: true}
keychain: [{name: k, kind: x, ref: c, anything: 1}]
executor: {profile: local, version: 1, requires: {tools: [http]}}
tracing: {on: true}
spec: {}
workbook: []
"""
    assert not warned(
        """
        - step: a
          desc: said
          output: {store: {kind: x}}
          output_select: [a]
          inline_max_bytes: 5
          tool: {kind: http, url: x, assert: {expects: [a]}, desc: d, output: {store: {kind: y}}, task: t, pool: p}
        """,
        head,
    )


# -- tasks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "{kind: http, url: 'http://{{ x }}', method: GET, auth: c, input: {a: 1}}",
        "{kind: http, spec: {url: 'http://{{ x }}', method: GET}, credential: c, args: {a: 1}}",
        "[{name: a, kind: http, url: 'http://{{ x }}', method: GET, auth: c, input: {a: 1}}]",
        "[{a: {kind: http, url: 'http://{{ x }}', method: GET, auth: c, input: {a: 1}}}]",
        "{a: {kind: http, url: 'http://{{ x }}', method: GET, auth: c, input: {a: 1}}}",
    ],
)
def test_spellings_of_a_task(text: str) -> None:
    found = task(text)
    assert (found.name, found.kind, found.rules, found.set) == ("a", "http", None, ())
    assert found.config.raw == {"url": "http://{{ x }}", "method": "GET", "auth": "c"}
    assert found.config.names == {"x"}
    assert found.input.raw == {"a": 1}


def test_the_older_form_of_a_tool() -> None:
    done = compiled("- {step: a, tool: http, url: 'http://x', params: {p: 1}, args: {i: 2}, next: [end]}")
    found = done.plan.steps["a"].tasks[0]
    assert found.config.raw == {"url": "http://x", "params": {"p": 1}}
    assert found.input.raw == {"i": 2}
    assert "write `tool: {kind: http, url: …, params: …}`" in str(done.warnings[0])


def test_input_of_step_and_task_are_merged_the_task_wins() -> None:
    found = plan(
        """
        - step: a
          input: {x: "{{ s }}", y: step}
          tool:
          - {name: t, kind: noop, input: {y: task}}
          - {name: u, kind: noop}
        """
    ).steps["a"]
    assert [t.input.raw for t in found.tasks] == [{"x": "{{ s }}", "y": "task"}, {"x": "{{ s }}", "y": "step"}]
    assert found.row_names == {"s"}


def test_an_input_may_be_one_template() -> None:
    assert task("{kind: noop, input: '{{ everything }}'}").input.render({"everything": {"a": 1}}) == {"a": 1}


def test_code_is_kept_as_it_is() -> None:
    found = task("{kind: python, code: 'print(\"{{ x\")', other: '{{ y }}'}")
    assert found.config.render({"y": 1}) == {"code": 'print("{{ x")', "other": 1}
    assert found.config.names == {"y"}


def test_names_of_tasks() -> None:
    found = plan(
        """
        - step: one
          tool: {kind: noop}
        - step: named
          tool: {kind: noop, name: inner}
        - step: many
          tool: [{kind: noop}, {kind: noop, name: b}]
        """
    )
    assert [t.name for t in found.steps["one"].tasks] == ["one"]
    assert [t.name for t in found.steps["named"].tasks] == ["inner"]
    assert [t.name for t in found.steps["many"].tasks] == ["task_1", "b"]


def test_a_step_without_a_tool_is_a_router() -> None:
    assert plan("- {step: a}").steps["a"].tasks == ()


@pytest.mark.parametrize(
    ("written", "when", "do"),
    [
        ("{when: 'x == 1', then: {do: fail}}", "x == 1", "fail"),
        ("{when: true, then: {do: break}}", True, "break"),
        ("{else: {then: {do: continue}}}", None, "continue"),
        ("{else: {do: retry}}", None, "retry"),
        ("{do: retry}", None, "retry"),
        ("{then: {do: fail}}", None, "fail"),
        ("{when: '{{ x }}', do: fail}", "{{ x }}", "fail"),
        ("{when: '{{ x }}'}", "{{ x }}", "continue"),
    ],
)
def test_spellings_of_a_rule(written: str, when: Any, do: str) -> None:
    found = task(f"{{kind: noop, spec: {{policy: {{rules: [{written}]}}}}}}").rules
    assert found is not None
    assert [(rule.when.raw if rule.when else None, rule.do) for rule in found] == [(when, do)]


def test_everything_of_a_rule() -> None:
    found = plan(
        """
        - step: a
          tool:
          - name: t
            kind: noop
            spec:
              policy:
                rules:
                - when: "{{ output.status == 'error' }}"
                  then: {do: retry, attempts: "{{ n }}", backoff: linear, delay: 0.5, max_delay: 9}
                - else:
                    then:
                      do: jump
                      to: u
                      set: {ctx.a: 1, iter.b: 2, c: 3}
                      set_iter: {d: 4, iter.e: 5}
                      set_ctx: {f: 6}
            set: {g: "{{ output }}"}
          - {name: u, kind: noop}
        """
    ).steps["a"]
    retry, jump = found.tasks[0].rules or ()
    assert isinstance(retry, Rule)
    assert retry.attempts is not None
    assert retry.attempts.render({"n": 3}) == 3
    assert retry.delay is not None
    assert retry.delay.raw == 0.5
    assert (retry.backoff, retry.max_delay.raw if retry.max_delay else None) == ("linear", 9)
    assert jump.to == "u"
    assert [(target, value.raw) for target, value in jump.set] == [
        ("ctx.a", 1),
        ("iter.b", 2),
        ("c", 3),
        ("iter.d", 4),
        ("iter.e", 5),
        ("ctx.f", 6),
    ]
    assert [target for target, _ in found.tasks[0].set] == ["g"]
    assert found.task_index == {"t": 0, "u": 1}
    assert found.row_names == {"output", "n"}


def test_no_policy_and_an_empty_one_differ() -> None:
    assert task("{kind: noop}").rules is None
    assert task("{kind: noop, spec: {policy: {rules: []}}}").rules == ()


# -- loops -------------------------------------------------------------------------------------------------------------

CLAIM = "UPDATE w SET s = 1 RETURNING *"


def loop_of(text: str) -> Any:
    return plan(f"- step: a\n  tool: {{kind: noop}}\n  loop: {text}").steps["a"].loop


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("{in: '{{ xs }}', iterator: x}", "sequential"),
        ("{in: '{{ xs }}', iterator: x, spec: {mode: sequential}}", "sequential"),
        ("{in: '{{ xs }}', iterator: x, spec: {mode: parallel}}", "parallel"),
        ("{in: [1, 2], iterator: x, spec: {mode: async}}", "parallel"),
        ("{collection: '{{ xs }}', element: x, mode: async}", "parallel"),
        (f"{{cursor: {{auth: c, claim: {CLAIM}}}, iterator: x}}", "cursor"),
        (f"{{cursor: {{auth: c, claim: {CLAIM}}}, iterator: x, spec: {{mode: cursor}}}}", "cursor"),
    ],
)
def test_modes_of_a_loop(text: str, mode: str) -> None:
    found = loop_of(text)
    assert found.mode == mode
    assert found.iterator == "x"
    assert (found.items is None) == (mode == "cursor")
    assert (found.cursor is None) == (mode != "cursor")


@pytest.mark.parametrize(
    "text",
    [
        "spec: {max_in_flight: '{{ n }}'}",
        "spec: {policy: {max_in_flight: '{{ n }}', exec: distributed}}",
        "concurrency: '{{ n }}'",
    ],
)
def test_max_in_flight(text: str) -> None:
    assert loop_of(f"{{in: [1], iterator: x, {text}}}").max_in_flight.render({"n": 4}) == 4
    assert loop_of("{in: [1], iterator: x}").max_in_flight is None


def test_frames() -> None:
    bare = loop_of("{in: [1], iterator: x}").frame
    assert not bare.given
    assert (bare.max_rows.raw, bare.row_concurrency.raw, bare.lease_seconds.raw) == (1, 1, 120)
    assert (bare.heartbeat_seconds.raw, bare.max_seconds, bare.process, bare.ack) == (30, None, "row", "batch")
    given = loop_of(
        "{in: [1], iterator: x, spec: {frame: {max_rows: '50', lease_seconds: '{{ s }}', max_bytes: 9, "
        "process: frame, ack: row}}}"
    ).frame
    assert given.given
    assert given.max_rows.raw == 50
    assert given.lease_seconds.render({"s": 6}) == 6
    assert (given.max_bytes.raw, given.process, given.ack) == (9, "frame", "row")


def test_a_cursor() -> None:
    found = loop_of(
        f"{{iterator: x, aggregate: {{a: {{sum: '{{{{ y }}}}'}}}}, cursor: {{credential: '{{{{ c }}}}', "
        f"claim: {CLAIM}, "
        "reclaim: R, reclaim_after: 60, dead_letter: D, count: C, options: {o: 1}}}"
    )
    cursor = found.cursor
    assert cursor.kind == "postgres"
    assert cursor.auth.render({"c": "pg"}) == "pg"
    given = (cursor.claim, cursor.reclaim, cursor.reclaim_after, cursor.dead_letter, cursor.count, cursor.options)
    assert [value.raw for value in given] == [CLAIM, "R", 60, "D", "C", {"o": 1}]
    assert [(entry.name, entry.op, entry.value.names) for entry in found.aggregate] == [("a", "sum", {"y"})]


def test_bindings_stay_in_a_claim() -> None:
    claim = "UPDATE w SET s = %(__claim_token)s WHERE x LIKE 'a%' LIMIT {{ __frame_max_rows }}"
    found = loop_of(f'{{iterator: x, cursor: {{auth: c, claim: "{claim}"}}}}').cursor.claim
    assert found.render({"__frame_max_rows": 5}).endswith("LIKE 'a%' LIMIT 5")


@pytest.mark.parametrize(
    ("loop", "spec", "mode"),
    [
        ("", "", "fail_fast"),
        ("loop: {in: [1], iterator: x}", "", "fail_fast"),
        (f"loop: {{iterator: x, cursor: {{auth: c, claim: {CLAIM}}}}}", "", "best_effort"),
        (f"loop: {{iterator: x, cursor: {{auth: c, claim: {CLAIM}}}}}", "fail_fast", "fail_fast"),
        ("loop: {in: [1], iterator: x}", "best_effort", "best_effort"),
    ],
)
def test_failure_modes(loop: str, spec: str, mode: str) -> None:
    policy = f"spec: {{policy: {{failure: {{mode: {spec}}}}}}}" if spec else ""
    parts = ["step: a", *(part for part in (loop, policy) if part)]
    assert plan(f"- {{{', '.join(parts)}}}").steps["a"].failure_mode == mode


# -- routing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "mode", "arcs"),
    [
        ("next: b", "exclusive", [("b", None)]),
        ("next: [b]", "exclusive", [("b", None)]),
        ("next: [b, c]", "inclusive", [("b", None), ("c", None)]),
        ("next: [{step: b, when: '{{ x }}'}, c]", "exclusive", [("b", "{{ x }}"), ("c", None)]),
        ("next: {step: b}", "exclusive", [("b", None)]),
        ("next: {arcs: [{step: b}, {step: c}]}", "exclusive", [("b", None), ("c", None)]),
        ("next: {spec: {mode: inclusive}, arcs: [b, c]}", "inclusive", [("b", None), ("c", None)]),
        ("next: {arcs: []}", "exclusive", []),
        ("next:", "exclusive", [("end", None)]),
        ("desc: nothing said", "exclusive", [("end", None)]),
    ],
)
def test_spellings_of_next(written: str, mode: str, arcs: list[Any]) -> None:
    found = plan(f"- step: a\n  {written}\n- step: b\n- step: c\n- step: end")
    assert found.steps["a"].next.mode == mode
    assert raw_arcs(found, "a") == arcs
    assert found.steps["end"].next.arcs == ()


def test_no_end_no_implicit_arc_and_an_arc_to_it_is_fine() -> None:
    found = plan("- {step: a, next: [b]}\n- {step: b}\n- {step: c, next: end}")
    assert found.steps["b"].next.arcs == ()
    assert found.steps["c"].next.arcs == (Arc("end"),)
    assert "end" not in found.forward["c"]


def test_everything_of_an_arc() -> None:
    found = plan(
        """
        - step: a
          set: {ctx.n: "{{ a.count }}"}
          spec:
            timeout: "{{ limit }}"
            pool: big
            policy: {admit: {rules: [{when: "{{ ready }}", then: {allow: true}}, {else: {then: {allow: false}}}]}}
          next:
            spec: {on_no_match: fail}
            arcs:
            - {step: a, when: "{{ event.name == 'loop.done' }}", set: {ctx.x: "{{ y }}"}, args: {z: "{{ w }}"}}
            - {step: a, when: "n > 1"}
        """
    ).steps["a"]
    first, second = found.next.arcs
    assert found.next.on_no_match == "fail"
    assert (first.sees_outcome, second.sees_outcome) == (True, False)
    assert first.args is not None
    assert first.args.raw == {"z": "{{ w }}"}
    assert second.when is not None
    assert second.when.test({"n": 2})
    assert [(rule.when.raw if rule.when else None, rule.allow) for rule in found.admit] == [
        ("{{ ready }}", True),
        (None, False),
    ]
    assert found.timeout is not None
    assert found.timeout.names == {"limit"}
    assert found.pool == "big"
    assert found.route_names == {"a", "event", "y", "w", "n", "ready"}


@pytest.mark.parametrize(
    "spec", ["{timeout: 5}", "{policy: {lifecycle: {timeout_s: 5}}}", "{policy: {lifecycle: {deadline_s: 5}}}"]
)
def test_timeouts(spec: str) -> None:
    timeout = plan(f"- {{step: a, spec: {spec}}}").steps["a"].timeout
    assert timeout is not None
    assert timeout.raw == 5


def test_results_of_names_the_steps_whose_tasks_are_asked_for() -> None:
    found = plan("- {step: a, next: b}\n- {step: b, set: {ctx.x: '{{ a.results.t }}{{ other.results }}{{ b.x }}'}}")
    assert found.results_of == {"a"}


def test_places_in_errors_of_templates() -> None:
    found = plan("- step: a\n  tool:\n    kind: http\n    url: |\n      x\n      {{ nope }}\n")
    with pytest.raises(Exception, match=r"step 'a', url, line 10: `nope` is undefined"):
        found.steps["a"].tasks[0].config.render({})


# -- warnings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workflow", "said"),
    [
        ("- {step: a, next: {arcs: []}}\n- {step: b}", "step 'b': no arc leads here from `a`"),
        ("- {step: ctx}", "a step called `ctx` cannot be referred to"),
        (
            "- {step: a, loop: {in: [1], iterator: job}, tool: {kind: noop, result: '{{ iter.job }}'}}",
            "this iterator is found as `iter.job` only",
        ),
        ("- {step: a, tool: noop}", "older form `tool: noop`"),
        ("- {step: a, loop: {collection: [1], iterator: x}}", "older form `loop.collection`"),
        ("- {step: a, tool: {kind: noop, x: no}}", "`no` is read as false"),
        (
            "- {step: a, tool: {kind: noop, spec: {policy: {rules: [{do: fail}, {when: x, then: {}}]}}}}",
            "rules after one without `when` are never reached",
        ),
        (
            "- {step: a, loop: {iterator: x, cursor: {auth: c, claim: SELECT 1 FOR UPDATE SKIP LOCKED}}}",
            "`claim` changes nothing",
        ),
        (
            f"- {{step: a, loop: {{iterator: x, spec: {{mode: parallel}}, cursor: {{auth: c, claim: {CLAIM}}}}}}}",
            "`mode: parallel` is ignored",
        ),
    ],
)
def test_warnings(workflow: str, said: str) -> None:
    found = warned(workflow)
    assert len([warning for warning in found if said in warning]) == 1, found
    assert found[0].startswith("f.yaml:")


@pytest.mark.parametrize(
    ("sql", "changes"),
    [
        ("SELECT 1 FROM t FOR UPDATE SKIP LOCKED", False),
        ("SELECT 1 FROM t FOR NO KEY UPDATE", False),
        ("select id from t -- update it later", False),
        ("/* UPDATE */ SELECT 1", False),
        ("UPDATE t SET x = 1 RETURNING *", True),
        ("WITH c AS (SELECT 1 FOR UPDATE) DELETE FROM t USING c RETURNING *", True),
        ("SELECT * FROM claim_rows(5)", True),
        ("SELECT app.claim(5)", True),
    ],
)
def test_claims_that_change_nothing(sql: str, changes: bool) -> None:
    assert changes_rows(sql) is changes


# -- the graph ---------------------------------------------------------------------------------------------------------


def test_a_loop_back_is_a_back_edge() -> None:
    found = plan(
        """
        - {step: start, next: load}
        - {step: load, next: [{step: work, when: x}, {step: end}]}
        - {step: work, next: check}
        - {step: check, next: [{step: work, when: y}, {step: load}]}
        - {step: end}
        """
    )
    assert found.back_edges == {("check", "work"), ("check", "load")}
    assert found.forward["load"] == {"work", "check", "end"}
    assert found.forward["check"] == frozenset()
    assert found.forward["start"] == {"load", "work", "check", "end"}


def test_a_long_chain_needs_no_deep_stack() -> None:
    arcs = {f"s{n}": [f"s{n + 1}"] for n in range(5000)}
    assert graph.back_edges(arcs, "s0") == frozenset()
    assert len(graph.reached(arcs, "s0")) == 5000


names = st.sampled_from("abcdefg")


@given(st.dictionaries(names, st.lists(names, max_size=4), min_size=1), st.data())
def test_without_back_edges_there_is_no_cycle(arcs: dict[str, list[str]], data: st.DataObject) -> None:
    entry = data.draw(st.sampled_from(sorted(arcs)))
    back = graph.back_edges(arcs, entry)
    ahead = graph.forward(arcs, back)
    for step, targets in arcs.items():
        for target in targets:
            if target in arcs and (step, target) not in back:
                assert target in ahead[step]
                assert step not in ahead[target]
    assert all(target in graph.reached(arcs, step) for step, target in back)
