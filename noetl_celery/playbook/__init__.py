"""Playbooks: reading what an author wrote, saying what is wrong with it, and the plan that the engine works on."""

from noetl_celery.playbook.compile import Compiled, compile_playbook
from noetl_celery.playbook.plan import (
    AdmitRule,
    Arc,
    Assignments,
    CursorPlan,
    FramePlan,
    LoopPlan,
    NextPlan,
    Plan,
    Rule,
    StepPlan,
    TaskPlan,
)
from noetl_celery.playbook.source import fingerprint
from noetl_celery.playbook.values import CursorCatalog, ToolCatalog

__all__ = [
    "AdmitRule",
    "Arc",
    "Assignments",
    "Compiled",
    "CursorCatalog",
    "CursorPlan",
    "FramePlan",
    "LoopPlan",
    "NextPlan",
    "Plan",
    "Rule",
    "StepPlan",
    "TaskPlan",
    "ToolCatalog",
    "compile_playbook",
    "fingerprint",
]
