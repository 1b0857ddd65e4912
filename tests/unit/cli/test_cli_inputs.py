"""What the options that carry data accept and refuse."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from noetl_celery.cli.inputs import assignments, json_mapping
from noetl_celery.errors import InputError


def test_json_is_given_as_text_file_or_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "w.json"
    file.write_bytes('\ufeff{"name": "Ada ✓"}'.encode())
    assert json_mapping('{"a": [1, {"b": null}]}', "--workload") == {"a": [1, {"b": None}]}
    assert json_mapping(f"@{file}", "--workload") == {"name": "Ada ✓"}
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b'{"a": 1}')))
    assert json_mapping("-", "--workload") == {"a": 1}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": nope}', "--workload is not JSON: Expecting value (line 1 column 7)"),
        ('{\n "a": 1,\n b}', "line 3 column 2"),
        ("", "it is empty"),
        ("work.json", "a file is given as @file"),
        ("[1]", "must be a JSON object ({…}), not a list"),
        ("3", "not a number"),
        ("true", "not true or false"),
        ("null", "not null"),
        ('{"a": NaN}', "NaN is no JSON value"),
        ('{"a": ' + "9" * 5000 + "}", "--workload is not JSON"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("@/no/such/file", "cannot be read: No such file or directory"),
        ("@/", "cannot be read: Is a directory"),
        ("@a\0b", "cannot be read"),
    ],
)
def test_refused(text: str, says: str) -> None:
    with pytest.raises(InputError) as refused:
        json_mapping(text, "--workload")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(InputError, match="not UTF-8"):
        json_mapping(f"@{tmp_path / 'w'}", "--data")


def test_a_message_never_shows_the_content() -> None:
    with pytest.raises(InputError) as refused:
        json_mapping('{"db_password": "hush', "--data")
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], {}),
        (["a=1"], {"a": 1}),
        (["a.b=1", "a.c=x"], {"a": {"b": 1, "c": "x"}}),
        (["a=1", "a=2"], {"a": 2}),
        (["a="], {"a": ""}),
        (["a=b=c"], {"a": "b=c"}),
        (['a={"b": [1]}'], {"a": {"b": [1]}}),
        (['a={"b": 1}', "a.c=2"], {"a": {"b": 1, "c": 2}}),
        (['a="3"'], {"a": "3"}),
        (["a=true", "b=null", "c=1.5"], {"a": True, "b": None, "c": 1.5}),
        (["a=True", "b=NaN", "c=007", "d= text "], {"a": "True", "b": "NaN", "c": "007", "d": " text "}),
    ],
)
def test_assignments(settings: list[str], expected: dict[str, Any]) -> None:
    assert assignments(settings) == expected


@pytest.mark.parametrize("setting", ["a", "", "=1", ".a=1", "a..b=1", "a.=1"])
def test_assignments_without_key_or_value(setting: str) -> None:
    with pytest.raises(InputError, match="key=value"):
        assignments([setting])


def test_assignments_below_a_value() -> None:
    with pytest.raises(InputError, match="'a'"):
        assignments(["a=1", "a.b=2"])
