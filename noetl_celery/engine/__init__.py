"""Pure decisions: (plan, state, signals, facts) → (state, decision). No I/O, no clock, no Celery."""

from noetl_celery.engine.decide import decide
from noetl_celery.engine.decision import ClaimSpec, Closing, Decision, Event, Opening
from noetl_celery.engine.facts import Facts
from noetl_celery.engine.pipeline import Done, Failed, Pipeline, Position, Run, Wait
from noetl_celery.engine.state import ExecutionState, LoopSettings, Signal, StageState, Waiting

__all__ = [
    "ClaimSpec",
    "Closing",
    "Decision",
    "Done",
    "Event",
    "ExecutionState",
    "Facts",
    "Failed",
    "LoopSettings",
    "Opening",
    "Pipeline",
    "Position",
    "Run",
    "Signal",
    "StageState",
    "Wait",
    "Waiting",
    "decide",
]
