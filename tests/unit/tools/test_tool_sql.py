"""Cutting SQL into statements, finding bindings, placing errors."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl_celery.tools import sql
from noetl_celery.tools.sql import (
    as_sent,
    bind,
    bind_list,
    leading_words,
    line_at,
    split_statements,
    tokens,
    transaction_control,
)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("", []),
        (" ;; -- nothing; here\n /* nor; /* here; */ ; */ ;", []),
        ("SELECT 1", [("SELECT 1", 1)]),
        ("SELECT 1;SELECT 2;", [("SELECT 1", 1), ("SELECT 2", 1)]),
        ("\n-- it's; a comment\nSELECT 1\n;\n\nSELECT 2 -- end;\n", [("SELECT 1", 3), ("SELECT 2", 6)]),
        ("SELECT /* ; /* ' ; */ ; */ 1; SELECT 2", [("SELECT /* ; /* ' ; */ ; */ 1", 1), ("SELECT 2", 1)]),
        ("SELECT 'a;''b;', 'c\\'; SELECT 2", [("SELECT 'a;''b;', 'c\\'", 1), ("SELECT 2", 1)]),
        (r"SELECT E'a\';b', e'\\'; SELECT 2", [(r"SELECT E'a\';b', e'\\'", 1), ("SELECT 2", 1)]),
        ("SELECT E'a'\n 'b\\';c'; X", [("SELECT E'a'\n 'b\\';c'", 1), ("X", 2)]),
        (
            r"SELECT U&'d\0061t;', N'x;', B'1', namee'y\'; X",
            [(r"SELECT U&'d\0061t;', N'x;', B'1', namee'y\'", 1), ("X", 1)],
        ),
        ('SELECT "a;""b;" FROM t; X', [('SELECT "a;""b;" FROM t', 1), ("X", 1)]),
        ("DO $$ BEGIN a; b; END $$; X", [("DO $$ BEGIN a; b; END $$", 1), ("X", 1)]),
        ("DO $x$ $$;$$ $y$; $x$; X", [("DO $x$ $$;$$ $y$; $x$", 1), ("X", 1)]),
        ("SELECT a$b$c; SELECT $1; X", [("SELECT a$b$c", 1), ("SELECT $1", 1), ("X", 1)]),
        ("SELECT 1-- a\r\n;SELECT 2", [("SELECT 1", 1), ("SELECT 2", 2)]),
        (
            "CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2); X",
            [("CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2)", 1), ("X", 1)],
        ),
        ("SELECT ')' ); X", [("SELECT ')' )", 1), ("X", 1)]),
        (
            'BEGIN; SELECT begin, "end" FROM t; END; X',
            [("BEGIN", 1), ('SELECT begin, "end" FROM t', 1), ("END", 1), ("X", 1)],
        ),
        ("SELECT 'open; to the end", [("SELECT 'open; to the end", 1)]),
        ("SELECT $a$ open; to the end", [("SELECT $a$ open; to the end", 1)]),
        ("SELECT 1 /* open; to the end", [("SELECT 1", 1)]),
        ("SELECT E'\\", [("SELECT E'\\", 1)]),
    ],
)
def test_split(sql: str, expected: list[tuple[str, int]]) -> None:
    assert [(statement.text, statement.line) for statement in split_statements(sql)] == expected


@pytest.mark.parametrize("head", ["CREATE FUNCTION", "create or replace procedure"])
def test_a_sql_standard_body_is_one_statement(head: str) -> None:
    body = f"""{head} f(a int) LANGUAGE sql
    BEGIN /* ; */ ATOMIC
      INSERT INTO t SELECT CASE WHEN a > 1 THEN 2 ELSE CASE a WHEN 1 THEN 3 END END;
      SELECT 1;
    END"""
    assert [statement.text for statement in split_statements(f"{body};\nSELECT 2;")] == [body, "SELECT 2"]


PIECES = st.sampled_from(
    [
        *("SELECT", "e", "E", "$", "$$", "$x$", "$1", "'", "''", '"', "\\", ";", "--", "/*", "*/", "\n", " ", "%"),
        *("%(a)s", "%s", "BEGIN", "ATOMIC", "CREATE FUNCTION", "CASE", "END", "(", ")", "ü", "\r"),
    ]
)
SQL = st.lists(PIECES, max_size=25).map("".join)


@given(SQL)
def test_tokens_lose_nothing(sql: str) -> None:
    assert "".join(sql[token.start : token.end] for token in tokens(sql)) == sql


@given(SQL)
def test_statements_lose_only_semicolons_blanks_and_comments(sql: str) -> None:
    def solid(text: str) -> str:
        found = [text[t.start : t.end] for t in tokens(text) if t.kind not in {"space", "comment", "semicolon"}]
        return "\0".join(found)

    statements = split_statements(sql)
    assert "\0".join(filter(None, (solid(statement.text) for statement in statements))) == solid(sql)
    position = 0
    for statement in statements:
        position = sql.index(statement.text, position)
        assert sql.count("\n", 0, position) + 1 <= statement.line
        assert sql.split("\n")[statement.line - 1].find(statement.text.split("\n")[0]) >= 0
        # cutting again changes nothing
        again = split_statements(statement.text)
        assert [part.text for part in again] == [statement.text]


QUOTES = st.sampled_from(
    [("'{}'", "'", "''"), ('"{}"', '"', '""'), ("$q${}$q$", "$", "?"), ("/*{}*/", "/", "?"), ("--{}\n", "\n", " ")]
)


@given(QUOTES, st.text(alphabet="a;'\"$-/*%\n\\ ", max_size=12))
def test_quoting_never_splits(quote: tuple[str, str, str], content: str) -> None:
    frame, special, harmless = quote
    text = frame.format(content.replace(special, harmless))
    statements = split_statements(f"SELECT 1 {text} + 2; SELECT 3")
    assert [statement.text for statement in statements] == [f"SELECT 1 {text} + 2", "SELECT 3"]


@pytest.mark.parametrize(
    ("sql", "bound", "values"),
    [
        ("SELECT 5 % 2, 'a%'", "SELECT 5 % 2, 'a%'", None),
        ("SELECT %(b)s", "SELECT %(b)s", None),
        ("SELECT '%(a)s', \"%(a)s\" -- %(a)s", "SELECT '%(a)s', \"%(a)s\" -- %(a)s", None),
        ("SELECT %(a)s", "SELECT %(a)s", {"a": 1}),
        ("SELECT %(a)s %(a)s %% %(b)s %s", "SELECT %(a)s %(a)s %%%% %%(b)s %%s", {"a": 1}),
        ("x LIKE '%a' AND y = %(a)s", "x LIKE '%%a' AND y = %(a)s", {"a": 1}),
        ("SELECT %(a b)s", "SELECT %(a b)s", {"a b": 2}),
    ],
)
def test_bind(sql: str, bound: str, values: dict[str, int] | None) -> None:
    assert bind(sql, {"a": 1, "a b": 2, "unused": 3}) == (bound, values)


@given(SQL)
def test_binding_changes_nothing_but_the_bindings(sql: str) -> None:
    bound, values = bind(sql, {"a": 1})
    if values is None:
        assert bound == sql
    else:
        assert re.sub(r"%%|%\(a\)s", lambda match: "%" if match[0] == "%%" else match[0], bound) == sql
        assert as_sent(bound).count("$1") >= 1


def test_bind_list() -> None:
    assert bind_list("SELECT %s, '%s', %some", [1, 2]) == ("SELECT %s, '%%s', %%some", [1])
    assert bind_list("SELECT 5 % 2", [1]) == ("SELECT 5 % 2", None)
    with pytest.raises(ValueError, match="2 placeholders"):
        bind_list("SELECT %s, %s", [1])


def test_as_sent() -> None:
    assert as_sent("a %(x)s %% %(y)s %(x)s") == "a $1 % $2 $1"
    assert as_sent("a %s %% %s") == "a $1 % $2"


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("/* x */ begin", "BEGIN"),
        ("START TRANSACTION READ ONLY", "START TRANSACTION"),
        ("commit and chain", "COMMIT"),
        ("END", "END"),
        ("rollback", "ROLLBACK"),
        ("ROLLBACK TO SAVEPOINT a", "ROLLBACK TO SAVEPOINT"),
        ("ROLLBACK WORK TO a", "ROLLBACK TO SAVEPOINT"),
        ("SAVEPOINT a", "SAVEPOINT"),
        ("RELEASE a", "RELEASE SAVEPOINT"),
        ("PREPARE TRANSACTION 'x'", "PREPARE TRANSACTION"),
        ("COMMIT PREPARED 'x'", "COMMIT PREPARED"),
        ("ABORT", "ABORT"),
        ("PREPARE x AS SELECT 1", None),
        ("'BEGIN'", None),
        ('"begin"', None),
        ("SELECT 1 -- COMMIT", None),
        ("", None),
    ],
)
def test_transaction_control(sql: str, name: str | None) -> None:
    assert transaction_control(sql) == name


def test_leading_words_end_at_what_is_no_word() -> None:
    assert leading_words("create /* x */ table (a int)") == ["CREATE", "TABLE"]


@pytest.mark.parametrize(
    ("position", "expected"),
    [(1, (1, "ab")), (3, (1, "ab")), (5, (2, "")), (6, (3, "cd")), (99, (3, "cd")), (0, (1, "ab"))],
)
def test_line_at(position: int, expected: tuple[int, str]) -> None:
    assert line_at("ab\r\n\ncd", position) == expected


def the_long_way(short: str, function: Callable[[str], object], text: str) -> object:
    """What the function says without the expression that spares it the cutting into tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql, short, re.compile(r"(?!)"))
        return function(text)


@given(st.text("a1 \n\t;'\"$-/*\\%é", max_size=24))
def test_the_short_way_with_plain_sql_comes_to_the_same(text: str) -> None:
    assert split_statements(text) == the_long_way("_ONE", split_statements, text)


@given(st.text("BEGINbeginCOMMITcommit update-/*; \n1_$é", max_size=16))
def test_the_short_way_with_what_is_no_transaction_command_comes_to_the_same(text: str) -> None:
    assert transaction_control(text) == the_long_way("_FIRST_WORD", transaction_control, text)
