"""The same for executions: what they are started with, told to do, and look like."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, Field, JsonValue

from noetl_celery.web.api.models import ID_EXAMPLE, TIME_EXAMPLE, Given, IdText, Next, ResourceRequest
from noetl_celery.web.api.text import Text

Status = Literal["PENDING", "RUNNING", "PAUSED", "CANCELLING", "COMPLETED", "FAILED", "CANCELLED"]

# -- executions --------------------------------------------------------------------------------------------------------

Workload = Annotated[
    dict[str, Any],
    Field(description="Merged deeply over the playbook's own workload.", examples=[{"greeting": "Welcome"}]),
]
Version = Annotated[int | None, Field(ge=1, le=2**31 - 1, description="The newest if none is given.")]


class SubmitRequest(Given):
    """What to run."""

    path: Text = Field(min_length=1, examples=["examples/hello"])
    version: Version = None
    workload: Workload = Field(default_factory=dict)


class SubmitAnswer(BaseModel):
    """The execution that was started. It is kept, whatever happens next."""

    execution_id: IdText
    path: str
    status: Status
    announced: bool = Field(description="False: Redis is away; it starts when that is back.")


class ExecuteRequest(ResourceRequest):
    """What to run, as NoETL's clients say it: by `path` (and `version`) or `catalog_id`, with `workload` or `payload`.

    What else they send (`merge`, `resource_kind`) changes nothing here.
    """

    workload: Workload = Field(default_factory=dict, validation_alias=AliasChoices("workload", "payload"))


class ExecuteAnswer(BaseModel):
    """NoETL's answer."""

    execution_id: IdText
    status: Literal["started"] = "started"
    commands_generated: int = Field(0, description="Workers find the work themselves.")


class Failure(BaseModel):
    """Why an execution failed, and where."""

    kind: str | None = Field(None, examples=["http"])
    message: str | None = Field(None, examples=["503 Service Unavailable"])
    step: str | None = Field(None, examples=["fetch"])
    task: str | None = None


class ExecutionSummary(BaseModel):
    """An execution."""

    execution_id: IdText
    parent_execution_id: IdText | None = None
    catalog_id: IdText
    path: str = Field(examples=["examples/hello"])
    version: int | None = Field(examples=[3])
    status: Status
    error: str | None = Field(None, description="The message of `failure`.")
    failure: Failure | None = None
    start_time: datetime = Field(description="When it was submitted.", examples=[TIME_EXAMPLE])
    started_at: datetime | None = Field(None, description="When a worker first took it up.")
    end_time: datetime | None = None
    duration_seconds: float = Field(description="From its submission to its end, or to now.", examples=[1.25])


class ExecutionPage(BaseModel):
    """Executions, the newest first."""

    executions: list[ExecutionSummary]
    next: Next = None


class Step(BaseModel):
    """The last visit of a step."""

    step: str = Field(examples=["drain"])
    kind: str = Field(description="`single`, `collection` or `cursor`.", examples=["cursor"])
    visit: int
    status: Literal["OPEN", "COMPLETED", "FAILED", "CANCELLED"]
    ok: int = Field(description="Rows that ended well.")
    failed: int
    frames: int
    error: JsonValue = None
    opened_at: datetime
    closed_at: datetime | None
    seconds: float


class OpenStep(BaseModel):
    """How far an open step is, to the moment."""

    step: str
    visit: int
    kind: str
    ok: int
    failed: int
    frames: int
    open_frames: int
    open_rows: int
    total: int | None = Field(description="How many rows there are, where that is known.")
    retries: int = Field(description="Attempts of ended rows that failed and were made again.")
    seconds: float


class Pagination(BaseModel):
    """NoETL's words for a page of events."""

    page: int
    page_size: int
    total_events: int
    total_pages: int
    has_next: bool
    has_prev: bool


class Event(BaseModel):
    """Something that happened. NoETL's second names are there too: `node_id`, `timestamp`."""

    event_id: IdText
    execution_id: IdText
    parent_event_id: IdText | None = None
    parent_execution_id: IdText | None = None
    event_type: str = Field(examples=["step.exit"])
    node_id: str | None = None
    node_name: str | None = Field(None, description="The step.", examples=["start"])
    node_type: str | None = None
    stage_id: IdText | None = None
    frame_id: IdText | None = None
    status: str | None = Field(None, examples=["COMPLETED"])
    error: str | None = Field(None, description="The message of the error that it tells of.")
    duration: float | None = None
    context: JsonValue = None
    result: JsonValue = None
    meta: JsonValue = None
    created_at: datetime = Field(examples=[TIME_EXAMPLE])
    timestamp: datetime


class EventPage(BaseModel):
    """Events, the oldest first; with `page` the newest first."""

    execution_id: IdText
    path: str
    status: Status
    events: list[Event]
    next: str | None = Field(None, description="`after` of the next page; null if there was no event behind this one.")
    pagination: Pagination | None = Field(None, description="If `page` was given.")


class ExecutionDetail(ExecutionSummary):
    """An execution with its steps."""

    progress: int = Field(ge=0, le=100, description="100 at its end; before, of the rows in loops that are counted.")
    steps: list[Step] = Field(description="The last visit of every step that was entered, in order.")
    open_steps: list[OpenStep] = Field(description="Those that are at work, to the moment.")
    events: list[Event] = Field(default_factory=list, description="If they were asked for: the newest first.")
    events_included: bool = False
    events_endpoint: str = Field(examples=[f"/api/executions/{ID_EXAMPLE}/events"])
    pagination: Pagination | None = None


class ExecutionStatus(BaseModel):
    """NoETL's short form of where an execution is."""

    execution_id: IdText
    path: str
    status: Status
    current_step: str | None = None
    completed_steps: list[str]
    completed: bool = Field(description="It has completed, or was cancelled.")
    failed: bool
    cancelled: bool
    error: str | None = None
    start_time: datetime
    end_time: datetime | None = None
    duration_seconds: float


class StepBooks(BaseModel):
    """Where the rows of a visit of a step are, counted."""

    stage_id: IdText
    step: str
    visit: int
    status: str
    claimed: int
    ok: int
    failed: int
    released: int = Field(description="Given up because the loop was stopped.")
    parked: int
    ready: int
    taken: int
    requests: int = Field(description="Lanes that were asked for.")
    starts: int
    waiting: int
    reruns: int = Field(description="Rows that were run again because their worker had died.")
    retries: int = Field(description="Attempts of rows that failed and were made again.")
    differences: list[str] = Field(description="What does not balance; empty if everything does.")


class Books(BaseModel):
    """The books of an execution."""

    execution_id: IdText
    books: list[StepBooks]


class Reason(BaseModel):
    """One thing that an execution waits for."""

    text: str = Field(examples=["no worker is there"])
    todo: str = Field(description="What to do; empty: nothing is to be done.", examples=["start one"])
    step: str | None = None


class Explanation(BaseModel):
    """Why an execution is where it is; what needs somebody comes first."""

    execution_id: IdText
    reasons: list[Reason]


class Row(BaseModel):
    """A row of a step."""

    frame: int
    frame_id: IdText
    row: int
    status: str = Field(examples=["FAILED"])
    retries: int
    crashes: int = Field(description="Workers that died over it.")
    item: JsonValue = Field(None, description="What the row was made of; a summary of what is kept elsewhere.")
    error: JsonValue = None
    waits_for: IdText | None = Field(None, description="The child execution that it waits for.")
    finished_at: datetime | None


class RowPage(BaseModel):
    """Rows of the last visit of a step, in order."""

    execution_id: IdText
    step: str
    rows: list[Row]
    next: Next = None


class Line(BaseModel):
    """A line that a task printed."""

    log_id: IdText
    at: datetime
    step: str
    visit: int
    kind: str
    frame: int
    row: int
    task: str
    text: str


class LogPage(BaseModel):
    """What tasks printed, the oldest first."""

    execution_id: IdText
    lines: list[Line]
    next: str | None = Field(None, description="`after` of the next page; null if there was no line behind this one.")


# -- control -----------------------------------------------------------------------------------------------------------


class CancelRequest(BaseModel):
    """Why it is cancelled. NoETL's clients send `cascade` as well: children always end with their caller."""

    reason: Text | None = Field(None, max_length=500, examples=["wrong queue"])


class RetryRequest(Given):
    """What to run again: failed rows of a step, or (without one) what made the execution fail."""

    step: Text | None = Field(None, examples=["drain"])


class ControlAnswer(BaseModel):
    """What becomes of the request: workers follow it as soon as they can."""

    execution_id: IdText
    accepted: bool = Field(description="False: the execution had ended already.")
    status: Status = Field(description="Before the workers have heard of it.")
    message: str = Field(examples=["it is told to end"])


class CancelAnswer(ControlAnswer):
    """The same; NoETL's clients count `cancelled_executions`."""

    cancelled_executions: list[IdText] = Field(description="The execution, if it was told to end.")
