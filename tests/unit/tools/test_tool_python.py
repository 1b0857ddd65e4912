"""What task code may look like, what it sees, and what becomes of what it does."""

from __future__ import annotations

import re
import sys
import textwrap
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from noetl_celery.outcome import Outcome
from noetl_celery.tools.base import ToolCall
from noetl_celery.tools.outcome import run_tool
from noetl_celery.tools.python import PythonTool


class Ran:
    """One run of code: its outcome and what it printed."""

    def __init__(self, code: str, inputs: dict[str, Any] | None = None, **config: Any) -> None:
        self.printed: list[str] = []
        self.inputs = {} if inputs is None else inputs
        self.context = {"execution_id": "7", "ctx": {"a": [1]}}
        call = ToolCall(
            config={"code": textwrap.dedent(code), **config},
            input=self.inputs,
            credential=lambda name: {"type": "x", "name": name},
            print=self.printed.append,
            names={},
            context=self.context,
        )
        self.outcome: Outcome = run_tool(PythonTool(), call)

    @property
    def data(self) -> Any:
        assert self.outcome.error is None
        return self.outcome.data

    @property
    def error(self) -> str:
        assert self.outcome.error is not None
        return self.outcome.error.message


@pytest.mark.parametrize("config", [{}, {"timeout": 20}], ids=["thread", "process"])
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("result = n * 2", 6),
        ("pass", None),
        ("return n", 3),
        ("result = 1\ndef main(n): return n + 1", 4),
        ("result = 1\ndef main(): return 2\nreturn 3", 3),
        ("if n > 5:\n    return 1\nresult = 2", 2),
        ("if n > 5:\n    return 1\ndef main(): return 4", 4),
        ("return", None),
        ("return await f()\n", "NameError"),
        ("async def f(): return 9\nreturn await f()", 9),
        ("async def main(n): return n", 3),
        ("result = input_data['n'] + input_data.get('x', 1)", 4),
    ],
)
def test_forms(config: dict[str, Any], code: str, expected: Any) -> None:
    ran = Ran(code, {"n": 3}, **config)
    if expected == "NameError":
        assert ran.error == "NameError: name 'f' is not defined (line 1: `return await f()`)"
    else:
        assert ran.data == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        # functions see the inputs, imports and what is assigned later
        ("import math\ndef f(): return math.floor(n) + later\nlater = 10\nreturn f()", 13),
        ("def f(k): return 1 if k < 2 else k * f(k - 1)\nreturn f(n)", 6),
        ("c = 0\ndef f():\n    global c\n    c += n\nf(); f()\nreturn c", 6),
        ("global c\nc = 1\nreturn c", 1),
        (
            "xs = [n + i for i in range(2) if n]\nreturn {k: [k + j for j in xs] for k in xs}",
            {"3": [6, 7], "4": [7, 8]},
        ),
        ("return [y := n + 1, [z := i for i in (1, 2)], z, y]", [4, [1, 2], 2, 4]),
        ("n += 1\nreturn n", 4),
        ("n: int = 5\nm: int\nreturn n", 5),
        ("for i in range(9):\n    while True:\n        if i == n: return i\n        break", 3),
        ("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    return str(e)\nfinally:\n    n = 0", "division by zero"),
        ("try:\n    return 1\nexcept BaseException:\n    return 2", 1),
        ("import contextlib\nwith contextlib.nullcontext(n) as m:\n    return m", 3),
        (
            "match {'a': n, 'b': [1, 2, 3]}:\n    case {'a': x, 'b': [y, *z], **w}:\n        return [x, y, z, w]",
            [3, 1, [2, 3], {}],
        ),
        ("class A:\n    size = n\n    def f(self): return self.size + later\nlater = 1\nreturn A().f()", 4),
        (
            "from __future__ import annotations\nfrom math import *\ndef f(x: N) -> N: return x\nreturn f(floor(2.5))",
            2,
        ),
        ("import os.path as p, json\nreturn [p.basename('/a/b'), json.dumps(n)]", ["b", "3"]),
        ("x = 1\nreturn sorted(k for k in locals() if k in ('x', 'n'))", ["n", "x"]),
        ("del n\ntry:\n    return n\nexcept NameError:\n    return 'gone'", "gone"),
        ("f = lambda a, b=n: a + b\nreturn f(1)", 4),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nreturn P(n)", {"x": 3}),
        ("exec('q = n + 1')\nreturn q", 4),
        ("def g():\n    yield n\nreturn list(g())", [3]),
        ("return __name__", "__noetl__"),
    ],
)
def test_one_namespace_with_return(code: str, expected: Any) -> None:
    assert Ran(code, {"n": 3}).data == expected
    # the same without a return at the top level
    plain = re.sub(r"^return ", "result = ", code, flags=re.MULTILINE)
    if "    return" not in code and "\ntry" not in code:
        assert Ran(plain, {"n": 3}).data == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def main(a, b=5, *args, c, **rest): return [a, b, c, rest]", [1, 5, 3, {"d": 4}]),
        ("def main(a, /, c): return [a, c]", [1, 3]),
        ("def main(input_data, context): return [input_data['a'], context['execution_id']]", [1, "7"]),
        ("def main(**all): return sorted(all)", ["a", "c", "d"]),
        ("a = 100\ndef main(a): return a", 100),
        ("main = lambda a: a + 1", 2),
        ("def main(other): return other\nresult = main(8)", 8),
    ],
)
def test_main_gets_the_inputs_that_it_names(code: str, expected: Any) -> None:
    assert Ran(code, {"a": 1, "c": 3, "d": 4}).data == expected


def test_main_that_asks_for_what_is_not_there() -> None:
    assert Ran("def main(a, other): pass", {"a": 1}).error == (
        "TypeError: main() needs `other`, which is not an input (inputs: a)"
    )
    assert Ran("result = 1", {"main": "text"}).data == 1


def test_inputs() -> None:
    assert Ran("result = input_data", {"input_data": [1], "x": 2}).data == [1]
    assert Ran("result = [context, auth]", {"context": 1}, auth="pg").data == [1, {"type": "x", "name": "pg"}]
    assert Ran("result = [x, y]", {"x": 1}, args={"x": 5, "y": 6}).data == [1, 6]
    assert Ran("pass", {"result": 4}).data is None


@pytest.mark.parametrize("code", ["x['a'].append(1); x['b'] = 2; context['ctx']['a'].append(2); input_data.clear()"])
def test_code_cannot_change_what_others_see(code: str) -> None:
    ran = Ran(code, {"x": {"a": []}})
    assert ran.outcome.error is None
    assert ran.inputs == {"x": {"a": []}}
    assert ran.context["ctx"] == {"a": [1]}


@pytest.mark.parametrize("config", [{}, {"timeout": 20}], ids=["thread", "process"])
def test_prints(config: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    code = """
        import io, sys
        print("a", 1, sep="-")
        print("b", end="")
        print("c\\nd", file=sys.stderr)
        own = io.StringIO()
        print("mine", file=own)
        print()
        def f(): print("in f", flush=True)
        f()
        print("no end", end="")
        result = own.getvalue()
    """
    ran = Ran(code, **config)
    assert ran.data == "mine\n"
    assert ran.printed == ["a-1", "bc", "d", "", "in f", "no end"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("config", [{}, {"timeout": 20}], ids=["thread", "process"])
@pytest.mark.parametrize(
    ("code", "kind", "message", "exception"),
    [
        ("\n\nx = 1/0", "python", "ZeroDivisionError: division by zero (line 3: `x = 1/0`)", "ZeroDivisionError"),
        (
            "def f():\n    return {}['k']\n\nf()",
            "python",
            "KeyError: 'k' (line 2: `return {}['k']`)",
            "KeyError",
        ),
        ("assert 1 == 2, 'one is not two'", "python", "AssertionError: one is not two (line 1:", "AssertionError"),
        (
            "import json\njson.loads('{')",
            "python",
            "json.decoder.JSONDecodeError: Expecting",
            "json.decoder.JSONDecodeError",
        ),
        ("raise SystemExit(3)", "python", "SystemExit: 3 (line 1: `raise SystemExit(3)`)", "SystemExit"),
        ("raise KeyboardInterrupt", "python", "KeyboardInterrupt (line 1:", "KeyboardInterrupt"),
        ("class Own(Exception): pass\nraise Own('x')", "python", "Own: x (line 2: `raise Own('x')`)", "Own"),
        ("x = ", "python", "SyntaxError: line 1: invalid syntax: `x =`", "SyntaxError"),
        ("result = object()", "result_type", "the result cannot be kept: a value of type object", None),
        ("def f(): f()\nf()", "python", "RecursionError: maximum recursion depth exceeded", "RecursionError"),
    ],
)
def test_errors(config: dict[str, Any], code: str, kind: str, message: str, exception: str | None) -> None:
    ran = Ran(code, **config)
    assert ran.error.startswith(message)
    assert ran.outcome.error is not None
    assert (ran.outcome.error.kind, ran.outcome.error.retryable) == (kind, False)
    assert ran.outcome.py.get("exception_type") == exception


def test_libs() -> None:
    libs = {"os": "os", "js": "json", "join": {"from": "os.path", "import": "join"}, "path": {"from": "os"}}
    assert Ran("return [js.dumps(1), join('a', 'b'), path.sep, os.sep]", libs=libs).data == ["1", "a/b", "/", "/"]
    assert Ran("return 1", libs=["PyYAML", "jinja2>=3.0"]).data == 1
    assert Ran("return 1", libs=["no-such-thing>1"]).error == (
        "libs: the distribution `no-such-thing>1` is not installed where this worker runs"
    )
    assert Ran("return 1", libs={"x": "no_such_module"}).error == (
        "libs: `no_such_module` cannot be imported: No module named 'no_such_module'"
    )
    assert Ran("return 1", libs={"x": {"from": "os", "import": "nope"}}).error.startswith("libs: `nope` from `os`")


def test_inline_script() -> None:
    script = {"uri": "x", "source": {"type": "inline", "code": "return 5"}}
    assert Ran("", script=script).data == 5


def test_a_time_limit_stops_the_code_and_all_it_started(tmp_path: Any) -> None:
    code = f"""
        import subprocess, sys, time
        child = subprocess.Popen(["sleep", "60"])
        open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
        print("before")
        while True:
            pass
    """
    ran = Ran(code, timeout=1.5)
    assert ran.outcome.error is not None
    assert ran.outcome.error.kind == "timeout"
    assert ran.printed == ["before"]
    assert ran.outcome.meta["duration"] < 10
    until_gone(int((tmp_path / "pid").read_text()))


def until_gone(pid: int) -> None:
    """It is killed, and gone in a moment."""
    deadline = time.monotonic() + 10
    with suppress(FileNotFoundError, ProcessLookupError):
        while time.monotonic() < deadline:
            alive(pid)
            time.sleep(0.01)
        pytest.fail(f"process {pid} is still there")


def alive(pid: int) -> None:
    """Raises if the process is gone; a zombie that nobody has buried yet is gone."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        if file.read().rpartition(")")[2].split()[0] == "Z":
            raise ProcessLookupError


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "import os, signal; print('x'); os.kill(os.getpid(), signal.SIGKILL)",
            "was killed by signal 9 (out of memory?)",
        ),
        (
            "import os, signal; print('x'); os.kill(os.getpid(), signal.SIGSEGV)",
            "was killed by signal 11 (Segmentation fault)",
        ),
        ("import os; print('x'); os._exit(3)", "ended by itself, without a result: exit code 3"),
    ],
)
def test_a_process_that_dies(code: str, message: str) -> None:
    ran = Ran(code, timeout=20)
    assert message in ran.error
    assert ran.printed == ["x"]


def test_a_process_that_leaves_things_behind_is_not_waited_for() -> None:
    code = """
        import subprocess, threading, time, sys
        subprocess.Popen(["sleep", "60"])
        threading.Thread(target=time.sleep, args=(60,)).start()
        sys.stdout.write("raw")
        result = "x" * 1_000_000
    """
    ran = Ran(code, timeout=50)
    assert len(ran.data) == 1_000_000
    assert ran.printed == ["raw"]
    assert ran.outcome.meta["duration"] < 20


def test_threads_do_not_meet() -> None:
    code = "import time\ndef f(): return n\nfor _ in range(50): x = f()\nprint(x)\nreturn x"
    ran: dict[int, Ran] = {}
    threads = [threading.Thread(target=lambda i=i: ran.__setitem__(i, Ran(code, {"n": i}))) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert {i: (r.data, r.printed) for i, r in ran.items()} == {i: (i, [str(i)]) for i in range(20)}


@pytest.mark.parametrize(
    ("config", "complaints"),
    [
        ({"code": "return 1", "libs": {"a": "b"}, "args": {}, "desc": "x"}, []),
        ({"script": {"uri": "x", "source": {"type": "inline", "code": "return 1"}}}, []),
        ({"code": "return 1", "timeout": "{{ t }}"}, []),
        ({}, [(None, "needs one of `code`, `script`")]),
        ({"code": "  "}, [("code", "needs one of `code`, `script`; `code` is empty")]),
        ({"code": "x = 1", "script": {"code": "x"}}, [("script", "only one of `code`, `script` can be given")]),
        ({"cod": "x", "code": "x"}, [("cod", "unknown key `cod`: did you mean `code`?")]),
        ({"code": "a = 1\nif a:\nb"}, [("code", "the code cannot be compiled: line 3: expected an indented block")]),
        ({"code": "yield 1\nreturn 2"}, [("code", "the code cannot be compiled: line 1: 'yield' outside function")]),
        ({"code": "a = 1\0"}, [("code", "the code cannot be compiled: ")]),
        (
            {"code": "a = " + "-" * 20_000 + "1"},
            [("code", "the code cannot be compiled: the code is nested too deeply")],
        ),
        ({"code": "a = " + "1 + " * 20_000 + "1"}, [("code", "the code cannot be compiled: the code is nested too")]),
        ({"code": ["x"]}, [("code", "the code has to be text, not list")]),
        (
            {"script": {"source": {"type": "gcs", "path": "x"}}},
            [("script", "`script` from a source of type `gcs` needs")],
        ),
        ({"script": {"uri": "{{ uri }}", "source": {"type": "file"}}}, []),
        ({"script": {"uri": "i", "source": {"type": "inline", "code": "{{ code }} if"}}}, []),
        ({"script": "x = (1"}, [("script", "the code cannot be compiled: line 1")]),
        ({"script": {"source": {"type": "inline"}}}, [("script", "`script` needs `source:")]),
        (
            {"code": "x", "timeout": "soon"},
            [("timeout", "`timeout` has to be a number of seconds above 0, not 'soon'")],
        ),
        ({"code": "x", "libs": "json"}, [("libs", "`libs` has to be a mapping")]),
    ],
)
def test_check(config: dict[str, Any], complaints: list[tuple[str | None, str]]) -> None:
    found = PythonTool().check(config)
    assert [key for key, _ in found] == [key for key, _ in complaints]
    for (_, message), (_, start) in zip(found, complaints, strict=True):
        assert message.startswith(start)


def test_code_leaves_the_interpreter_as_it_was() -> None:
    before = sys.stdout
    Ran("import builtins\nprint = 5\n__builtins__['len'] = None\nresult = 1")
    assert sys.stdout is before
    assert len([1]) == 1
