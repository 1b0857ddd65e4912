"""Every error of the package, once.

One root, families by who has to act: :class:`InputError` (whoever wrote the playbook, the workload, the flag;
exit 2), :class:`ServiceError` (whoever operates PostgreSQL and Redis; exit 1), :class:`ToolError` (what a task
of a pipeline reports; policies decide) and :class:`InternalConflict` (never shown: a write found that its lease
or its expected state is gone). ``code`` is stable and safe to match on; messages are for people, and say no
secret that this process knows (``hiding.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from noetl_celery.hiding import hidden


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in a playbook, with its place: ``file:line:column`` (both from 1), step and a hint.

    ``code`` is a stable word for this kind of problem, one of ``playbook/codes.py``.
    """

    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    step: str | None = None
    hint: str | None = None
    warning: bool = False
    code: str = "invalid"

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        where = f" step '{self.step}':" if self.step else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{place}:{where} {self.message}{hint}" if place else f"{where.lstrip()} {self.message}{hint}".strip()


class NoetlError(Exception):
    """The root. ``exit_code`` is what the command line ends with, ``hint`` what to do about it."""

    code = "error"
    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = hidden(message)
        self.hint = hint
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InputError(NoetlError):
    """What the user gave cannot be used: a flag, a workload, a name, a setting."""

    code = "invalid_input"
    exit_code = 2


class PlaybookInvalid(InputError):
    """A playbook was refused; ``problems`` holds everything that is wrong with it, in the order of the file.

    ``warnings`` is what would be worth a look besides.
    """

    code = "invalid_playbook"

    def __init__(self, problems: Sequence[Problem], warnings: Sequence[Problem] = ()) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)
        self.warnings = tuple(warnings)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.problems, self.warnings))


class NotFound(InputError):
    """A playbook, execution or credential of that name does not exist."""

    code = "not_found"


class WrongState(InputError):
    """What was asked for is in order, but not while the execution is where it is."""

    code = "wrong_state"


class ServiceError(NoetlError):
    """PostgreSQL or Redis cannot be reached, or is not as we need it (schema version, permissions)."""

    code = "service_unavailable"


class Unreachable(ServiceError):
    """The service does not answer right now; it may be back in a moment."""

    code = "unreachable"


class ExecutionFailed(NoetlError):
    """An execution ended FAILED or CANCELLED while somebody asked for its result; ``error`` is what it reports."""

    code = "execution_failed"

    def __init__(self, message: str, *, error: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.error = dict(error or {})


class WaitTimeout(NoetlError):
    """The execution was still running when the time to wait was over; it goes on."""

    code = "timeout"
    exit_code = 3


class TemplateError(NoetlError):
    """A template could not be rendered: an undefined value, a wrong type, a sandbox violation.

    ``expression`` is the template's text, ``place`` where it stands (``step 's', task 't', url, line 12``).
    """

    code = "template"

    def __init__(self, message: str, *, expression: str | None = None, place: str | None = None) -> None:
        super().__init__(message)
        self.expression = expression if expression is None else hidden(expression)
        self.place = place


@dataclass(slots=True)
class ErrorInfo:
    """The ``error`` of an outcome: what policies see as ``output.error``."""

    kind: str
    message: str
    code: str | None = None
    status: int | None = None
    retryable: bool = False
    #: least delay in seconds before a retry makes sense (``Retry-After``)
    retry_after: float | None = None

    def __post_init__(self) -> None:
        self.message = hidden(self.message)

    def as_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "code": self.code,
            "status": self.status,
            "message": self.message,
            "retryable": self.retryable,
        }


class ToolError(NoetlError):
    """A task failed. ``info`` becomes ``output.error``, ``extra`` (``http``, ``pg``, ``py``, ``data``) the rest."""

    code = "tool"

    def __init__(self, info: ErrorInfo, *, extra: Mapping[str, Any] | None = None) -> None:
        super().__init__(info.message)
        self.info = info
        self.extra: dict[str, Any] = dict(extra or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return (_tool_error, (type(self), self.info, self.extra))


def _tool_error(kind: type[ToolError], info: ErrorInfo, extra: Mapping[str, Any]) -> ToolError:
    return kind(info, extra=extra)


#: problems of one playbook that are told
MAX_PROBLEMS = 200
_MAX_TEXT = 800


class InternalConflict(Exception):
    """A guarded write matched nothing: somebody else owns the work now. The transaction is undone, nobody is told."""


class LeaseLost(InternalConflict):
    """This run no longer holds its lane or claim (it was paused too long, or delivered twice)."""


@dataclass(slots=True)
class Problems:
    """Collects problems so that all of them are reported in one go, up to :data:`MAX_PROBLEMS`."""

    found: list[Problem] = field(default_factory=list)

    def add(self, problem: Problem) -> None:
        """Keeps a problem, and of very long texts in it their beginning.

        Raises :class:`PlaybookInvalid` for the error after the last one that is kept: the file is something else, or
        one mistake has many consequences. Warnings beyond are dropped.
        """
        if len(self.found) < MAX_PROBLEMS:
            texts = {"message": problem.message, "hint": problem.hint, "step": problem.step}
            long = {key: f"{text[:_MAX_TEXT]}…" for key, text in texts.items() if text and len(text) > _MAX_TEXT}
            self.found.append(replace(problem, **long) if long else problem)  # type: ignore[arg-type]
        elif not problem.warning:
            more = f"there are more problems than the {MAX_PROBLEMS} above"
            self.found.append(replace(problem, message=more, hint="correct those first"))
            self.raise_errors()

    @property
    def errors(self) -> list[Problem]:
        return [problem for problem in self.found if not problem.warning]

    @property
    def warnings(self) -> list[Problem]:
        return [problem for problem in self.found if problem.warning]

    def raise_errors(self) -> None:
        """Raises :class:`PlaybookInvalid` if any error (not warning) was collected."""
        if self.errors:
            raise PlaybookInvalid(_sorted(self.errors), _sorted(self.warnings))


def _sorted(problems: Sequence[Problem]) -> list[Problem]:
    return sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0))
