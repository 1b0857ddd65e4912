"""The ``shell`` tool: lines for a shell, or a program with its arguments."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.hiding import hidden
from noetl_celery.template.jsonable import to_json
from noetl_celery.tools import processes, script
from noetl_celery.tools.base import ToolCall
from noetl_celery.tools.environment import inherited
from noetl_celery.tools.keys import (
    Complaint,
    bad_config,
    check_seconds,
    deadline_of,
    is_blank,
    is_template,
    one_of,
    present,
    unknown_keys,
)
from noetl_celery.tools.limits import limits
from noetl_celery.tools.processes import LOST, how_it_ended
from noetl_celery.tools.shell_run import Command, Ended, run

#: a list here is a list of lines, or of pieces of a script
LINE_KEYS = ("cmds", "commands")
#: a list here is a program with its arguments, and no shell is involved
COMMAND_KEYS = ("command", "cmd")
_KEYS = (*LINE_KEYS, *COMMAND_KEYS, "script")
_KNOWN = frozenset({*_KEYS, "shell", "env", "cwd", "stdin"})
#: after each piece but the last: the first one that fails ends the script, as its own `exit` would
_STOP_IF_FAILED = "\n\ncase $? in 0) ;; *) exit $? ;; esac\n"
_SHOWN_LINES, _SHOWN_CHARACTERS = 5, 400


class ShellTool:
    """Runs a command, or a ``script`` from elsewhere; its result is ``{exit_code, stdout, stderr, output}``.

    ``output`` is what ``stdout`` says: data if it is a JSON object or list, else the text without its last line breaks.
    An output that is no text is base64, and named in ``base64``. An exit code other than 0 is an error of kind
    ``shell`` with the exit code as ``code``, and has the same data. The command, and all that it leaves in the
    background, ends with the task: at the end of its time as well (kind ``timeout``).
    """

    kind = "shell"
    raw_keys: frozenset[str] = frozenset()
    keys: frozenset[str] = _KNOWN

    def check(self, config: Mapping[str, Any]) -> Sequence[Complaint]:
        """Keys, the command that has to be there, and the form of what comes with it."""
        complaints = unknown_keys(config, _KNOWN)
        complaints += one_of(config, _KEYS, required=True)
        complaints += check_seconds(config, "timeout")
        for key in present(config, _KEYS):
            if key == "script":
                complaints += script.check(config[key])
            elif not isinstance(config[key], str | list):
                complaints.append((key, f"`{key}` has to be text or a list"))
        if not (is_blank(config.get("env")) or is_template(config["env"]) or isinstance(config["env"], Mapping)):
            complaints.append(("env", "`env` has to be a mapping of names to values"))
        for key in ("shell", "cwd"):
            if not (is_blank(config.get(key)) or isinstance(config[key], str)):
                complaints.append((key, f"`{key}` has to be text"))
        return complaints

    def run(self, call: ToolCall) -> Any:
        """The result. Raises ``ToolError``: ``shell``, ``timeout``, ``output_too_large``, ``config``, and what reading
        a ``script`` raises."""
        config = call.config
        deadline = deadline_of(config, call.deadline)
        command, most = _command(call), limits().output_bytes
        stdin = config.get("stdin")
        data = b"" if stdin is None else _text(stdin, "stdin").encode()
        try:
            ended = run(command, data, call.print, deadline, most)
        except (OSError, ValueError) as error:
            raise _not_started(error, command) from None
        return _result(ended, most)

    def close(self) -> None:
        """Ends the process that starts commands, and what still runs; it is made again when needed."""
        processes.close()


def _command(call: ToolCall) -> Command:
    config = call.config
    given = present(config, _KEYS)
    if len(given) != 1:
        raise bad_config(one_of(config, _KEYS, required=True)[0][1])
    key, value = given[0], config[given[0]]
    if isinstance(value, list | tuple) and key in COMMAND_KEYS:
        arguments = [_text(part, key) for part in value]
    else:
        lines = script.load(call) if key == "script" else _joined(value, key)
        arguments = [*_shell(config.get("shell")), "-c", lines]
    cwd = config.get("cwd")
    if not is_blank(cwd):
        cwd = os.path.expanduser(str(cwd))
        if not os.path.isdir(cwd):
            raise bad_config(f"`cwd`: there is no folder {cwd} on this worker")
    return Command(arguments, _environment(config.get("env")), None if is_blank(cwd) else cwd)


def _joined(value: Any, key: str) -> str:
    pieces = value if isinstance(value, list | tuple) else [value]
    return _STOP_IF_FAILED.join(_text(piece, key) for piece in pieces)


def _shell(given: Any) -> list[str]:
    """The shell with its flags: as asked for, else bash, which many scripts need without saying so, else sh."""
    if is_blank(given):
        return [shutil.which("bash") or "/bin/sh"]
    try:
        return shlex.split(str(given))
    except ValueError as error:
        raise bad_config(f"`shell` cannot be read: {error}") from None


def _environment(given: Any) -> dict[str, str]:
    """The worker's own environment without NoETL's settings, and what the task adds; null takes a name away."""
    if not (is_blank(given) or isinstance(given, Mapping)):
        raise bad_config(f"`env` has to be a mapping, not {type(given).__name__}")
    environment = inherited()
    for name, value in (given or {}).items():
        if value is None:
            environment.pop(str(name), None)
        else:
            environment[str(name)] = _text(value, f"env.{name}")
    return environment


def _text(value: Any, key: str) -> str:
    if value is None:
        raise bad_config(f"`{key}` has an empty value (null) in it")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    try:
        return to_json(value)
    except TypeError as error:
        raise bad_config(f"`{key}` cannot be written as text: {error}") from None


def _result(ended: Ended, most: int) -> dict[str, Any]:
    data = _data(ended)
    if ended.too_much:
        hint = "have it write to a file, or less (NOETL_RESULT_MAX_BYTES)"
        raise ToolError(ErrorInfo("output_too_large", f"the command wrote more than {most} bytes: {hint}"))
    if ended.too_late:
        message = "the command did not end in time, and was stopped" + _last_words(ended)
        raise ToolError(ErrorInfo("timeout", message), extra={"data": data})
    if ended.status != 0:
        message = f"{_how(ended.status)}{_last_words(ended)}"
        raise ToolError(ErrorInfo("shell", message, code=str(data["exit_code"])), extra={"data": data})
    return data


def _data(ended: Ended) -> dict[str, Any]:
    outputs = {"stdout": _readable(ended.stdout), "stderr": _readable(ended.stderr)}
    status = ended.status
    # a signal as shells count it
    data: dict[str, Any] = {"exit_code": 128 - status if status is not None and status < 0 else status, **outputs}
    binary = [name for name, value in outputs.items() if isinstance(value, bytes)]
    if binary:
        data["base64"] = binary
    data["output"] = _parsed(outputs["stdout"])
    return data


def _readable(raw: bytes) -> str | bytes:
    """Text if it can be kept as text (PostgreSQL takes no NUL); bytes leave a tool as base64."""
    try:
        return raw if b"\0" in raw else raw.decode()
    except UnicodeDecodeError:
        return raw


def _parsed(stdout: str | bytes) -> Any:
    if isinstance(stdout, bytes):
        return stdout
    text = stdout.rstrip("\r\n")
    if text.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
    return text


def _how(status: int | None) -> str:
    how = how_it_ended(LOST if status is None else status)
    return how if how.startswith("exit") else f"the command was {how}"


def _last_words(ended: Ended) -> str:
    """The last lines that it wrote to stderr, else to stdout: scripts do both."""
    for raw in (ended.stderr, ended.stdout):
        lines = [line.rstrip() for line in raw[-4096:].decode(errors="replace").splitlines() if line.strip()]
        if lines:
            return ": " + hidden("\n".join(lines[-_SHOWN_LINES:]))[-_SHOWN_CHARACTERS:].replace("\0", "")
    return ""


def _not_started(error: OSError | ValueError, command: Command) -> ToolError:
    program = command.arguments[0]
    if isinstance(error, ValueError):
        return bad_config(f"the command cannot be started: {error}")
    if isinstance(error, FileNotFoundError):
        return ToolError(ErrorInfo("shell", f"there is no program `{program}` on this worker", code="127"))
    if isinstance(error, PermissionError):
        return ToolError(ErrorInfo("shell", f"`{program}` may not be run on this worker", code="126"))
    hint = " (the system bounds the length of a command: hand data over in `stdin`)" if error.errno == 7 else ""
    return ToolError(ErrorInfo("shell", f"`{program}` cannot be started: {error.strerror}{hint}"))
