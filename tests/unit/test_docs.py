"""What the documents say exists: links, commands with their options, variables, settings, the Python example."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
import yaml
from command_line import unknown

from noetl_celery.faults import POINTS
from noetl_celery.settings import PREFIX, Settings
from tools.reference_settings import shown

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), ROOT / "playbooks" / "README.md", *(ROOT / "docs").glob("*.md")])
#: read outside of the settings, by tests only
FAULT = f"{PREFIX}FAULT"
#: what NoETL's own regression suite reads
OF_NOETL = {f"{PREFIX}HOST", f"{PREFIX}PORT"}


@pytest.fixture(params=DOCUMENTS, ids=lambda path: path.name)
def document(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def text_of(name: str) -> str:
    return (ROOT / name).read_text()


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language; ``""`` for those that name none."""
    found = re.findall(r"^ *```(\w*)[^\n`]*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    return [body for name, body in found if name == language]


def prose_of(text: str) -> str:
    """A document without its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The names that headings get."""
    headings = re.findall(r"^#+ (.+)$", prose_of(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_relative_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(document.read_text())):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        path = (document.parent / file).resolve() if file else document
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.read_text()), target


def test_variables_exist(document: Path) -> None:
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} | {FAULT, PREFIX} | OF_NOETL
    assert set(re.findall(rf"\b{PREFIX}[A-Z_]*", document.read_text())) <= known


def test_settings_page_has_every_setting() -> None:
    rows = re.findall(rf"^\| `{PREFIX}(\w+)` \|", text_of("docs/settings.md"), re.MULTILINE)
    assert rows == [name.upper() for name in Settings.model_fields]


def test_readme_shows_defaults_as_they_are() -> None:
    rows = re.findall(rf"^\| `{PREFIX}(\w+)` \| (.+?) \|", text_of("README.md"), re.MULTILINE)
    assert rows
    for name, text in rows:
        default = Settings.model_fields[name.lower()].default
        if default is not None:
            assert text.strip("`") == shown(default).strip("`"), name


def commands(text: str) -> list[list[str]]:
    """The arguments of every ``noetl-celery …`` in blocks and inline code, without comments and redirections."""
    code = [line for block in blocks(text, "") for line in block.splitlines()]
    code += [line for block in blocks(text, "console") for line in block.splitlines() if line.startswith("$ ")]
    code += re.findall(r"`([^`\n]+)`", prose_of(text))
    found = []
    for line in code:
        for start in re.finditer(r"(?:^|[ (|])noetl-celery (?=[a-z-])", line):
            inside = re.sub(r"\)(?=\s|$)", " ", line[start.end() :])  # the end of $(…)
            words = shlex.split(inside, comments=True)
            end = next((i for i, word in enumerate(words) if word in {"|", "&&", ";"}), len(words))
            found.append(words[:end])
    return found


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["run", "x.yaml", "--set", "a=1"], set()),
        (["credential", "set", "--typo=x"], {"--typo"}),
        (["rnu", "x.yaml"], {"rnu"}),
        (["dev", "--", "bash", "--norc"], set()),
    ],
)
def test_what_is_no_command_is_noticed(words: list[str], found: set[str]) -> None:
    assert unknown(words) == found


def test_commands_and_their_options_exist(document: Path) -> None:
    for words in commands(document.read_text()):
        assert unknown(words) == set(), f"noetl-celery {shlex.join(words)}"


def test_commands_are_found() -> None:
    shown = commands(text_of("README.md"))
    assert ["dev", "--", "noetl-celery", "run", "playbooks/hello.yaml", "--set", "greeting=Welcome"] in shown
    assert {words[0] for words in shown} >= {"run", "status", "events", "wait", "cancel", "worker", "credential", "db"}


def test_python_of_the_readme_is_what_the_acceptance_tests_run() -> None:
    [shown] = blocks(text_of("README.md"), "python")
    module = ast.parse(text_of("tests/acceptance/test_api.py"))
    [tested] = [
        node.value
        for node in module.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TEN_LINES"
    ]
    assert isinstance(tested, ast.JoinedStr)
    parts = [str(part.value) if isinstance(part, ast.Constant) else '"playbooks/hello.yaml"' for part in tested.values]
    assert "".join(parts) == shown
    assert len(shown.splitlines()) <= 10


def test_yaml_of_the_documents_can_be_read(document: Path) -> None:
    for block in blocks(document.read_text(), "yaml"):
        assert all(yaml.safe_load_all(block.replace("{…}", "{}")))


def test_readme_shows_the_example_as_it_is() -> None:
    """Shortened, but with the same numbers and keys."""
    [shown] = [yaml.safe_load(block) for block in blocks(text_of("README.md"), "yaml")]
    steps = {step["step"]: step for step in yaml.safe_load(text_of("playbooks/queue_drain.yaml"))["workflow"]}
    real = steps[shown[0]["step"]]
    assert shown[0]["loop"]["spec"] == real["loop"]["spec"]
    assert shown[0]["next"] == real["next"]
    assert shown[0].keys() == real.keys()


def test_architecture_names_every_fault_point() -> None:
    text = text_of("docs/architecture.md")
    assert [point for point in POINTS if f"`{point}`" not in text] == []


def test_every_page_is_in_the_index() -> None:
    index = text_of("docs/index.md")
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"({page.name})" not in index] == ["index.md"]
