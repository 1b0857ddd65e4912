"""Older forms in a playbook's text to the canonical ones, keeping its comments: what ``lint --fix`` writes.

The normaliser's own reader of older forms says what a step becomes; here that is written down. Only the lines of steps
that change are written anew, from the nodes of the text where they stay the same, so quotes and blocks stay as they
were. What comes out is read again and has to mean the same, or the text is left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from noetl_celery.errors import PlaybookInvalid, Problems
from noetl_celery.playbook.normalise import Normaliser
from noetl_celery.playbook.older import OlderForms
from noetl_celery.playbook.older_parts import Findings
from noetl_celery.playbook.source import YamlList, YamlMap, plain, read
from noetl_celery.playbook.workbook import expand

if TYPE_CHECKING:
    from collections.abc import Iterator

_LISTS = ("workflow", "workbook")


def rewrite(text: str, *, file: str) -> str:
    """The text in canonical form, with its comments; unchanged if there is nothing old in it that can be read.

    ``file`` is how problems call it. Rewriting twice is the same as once. Raises
    :class:`~noetl_celery.errors.PlaybookInvalid` for text that is no playbook at all.
    """
    problems = Problems()
    source = read(text, file=file, problems=problems)
    steps = {} if problems.errors else dict(_changed_steps(source, file))
    if not steps:
        return text
    from noetl_celery.playbook.rewrite_text import in_lines, in_whole

    meaning = _meaning(source, file)
    for write in (in_lines, in_whole):
        written = write(text, source, steps)
        if written is not None and _means(written, file) == meaning:
            return written
    return text


def _changed_steps(source: YamlMap, file: str) -> Iterator[tuple[tuple[str, int], YamlMap]]:
    """``(list, index)`` and today's form of every step and workbook task with an older form in it."""
    for name in _LISTS:
        items = source.get(name)
        for index, item in enumerate(items if isinstance(items, YamlList) else ()):
            if not isinstance(item, YamlMap):
                continue
            problems = Problems()
            step = OlderForms(Findings(file, problems)).step(item)
            if not problems.found or problems.errors:
                continue
            if name == "workbook" and "args" in step and "input" not in step:
                step = _renamed(step, "args", "input")
            yield (name, index), _unmarked(step)


def _renamed(mapping: YamlMap, old: str, new: str) -> YamlMap:
    changed = YamlMap(mark=mapping.mark)
    for key in mapping:
        changed.put(new if key == old else key, mapping[key], mapping.mark_of(key))
    return changed


def _unmarked(step: YamlMap) -> YamlMap:
    """Without the marks of tasks that say which older form they come from."""
    tool = step.get("tool")
    step = step.derived(*step)
    if isinstance(tool, YamlMap):
        step["tool"] = tool.derived(*(key for key in tool if key != "older"))
    elif isinstance(tool, YamlList):
        tasks = [task.derived(*(key for key in task if key != "older")) for task in tool]
        step["tool"] = YamlList(tasks, mark=tool.mark, marks=list(tool.marks))
    return step


def _meaning(source: YamlMap, file: str) -> Any:
    """The canonical document, as plain data, without the marks of older forms."""
    problems = Problems()
    normaliser = Normaliser(file, problems)
    document = expand(normaliser.document(source), normaliser.step, problems, file)
    for step in document["workflow"] if isinstance(document.get("workflow"), YamlList) else ():
        tasks = step.get("tool") if isinstance(step, YamlMap) else None
        for task in tasks if isinstance(tasks, YamlList) else ():
            if isinstance(task, YamlMap):
                task.pop("older", None)
    meaning = plain(document)
    meaning.pop("workbook", None)  # its tasks stand where they are called
    return meaning


def _means(text: str, file: str) -> Any:
    try:
        problems = Problems()
        source = read(text, file=file, problems=problems)
    except PlaybookInvalid:
        return None
    return None if problems.errors else _meaning(source, file)
