"""Writing changed steps into a playbook's text: new nodes beside those of the text that stay, and their comments."""

from __future__ import annotations

import copy
import io
import re
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import (
    DoubleQuotedScalarString,
    LiteralScalarString,
    ScalarString,
    SingleQuotedScalarString,
)

from noetl_celery.playbook.source import YamlList, YamlMap

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from noetl_celery.playbook.source import Mark

Position = tuple[int, int]
#: a mapping that we made is written in braces if it is no longer than this
_SHORT = 76
_WORD = re.compile(r"[A-Za-z_][\w.]*\Z")
_WIDTH = 100_000
_QUOTED = (SingleQuotedScalarString, DoubleQuotedScalarString, LiteralScalarString)


def in_lines(text: str, source: YamlMap, steps: Mapping[tuple[str, int], YamlMap]) -> str | None:
    """The text with the lines of these steps written anew; None where a step has no lines of its own."""
    lines = text.splitlines(keepends=True)
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    for (name, index), step in sorted(steps.items(), key=lambda item: -source[item[0][0]].mark_of(item[0][1]).line):
        start = source[name].mark_of(index).line - 1
        dash = _indent(lines[start])
        if not lines[start].lstrip().startswith("-") or lines[start][:dash].strip():
            return None
        stop = _stop(lines, start, dash)
        alone = "\n" * start + "".join(lines[start:stop]).replace("\r\n", "\n")
        try:
            root = _yaml().load(alone)
            written = _Builder(root, source).written(step, dash)
        except (YAMLError, ValueError, AttributeError):
            return None
        kept = _lost_comments(root, written)
        new = [f"{' ' * dash}{comment}{end}" for comment in kept]
        lines[start:stop] = [*new, *(f"{line}{end}" for line in written.rstrip("\n").split("\n"))]
    return "".join(lines)


def in_whole(text: str, source: YamlMap, steps: Mapping[tuple[str, int], YamlMap]) -> str | None:
    """The whole text written anew, with its comments: for flow style, anchors and the like."""
    yaml = _yaml()
    try:
        root = yaml.load(text)
        builder = _Builder(root, source)
        before = copy.deepcopy(root)
        for (name, index), step in steps.items():
            root[name][index] = builder.value(step, None)
            if isinstance(root[name], CommentedSeq):
                root[name].fa.set_block_style()
        stream = io.StringIO()
        yaml.dump(root, stream)
    except (YAMLError, ValueError, AttributeError, KeyError, IndexError):
        return None
    written = stream.getvalue()
    return "".join(f"{comment}\n" for comment in _lost_comments(before, written)) + written


def _yaml() -> YAML:
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = _WIDTH
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _stop(lines: list[str], start: int, dash: int) -> int:
    """The line after the last one of the item that begins at ``start``; comments behind it are not the item's."""
    stop = start + 1
    while stop < len(lines):
        text = lines[stop].strip()
        if text and not text.startswith("#") and _indent(lines[stop]) <= dash:
            break
        stop += 1
    while stop > start + 1:
        text = lines[stop - 1].strip()
        # A line deeper inside may belong to a block of text, even if it looks like a comment.
        if text and not (text.startswith("#") and _indent(lines[stop - 1]) <= dash + 2):
            break
        stop -= 1
    return stop


def _aligned(lines: list[str], comments: set[str]) -> list[str]:
    """Comments on lines of their own as far to the right as what follows them."""
    indent = 0
    for number in range(len(lines) - 1, -1, -1):
        text = lines[number].strip()
        if text.startswith("#") and text in comments:
            lines[number] = " " * indent + text
        elif text:
            indent = _indent(lines[number])
    return lines


class _Builder:
    """Makes nodes of a changed step, taking over those of the text that stay the same."""

    def __init__(self, root: Any, source: YamlMap) -> None:
        self._nodes: dict[tuple[str, Position], tuple[Any, Any]] = dict(_node_places(root))
        self._sources: dict[tuple[str, Position], tuple[Any, Any]] = dict(_source_places(source))
        self._used: set[int] = set()
        self._commented: set[tuple[int, Any]] = set()
        self._comment_lines = {line.strip() for token in _comments_of(root) for line in token.splitlines()}

    def written(self, step: YamlMap, dash: int) -> str:
        """The step as text: an item of a list whose dash stands in column ``dash`` (from 0)."""
        stream = io.StringIO()
        _yaml().dump([self.value(step, None)], stream)
        lines = _aligned(stream.getvalue().split("\n"), self._comment_lines)
        return "\n".join(" " * dash + line[2:] if line.strip() else "" for line in lines)

    def value(self, value: Any, place: tuple[str, Position] | None) -> Any:
        """A node for ``value``, which comes from this place of the text if it is the same there."""
        node = self._same(value, place)
        if node is not None:
            again = id(node) in self._used
            self._used.add(id(node))
            return copy.deepcopy(node) if again else node
        if isinstance(value, YamlMap):
            return self._map(value)
        if isinstance(value, YamlList):
            items = CommentedSeq()
            items.extend(self.value(item, ("item", _position(value.mark_of(n)))) for n, item in enumerate(value))
            return items
        return self._scalar(value, place)

    def _same(self, value: Any, place: tuple[str, Position] | None) -> Any:
        if place is None or place not in self._sources or place not in self._nodes:
            return None
        owner, key = self._sources[place]
        there = owner[key]
        same = there is value if isinstance(value, dict | list) else type(there) is type(value) and there == value
        if not same:
            return None
        holder, node_key = self._nodes[place]
        return holder[node_key]

    def _map(self, data: YamlMap) -> CommentedMap:
        found = CommentedMap()
        for key in data:
            place = "key", _position(data.mark_of(key))
            found[key] = self.value(data[key], place)
            self._comments(place, key, found)
        ours = all(data.mark_of(key) == data.mark for key in data) and not found.ca.items
        if ours and not any(isinstance(item, dict | list) for item in found.values()):
            text = ", ".join(f"{key}: {item}" for key, item in found.items())
            if len(text) <= _SHORT and "\n" not in text:
                found.fa.set_flow_style()
        return found

    def _comments(self, place: tuple[str, Position], key: str, into: CommentedMap) -> None:
        """Comments beside and below a key go where it goes, once."""
        if place not in self._nodes:
            return
        holder, old = self._nodes[place]
        comment = holder.ca.items.get(old)
        if comment is not None and (id(holder), old) not in self._commented:
            self._commented.add((id(holder), old))
            into.ca.items[key] = comment

    def _scalar(self, value: Any, place: tuple[str, Position] | None) -> Any:
        """A new scalar, in the style of the one that it replaces."""
        if not isinstance(value, str) or _WORD.match(value):
            return value
        if "\n" in value:
            return LiteralScalarString(value)
        old = None
        if place is not None and place in self._nodes:
            holder, key = self._nodes[place]
            old = holder[key]
        style = next((kind for kind in _QUOTED if isinstance(old, kind)), None)
        if style in (SingleQuotedScalarString, DoubleQuotedScalarString):
            return style(value)
        if "{{" in value or "{%" in value:
            return (SingleQuotedScalarString if '"' in value and "'" not in value else DoubleQuotedScalarString)(value)
        return value


def _position(mark: Mark) -> Position:
    return mark.line, mark.column


def _node_places(node: Any) -> Iterator[tuple[tuple[str, Position], tuple[Any, Any]]]:
    if isinstance(node, CommentedMap):
        for key in node:
            found = (node.lc.data or {}).get(key)
            if found is not None:
                yield ("key", (found[0] + 1, found[1] + 1)), (node, key)
            yield from _node_places(node[key])
    elif isinstance(node, CommentedSeq):
        for index, item in enumerate(node):
            found = (node.lc.data or {}).get(index)
            if found is not None:
                yield ("item", (found[0] + 1, found[1] + 1)), (node, index)
            yield from _node_places(item)


def _source_places(data: Any) -> Iterator[tuple[tuple[str, Position], tuple[Any, Any]]]:
    if isinstance(data, YamlMap):
        for key in data:
            yield ("key", _position(data.mark_of(key))), (data, key)
            yield from _source_places(data[key])
    elif isinstance(data, YamlList):
        for index, item in enumerate(data):
            yield ("item", _position(data.mark_of(index))), (data, index)
            yield from _source_places(item)


def _lost_comments(root: Any, written: str) -> list[str]:
    """Comments of the text that have no place in what was written; they go above it."""
    lines = [line.strip() for token in _comments_of(root) for line in token.splitlines()]
    return [line for line in dict.fromkeys(lines) if line.startswith("#") and line not in written]


def _comments_of(node: Any) -> Iterator[str]:
    if isinstance(node, CommentedMap | CommentedSeq):
        yield from _tokens(node.ca.comment)
        yield from _tokens(list(node.ca.items.values()))
        yield from _tokens(node.ca.end)
        for item in node.values() if isinstance(node, CommentedMap) else node:
            yield from _comments_of(item)
    elif isinstance(node, ScalarString):
        yield from _tokens(getattr(node, "comment", None))


def _tokens(found: Any) -> Iterator[str]:
    if isinstance(found, list | tuple):
        for item in found:
            yield from _tokens(item)
    elif found is not None and isinstance(getattr(found, "value", None), str):
        yield found.value
