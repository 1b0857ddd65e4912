"""What lint warns of: each code with what earns it, and with what looks like it and is right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playbook_cases import HEAD, compiled

from noetl_celery.playbook.codes import CODES, ERRORS, WARNINGS

ROOT = Path(__file__).parents[3]
WORK = "UPDATE work SET status = 'taken', taken_at = now()"
CHOSEN = "SELECT id FROM work WHERE status = 'open' OR taken_at < now() - interval '1 hour'"
GOOD = f"{WORK} WHERE id IN ({CHOSEN} LIMIT {{{{ __frame_max_rows }}}} FOR UPDATE SKIP LOCKED) RETURNING id"


def codes(workflow: str, head: str = HEAD) -> list[str]:
    return [warning.code for warning in compiled(workflow, head).warnings]


def said(workflow: str, head: str = HEAD) -> list[str]:
    return [str(warning).removeprefix("f.yaml:") for warning in compiled(workflow, head).warnings]


def cursor(claim: str, frame: str = "{max_rows: 10}", more: str = "", further: str = "") -> str:
    lines = "\n".join(f"        {line}" for line in claim.splitlines())
    return (
        f"- step: a\n  loop:\n    cursor:\n      auth: pg\n      claim: |\n{lines}\n{more}"
        f"    iterator: row\n    spec: {{frame: {frame}}}\n  tool: {{kind: noop}}\n{further}"
    )


# -- claims ------------------------------------------------------------------------------------------------------------


def test_a_good_claim_earns_no_warning() -> None:
    assert codes(cursor(GOOD)) == []
    assert codes(cursor("SELECT * FROM claim_work({{ __frame_max_rows }})")) == []


@pytest.mark.parametrize(
    ("claim", "found"),
    [
        (GOOD.replace(" SKIP LOCKED", ""), ["claim-skip-locked"]),
        (GOOD.replace("FOR UPDATE SKIP LOCKED", "FOR UPDATE /* SKIP LOCKED */"), ["claim-skip-locked"]),
        (GOOD.replace("FOR UPDATE SKIP LOCKED", ""), ["claim-skip-locked"]),
        (GOOD.replace("FOR UPDATE SKIP LOCKED", ") AND pg_try_advisory_xact_lock(id"), []),
        (f"{WORK} WHERE taken_at < now() - interval '1 hour' RETURNING id LIMIT %(__frame_max_rows)s", []),
    ],
)
def test_claims_that_meet(claim: str, found: list[str]) -> None:
    assert codes(cursor(claim)) == found


@pytest.mark.parametrize(
    ("limit", "frame", "found"),
    [
        ("", "{max_rows: 10}", ["claim-limit"]),
        ("", "{max_rows: 1}", ["claim-limit"]),
        ("LIMIT 1", "{max_rows: 10}", ["claim-limit"]),
        ("LIMIT {{ workload.n }}", "{max_rows: 10}", ["claim-limit"]),
        ("-- LIMIT {{ __frame_max_rows }}\n", "{max_rows: 10}", ["claim-limit"]),
        ("LIMIT 1", "{max_rows: 1}", []),
        ("LIMIT 10", "{max_rows: 10}", []),
        ("FETCH FIRST 1 ROW ONLY", "{}", []),
        ("LIMIT {{ workload.n }}", '{max_rows: "{{ workload.n }}"}', []),
        ("LIMIT %(__frame_max_rows)s", "{max_rows: 10}", []),
    ],
)
def test_claims_that_do_not_follow_the_frame(limit: str, frame: str, found: list[str]) -> None:
    claim = GOOD.replace("LIMIT {{ __frame_max_rows }}", limit)
    assert codes(cursor(claim, frame), HEAD + "workload: {n: 10}\n") == found


STALE = GOOD.replace(" OR taken_at < now() - interval '1 hour'", "")


@pytest.mark.parametrize(
    ("claim", "further", "found"),
    [
        (STALE, "", ["claim-stale"]),
        (GOOD, "", []),
        (STALE.replace("status = 'open'", "lease_until IS NULL"), "", []),
        (STALE.replace("status = 'open'", "execution_id = {{ execution_id }}"), "", []),
        (STALE, "- {step: b, tool: {kind: postgres, command: UPDATE work SET status = 'open'}}", []),
        (STALE, "- {step: b, tool: {kind: postgres, command: UPDATE workers SET status = 'open'}}", ["claim-stale"]),
    ],
)
def test_rows_that_nobody_comes_back_to(claim: str, further: str, found: list[str]) -> None:
    assert [code for code in codes(cursor(claim, further=further)) if code != "unreachable-step"] == found


def test_a_reclaim_comes_back() -> None:
    more = "      reclaim: UPDATE work SET status = 'open'\n      reclaim_after: 60\n"
    assert "claim-stale" not in codes(cursor(STALE, more=more))


@pytest.mark.parametrize(
    ("frame", "found"),
    [
        ("{lease_seconds: 60, heartbeat_seconds: 60}", ["heartbeat-lease"]),
        ("{lease_seconds: 20, heartbeat_seconds: 30}", ["heartbeat-lease"]),
        ("{lease_seconds: 60, heartbeat_seconds: 20}", []),
        ("{lease_seconds: 20}", []),
        ('{lease_seconds: "{{ 5 }}", heartbeat_seconds: 60}', []),
    ],
)
def test_heartbeats_that_outlive_their_lease(frame: str, found: list[str]) -> None:
    assert codes(cursor(GOOD, frame)) == found


def test_a_claim_that_changes_nothing() -> None:
    assert "claim-changes-nothing" in codes(cursor("SELECT id FROM work FOR UPDATE SKIP LOCKED"))


# -- conditions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "found"),
    [
        ("'{{ 1 == 1 }}'", ["constant-condition"]),
        ("'{{ false }}'", ["constant-condition"]),
        ("false", ["constant-condition"]),
        ("\"'a' == 'b'\"", ["constant-condition"]),
        ("'{{ workload.n }} == 1'", ["constant-condition"]),
        ("'{{ workload.n }} == {{ workload.n }}'", ["constant-condition"]),
        ("'{{ workload.n == 1 }}'", []),
        ("' {{ workload.n == 1 }} '", []),
        ("workload.n == 1", []),
        ("'{% if workload.n %}yes{% endif %}'", []),
        ("'{{ now().hour > 12 }}'", []),
        ("'{{ [1, 2] | random == 1 }}'", []),
        ("true", []),
        ("'{{ true }}'", []),
    ],
)
def test_conditions_that_cannot_differ(when: str, found: list[str]) -> None:
    head = HEAD + "workload: {n: 1}\n"
    assert codes(f"- {{step: a, next: {{arcs: [{{step: b, when: {when}}}]}}}}\n- step: b", head) == found


@pytest.mark.parametrize(
    ("arcs", "found"),
    [
        ("[{step: a}, {step: b}]", ["unreachable-rule"]),
        ("[{step: a, when: true}, {step: b}]", ["unreachable-rule"]),
        ("[{step: a, when: event.name}, {step: b}]", []),
    ],
)
def test_arcs_after_one_that_always_holds(arcs: str, found: list[str]) -> None:
    assert codes(f"- {{step: a, next: {{arcs: {arcs}}}}}\n- step: b") == found
    assert codes(f"- {{step: a, next: {{spec: {{mode: inclusive}}, arcs: {arcs}}}}}\n- step: b") == []


@pytest.mark.parametrize(
    ("loop", "when", "found"),
    [
        ("", "event.name == 'loop.done'", ["event-never"]),
        ("", "'call.over' == event.name", ["event-never"]),
        ("", "event.name in ['loop.done', 'call.over'] and workload.n", ["event-never"]),
        ("", "event['name'] == 'step.done'", []),
        ("", "event.name in ['loop.done', 'step.done']", []),
        ("", "event.name == 'loop.done' or event.name == 'step.failed'", []),
        ("", "event.name != 'loop.done'", []),
        ("", "workload.n == 'loop.done'", []),
        ("loop: {in: [1], iterator: i}, ", "event.name == 'step.done'", ["event-never"]),
        ("loop: {in: [1], iterator: i}, ", "event.name == 'loop.done'", []),
        ("loop: {in: [1], iterator: i}, ", "event.name == 'step.failed'", []),
    ],
)
def test_events_that_do_not_come(loop: str, when: str, found: list[str]) -> None:
    arc = f'{{step: b, when: "{when}"}}'
    step = f"- {{step: a, {loop}tool: {{kind: noop}}, next: {{arcs: [{arc}]}}}}\n- step: b"
    assert codes(step, HEAD + "workload: {n: 1}\n") == found


def test_why_an_event_does_not_come() -> None:
    step = "- {step: a, tool: {kind: noop}, next: {arcs: [{step: b, when: event.name == '%s'}]}}\n- step: b"
    [line] = said(step % "loop.done")
    assert "`when` never holds: the step has no loop, so it never ends in `loop.done` (it ends in `step.done`" in line
    [line] = said(step % "call.over")
    assert "`when` never holds: no step ends in `call.over` (it ends in `step.done` or `step.failed`)" in line


# -- policies ----------------------------------------------------------------------------------------------------------


def ruled(*rules: str, first: str = "continue") -> str:
    return (
        f"- step: a\n  tool:\n  - {{name: x, kind: noop, policy: {{rules: [{{do: {first}}}]}}}}\n"
        f"  - {{name: y, kind: noop, policy: {{rules: [{', '.join(rules)}]}}}}"
    )


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        (["{when: output.error.retryable, then: {do: retry}}"], ["retry-attempts"]),
        (["{when: output.error.retryable, then: {do: retry, attempts: 3}}"], []),
        (["{do: jump, to: x}"], ["endless-jump"]),
        (["{do: jump, to: y}"], ["endless-jump"]),
        (["{when: true, then: {do: jump, to: x}}"], ["endless-jump"]),
        (["{when: output.data, then: {do: jump, to: x}}"], []),
        (["{when: output.data, then: {do: break}}", "{do: jump, to: x}"], []),
        (["{when: true, then: {do: continue}}", "{do: fail}"], ["unreachable-rule"]),
        (["{do: fail}", "{when: output.data, then: {do: continue}}"], ["unreachable-rule"]),
        (["{when: output.data, then: {do: continue}}", "{when: true, then: {do: fail}}"], []),
        (["{when: '{{ 1 > 2 }}', then: {do: fail}}"], ["constant-condition"]),
    ],
)
def test_rules(rules: list[str], found: list[str]) -> None:
    assert codes(ruled(*rules)) == found


def test_a_circle_with_a_way_out_ends() -> None:
    assert codes(ruled("{do: jump, to: x}", first="break")) == []


# -- names -------------------------------------------------------------------------------------------------------------

NAMES = HEAD + "workload: {greeting: hello, nested: {a: 1}}\n"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ greetng }}", "nothing sets `greetng` (did you mean `greeting`?)"),
        ("{{ workload.greetng }}", "`workload` has no `greetng` (did you mean `greeting`?)"),
        ("{{ workload['other'] }}", "`workload` has no `other` (if a run gives it, list it in `workload`"),
        ("{{ ctx.totl }}", "nothing sets `ctx.totl` (did you mean `ctx.total`?)"),
        ("{{ frist.x }}", "nothing sets `frist` (did you mean `first`?)"),
        (
            "{{ load }}",
            "`load` is a task of the step `first`, and its name is not seen here (write `first.results.load`",
        ),
        ("{% for x in itms %}{{ x }}{% endfor %}", "nothing sets `itms`"),
        ("{{ token('x') }}", "there is no function `token` (templates have filters, and `now`"),
        ("{{ unheard_of }}", "nothing sets `unheard_of` (if a run gives it, say so in `workload: {unheard_of: …}`)"),
    ],
)
def test_names_that_nothing_sets(template: str, message: str) -> None:
    found = said(names(template), NAMES)
    assert len(found) == 1, found
    assert message in found[0]


@pytest.mark.parametrize(
    "template",
    [
        "{{ greeting }} {{ nested.a }} {{ workload.nested.b }} {{ ctx.total }} {{ total }} {{ first.x }}",
        "{{ args.page }} {{ page }} {{ own }} {{ iter.index }} {{ workload.get('x') }} {{ workload.items() }}",
        "{{ execution_id }} {{ job.uuid }} {{ now() }} {{ result }} {{ _attempt }} {{ range(3) }}",
        "{{ first.results.load }}",
        "{{ unknown | default(1) }} {{ ctx.unknown.deep | d('x') }} {{ 1 if unknown is defined else 2 }}",
        "{{ unknown or 1 }} {% if unknown %}{{ unknown }}{% endif %}",
        "{% for x in [1] %}{{ x }}{{ loop.index }}{% endfor %}{% set y = 1 %}{{ y }}",
        "{{ [1] | map('string') | list }} {{ __frame_index }}",
    ],
)
def test_names_that_are_there(template: str) -> None:
    assert said(names(template), NAMES) == []


def names(template: str) -> str:
    return (
        "- step: first\n  tool:\n  - {name: load, kind: noop}\n  - {name: save, kind: noop, input: {x: '{{ load }}'}}\n"
        "  set: {ctx.total: 1}\n  next: {arcs: [{step: a, args: {page: 1}}]}\n"
        f"- step: a\n  tool:\n    kind: noop\n    input: {{own: 1}}\n    result: >-\n      {template}\n"
    )


def test_a_name_is_found_on_its_line() -> None:
    [line] = said(
        """
        - step: a
          tool:
            kind: postgres
            command: |
              SELECT 1;
              SELECT tabel, '{{ tabel }}';
        """
    )
    assert line.startswith("10:25: step 'a': nothing sets `tabel`"), line


def test_each_name_is_told_once_for_a_step() -> None:
    assert len(said("- {step: a, set: {x: '{{ nope }} {{ nope }}', y: '{{ nope }}'}}\n- {step: b}")) == 2


def test_a_condition_on_a_name_that_nothing_sets() -> None:
    [line] = said("- {step: a, next: {arcs: [{step: b, when: ctx.don == 1}]}}\n- {step: b, set: {done: 1}}")
    assert "nothing sets `ctx.don` (did you mean `ctx.done`?)" in line


def test_code_is_not_read_as_a_template() -> None:
    assert said("- {step: a, tool: {kind: python, code: \"x = '{{ nope }}'\"}}") == []


def test_rows_have_their_own_names() -> None:
    loop = "- step: a\n  loop: {in: [1], iterator: item}\n  tool: {kind: noop, result: '{{ %s }}'}"
    assert said(loop % "iter.item + item + iter.index + loop_index") == []
    assert "nothing sets `iter.itm` (did you mean `iter.item`?)" in said(loop % "iter.itm")[0]


def test_arguments_that_a_template_makes_may_be_called_anything() -> None:
    assert (
        said("- {step: a, next: {arcs: [{step: b, args: '{{ {} }}'}]}}\n- {step: b, set: {x: '{{ whatever }}'}}") == []
    )


# -- secrets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "workload",
    [
        "{password: hunter2}",
        "{db: {pg_password: hunter2}}",
        "{api_key: abc123}",
        "{dsn: 'postgresql://me:hunter2@db/x'}",
        "{headers: {Authorization: Bearer abcdefgh12345678}}",
    ],
)
def test_secrets_as_plain_text(workload: str) -> None:
    [warning] = compiled("- step: a", HEAD + f"workload: {workload}\n").warnings
    assert (warning.code, warning.line) == ("plain-secret", 4)
    assert not re.search("hunter2|abc123|abcdefgh", str(warning))


@pytest.mark.parametrize(
    "workload",
    [
        "{password: ''}",
        "{password: '{{ env.password }}'}",
        "{password: '${PASSWORD}'}",
        "{password: <yours>}",
        "{password: null}",
        "{password_length: twelve, token_type: bearer, secret_name: x}",
        "{dsn: 'postgresql://db/x', url: 'http://h:80/a@b', key: 'postgresql://u:{{ p }}@h'}",
        "{headers: {Authorization: 'Bearer {{ keychain.token }}'}}",
    ],
)
def test_what_is_no_secret(workload: str) -> None:
    assert codes("- step: a", HEAD + f"workload: {workload}\n") == []


# -- codes -------------------------------------------------------------------------------------------------------------


def test_every_code_that_is_given_is_in_the_table() -> None:
    text = "".join(path.read_text() for path in (ROOT / "noetl_celery" / "playbook").glob("*.py"))
    given = set(re.findall(r"""code(?:: str)? ?= ?"([a-z-]+)\"""", text)) - {"invalid"}
    assert given <= CODES.keys()
    assert not ERRORS.keys() & WARNINGS.keys()
    unused = {code for code in CODES if text.count(f'"{code}"') < 2}
    assert unused == set()


def test_the_documents_list_every_code() -> None:
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (.+?) \|$", (ROOT / "docs" / "lint.md").read_text(), re.MULTILINE))
    assert rows == dict(CODES)
