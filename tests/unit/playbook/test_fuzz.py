"""Whatever stands in the file: a plan, or problems that say where. Never another exception, never for long."""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noetl_celery.cursors.registry import CursorRegistry
from noetl_celery.errors import PlaybookInvalid, Problem
from noetl_celery.playbook import compile_playbook, fingerprint
from noetl_celery.playbook.codes import CODES
from noetl_celery.tools.registry import ToolRegistry

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "playbooks").rglob("*.yaml")) + sorted((ROOT / "tests").rglob("playbooks/*.yaml"))
TEXTS = [path.read_text() for path in SOURCES]
TOOLS, CURSORS = ToolRegistry(), CursorRegistry()
#: seconds that no playbook of these sizes may take, on the slowest machine
GUARD = 10.0

#: what any value may be replaced by
ODD_VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1e308,
    10**400,
    "",
    " ",
    "x" * 50_000,
    "{{",
    "{{ }}",
    "}} {{ a.b",
    "{% if %}",
    "{% for x in y %}{{ x }}",
    "{{ '" + "a" * 1000 + "' }}",
    "{{ " + "(" * 300 + ")" * 300 + " }}",
    "{{ " + "-" * 3000 + "1 }}",
    "{{ a" + ".b" * 500 + " }}",
    "{{ 9 ** 9 ** 9 ** 9 }}",
    "{{ ''.__class__ }}",
    "%(name)s %%(",
    "‮\u200b\ud7ff\ufffe",
    "naïve 日本 🎉",
    "12:30:45",
    ".nan",
    [],
    [[]],
    {},
    {"": ""},
    {"a": {"a": {"a": [None, {}]}}},
    ["x"] * 1000,
    {f"k{number}": number for number in range(500)},
]
KEYS = ["step", "tool", "kind", "loop", "next", "arcs", "when", "then", "else", "rules", "set", "name", "input", "args"]
KEYS += ["in", "cursor", "claim", "spec", "policy", "sink", "retry", "do", "to", "", "<<", "é", "a.b", "{{ x }}", "1"]

Mutation = Callable[[Any, random.Random], None]


def places(data: Any) -> list[tuple[Any, Any]]:
    """Every container with a key or index of it."""
    found: list[tuple[Any, Any]] = []
    waiting = [data]
    while waiting:
        value = waiting.pop()
        pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in pairs:
            found.append((value, key))
            waiting.append(inner)
    return found


def delete(data: Any, choice: random.Random) -> None:
    holder, key = choice.choice(places(data))
    del holder[key]


def rename(data: Any, choice: random.Random) -> None:
    holder, key = choice.choice(places(data))
    if isinstance(holder, dict):
        letters = list(str(key))
        choice.shuffle(letters)
        holder[choice.choice([*KEYS, "".join(letters), str(key)[:-1]])] = holder.pop(key)


def replace(data: Any, choice: random.Random) -> None:
    holder, key = choice.choice(places(data))
    holder[key] = copy.deepcopy(choice.choice(ODD_VALUES))


def swap(data: Any, choice: random.Random) -> None:
    (one, first), (other, second) = choice.choice(places(data)), choice.choice(places(data))
    value = json.loads(json.dumps(other[second]))
    one[first] = value


def wrap(data: Any, choice: random.Random) -> None:
    holder, key = choice.choice(places(data))
    holder[key] = choice.choice([[holder[key]], {"x": holder[key]}, {choice.choice(KEYS): holder[key]}])


def add(data: Any, choice: random.Random) -> None:
    holder, _ = choice.choice(places(data))
    if isinstance(holder, dict):
        holder[choice.choice(KEYS)] = copy.deepcopy(choice.choice(ODD_VALUES))
    else:
        holder.append(copy.deepcopy(choice.choice(ODD_VALUES)))


def deepen(data: Any, choice: random.Random) -> None:
    holder, key = choice.choice(places(data))
    for _ in range(choice.choice([3, 10, 30])):
        holder[key] = choice.choice([[holder[key]], {"a": holder[key]}])


MUTATIONS: list[Mutation] = [delete, rename, replace, swap, wrap, add, deepen]


def problems_of(text: str | bytes) -> list[Problem]:
    try:
        return list(compile_playbook(text, file="f.yaml", tools=TOOLS, cursors=CURSORS).warnings)
    except PlaybookInvalid as error:
        return [*error.problems, *error.warnings] if error.problems else [Problem("refused for nothing")]


def judged(text: str | bytes) -> list[str]:
    """What becomes of a text: the codes of its problems (none for a plan); fails for anything else."""
    started = time.monotonic()
    problems = problems_of(text)
    fingerprint(text)
    assert time.monotonic() - started < GUARD
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    lines = len(raw.decode("utf-8", "replace").splitlines()) + 1
    for problem in problems:
        assert problem.file == "f.yaml"
        assert problem.line is not None, problem
        assert 1 <= problem.line <= lines, problem
        assert problem.column is not None, problem
        assert problem.column >= 1, problem
        assert problem.code in CODES, problem
        assert problem.message.strip()
        assert len(str(problem)) < 5000, str(problem)[:300]
    return [problem.code for problem in problems]


EXAMPLES = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
NUMBER = st.integers(0, 2**32)


@EXAMPLES
@given(st.sampled_from(TEXTS), NUMBER, st.integers(1, 6))
def test_data_that_was_changed(text: str, seed: int, times: int) -> None:
    choice = random.Random(seed)
    data = yaml.safe_load(text)
    for _ in range(times):
        if places(data):
            choice.choice(MUTATIONS)(data, choice)
    judged(yaml.safe_dump(data, allow_unicode=True, sort_keys=False))


@EXAMPLES
@given(st.sampled_from(TEXTS), NUMBER, st.integers(1, 8))
def test_text_that_was_changed(text: str, seed: int, times: int) -> None:
    choice = random.Random(seed)
    for _ in range(times):
        text = damaged(text, choice)
    judged(text)


def damaged(text: str, choice: random.Random) -> str:
    """Cuts, tabs, doubled lines, letters from everywhere."""
    if not text:
        return text
    at = choice.randrange(len(text))
    lines = text.splitlines(keepends=True)
    line = choice.randrange(len(lines))
    pieces = ["\t", ":", "- ", "{", "}", "[", "&a ", "*a ", "<<: ", "!!python/object ", "? ", "|", ">", "'", '"', "#"]
    pieces += ["{{", "}}", "{%", "\r", "\x00", "\x1b", "\x85", "\u2028", "\ufeff", "‮", "---\n", "...\n", "%YAML 1.2\n"]
    return choice.choice(
        [
            text[:at],
            text[:at] + choice.choice(pieces) + text[at:],
            text[:at] + choice.choice(pieces) + text[at + choice.randrange(1, 30) :],
            "".join([*lines[:line], lines[line], *lines[line:]]),
            "".join([*lines[:line], *lines[line + 1 :]]),
            "".join([*lines[:line], " " + lines[line], *lines[line + 1 :]]),
            "".join([*lines[:line], lines[line].lstrip(), *lines[line + 1 :]]),
        ]
    )


@EXAMPLES
@given(st.sampled_from(TEXTS), st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8)), max_size=5))
def test_bytes_that_were_changed(text: str, patches: list[tuple[float, bytes]]) -> None:
    raw = text.encode()
    for where, patch in patches:
        at = int(where * len(raw))
        raw = raw[:at] + patch + raw[at + len(patch) :]
    judged(raw)


@EXAMPLES
@given(st.binary(max_size=300))
def test_bytes_of_any_kind(raw: bytes) -> None:
    judged(raw)


HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: x}\n"
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
MERGED = "b0: &b0 {x: 1}\n" + "".join(f"b{n}: &b{n} {{<<: [*b{n - 1}, *b{n - 1}], k{n}: 1}}\n" for n in range(1, 30))


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS,
        MERGED,
        HEAD + "workload:\n" + "".join(f"  {line}\n" for line in LAUGHS.splitlines()) + "workflow: [{step: a}]\n",
        HEAD + "workflow: &w\n- {step: a, tool: *w}\n",
        HEAD + "workflow: [" * 5000,
        HEAD + "workflow: " + "[" * 5000 + "]" * 5000,
        HEAD + "workflow: " + "{a: " * 3000 + "}" * 3000,
        HEAD + "workflow:\n" + "".join(f"{' ' * depth}-\n" for depth in range(3000)),
        HEAD + "workflow: [{step: " + "a" * 1_000_000 + "}]\n",
        HEAD + "".join(f"k{number}: 1\n" for number in range(20_000)),
        HEAD + "workflow:\n" + "- {step: a}\n" * 5_000,
        HEAD + "workflow:\n" + "".join(f"- {{step: s{number}, next: s{number + 1}}}\n" for number in range(2_000)),
        HEAD + "workload: {n: " + "9" * 10_000 + "}\nworkflow: [{step: a}]\n",
        HEAD + "workload: {n: 0x" + "f" * 10_000 + ", m: 1_000, o: 0o777, e: 1e999, b: 0b}\nworkflow: [{step: a}]\n",
        HEAD + "workload: {n: " + "1:" * 5000 + "1}\nworkflow: [{step: a}]\n",
        HEAD + "workflow: [{step: a, set: {x: '" + "{{ a }}" * 5_000 + "'}}]\n",
        HEAD + "workflow: [{step: a, set: {x: '{{ " + "a or " * 3_000 + "b }}'}}]\n",
        HEAD + "workflow: [{step: a, set: {x: '{{ " + "[" * 500 + "]" * 500 + " }}'}}]\n",
        HEAD + "workflow: [{step: a, next: {arcs: [{step: a, when: '" + "not " * 2_000 + "x'}]}}]\n",
        HEAD + "workflow: [{step: a, tool: {kind: python, code: '" + "(" * 500 + "'}}]\n",
        HEAD + "workflow: [{step: a, tool: {kind: postgres, auth: x, command: '" + "/*" * 5_000 + "'}}]\n",
        "\ufeff" * 3,
        "# only\n",
        "--- a\n--- b\n",
        "? [a]\n: b\n",
        "!!binary aGk=\n",
        "a: !!set {b, c}\n",
        "{a: 1, ? {b: c} : d, [e]: f}",
        "&a [*a]",
        "*missing",
        '"\\ud800"',
        "a: '\\ud800'\nb: \"\\ud800\\0\\x00\"\n",
        HEAD + 'workflow: [{step: "\\ud800", set: {"\\0": "{{ \\ud83d }}"}}]\n',
    ],
    ids=range(33),
)
def test_texts_that_are_made_to_hurt(text: str) -> None:
    judged(text)
