"""The canonical document: what a playbook may say, key by key.

Tools validate their own keys; everything else refuses a key that it does not know. Numbers may be templates.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_STEP_NAME = re.compile(r"[\w./-]+\Z")
#: no count, size or time in seconds needs more, and every float can hold it
_MAX_NUMBER = 1e15
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?\Z")


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("a number, or a template for one, is expected")
    if isinstance(value, str) and "{" not in value:
        if not _NUMBER.match(value.strip()):
            raise ValueError(f"a number, or a template for one, is expected, not {value!r}")
        value = float(value) if "." in value else int(value)
    if isinstance(value, int | float) and not abs(value) < _MAX_NUMBER:
        raise ValueError(f"must be less than {_MAX_NUMBER:g}")
    return value


def _positive(value: Any) -> Any:
    if isinstance(value, int | float) and value <= 0:
        raise ValueError(f"must be more than 0, not {value}")
    return value


def _at_least_one(value: Any) -> Any:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"must be a whole number, not {value}")
    if isinstance(value, int | float) and value < 1:
        raise ValueError(f"must be at least 1, not {value}")
    return value


def _at_least_one_or_auto(value: Any) -> Any:
    return value if value == "auto" else _at_least_one(_number(value))


def _not_negative(value: Any) -> Any:
    if isinstance(value, int | float) and value < 0:
        raise ValueError(f"must not be negative, not {value}")
    return value


def _text(value: Any) -> Any:
    """Text; a number where a name is expected is what the author wrote without quotes."""
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("must not be empty")
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise ValueError("text is expected")


def _identifier(value: str) -> str:
    if "{" in value or not IDENTIFIER.match(value):
        raise ValueError(f"{value!r} is not a name (letters, digits and _, not starting with a digit)")
    return value


def _step_name(value: str) -> str:
    """Also a path: a step need not be a word to be gone to, only to be referred to in templates."""
    if not _STEP_NAME.match(value):
        raise ValueError(f"{value!r} is not a name (letters, digits, _ - . /; no spaces, no braces)")
    return value


def _mapping(value: Any) -> Any:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"a mapping is expected, not {_kind(value)}")
    return value


def _mapping_or_template(value: Any) -> Any:
    if isinstance(value, str) and "{{" in value:
        return value
    return _mapping(value)


def _list(value: Any) -> Any:
    if not isinstance(value, list):
        raise ValueError(f"a list is expected, not {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    return {dict: "a mapping", list: "a list", str: "text", bool: "a boolean", type(None): "nothing"}.get(
        next((base for base in (dict, list, str, bool, type(None)) if isinstance(value, base)), object), "a number"
    )


def _number_or_template(word: str = "", **limits: float) -> WithJsonSchema:
    """How editors are told of a number; ``word`` may stand for one."""
    number = {"type": "number", "exclusiveMaximum": _MAX_NUMBER, "exclusiveMinimum": -_MAX_NUMBER} | limits
    text = {"type": "string", "pattern": r"\{|^\s*[-+]?[0-9]+(\.[0-9]+)?\s*$" + (f"|^{word}$" if word else "")}
    return WithJsonSchema({"anyOf": [number, text]})


Text = Annotated[str, BeforeValidator(_text), WithJsonSchema({"type": ["string", "number"]})]
Name = Annotated[
    str,
    BeforeValidator(_text),
    AfterValidator(_identifier),
    WithJsonSchema({"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}),
]
StepName = Annotated[
    str,
    BeforeValidator(_text),
    AfterValidator(_step_name),
    WithJsonSchema({"type": ["string", "number"], "pattern": r"^[^\s{}]+$"}),
]
Number = Annotated[Any, BeforeValidator(_number), _number_or_template()]
Count = Annotated[
    Any, BeforeValidator(_number), AfterValidator(_at_least_one), _number_or_template(multipleOf=1, minimum=1)
]
CountOrAuto = Annotated[
    Any, BeforeValidator(_at_least_one_or_auto), _number_or_template("auto", multipleOf=1, minimum=1)
]
Seconds = Annotated[Any, BeforeValidator(_number), AfterValidator(_not_negative), _number_or_template(minimum=0)]
Duration = Annotated[Any, BeforeValidator(_number), AfterValidator(_positive), _number_or_template(exclusiveMinimum=0)]
Free = Annotated[dict[str, Any], BeforeValidator(_mapping), WithJsonSchema({"type": ["object", "null"]})]
Input = Annotated[
    Any,
    BeforeValidator(_mapping_or_template),
    WithJsonSchema({"anyOf": [{"type": ["object", "null"]}, {"type": "string", "pattern": r"\{\{"}]}),
]


class Model(BaseModel):
    """Knows all its keys."""

    model_config = ConfigDict(extra="forbid", populate_by_name=False)


class Metadata(Model):
    """``metadata``: what the playbook is called and where the catalog keeps it."""

    name: Text
    path: Text | None = None
    version: Any = None
    description: Any = None
    labels: Any = None
    tags: Any = None
    exposes_as_mcp: Any = None
    tracing: Any = None
    spec: Any = None


class ExecutorSpec(BaseModel):
    """``executor.spec``: further keys are accepted and left alone."""

    model_config = ConfigDict(extra="allow")

    entry_step: Text | None = None
    pool: Text | None = None


class Executor(Model):
    """``executor``."""

    profile: Any = None
    version: Any = None
    requires: Any = None
    spec: ExecutorSpec = Field(default_factory=ExecutorSpec)


class Document(Model):
    """The root. Steps and workbook tasks are validated one by one, so that one hides no other's problems."""

    apiVersion: Literal["noetl.io/v2"]
    kind: Literal["Playbook"]
    metadata: Metadata
    keychain: Any = None
    executor: Executor = Field(default_factory=Executor)
    workload: Free = Field(default_factory=dict)
    workflow: Annotated[list[Any], BeforeValidator(_list)]
    workbook: Any = None
    tracing: Any = None
    spec: Any = None
    labels: Any = None
    tags: Any = None
    exposes_as_mcp: Any = None


class Then(Model):
    """What a rule does."""

    do: Literal["continue", "retry", "jump", "break", "fail"] = "continue"
    to: Text | None = None
    attempts: Count | None = None
    backoff: Literal["none", "fixed", "linear", "exponential"] | None = None
    delay: Seconds | None = None
    max_delay: Seconds | None = None
    set: Free = Field(default_factory=dict)
    set_iter: Free = Field(default_factory=dict)
    set_ctx: Free = Field(default_factory=dict)


class PolicyRule(Model):
    """One rule of a task's policy, after normalising: ``else`` is a rule without ``when``."""

    when: Any = None
    then: Then = Field(default_factory=Then)


class TaskPolicy(Model):
    """``spec.policy`` of a task."""

    rules: Annotated[list[PolicyRule], BeforeValidator(_list)] = Field(default_factory=list)


class Task(BaseModel):
    """A task: what is ours; every other key is the tool's own."""

    model_config = ConfigDict(extra="allow")

    name: Name | None = None
    kind: Text
    input: Input = Field(default_factory=dict)
    set: Free = Field(default_factory=dict)
    policy: TaskPolicy | None = None
    older: Literal["retry", "sequence"] | None = None


class Call(Model):
    """``kind: playbook``: the keys of a child."""

    path: Text
    version: Any = None
    return_step: Text | None = None
    timeout: Duration | None = None
    task: Any = None
    pool: Any = None


class KeychainEntry(BaseModel):
    """An entry of ``keychain``; further keys belong to its kind."""

    model_config = ConfigDict(extra="allow")

    name: Name
    kind: Text | None = None
    type: Text | None = None
    ref: Text | None = None
    credential: Text | None = None
    map: Free = Field(default_factory=dict)
    token: Any = None
    provider: Any = None
    scope: Any = None


class AdmitThen(Model):
    allow: bool


class Admit(Model):
    """A rule of admission, after normalising."""

    when: Any = None
    then: AdmitThen


class AdmitRules(Model):
    mode: Literal["exclusive"] | None = None
    rules: Annotated[list[Admit], BeforeValidator(_list)] = Field(default_factory=list)


class Lifecycle(Model):
    timeout_s: Duration | None = None
    deadline_s: Duration | None = None


class Failure(Model):
    mode: Literal["fail_fast", "best_effort"] | None = None


class StepPolicy(Model):
    lifecycle: Lifecycle = Field(default_factory=Lifecycle)
    failure: Failure = Field(default_factory=Failure)
    admit: AdmitRules = Field(default_factory=AdmitRules)


class StepSpec(Model):
    timeout: Duration | None = None
    pool: Text | None = None
    policy: StepPolicy = Field(default_factory=StepPolicy)


class Frame(Model):
    """``loop.spec.frame``; every number may be a template."""

    max_rows: Count | None = None
    row_concurrency: CountOrAuto | None = None
    lease_seconds: Duration | None = None
    heartbeat_seconds: Duration | None = None
    max_seconds: Duration | None = None
    max_bytes: Count | None = None
    process: Literal["row", "frame"] = "row"
    ack: Literal["batch", "row"] = "batch"


class LoopPolicy(Model):
    exec: Any = None
    mode: Any = None
    max_in_flight: CountOrAuto | None = None
    #: results are in the order of the items anyway
    results: Any = None


class LoopSpec(Model):
    mode: Literal["sequential", "parallel", "cursor"] | None = None
    max_in_flight: CountOrAuto | None = None
    frame: Frame | None = None
    policy: LoopPolicy = Field(default_factory=LoopPolicy)


class Cursor(Model):
    """``loop.cursor``: how rows are claimed."""

    kind: Text = "postgres"
    auth: Text | None = None
    claim: Text | None = None
    reclaim: Text | None = None
    reclaim_after: Duration | None = None
    dead_letter: Text | None = None
    count: Text | None = None
    options: Any = None


class Reduction(Model):
    """An entry of ``loop.aggregate``: one operation with the template of its value."""

    count: Any = None
    sum: Any = None
    min: Any = None
    max: Any = None
    mean: Any = None
    first: Any = None
    last: Any = None
    sample: Any = None
    limit: Annotated[int, Field(ge=1, le=1000)] | None = None


class Loop(Model):
    """``loop``."""

    in_: Any = Field(default=None, alias="in")
    cursor: Cursor | None = None
    iterator: Name | None = None
    spec: LoopSpec = Field(default_factory=LoopSpec)
    aggregate: Annotated[dict[str, Reduction], BeforeValidator(_mapping)] = Field(default_factory=dict)


class ArcModel(Model):
    """An arc of ``next``."""

    step: Text
    when: Any = None
    set: Free = Field(default_factory=dict)
    args: Input | None = None


class NextSpec(Model):
    mode: Literal["exclusive", "inclusive"] = "exclusive"
    on_no_match: Literal["quiet", "fail"] = "quiet"


class Next(Model):
    """``next``, after normalising."""

    spec: NextSpec = Field(default_factory=NextSpec)
    arcs: Annotated[list[ArcModel], BeforeValidator(_list)] = Field(default_factory=list)


class Step(Model):
    """A step, after normalising: ``tool`` is always a list of tasks."""

    step: StepName
    desc: Any = None
    spec: StepSpec = Field(default_factory=StepSpec)
    loop: Loop | None = None
    input: Input = Field(default_factory=dict)
    tool: list[Task] = Field(default_factory=list)
    set: Free = Field(default_factory=dict)
    next: Next | None = None
    output: Any = None
    output_select: Any = None
    inline_max_bytes: Any = None
    labels: Any = None
    tags: Any = None


#: keys of a step, for telling a misspelt one from one that belongs into the tool
STEP_KEYS = frozenset(Step.model_fields)
