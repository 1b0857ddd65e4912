"""What is taken for a secret, and what texts look like without them."""

from __future__ import annotations

import json
import threading
from urllib.parse import quote, quote_plus

import pytest

from noetl_celery import hiding
from noetl_celery.errors import ErrorInfo, InputError, TemplateError, ToolError


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests begin with an empty memory, and leave none."""
    for name in ("_lasting", "_passing", "_executions"):
        monkeypatch.setattr(hiding, name, type(getattr(hiding, name))())
    monkeypatch.setattr(hiding, "_spellings", ())


ODD = "a b/'\"\\ü&%"


@pytest.mark.parametrize(
    "written",
    [
        ODD,
        quote(ODD, safe=""),
        quote(ODD),
        quote_plus(ODD),
        json.dumps({"k": ODD}),
        json.dumps([ODD], ensure_ascii=False),
        repr(f"{ODD}"),
        f"SELECT '{ODD.replace(chr(39), chr(39) * 2)}'",
    ],
)
def test_a_secret_is_found_however_it_is_written(written: str) -> None:
    hiding.learn(ODD)
    assert "***" in hiding.hidden(written)
    assert "a b" not in hiding.hidden(written)
    assert "a%20b" not in hiding.hidden(written)


def test_of_a_credential_everything_is_secret_but_where_and_who() -> None:
    fields = {
        "db_host": "db.example.org",
        "db_user": "reader-1",
        "db_password": "s3cret-1",
        "anything": "s3cret-2",
        "headers": {"X-Key": "s3cret-3"},
        "many": ["s3cret-4"],
        "dsn": "postgresql://reader-1:s3cret%2F5@db.example.org/data",
        "port": 5432,
    }
    hiding.learn_credential(fields)
    shown = hiding.hidden(json.dumps(fields))
    assert "s3cret" not in shown
    assert "s3cret/5" not in hiding.hidden("as it is meant: s3cret/5")
    for kept in ("db.example.org", "reader-1", "5432", "postgresql://"):
        assert kept in shown


def test_a_password_that_is_the_users_name_hides_no_word() -> None:
    """Everybody's development database: messages stay readable."""
    hiding.learn_credential({"user": "postgres", "password": "postgres", "url": "redis://worker:worker@host/0"})
    assert hiding.hidden('database "postgres" of worker') == 'database "postgres" of worker'


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        ("password", True),
        ("db_passwd", True),
        ("API-Key", True),
        ("api_key", True),
        ("client_secret", True),
        ("token", True),
        ("access_token", True),
        ("Authorization", True),
        ("private_key", True),
        ("token_url", False),
        ("tokens_used", False),
        ("secret_name", False),
        ("credential", False),
        ("author", False),
        ("key", False),
        ("password_file", False),
    ],
)
def test_keys_that_are_named_like_secrets(key: str, secret: bool) -> None:
    hiding.learn_named({"deep": [{key: "valu3-0f-it"}]})
    assert hiding.is_named(key) is secret
    assert hiding.hidden("valu3-0f-it") == ("***" if secret else "valu3-0f-it")


def test_the_token_of_a_header_is_the_secret() -> None:
    hiding.learn_named({"headers": {"Authorization": "Bearer t0ken-of-it"}})
    assert hiding.hidden("answered: t0ken-of-it") == "answered: ***"


def test_addresses_show_no_password_also_where_nobody_knew_it() -> None:
    text = "cannot reach redis://user:p4ss@host:6379/0, postgresql://u:p@ss@host/db or 'host=h password=geheim user=u'"
    assert hiding.hidden(text) == (
        "cannot reach redis://user:***@host:6379/0, postgresql://u:***@host/db or 'host=h password=*** user=u'"
    )
    harmless = "GET http://host:8080/a@b?c=d:e@f answered"
    assert hiding.hidden(harmless) == harmless


def test_code_and_sql_speak_of_passwords_without_having_one() -> None:
    hiding.learn_named({"code": "check(password=given.password)", "command": "SELECT password = crypt(%(p)s, hash)"})
    hiding.learn_named({"info": "host=h user=u password='geheim 1'"})
    assert hiding.hidden("crypt( given.password) geheim 1") == "crypt( given.password) ***"


def test_the_longest_one_goes_first() -> None:
    hiding.learn("secret")
    hiding.learn("secret-and-more")
    assert hiding.hidden("it is secret-and-more") == "it is ***"


def test_short_values_are_words() -> None:
    hiding.learn("admin")
    assert hiding.hidden("the administrator") == "the administrator"


def test_the_lines_of_a_key_are_hidden_one_by_one() -> None:
    hiding.learn("-----BEGIN KEY-----\nMIIBVwIBADANBgkqhkiG9w0\nBAQEFAASCAT8wggE7AgEAA\n-----END KEY-----")
    assert hiding.hidden("line 2: MIIBVwIBADANBgkqhkiG9w0") == "line 2: ***"
    assert hiding.hidden("-----BEGIN KEY-----") == "-----BEGIN KEY-----"


def test_memory_is_bounded_and_credentials_stay() -> None:
    hiding.learn_credential({"password": "the-lasting-one"}, lasting=True)
    for number in range(hiding.MOST_PASSING + 10):
        hiding.learn(f"passing-{number:06}")
    assert hiding.hidden("the-lasting-one") == "***"
    assert hiding.hidden("passing-000003") == "passing-000003"
    assert hiding.hidden(f"passing-{hiding.MOST_PASSING:06}") == "***"
    assert len(hiding._known()) == hiding.MOST_PASSING + 1


def test_a_huge_document_is_looked_at_from_its_root() -> None:
    document = {"rows": [{"n": number} for number in range(200_000)], "api_key": "near-the-root"}
    hiding.learn_named(document)
    assert hiding.hidden("near-the-root") == "***"


def test_a_workload_is_learned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hiding.learn_workload(7, {"password": "w0rkload"})
    monkeypatch.setattr(hiding, "learn_named", lambda document: pytest.fail("again"))
    hiding.learn_workload(7, {"password": "w0rkload"})
    assert hiding.hidden("w0rkload") == "***"


def test_data_that_comes_with_an_error() -> None:
    hiding.learn("s3cret-1")
    assert hiding.without({"a": ["x s3cret-1", 1, None, ("s3cret-1",)]}) == {"a": ["x ***", 1, None, ["***"]]}


def test_every_error_hides_when_it_is_made() -> None:
    hiding.learn("s3cret-1")
    assert ErrorInfo("bad", "no s3cret-1").message == "no ***"
    assert str(ToolError(ErrorInfo("bad", "no s3cret-1"))) == "no ***"
    assert str(InputError("no s3cret-1", hint="ask")) == "no *** (ask)"
    assert TemplateError("no", expression="{{ 's3cret-1' }}").expression == "{{ '***' }}"


def test_many_threads_learn_and_hide() -> None:
    failures: list[str] = []

    def work(number: int) -> None:
        for turn in range(50):
            secret = f"s3cret-{number:02}-{turn:03}"
            hiding.learn(secret)
            if hiding.hidden(secret) != "***":
                failures.append(secret)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
