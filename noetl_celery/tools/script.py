"""Code that does not stand in the task itself: ``script{uri, source{type, …}}``, read when the task runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.tools.base import Reply, ToolCall
from noetl_celery.tools.http import HttpTool
from noetl_celery.tools.keys import Complaint, bad_config, is_blank, is_template, unknown_keys
from noetl_celery.tools.limits import limits

MOST_BYTES = 1 << 20
_KEYS = frozenset({"uri", "source", "type", "code"})
_SOURCE_KEYS = frozenset(
    {"type", "code", "path", "endpoint", "url", "method", "headers", "auth", "timeout", "encoding"}
)
_TYPES = ("inline", "file", "http")
_HTTP = ("http://", "https://")
_FILE = "file://"
_http = HttpTool(max_body_bytes=MOST_BYTES)


def check(script: Any) -> list[Complaint]:
    """What is wrong with ``script`` as written: its keys, a source that is not built in, and what that source needs."""
    if isinstance(script, str):
        return []
    if not isinstance(script, Mapping):
        return [("script", f"`script` has to be text or a mapping, not {type(script).__name__}")]
    source, kind = _source(script), _type(script)
    if kind not in _TYPES and not is_template(kind):
        return [("script", _not_built_in(kind))]
    wrong = [*unknown_keys(script, _KEYS), *unknown_keys(source, _SOURCE_KEYS)]
    complaints: list[Complaint] = [("script", message) for _, message in wrong]
    if kind == "inline" and is_blank(source.get("code")):
        complaints.append(("script", "`script` needs `source: {type: inline, code: …}`"))
    if kind == "file" and is_blank(_path(script)):
        complaints.append(("script", "`script` from a file needs `uri`: the path of the file"))
    if kind == "http" and not (is_template(_url(script)) or _url(script).startswith(_HTTP)):
        complaints.append(
            ("script", "`script` from http needs `source.endpoint`, or a `uri` that begins with https://")
        )
    return complaints


def inline(script: Any) -> str | None:
    """The code as written, if it stands in the playbook and no template makes it; for checks before anything runs."""
    code = script if isinstance(script, str) else None
    if isinstance(script, Mapping) and _type(script) == "inline":
        code = _source(script).get("code")
    return code if isinstance(code, str) and not is_template(code) else None


def load(call: ToolCall) -> str:
    """The code of ``call.config["script"]``, rendered. It is read anew at every call, and never rendered itself.

    Raises ``ToolError``: ``config`` for what is wrong with the script's own keys, ``not_found`` for a file that is not
    there, ``script`` for one that is too large (1 MiB) or no text, and what the ``http`` tool raises.
    """
    script = call.config["script"]
    if isinstance(script, str):
        return script
    complaints = check(script)
    if complaints:
        raise bad_config(complaints[0][1])
    kind = _type(script)
    if kind == "http":
        return _download(script, call)
    return _read(_path(script)) if kind == "file" else str(_source(script)["code"])


def close() -> None:
    """Ends connections that scripts were downloaded with; they are made again when needed."""
    _http.close()


def _source(script: Mapping[str, Any]) -> Mapping[str, Any]:
    source = script.get("source")
    if isinstance(source, Mapping):
        return source
    # the short form: `script: {type: inline, code: …}`
    return {key: value for key, value in script.items() if key != "uri"}


def _type(script: Mapping[str, Any]) -> str:
    given = _source(script).get("type")
    if not is_blank(given):
        return "http" if given == "https" else str(given)
    if not is_blank(_source(script).get("code")):
        return "inline"
    scheme, separator, _ = str(script.get("uri") or "").partition("://")
    if not separator:
        return "inline" if is_blank(_path(script)) else "file"
    return "http" if f"{scheme}://" in _HTTP else scheme


def _not_built_in(kind: str) -> str:
    return (
        f"`script` from a source of type `{kind}` needs a plugin: built in are {', '.join(_TYPES)}; "
        "a task of a plugin's kind can also fetch the code and do the work"
    )


def _path(script: Mapping[str, Any]) -> str:
    uri = script.get("uri")
    return str((_source(script).get("path") if is_blank(uri) else uri) or "").strip()


def _url(script: Mapping[str, Any]) -> str:
    source = _source(script)
    given = (source.get("endpoint"), source.get("url"), script.get("uri"))
    return str(next((url for url in given if not is_blank(url)), "")).strip()


def _download(script: Mapping[str, Any], call: ToolCall) -> str:
    source, url = _source(script), _url(script)
    request = {key: source[key] for key in ("method", "headers", "auth", "timeout") if key in source}
    reply = _http.run(replace(call, config={**request, "url": url}))
    body = reply.data["body"] if isinstance(reply, Reply) else None
    if not isinstance(body, str):
        raise ToolError(ErrorInfo("script", f"the script {url.partition('?')[0]} is JSON data, and no code"))
    return body


def _read(uri: str) -> str:
    path = _found(_local(uri))
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ToolError(ErrorInfo("script", f"the script {path} is larger than {MOST_BYTES} bytes"))
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ToolError(ErrorInfo("script", f"the script {path} is not text in UTF-8")) from None
    except OSError as error:
        raise ToolError(ErrorInfo("script", f"the script {path} cannot be read: {error.strerror}")) from None


def _local(uri: str) -> Path:
    if not uri.startswith(_FILE):
        return Path(uri)
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost"):
        raise bad_config(f"`script.uri` names another machine ({parts.netloc}): write file:///path, or a plain path")
    return Path(unquote(parts.path))


def _found(path: Path) -> Path:
    """The file in one of the folders for scripts. Symbolic links are followed before it is judged where it is."""
    folders, anywhere = [folder.resolve() for folder in limits().script_folders], limits().scripts_anywhere
    if "\0" in str(path):
        raise bad_config("`script.uri` has a NUL character in it")
    # an absolute path stays what it is when it is put behind a folder
    files = [(folder / path).resolve() for folder in folders]
    allowed = [file for file in files if anywhere or any(file.is_relative_to(folder) for folder in folders)]
    found = next((file for file in allowed if file.is_file()), None)
    if found is not None:
        return found
    shown = ", ".join(str(folder) for folder in folders)
    if len(allowed) < len(files):
        raise bad_config(
            f"the script {path} is outside of the folders for scripts ({shown}): add its folder to NOETL_SCRIPTS, "
            "or set NOETL_SCRIPTS_ANYWHERE"
        )
    where = "" if path.is_absolute() else f" in {shown} (NOETL_SCRIPTS)"
    raise ToolError(ErrorInfo("not_found", f"there is no script {path}{where} on this worker"))
