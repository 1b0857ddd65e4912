"""Reading YAML into plain data that knows where each of its parts stands in the file."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from noetl_celery.errors import PlaybookInvalid, Problem, Problems

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_NODES = 100_000
_MAX_DEPTH = 100
_MAX_DIGITS = 1000
_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = frozenset({f"{_TAG}{name}" for name in ("str", "timestamp", "binary", "value")})
_AMBIGUOUS = frozenset({"yes", "no", "on", "off"})
_INTEGER = re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|[0-9][0-9_]*)$")


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a key or item stands: ``line`` and ``column`` from 1; ``text_line`` is where its value's text starts."""

    line: int
    column: int
    text_line: int


class YamlMap(dict[str, Any]):
    """A mapping read from YAML: a dict, plus the place of itself (``mark``) and of each key (``marks``)."""

    def __init__(self, *args: Any, mark: Mark, marks: dict[str, Mark] | None = None) -> None:
        super().__init__(*args)
        self.mark = mark
        self.marks: dict[str, Mark] = marks if marks is not None else {}

    def derived(self, *keys: str) -> YamlMap:
        """A new mapping with the places of this one, holding only ``keys`` (those that are there)."""
        chosen = {key: self[key] for key in keys if key in self}
        return YamlMap(chosen, mark=self.mark, marks={key: self.mark_of(key) for key in chosen})

    def mark_of(self, key: str) -> Mark:
        """Where ``key`` stands; the mapping's own place for a key that it does not have."""
        return self.marks.get(key, self.mark)

    def put(self, key: str, value: Any, mark: Mark | None = None) -> None:
        """Sets a key, with its place."""
        self[key] = value
        self.marks[key] = mark or self.mark


class YamlList(list[Any]):
    """A list read from YAML, plus the place of itself and of each item."""

    def __init__(self, *args: Any, mark: Mark, marks: list[Mark] | None = None) -> None:
        super().__init__(*args)
        self.mark = mark
        self.marks: list[Mark] = marks if marks is not None else []

    def mark_of(self, index: int) -> Mark:
        """Where an item stands."""
        return self.marks[index] if 0 <= index < len(self.marks) else self.mark


def read(text: str | bytes, *, file: str, problems: Problems) -> YamlMap:
    """The document as data with places. Duplicate keys, foreign tags and the like are added to ``problems``.

    Raises :class:`~noetl_celery.errors.PlaybookInvalid` when there is no mapping to go on with: not UTF-8, not YAML,
    empty, several documents, something else than a mapping.
    """
    if isinstance(text, bytes):
        text = _decode(text, file)
    root = _compose(text.removeprefix("\ufeff"), file)
    data = _Reader(file, problems).value(root)
    if not isinstance(data, YamlMap):
        raise _refused("a playbook is a mapping with apiVersion, kind, metadata and workflow", file, root.start_mark)
    return data


def place_of(data: Any, path: tuple[Any, ...]) -> Mark | None:
    """Where the value at ``path`` stands, or the nearest part above it that is there."""
    mark: Mark | None = getattr(data, "mark", None)
    for key in path:
        if isinstance(data, YamlMap) and isinstance(key, str):
            mark = data.mark_of(key)
            data = data.get(key)
        elif isinstance(data, YamlList) and isinstance(key, int):
            mark = data.mark_of(key)
            data = data[key] if 0 <= key < len(data) else None
        else:
            return mark
    return mark


def value_at(data: Any, path: tuple[Any, ...]) -> Any:
    """What stands at ``path``; None where there is nothing."""
    for key in path:
        if isinstance(data, dict):
            data = data.get(key)
        elif isinstance(data, list) and isinstance(key, int) and 0 <= key < len(data):
            data = data[key]
        else:
            return None
    return data


def plain(data: Any) -> Any:
    """A copy as ordinary dicts and lists."""
    if isinstance(data, dict):
        return {key: plain(value) for key, value in data.items()}
    if isinstance(data, list):
        return [plain(item) for item in data]
    return data


def fingerprint(text: str | bytes) -> str:
    """A SHA-256 of what a playbook says: the same for the same data, whatever its comments, quoting and layout.

    Text that is not YAML gets the hash of its bytes.
    """
    raw = text if isinstance(text, bytes) else text.encode()
    try:
        data = plain(read(text, file="playbook", problems=Problems()))
    except PlaybookInvalid:
        return hashlib.sha256(raw).hexdigest()
    return hashlib.sha256(json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()).hexdigest()


def _decode(raw: bytes, file: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - (raw.rfind(b"\n", 0, error.start) + 1) + 1
        problem = Problem(f"the file is not UTF-8 (byte 0x{raw[error.start]:02x})", file, line, column, code="yaml")
        raise PlaybookInvalid([problem]) from None


def _compose(text: str, file: str) -> Any:
    loader = None
    try:
        loader = _LOADER(text)
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = _yaml_message(error)
        raise _refused(f"not valid YAML: {message}", file, mark) from None
    except (yaml.YAMLError, RecursionError) as error:
        said = "nested too deeply" if isinstance(error, RecursionError) else str(getattr(error, "reason", error))
        raise PlaybookInvalid(
            [Problem(f"not valid YAML: {said}", file, *_position(text, error), code="yaml")]
        ) from None
    finally:
        if loader is not None:
            loader.dispose()
    if root is None:
        raise PlaybookInvalid([Problem("the file is empty", file, 1, 1, code="yaml")])
    return root


def _position(text: str, error: BaseException) -> tuple[int, int]:
    """Line and column of an error that only knows a character's position (control characters)."""
    position = getattr(error, "position", None)
    if not isinstance(position, int):
        return 1, 1
    return text.count("\n", 0, position) + 1, position - (text.rfind("\n", 0, position) + 1) + 1


def _yaml_message(error: yaml.MarkedYAMLError) -> str:
    problem = (error.problem or "cannot be read").strip()
    if "found character" in problem and "\\t" in repr(problem):
        return "a tab cannot be used for indentation"
    if "mapping values are not allowed" in problem:
        return "a ':' where none can stand (quote the text, or check the indentation)"
    if "expected a single document" in (error.context or ""):
        return "a second document ('---') in one file"
    context = f" {error.context}" if error.context else ""
    return f"{problem}{context}"


def _refused(message: str, file: str, mark: Any, code: str = "yaml") -> PlaybookInvalid:
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    return PlaybookInvalid([Problem(message, file, line, column, code=code)])


class _Reader:
    """Builds data from YAML nodes; what it finds wrong goes to ``problems``, and reading goes on."""

    def __init__(self, file: str, problems: Problems) -> None:
        self._file = file
        self._problems = problems
        self._count = 0
        self._above: list[Hashable] = []

    def value(self, node: Any) -> Any:
        self._count += 1
        if self._count > _MAX_NODES:
            message = "the document is too large once its aliases are expanded"
            raise _refused(message, self._file, node.start_mark, "too-large")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if id(node) in self._above or len(self._above) > _MAX_DEPTH:
            message = "the document contains itself or is nested too deeply"
            raise _refused(message, self._file, node.start_mark, "too-large")
        self._above.append(id(node))
        try:
            return self._mapping(node) if isinstance(node, yaml.MappingNode) else self._sequence(node)
        finally:
            self._above.pop()

    def _mapping(self, node: yaml.MappingNode) -> YamlMap:
        if node.tag != f"{_TAG}map":
            self._problem(f"the YAML tag {_short(node.tag)} is not supported", node)
        found = YamlMap(mark=_mark(node))
        merged: list[YamlMap] = []
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                merged.extend(self._merged(value_node))
                continue
            key = self._key(key_node)
            if key in found:
                first = found.marks[key].line
                self._problem(f"the key `{key}` is there twice (first on line {first})", key_node, "duplicate-key")
            found.put(key, self.value(value_node), _mark(key_node, value_node))
        for other in merged:
            for key in other:
                if key not in found:
                    found.put(key, other[key], other.mark_of(key))
        return found

    def _merged(self, node: Any) -> Iterator[YamlMap]:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for source in sources:
            value = self.value(source)
            if isinstance(value, YamlMap):
                yield value
            else:
                self._problem("`<<` merges mappings only", source)

    def _sequence(self, node: Any) -> YamlList:
        if node.tag != f"{_TAG}seq":
            self._problem(f"the YAML tag {_short(node.tag)} is not supported", node)
        items = [self.value(item) for item in node.value]
        return YamlList(items, mark=_mark(node), marks=[_mark(item) for item in node.value])

    def _key(self, node: Any) -> str:
        """Keys are text as written: ``on:`` and ``1:`` are no booleans and numbers."""
        if isinstance(node, yaml.ScalarNode):
            return str(node.value)
        self._problem("a key must be plain text", node)
        return "?"

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        tag, text = node.tag, node.value
        if tag in _TEXT_TAGS:
            return text
        if tag == f"{_TAG}null":
            return None
        if tag == f"{_TAG}bool":
            return self._bool(node)
        if tag == f"{_TAG}int":
            return _integer(text)
        if tag == f"{_TAG}float":
            return _float(text)
        self._problem(f"the YAML tag {_short(tag)} is not supported", node)
        return text

    def _bool(self, node: yaml.ScalarNode) -> bool:
        word = node.value.lower()
        if word in _AMBIGUOUS:
            value = word in ("yes", "on")
            mark = node.start_mark
            message = f"`{node.value}` is read as {str(value).lower()}"
            hint = f'write {str(value).lower()}, or "{node.value}" for the text'
            place = mark.line + 1, mark.column + 1
            code = "ambiguous-boolean"
            self._problems.add(Problem(message, self._file, *place, hint=hint, warning=True, code=code))
            return value
        return bool(word == "true")

    def _problem(self, message: str, node: Any, code: str = "yaml") -> None:
        mark = node.start_mark
        self._problems.add(Problem(message, self._file, mark.line + 1, mark.column + 1, code=code))


def _mark(node: Any, value: Any = None) -> Mark:
    holder = node if value is None else value
    text_line = holder.start_mark.line + 1
    if isinstance(holder, yaml.ScalarNode) and holder.style in ("|", ">"):
        text_line += 1
    return Mark(node.start_mark.line + 1, node.start_mark.column + 1, text_line)


def _integer(text: str) -> int | str:
    """YAML 1.1's integers, without base 60: ``12:30`` is text, and so is what has more digits than any number needs."""
    if not _INTEGER.match(text) or len(text) > _MAX_DIGITS:
        return text
    digits = text.replace("_", "").lower()
    sign, body = (-1, digits[1:]) if digits[0] == "-" else (1, digits.lstrip("+"))
    base = {"0b": 2, "0x": 16, "0o": 8}.get(body[:2])
    if base is not None:
        return sign * int(body[2:], base)
    return sign * int(body, 8 if len(body) > 1 and body[0] == "0" else 10)


def _float(text: str) -> float | str:
    """A float; base 60, infinities and ``.nan`` have no JSON form and stay text."""
    try:
        number = float(text.replace("_", ""))
    except ValueError:
        return text
    return text if number != number or number in (float("inf"), float("-inf")) else number


def _short(tag: str) -> str:
    return tag.replace(_TAG, "!!")
