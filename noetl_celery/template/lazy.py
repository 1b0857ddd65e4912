"""Values that stay where they are kept until a template needs them, and then give only the part that it needs.

A :class:`LazyMapping` or :class:`LazySequence` behaves in a template like the dictionary or list that it stands for:
``a.b.c[3].d`` walks down without loading what lies beside the way, ``| length``, ``in`` and a slice ask for numbers
and keys only, and iteration reads page by page. What leaves a template is plain data again (:func:`plain`), but for
``loop.in``, which need not hold a list to run over it.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import ItemsView as _ItemsView
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import ValuesView as _ValuesView
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

Path = tuple[str | int, ...]

#: the only key of a document that stands for a value which is kept elsewhere
MARK = "$noetl.result"
#: the key under which a kept result tells where it is kept
REFERENCE_KEY = "_ref"
_CHILDREN_KEPT = 16
_LAZY_DEPTH = 3
_NEVER_LAZY = frozenset({str, int, float, bool, type(None), list})
_ABSENT = object()


class TooLarge(TypeError):
    """A whole value was asked for that is larger than what one process may hold."""


@dataclass(frozen=True, slots=True)
class Part:
    """What stands at a path: ``value`` if it is small or no container, else how many keys or elements it has.

    ``page``: how many of them are read at once.
    """

    kind: Literal["mapping", "list", "value"]
    value: Any = None
    length: int = 0
    page: int = 1


class Loader(Protocol):
    """Where a lazy value is kept. Paths are keys and indexes from 0; every call may ask the store, none is cached.

    Safe to call from several threads. Elements and values may be lazy themselves.
    """

    def part(self, path: Path) -> Part | None:
        """What stands there; None if nothing does."""

    def keys(self, path: Path) -> Sequence[str]:
        """The keys of the mapping there, in order."""

    def entries(self, path: Path, start: int, stop: int) -> Sequence[tuple[str, Any]]:
        """Keys and values of the mapping there, from position ``start`` to before ``stop``."""

    def elements(self, path: Path, start: int, stop: int) -> Sequence[Any]:
        """The elements of the list there, from index ``start`` to before ``stop``."""

    def whole(self, path: Path, stretch: range | None = None) -> Any:
        """All of it as plain data; of a list only the indexes of ``stretch``. Raises :class:`TooLarge`."""

    def place(self) -> Mapping[str, Any]:
        """Where the value is kept, for authors: what ``kind: artifact`` takes."""

    def reference(self, path: Path, part: Part, first: int | None = None) -> Mapping[str, Any]:
        """The document to keep instead of what stands there: a mapping, a list, or a stretch of one from ``first``."""


def made(loader: Loader, path: Path, part: Part) -> Any:
    """The value of a part: lazy if it is a container that was not loaded."""
    if part.kind == "mapping":
        return LazyMapping(loader, path, part.length, part.page)
    if part.kind == "list":
        return LazySequence(loader, path, part.length, part.page)
    return part.value


class StoredText(str):
    """A text that is kept elsewhere as well: ``reference`` is the document to keep instead of it."""

    __slots__ = ("reference",)
    reference: Mapping[str, Any]

    def __new__(cls, text: str, reference: Mapping[str, Any]) -> StoredText:
        made = super().__new__(cls, text)
        made.reference = reference
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> StoredText:
        return self


class Lazy:
    """What lazy mappings and lists have in common. All of it is hidden from templates by the leading underscore."""

    __slots__ = ("_children", "_length", "_loader", "_lock", "_page", "_path")
    _kind: ClassVar[Literal["mapping", "list"]] = "mapping"

    def __init__(self, loader: Loader, path: Path, length: int, page: int) -> None:
        self._loader, self._path, self._length, self._page = loader, path, length, max(1, page)
        self._children: OrderedDict[str | int, Any] = OrderedDict()
        self._lock = threading.Lock()

    def _child(self, key: str | int) -> Any:
        """The value of a key or index, remembered for a while; ``_ABSENT`` if there is none."""
        with self._lock:
            if key in self._children:
                self._children.move_to_end(key)
                return self._children[key]
        path = (*self._path, key)
        part = self._loader.part(path)
        value = _ABSENT if part is None else made(self._loader, path, part)
        with self._lock:
            self._children[key] = value
            while len(self._children) > _CHILDREN_KEPT:
                self._children.popitem(last=False)
        return value

    def _whole(self) -> Any:
        return self._loader.whole(self._path)

    def _reference(self) -> Mapping[str, Any]:
        return self._loader.reference(self._path, Part(self._kind, length=self._length, page=self._page))

    def _is_place(self, key: object) -> bool:
        return key == REFERENCE_KEY and not self._path

    def __len__(self) -> int:
        return self._length

    def __str__(self) -> str:
        return str(self._whole())

    def __repr__(self) -> str:
        return str(self._whole())

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __lt__(self, other: Any) -> bool:
        return bool(self._whole() < plain(other))

    def __le__(self, other: Any) -> bool:
        return bool(self._whole() <= plain(other))

    def __gt__(self, other: Any) -> bool:
        return bool(self._whole() > plain(other))

    def __ge__(self, other: Any) -> bool:
        return bool(self._whole() >= plain(other))


class LazyMapping(Lazy, Mapping[str, Any]):
    """A mapping that is kept elsewhere. At the root of a kept value it also answers ``_ref``, which is no key of it."""

    __slots__ = ("_names",)

    def __init__(self, loader: Loader, path: Path, length: int, page: int) -> None:
        super().__init__(loader, path, length, page)
        self._names: Mapping[str, None] | None = None

    def __getitem__(self, key: Any) -> Any:
        value = self._child(key) if isinstance(key, str) else _ABSENT
        if value is not _ABSENT:
            return value
        if self._is_place(key):
            return dict(self._loader.place())
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return key in self._keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys())

    def __reversed__(self) -> Iterator[str]:
        return reversed([*self._keys()])

    def _keys(self) -> Mapping[str, None]:
        if self._names is None:
            self._names = dict.fromkeys(self._loader.keys(self._path))
        return self._names

    def items(self) -> _Items:
        """Pairs, read page by page."""
        return _Items(self)

    def values(self) -> _Values:
        """Values, read page by page."""
        return _Values(self)

    def _entries(self) -> Iterator[tuple[str, Any]]:
        for start in range(0, self._length, self._page):
            yield from self._loader.entries(self._path, start, min(start + self._page, self._length))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        if other is self:  # as lists and mappings do, and nothing is read for it
            return True
        return len(self) == len(other) and all(key in other and value == other[key] for key, value in self._entries())

    __hash__ = None  # type: ignore[assignment]


class _Items(_ItemsView[str, Any]):
    _mapping: LazyMapping

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return self._mapping._entries()


class _Values(_ValuesView[Any]):
    _mapping: LazyMapping

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in self._mapping._entries())


class LazySequence(Lazy, Sequence[Any]):
    """A list that is kept elsewhere; with ``first`` a stretch of it, from there on."""

    __slots__ = ("_first", "_stretched")
    _kind = "list"

    def __init__(self, loader: Loader, path: Path, length: int, page: int, first: int | None = None) -> None:
        super().__init__(loader, path, length, page)
        self._first, self._stretched = first or 0, first is not None

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self._stretch(range(self._length)[key])
        if self._is_place(key):
            return dict(self._loader.place())
        if not hasattr(key, "__index__"):
            raise TypeError(f"list indices must be integers or slices, not {type(key).__name__}")
        index = key.__index__()
        index = index + self._length if index < 0 else index
        value = self._child(self._first + index) if 0 <= index < self._length else _ABSENT
        if value is _ABSENT:
            raise IndexError("list index out of range")
        return value

    def _stretch(self, indexes: range) -> Any:
        if indexes.step != 1:
            return [self[index] for index in indexes]
        return LazySequence(self._loader, self._path, len(indexes), self._page, self._first + indexes.start)

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, self._length, self._page):
            stop = min(start + self._page, self._length)
            yield from self._loader.elements(self._path, self._first + start, self._first + stop)

    def __reversed__(self) -> Iterator[Any]:
        for stop in range(self._length, 0, -self._page):
            start = max(0, stop - self._page)
            yield from reversed(self._loader.elements(self._path, self._first + start, self._first + stop))

    def _whole(self) -> Any:
        if not self._stretched:
            return super()._whole()
        return self._loader.whole(self._path, range(self._first, self._first + self._length))

    def _reference(self) -> Mapping[str, Any]:
        if not self._stretched:
            return super()._reference()
        part = Part("list", length=self._length, page=self._page)
        return self._loader.reference(self._path, part, self._first)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | LazySequence):
            return NotImplemented
        if other is self:
            return True
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=False))

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Any) -> Any:
        return self._whole() + plain(other)

    def __radd__(self, other: Any) -> Any:
        return other + self._whole()

    def __mul__(self, times: Any) -> Any:
        return self._whole() * times

    __rmul__ = __mul__


class Selected(Lazy, Mapping[str, Any]):
    """What templates see of a kept mapping where its playbook names ``output_select``: those fields, and ``_ref``.

    ``fields`` holds the selected ones that are small; the others are looked up in ``kept``. A name may be a dotted
    path: it is found under that path.
    """

    __slots__ = ("_fields", "_kept", "_selected")

    def __init__(self, kept: LazyMapping, names: Sequence[Sequence[str]], fields: Mapping[str, Any]) -> None:
        super().__init__(kept._loader, (), 0, 1)
        self._kept, self._fields = kept, fields
        self._selected: dict[str, list[tuple[str, ...]]] = {}
        for name in names:
            self._selected.setdefault(name[0], []).append(tuple(name))

    def __getitem__(self, key: Any) -> Any:
        if key == REFERENCE_KEY:
            return dict(self._loader.place())
        found: Any = _ABSENT
        for name in self._selected.get(key, ()) if isinstance(key, str) else ():
            value = self._field(name)
            if value is not _ABSENT:
                found = _merged(found, name[1:], value)
        if found is _ABSENT:
            raise KeyError(key)
        return found

    def _field(self, name: tuple[str, ...]) -> Any:
        dotted = ".".join(name)
        if dotted in self._fields:
            return self._fields[dotted]
        value: Any = self._kept
        for key in name:
            if not isinstance(value, Mapping) or key not in value:
                return _ABSENT
            value = value[key]
        return value

    def __iter__(self) -> Iterator[str]:
        yield from (key for key in self._selected if self._has(key))
        yield REFERENCE_KEY

    def _has(self, key: str) -> bool:
        return any(self._field(name) is not _ABSENT for name in self._selected[key])

    def __contains__(self, key: object) -> bool:
        return key == REFERENCE_KEY or (isinstance(key, str) and key in self._selected and self._has(key))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _whole(self) -> Any:
        return {key: plain(self[key]) for key in self}

    def _reference(self) -> Mapping[str, Any]:
        return self._kept._reference()

    def __eq__(self, other: object) -> bool:
        return bool(self._whole() == plain(other)) if isinstance(other, Mapping) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


def _merged(into: Any, path: tuple[str, ...], value: Any) -> Any:
    """``into`` with ``value`` at ``path``; made of fresh mappings."""
    if not path:
        return value
    target = dict(into) if isinstance(into, dict) else {}
    target[path[0]] = _merged(target.get(path[0]), path[1:], value)
    return target


def document(value: Any) -> Any:
    """The JSON document to keep for ``value``: references instead of what is kept elsewhere already.

    Looks at the value and, in a dictionary, at what its keys hold. A value of an author that looks like a reference
    is wrapped, so that nobody can forge one. The inverse belongs to the store.
    """
    kept = reference(value)
    if kept is not None:
        return kept
    if isinstance(value, dict):
        if MARK in value:
            return {MARK: {"value": plain(value)}}
        if any(stands_out(item) for item in value.values()):
            return {key: document(item) if stands_out(item) else item for key, item in value.items()}
    return value


def stands_out(item: Any) -> bool:
    """Is it, or does it look like, something that is kept elsewhere?"""
    return isinstance(item, Lazy | StoredText) or (isinstance(item, dict) and MARK in item)


def plain(value: Any) -> Any:
    """``value``, loaded if it is lazy, and what it holds in its keys as well. Raises :class:`TooLarge`.

    Names that templates see have at most three mappings above a lazy value (an outcome's ``data`` that a tool made of
    kept parts), so deeper down nothing is looked for.
    """
    kind = type(value)
    if kind is dict:
        return {key: plain(item) for key, item in value.items()} if _holds_lazy(value, _LAZY_DEPTH) else value
    if isinstance(value, Lazy):
        return value._whole()
    return str(value) if kind is StoredText else value


def _holds_lazy(value: dict[Any, Any], depth: int) -> bool:
    for item in value.values():
        kind = type(item)
        if kind in _NEVER_LAZY:
            continue
        if isinstance(item, Lazy | StoredText) or (depth > 1 and kind is dict and _holds_lazy(item, depth - 1)):
            return True
    return False


_STEP = re.compile(r"\.?([^.\[\]'\"]+)|\[(-?\d+)\]|\[(?:'([^']*)'|\"([^\"]*)\")\]")


def parse_path(text: str) -> Path:
    """``a.b[3]['c d']`` → ``("a", "b", 3, "c d")``. Raises ``ValueError`` for what is no path."""
    path: list[str | int] = []
    place = 0
    for found in _STEP.finditer(text):
        if found.start() != place:
            break
        place = found.end()
        name, index, *quoted = found.groups()
        path.append(int(index) if index is not None else next(key for key in (name, *quoted) if key is not None))
    if place != len(text) or text.startswith("."):
        raise ValueError(f"{text!r} is no path: write for example `rows[0].name`, `['a key'].b`")
    return tuple(path)


def at(value: Any, path: Path) -> Any:
    """The value at a path, lazy if it is large. Raises ``KeyError`` with a message for people."""
    for position, key in enumerate(path):
        try:
            value = _below(value, key)
        except (KeyError, IndexError):
            whole, so_far = path_text(path), path_text(path[:position]) or "the result"
            raise KeyError(f"there is no `{whole}`: {so_far} has no {key!r}") from None
    return value


def _below(value: Any, key: str | int) -> Any:
    if isinstance(value, Mapping):
        return value[key if isinstance(key, str) else str(key)]
    if isinstance(value, list | LazySequence) and isinstance(key, int):
        return value[key]
    raise KeyError(key)


def path_text(path: Path) -> str:
    """The inverse of :func:`parse_path`."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            text += f".{key}" if key.isidentifier() else f"[{key!r}]"
    return text.removeprefix(".")


def unselected(value: Any) -> Any:
    """All of a value of which templates see only ``output_select``; any other value as it is."""
    return value._kept if isinstance(value, Selected) else value


def reference(value: Any) -> Mapping[str, Any] | None:
    """The document to keep instead of ``value``; None if it is not kept elsewhere."""
    if isinstance(value, Lazy):
        return value._reference()
    return value.reference if isinstance(value, StoredText) else None
