"""What is wrong with a playbook: where, in whose step, and what to write instead; all of it in one go."""

from __future__ import annotations

import re

import pytest
from playbook_cases import HEAD, Cursors, Tools, refused

from noetl_celery.errors import PlaybookInvalid
from noetl_celery.playbook import compile_playbook


@pytest.mark.parametrize(
    ("workflow", "said"),
    [
        ("- just text", ["1:3: a step is a mapping: `step: name`, `tool: …`"]),
        ("- {tool: {kind: noop}}", ["1:3: `step` is missing (every step has a name: `step: …`)"]),
        ("- {step: 'a b'}", ["1:4: step 'a b': `step`: 'a b' is not a name"]),
        ("- {step: a, tool: {}}", ["1:19: step 'a': `kind` is missing (every tool says its kind: `kind: http`)"]),
        ("- {step: a, tool: 5}", ["1:13: step 'a': `tool`: a list is expected"]),
        ("- {step: a, url: b}", ["1:13: step 'a': unknown key `url` (a key of a tool stands inside it"]),
        ("- {step: a, nxt: b}", ["1:13: step 'a': unknown key `nxt` (did you mean `next`?)"]),
        (
            "- step: a\n  tool: {kind: postgres}\n  command: SELECT 1",
            [
                "2:10: step 'a': postgres: needs `command` or `query`",
                "3:3: step 'a': `command` beside `tool` belongs inside it (move `command` into `tool`)",
            ],
        ),
        (
            "- {step: a, tool: {kind: pyton}}",
            ["1:20: step 'a': unknown tool kind `pyton` (did you mean `python`? known: http, noop, p"],
        ),
        ("- {step: a, tool: {kind: snowflake}}", ["1:20: step 'a': tool kind `snowflake` needs a plugin"]),
        ("- {step: a, tool: {kind: http, url: 5}}", ["1:32: step 'a': http: must be text"]),
        (
            "- {step: a}\n- {step: b}\n- {step: a}",
            ["3:4: step 'a': two steps are called `a` (the first on line 5)"],
        ),
        (
            "- {step: a, tool: [{name: x, kind: noop}, {name: x, kind: noop}]}",
            ["1:44: step 'a': two tasks are called `x`"],
        ),
        ("- {step: load, next: laod}", ["1:16: step 'load': an arc to `laod`, which is no step"]),
        (
            "- step: a\n  next:\n    spec: {mode: exclusiv}\n    arcs:\n    - step: b",
            [
                "3:12: step 'a': `mode` must be 'exclusive' or 'inclusive', not 'exclusiv' (did you mean `exclusive`?)",
                "5:7: step 'a': an arc to `b`, which is no step",
            ],
        ),
        ("- {step: a, next: {arcs: [{step: a, wen: x}]}}", ["1:37: step 'a': unknown key `wen` in `arcs` (did you"]),
        ("- {step: a, set: {workload.x: 1}}", ["1:19: step 'a': `workload.x` cannot be set (write `ctx.x`, `iter.x`"]),
        ("- {step: a, set: {ctx.: 1}}", ["1:19: step 'a': `ctx.` cannot be set"]),
        ("- {step: a, spec: {timeout: 0}}", ["1:20: step 'a': `timeout` must be more than 0, not 0"]),
        ("- {step: a, spec: {policy: {failure: {mode: x}}}}", ["1:39: step 'a': `mode` must be 'fail_fast'"]),
        ("- {step: a, sink: {tool: x}}", ["1:13: step 'a': `sink` in a step without a tool"]),
        ("- {step: a, tool: {kind: noop, retry: x}}", ["1:32: step 'a': `retry` is true, a number"]),
    ],
)
def test_steps(workflow: str, said: list[str]) -> None:
    found = refused(workflow)
    assert len(found) == len(said), found
    for line, start in zip(found, said, strict=True):
        assert line.startswith(start), line


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        ("{in: [1], cursor: {auth: x, claim: UPDATE}, iterator: i}", ["step 'a': `loop` has both `in` and `cursor`"]),
        ("{iterator: i}", ["step 'a': `loop` needs `in` (a collection) or `cursor` (a claim)"]),
        ("{in: [1]}", ["step 'a': `loop` needs `iterator`"]),
        ("{in: [1], iterator: 1x}", ["step 'a': `iterator`: '1x' is not a name"]),
        ("{in: [1], iterator: '{{ x }}'}", ["step 'a': `iterator`: '{{ x }}' is not a name"]),
        ("{in: [1], iterator: i, spec: {mode: cursor}}", ["step 'a': `mode: cursor` needs `loop.cursor`"]),
        ("{in: [1], iterator: i, spec: {mode: paralel}}", ["step 'a': `mode` must be"]),
        ("{cursor: {auth: x}, iterator: i}", ["step 'a': `cursor` needs `claim`"]),
        ("{cursor: {claim: UPDATE}, iterator: i}", ["step 'a': needs `auth`"]),
        ("{cursor: {kind: redis, claim: x}, iterator: i}", ["step 'a': unknown cursor kind `redis` (known: postgres)"]),
        ("{cursor: {auth: x, claim: [1]}, iterator: i}", ["step 'a': `claim`: text is expected"]),
        ("{cursor: {auth: x, claim: 'UPDATE {{ a b }}'}, iterator: i}", ["step 'a': claim: the template `a b`"]),
        (
            "{cursor: {auth: x, clam: UPDATE}, iterator: i}",
            ["unknown key `clam` in `cursor` (did you mean `claim`?)"],
        ),
        ("{in: [1], iterator: i, spec: {max_in_flight: 0}}", ["`max_in_flight` must be at least 1, not 0"]),
        ("{in: [1], iterator: i, spec: {max_in_flight: lots}}", ["is expected, not 'lots'"]),
        (
            "{in: [1], iterator: i, spec: {max_in_flight: 9000000000000000}}",
            ["`max_in_flight` must be less than 1e+15"],
        ),
        ("{in: [1], iterator: i, spec: {frame: {max_rows: true}}}", ["`max_rows`: a number, or a template for one"]),
        ("{in: [1], iterator: i, spec: {frame: {max_row: 1}}}", ["unknown key `max_row` in `frame` (did"]),
        ("{in: [1], iterator: i, spec: {frame: {process: rows}}}", ["`process` must be 'row' or 'frame'"]),
        ("{in: [1], iterator: i, collection: [2]}", ["`collection` and `in` are the same key"]),
    ],
)
def test_loops(loop: str, said: list[str]) -> None:
    found = refused(f"- step: a\n  tool: {{kind: noop}}\n  loop:\n    {loop}")
    assert len(found) == len(said), found
    for line, part in zip(found, said, strict=True):
        assert part in line


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("{do: jump}", "`do: jump` needs `to`"),
        ("{do: jump, to: sav}", "`jump` to `sav`, which is no task of this step (did you mean `save`?)"),
        ("{do: retyr}", "'break' or 'fail', not 'retyr' (did you mean `retry`?)"),
        ("{else: {do: retry, attempts: 0}}", "`attempts` must be at least 1, not 0"),
        ("{else: {do: retry, attempts: 1.5}}", "`attempts` must be a whole number"),
        ("{else: {then: {do: retry, delay: -1}}}", "`delay` must not be negative, not -1"),
        ("{when: x, then: {do: retry, backoff: expo}}", "`backoff` must be 'none', 'fixed', 'linear' or 'exponential'"),
        ("{when: x, then: {do: retry, atempts: 2}}", "unknown key `atempts` in `then` (did you mean `attempts`?)"),
        ("{when: x, then: fail}", "`then`: a mapping is expected"),
        ("{when: '{{ x', then: {do: fail}}", "when: the template `{{ x` does not parse: `{{` is never closed"),
        ("{when: 'x ==', then: {do: fail}}", "when: the template `x ==` does not parse"),
        ("{do: continue, set_ctx: {iter.x: 1}}", "`iter.x` cannot be set"),
    ],
)
def test_rules(rule: str, said: str) -> None:
    found = refused(
        "- step: a\n  tool:\n  - name: fetch\n    kind: noop\n"
        f"    spec:\n      policy:\n        rules:\n        - {rule}\n"
        "  - {name: save, kind: noop}"
    )
    assert len(found) == 1, found
    assert said in found[0]
    assert found[0].startswith("8:")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: Playbook\n", ["1:1: `apiVersion` is", "1:1: `metadata` is", "1:1: `workflow` is"]),
        (
            "apiVersion: v1\nkind: Job\nmetadata: {}\nworkflow: [{step: a}]\n",
            ["1:1: apiVersion is 'v1' (this is read: noetl.io/v2)", "2:1: kind is 'Job'", "3:11: `name` is missing"],
        ),
        (HEAD + "workflw: []\n", ["4:1: unknown key `workflw` (did you mean `workflow`?)"]),
        (HEAD + "workflow: []\n", ["4:1: `workflow` has no step"]),
        (HEAD + "workflow: {a: 1}\n", ["4:1: `workflow`: a list is expected, not a mapping"]),
        (HEAD + "workload: 5\nworkflow: [{step: a}]\n", ["4:1: `workload`: a mapping is expected, not a number"]),
        (
            HEAD + "executor: {spec: {entry_step: strat}}\nworkflow: [{step: start}]\n",
            ["4:19: entry_step `strat` is no step (did you mean `start`?)"],
        ),
        (HEAD + "workload: {a: 1, a: 2}\nworkflow: [{step: a, a: 1}]\n", ["4:18: the key `a` is", "5:22: "]),
    ],
)
def test_the_root(text: str, said: list[str]) -> None:
    with pytest.raises(PlaybookInvalid) as caught:
        compile_playbook(text, file="f.yaml", tools=Tools(), cursors=Cursors())
    found = [str(problem).removeprefix("f.yaml:") for problem in caught.value.problems]
    assert len(found) == len(said), found
    for line, start in zip(found, said, strict=True):
        assert line.startswith(start), line


def test_a_template_is_found_on_its_line_of_a_block() -> None:
    found = refused(
        """
        - step: a
          tool:
            kind: postgres
            command: |
              SELECT 1;
              SELECT {{ ok }},
                     {{ a b }};
          set:
            ctx.x: "{{ 1 + }}"
            ctx.y: >
              folded {{ ok }}
              and {{ c | nofilter }}
        """
    )
    assert [line.split(" step")[0] for line in found] == ["7:17:", "9:16:", "12:14:"]
    assert "command: the template `a b` does not parse" in found[0]
    assert "No filter named 'nofilter'" in found[2]


def test_every_broken_template_of_a_task_is_told() -> None:
    found = refused("- step: a\n  tool: {kind: http, url: '{{', headers: {x: '{{ a b }}'}, input: {y: '{% if %}'}}")
    assert [re.sub(r": the template.*", "", line) for line in found] == [
        "2:28: step 'a': url",
        "2:50: step 'a': headers.x",
        "2:72: step 'a': input",
    ]


def test_a_step_that_the_model_refuses_is_looked_at_further() -> None:
    found = refused(
        """
        - step: a
          foo: 1
          spec: {timeout: -1}
          loop: {in: "{{ x y }}", iterator: 1x}
          tool: {kind: nothing}
          next: [b]
        """
    )
    assert [line.split(":")[0] for line in found] == ["2", "3", "4", "4", "5", "6"]


def test_problems_come_sorted_by_line() -> None:
    found = refused("- {step: b, next: x}\n- {step: b, next: y}\n- {step: c, next: z}")
    assert [int(line.split(":")[0]) for line in found] == sorted(int(line.split(":")[0]) for line in found)
    assert len(found) == 4
