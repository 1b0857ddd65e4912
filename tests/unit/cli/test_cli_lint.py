"""``noetl-celery lint``: what it prints, in which form, and with which exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest

from noetl_celery import cli
from noetl_celery.cli.problems import Sources, as_github, counted, shown
from noetl_celery.errors import Problem

HELLO = str(Path(__file__).parents[3] / "playbooks" / "hello.yaml")
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: test}\nworkflow:\n"
ODD = HEAD + "  - step: start\n    tool: {kind: noop}\n  - step: never\n    tool: {kind: noop}\n"
BAD = HEAD + "  - step: start\n    tool: {kind: pythn, code: x}\n    next: {arcs: [{step: strat}]}\n"
Run = Callable[..., tuple[int, list[str], list[str]]]
Write = Callable[..., str]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("NOETL_DEBUG", raising=False)

    def call(*arguments: str) -> tuple[int, list[str], list[str]]:
        code = cli.run(("lint", *arguments))
        printed = capfd.readouterr()
        return code, printed.out.splitlines(), printed.err.splitlines()

    return call


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def file(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    return file


def test_a_file_without_problems_is_said_so(run: Run) -> None:
    assert run(HELLO) == (0, [f"{HELLO}: no problems"], [])


def test_a_problem_comes_with_its_line_a_caret_its_code_and_its_hint(run: Run, write: Write) -> None:
    bad = write("bad.yaml", BAD)
    code, printed, error = run(bad)
    assert (code, error) == (2, [])
    assert printed == [
        f"{bad}:6:12: error: step 'start': unknown tool kind `pythn` [unknown-kind]",
        "  6 |     tool: {kind: pythn, code: x}",
        "    |            ^",
        printed[3],
        f"{bad}:7:20: error: step 'start': an arc to `strat`, which is no step [unknown-step]",
        "  7 |     next: {arcs: [{step: strat}]}",
        "    |                    ^",
        "  hint: did you mean `start`?",
        f"{bad}: 2 errors",
    ]
    assert printed[3].startswith("  hint: did you mean `python`? known: ")


def test_warnings_alone_are_no_failure_unless_asked_for(run: Run, write: Write) -> None:
    odd = write("odd.yaml", ODD)
    code, printed, _ = run(odd)
    assert code == 0
    assert printed[0] == f"{odd}:7:5: warning: step 'never': no arc leads here from `start` [unreachable-step]"
    assert printed[-1] == f"{odd}: 1 warning"
    assert run(odd, "--strict")[0] == 2
    assert run(HELLO, "--strict")[0] == 0


def test_warnings_are_told_beside_errors(run: Run, write: Write) -> None:
    both = write("both.yaml", BAD + "  - step: never\n    tool: noop\n")
    code, printed, _ = run(both)
    assert code == 2
    assert any("[older-form]" in line for line in printed)
    assert printed[-1] == f"{both}: 2 errors, 1 warning"


def test_files_are_told_in_the_order_in_which_they_are_named(run: Run, write: Write) -> None:
    odd, bad = write("odd.yaml", ODD), write("bad.yaml", "a: [1\nb: 2\n")
    code, printed, _ = run(odd, HELLO, bad)
    assert code == 2
    places = [line for line in printed if " warning: " in line or " error: " in line]
    assert [line.split(":")[0] for line in places] == [odd, bad]
    assert f"{bad}:2:2: error: not valid YAML" in places[1]
    assert printed[-3:] == [f"{odd}: 1 warning", f"{HELLO}: no problems", f"{bad}: 1 error"]


def test_a_folder_stands_for_the_playbooks_in_it(run: Run, write: Write, tmp_path: Path) -> None:
    odd = write("some/odd.yml", ODD)
    write("some/deep/er/no.yaml", "services: {}\n")
    write("some/other.yaml", "apiVersion: noetl.io/v2\nkind: Subscription\n")
    forgot = write("some/forgot.yaml", BAD.replace("kind: Playbook\n", ""))
    write("some/.hidden/bad.yaml", BAD)
    bad = write("some/deep/bad.yaml", BAD)
    code, printed, _ = run(str(tmp_path))
    assert code == 2
    assert [line for line in printed if line.endswith(("error", "errors", "warning"))] == [
        f"{bad}: 2 errors",
        f"{forgot}: 3 errors",
        f"{odd}: 1 warning",
    ]


def test_a_folder_without_any_is_a_mistake(run: Run, tmp_path: Path) -> None:
    code, printed, error = run(str(tmp_path))
    assert (code, printed) == (2, [])
    assert error == [f"error: no playbook in the folder {tmp_path} (a playbook says `kind: Playbook`)"]


def test_json(run: Run, write: Write) -> None:
    bad = write("bad.yaml", BAD)
    code, [printed], _ = run(bad, HELLO, "--format", "json")
    report = json.loads(printed)
    assert code == 2
    assert (report["files"], report["errors"], report["warnings"]) == ([bad, HELLO], 2, 0)
    assert report["problems"][1] == {
        "file": bad,
        "line": 7,
        "column": 20,
        "severity": "error",
        "code": "unknown-step",
        "step": "start",
        "message": "an arc to `strat`, which is no step",
        "hint": "did you mean `start`?",
    }


def test_github(run: Run, write: Write) -> None:
    odd = write("odd.yaml", ODD)
    code, printed, _ = run(odd, "--format", "github")
    assert code == 0
    assert printed == [
        f"::warning file={odd},line=7,col=5,title=unreachable-step::step 'never': no arc leads here from `start`"
    ]
    problem = Problem("100%\nwrong", "a,b:c.yaml", 1, 2, code="yaml")
    assert as_github(problem) == "::error file=a%2Cb%3Ac.yaml,line=1,col=2,title=yaml::100%25%0Awrong"


OLD = HEAD + "  # first\n  - step: start\n    tool: http # old\n    url: http://x\n"


def test_fix_writes_older_forms_anew_and_keeps_comments(run: Run, write: Write) -> None:
    old = write("old.yaml", OLD)
    code, printed, error = run(old, "--fix")
    assert (code, printed) == (0, [f"{old}: no problems"])
    assert len(error) == 1
    assert error[0].startswith(f"{old}: older forms rewritten (3 lines; ")
    text = Path(old).read_text()
    assert "tool: http" not in text
    assert "kind: http" in text
    assert "# first" in text
    assert "# old" in text
    assert run(old, "--fix") == (0, [f"{old}: no problems"], [])
    assert Path(old).read_text() == text


def test_diff_shows_what_fix_would_do_and_writes_nothing(run: Run, write: Write) -> None:
    old, good = write("old.yaml", OLD), write("good.yaml", ODD)
    code, printed, error = run(old, good, "--diff")
    assert (code, error) == (0, [])
    assert printed[:2] == [f"--- {old}", f"+++ {old}"]
    assert "-    tool: http # old" in printed
    assert any(line.startswith("+") and "kind: http" in line for line in printed)
    assert Path(old).read_text() == OLD


def test_fix_leaves_a_file_alone_that_cannot_be_read(run: Run, write: Write, tmp_path: Path) -> None:
    bad = write("bad.yaml", "a: [1\n")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: \xff\n")
    code, printed, error = run(bad, str(binary), "--fix")
    assert (code, error) == (2, [])
    assert f"{binary}:1:4: error: the file is not UTF-8 (byte 0xff) [yaml]" in printed
    assert Path(bad).read_text() == "a: [1\n"
    assert run("missing.yaml", "--fix") == (2, [], ["error: missing.yaml cannot be read: No such file or directory"])


def lines_of(problem: Problem) -> list[str]:
    return list(shown(problem, Sources(), StringIO()))


def test_the_caret_stands_under_its_place(write: Write) -> None:
    wide = write(
        "wide.yaml", "\ufeffa: {日本: 1, x: 2}\n\tb: {c: 1}\n" + "k: " + "ab " * 100 + "!" + " cd" * 100 + "\n"
    )
    found = lines_of(Problem("m", wide, 1, 12))
    assert found[1:] == ["  1 | a: {日本: 1, x: 2}", "    |              ^"]
    assert lines_of(Problem("m", wide, 2, 5))[1:] == ["  2 | \tb: {c: 1}", "    | \t   ^"]
    _, line, caret = lines_of(Problem("m", wide, 3, 304))
    assert line[caret.index("^")] == "!"
    assert line.startswith("  3 | …")
    assert line.endswith("…")
    assert len(line) < 140


@pytest.mark.parametrize("problem", [Problem("m"), Problem("m", "gone.yaml", 3, 1), Problem("m", HELLO, 10**6, 1)])
def test_a_place_that_is_not_there_has_no_line(problem: Problem) -> None:
    assert len(lines_of(problem)) == 1


def test_nothing_that_a_terminal_would_obey_is_printed(write: Write) -> None:
    file = write("esc.yaml", "a: \x1b[31mred\n")
    assert "\x1b" not in "".join(lines_of(Problem("no \x1b[0m", file, 1, 1, hint="\x07")))


def test_counts() -> None:
    assert [counted(0, 0), counted(10, 0), counted(1, 2)] == ["no problems", "10 errors", "1 error, 2 warnings"]
