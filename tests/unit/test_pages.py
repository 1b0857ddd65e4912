"""How pages of the documentation are read and compared: a page that shows something else is found."""

from __future__ import annotations

import pytest
from pages import Block, blocks, matches


def test_blocks_with_and_without_title() -> None:
    text = 'a\n```yaml title="x.yaml"\na: 1\n```\nb\n```console\n$ ls\n```\n```\nplain\n```\n'
    assert blocks(text) == [Block("yaml", "x.yaml", "a: 1\n"), Block("console", "", "$ ls\n"), Block("", "", "plain\n")]


def test_commands_and_what_is_below_them() -> None:
    body = "$ cd x\n$ ls\na\nb\n$ true\n"
    assert Block("console", "", body).commands() == [("cd x", ""), ("ls", "a\nb"), ("true", "")]
    with pytest.raises(ValueError, match="no command is above"):
        Block("console", "", "a\n").commands()


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("", ""),
        ("a b", "a   b\n"),
        ("…", ""),
        ("…", "a\nb\n"),
        ("…\nlast", "a\nlast\n"),
        ("…\nlast", "last\n"),
        ("took … s", "took 3.1 s"),
        ("…done", "done\n"),
        ("a (b) [c] $x", "a (b) [c] $x\n"),
    ],
)
def test_what_is_as_shown(shown: str, printed: str) -> None:
    assert matches(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("", "a\n"),
        ("a", ""),
        ("a", "a\nb\n"),
        ("…\nlast", "last\nmore\n"),
        ("took … s", "took 3.1\ns\n"),
        ("197 ok, 3 failed", "200 ok, 0 failed\n"),
        ("a.c", "abc\n"),
    ],
)
def test_what_is_not_as_shown(shown: str, printed: str) -> None:
    assert not matches(shown, printed)
