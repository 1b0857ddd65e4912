"""What a template sees where there is nothing: falsy, chainable, comparable, and an error as soon as it is used."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import Undefined
from jinja2.exceptions import UndefinedError
from jinja2.utils import missing as _nothing

_LISTED = 8
_FAILING = (
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__"),
    *("__floordiv__", "__rfloordiv__", "__mod__", "__rmod__", "__pow__", "__rpow__", "__pos__", "__neg__"),
    *("__lt__", "__le__", "__gt__", "__ge__", "__int__", "__float__", "__complex__", "__call__", "__getitem__"),
    *("__iter__", "__str__", "__len__", "__index__"),
)


class MissingUsed(UndefinedError):
    """A missing value was used as if it were there; ``value`` is what was missing."""

    def __init__(self, value: Missing) -> None:
        super().__init__(value.reason())
        self.value = value


class Missing(Undefined):
    """The value of a name, key or index that does not exist.

    It is falsy, equal only to another missing value, contains nothing, and a missing value's key is missing too; so
    ``default(…)``, ``is defined``, ``==``, ``in`` and ``if`` work through a whole chain. Everything else (text,
    iteration, arithmetic, filters) raises :class:`MissingUsed`.
    """

    __slots__ = ("trail",)

    def __init__(
        self,
        hint: str | None = None,
        obj: Any = _nothing,
        name: Any = None,
        exc: type[Exception] = UndefinedError,
        trail: tuple[Any, ...] = (),
    ) -> None:
        super().__init__(hint, obj, name, exc)  # type: ignore[arg-type]
        #: keys asked of this value after it was found missing
        self.trail = trail

    def child(self, key: Any) -> Missing:
        """The (missing) value of ``key`` of this missing value; remembers where the chain broke."""
        return Missing(
            self._undefined_hint,
            self._undefined_obj,
            self._undefined_name,
            self._undefined_exception,
            (*self.trail, key),
        )

    @property
    def key(self) -> Any:
        """The name, key or index that was not there."""
        return self._undefined_name

    @property
    def owner(self) -> Any:
        """The value that had no such key; :data:`NO_OWNER` for a top-level name."""
        return self._undefined_obj

    def reason(self) -> str:
        """Why it is missing, without the path (see :func:`noetl_celery.template.report.explain` for that)."""
        if self._undefined_hint:
            return self._undefined_hint
        if self._undefined_obj is _nothing:
            return f"`{self._undefined_name}` is undefined"
        return f"a {kind_of(self._undefined_obj)} has no {self._undefined_name!r}"

    def fail(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Raises what using this value means: :class:`MissingUsed`, or the sandbox's refusal."""
        if self._undefined_exception is not UndefinedError:
            raise self._undefined_exception(self.reason())
        raise MissingUsed(self)

    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__":
            raise AttributeError(name)
        self.fail()

    def __contains__(self, item: object) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Undefined)

    def __hash__(self) -> int:
        return hash(Missing)

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"Missing({self.reason()})"

    def __reduce__(self) -> NoReturn:
        self.fail()


for _name in _FAILING:
    setattr(Missing, _name, Missing.fail)


class NoError(Missing):
    """``error`` in the rules of a task that was ok: undefined, and equal to null (``error != None`` is false)."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(name="error")

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, Undefined)

    def __hash__(self) -> int:
        return hash(Missing)


#: what :attr:`Missing.owner` is for a top-level name
NO_OWNER = _nothing


def kind_of(value: Any) -> str:
    """What a value is, in an author's words."""
    if value is None:
        return "null value"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, Mapping):
        return "mapping"
    if isinstance(value, Sequence):
        return f"list of {len(value)}"
    return type(value).__name__


def close_names(name: Any, known: Iterable[Any], *, listing: bool = True) -> str:
    """``did you mean …?`` for the nearest of ``known``; with ``listing``, else a short list of them; or nothing."""
    texts = [key for key in known if isinstance(key, str) and not key.startswith("_")]
    near = difflib.get_close_matches(str(name), texts, n=2, cutoff=0.6)
    if near:
        return "did you mean " + " or ".join(f"`{key}`" for key in near) + "?"
    if not texts or not listing:
        return ""
    more = f" and {len(texts) - _LISTED} more" if len(texts) > _LISTED else ""
    return "there is " + ", ".join(f"`{key}`" for key in texts[:_LISTED]) + more
