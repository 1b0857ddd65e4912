"""The benchmarks' arithmetic: medians, ratios, goals, who runs when, and what the report says. No speeds."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import cli, figures, page, report
from benchmarks.cases import CASES
from benchmarks.cases.loops import chain_text
from benchmarks.figures import Verdict, derived, judge, medians, percentile, ratio, turns
from benchmarks.measure import memory
from benchmarks.model import OURS, Case, CaseResult, Contestant, Goal, Values
from benchmarks.services import is_work, logged_statements
from benchmarks.stub import pages_of, respond
from noetl_celery.errors import InputError
from noetl_celery.submission import read_playbook

FASTER = Goal("≥ 2 × them", OURS, "rate", "them", least=2)
SMALL = Goal("≤ 0.1 event", OURS, "events_per_row", most=0.1)


def nothing(_bench: object, _rows: int) -> Values:
    return {}


CASE = Case(
    "drain",
    "draining [a] table",
    (Contestant(OURS, nothing), Contestant("them", nothing, quick_rows=0), Contestant("few", nothing, rows=3)),
    rows=100,
    quick_rows=10,
    warm_rows=1,
    goals=(FASTER, SMALL, Goal("≥ 1 × nobody", OURS, "rate", "nobody", least=1)),
    notes=("a note",),
)


def run(rows: float, seconds: float, **more: float) -> Values:
    return derived({"rows": rows, "seconds": seconds, **more})


@pytest.fixture
def result() -> CaseResult:
    ours = [run(100, seconds, events=9, messages=8, frames=2) for seconds in (1, 4, 2)]
    return CaseResult(CASE, {OURS: ours, "them": [run(100, 10)], "few": []}, {}, ["few: [gone] away"])


# -- figures


def test_turns_go_back_and_forth_so_that_nobody_always_begins() -> None:
    assert turns("abc", 3) == [["a", "b", "c"], ["c", "b", "a"], ["a", "b", "c"]]
    assert turns("abc", 0) == []


def test_a_run_has_a_rate_and_its_counts_per_row() -> None:
    values = run(200, 4, messages=10, frames=5, wal_bytes=1000, cpu_workers=1, cpu_postgres=3)
    assert values["rate"] == 50
    assert values["messages_per_row"] == 0.05
    assert values["messages_per_frame"] == 2
    assert values["wal_bytes_per_row"] == 5
    assert values["cpu_ms_per_row"] == 20
    assert "events_per_row" not in values


def test_a_run_without_rows_has_nothing_per_row() -> None:
    assert run(0, 0, messages=3)["rate"] == 0.0
    assert "messages_per_row" not in run(0, 0, messages=3)


def test_medians_are_of_the_runs_that_have_the_figure() -> None:
    assert medians([{"a": 1, "b": 5}, {"a": 9}, {"a": 2}]) == {"a": 2, "b": 5}
    assert medians([{"a": 1}, {"a": 2}]) == {"a": 1.5}
    assert medians([]) == {}


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_percentile_is_the_nearest_rank(share: float, value: int) -> None:
    assert percentile(range(100, 0, -1), share) == value


def test_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_memory_compares_the_last_tenth_with_the_second() -> None:
    assert memory([50.0, *[100.0] * 8, 120.0]) == {"rss_mb": 120.0, "rss_growth": 1.2}
    assert memory([7.0]) == {"rss_mb": 7.0}
    assert memory([]) == {}


def test_ratio_is_ours_over_theirs_and_nothing_where_one_is_missing() -> None:
    found = {OURS: {"rate": 30.0}, "them": {"rate": 10.0}, "idle": {"rate": 0.0}}
    assert ratio(found, "them", "rate") == 3
    assert [ratio(found, name, "rate") for name in (OURS, "idle", "nobody")] == [None, None, None]
    assert ratio({"them": {"rate": 10.0}}, "them", "rate") is None


# -- goals


@pytest.mark.parametrize(("ours", "met"), [(19.9, False), (20.0, True), (50.0, True)])
def test_a_goal_against_another_is_a_ratio(ours: float, met: bool) -> None:
    verdict = judge(FASTER, {OURS: {"rate": ours}, "them": {"rate": 10.0}})
    assert verdict == Verdict(FASTER, ours / 10)
    assert verdict.met is met


def test_a_goal_by_itself_is_the_figure() -> None:
    assert judge(SMALL, {OURS: {"events_per_row": 0.1}}).met is True
    assert judge(SMALL, {OURS: {"events_per_row": 0.11}}).met is False


def test_a_goal_without_measurements_is_neither_met_nor_missed() -> None:
    for found in ({}, {OURS: {"rate": 1.0}}, {OURS: {"rate": 1.0}, "them": {"rate": 0.0}}):
        assert judge(FASTER, found).met is None


def test_a_goal_may_compare_two_figures() -> None:
    goal = Goal("p50 ≤ 8 × a round trip", OURS, "p50", "them", other="trip", most=8)
    assert judge(goal, {OURS: {"p50": 40.0}, "them": {"trip": 8.0}}) == Verdict(goal, 5.0)


# -- statements


LOG = """\
2026-11-21 19:00:00.000 UTC [7] LOG:  statement:
\t  UPDATE bench.work
\tSET state = 'done'
2026-11-21 19:00:00.000 UTC [8] LOG:  execute <unnamed>: BEGIN
2026-11-21 19:00:00.000 UTC [8] LOG:  execute _pg3_0: DELETE FROM noetl.outbox WHERE claim_id = $1
2026-11-21 19:00:00.000 UTC [8] DETAIL:  Parameters: $1 = 'bench.work
\tand more'
2026-11-21 19:00:00.000 UTC [9] LOG:  statement: SELECT pg_reload_conf()
2026-11-21 19:00:00.000 UTC [8] LOG:  statement: commit
"""


def test_statements_are_read_from_the_log_with_all_their_lines() -> None:
    work, own = logged_statements(LOG, except_pid=9)
    assert work == "UPDATE bench.work\nSET state = 'done'"
    assert own == "DELETE FROM noetl.outbox WHERE claim_id = $1"
    assert (is_work(work), is_work(own)) == (True, False)


# -- report


def shown(result: CaseResult) -> str:
    console = Console(width=100, no_color=True, record=True, file=io.StringIO())
    report.show_case(console, result)
    report.show_goals(console, [result])
    return console.export_text()


def test_the_table_has_medians_ranges_ratios_and_goals(result: CaseResult) -> None:
    text = shown(result)
    theirs = next(line for line in text.splitlines() if line.strip().startswith("them"))
    assert "draining [a] table" in text
    assert theirs.split() == ["them", "100", "10.0", "5.00", "×"]
    assert "25.0–100" in text
    assert "✓ 5.00  goal: ≥ 2 × them" in text
    assert "✓ 0.09  goal: ≤ 0.1 event" in text
    assert "– not measured: ≥ 1 × nobody" in text
    assert "failed: few: [gone] away" in text
    assert "a note" in text


def test_a_missed_goal_is_marked(result: CaseResult) -> None:
    result.samples["them"] = [run(100, 1)]
    assert "✗ 0.50  goal: ≥ 2 × them" in shown(result)


@pytest.mark.parametrize(("value", "text"), [(None, ""), (12345.6, "12,346"), (45.67, "45.7"), (0.456, "0.46")])
def test_amounts_have_three_digits(value: float | None, text: str) -> None:
    assert report.amount(value) == text


def test_the_json_has_every_run_and_what_became_of_the_goals(result: CaseResult, tmp_path: Path) -> None:
    report.write_json(tmp_path / "bench.json", [result], {"cpus": 2})
    document = json.loads((tmp_path / "bench.json").read_text())
    case = document["cases"][0]
    assert document["about"] == {"cpus": 2}
    assert [round(values["rate"]) for values in case["contestants"][OURS]["runs"]] == [100, 25, 50]
    assert case["contestants"][OURS]["median"]["rate"] == 50
    assert case["contestants"]["them"]["ratio"] == 5
    assert [(goal["met"], goal.get("least"), goal.get("most")) for goal in case["goals"]] == [
        (True, 2, None),
        (True, None, 0.1),
        (None, 1, None),
    ]
    assert case["problems"] == ["few: [gone] away"]


# -- cases and the command line


def test_sizes_are_the_cases_unless_a_contestant_has_its_own() -> None:
    assert [contestant.size(CASE, False) for contestant in CASE.contestants] == [100, 100, 3]
    assert [contestant.size(CASE, True) for contestant in CASE.contestants] == [10, 0, 10]


def test_goals_name_contestants_of_their_case() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        names = [contestant.name for contestant in case.contestants]
        assert len(set(names)) == len(names)
        for goal in case.goals:
            assert {goal.of, goal.against or goal.of} <= set(names), (case.name, goal.text)
            assert (goal.least is None) != (goal.most is None)


def test_chosen_cases_keep_our_order() -> None:
    assert cli.choose(CASES, []) == list(CASES)
    assert [case.name for case in cli.choose(CASES, ["parallel", "cursor"])] == ["cursor", "parallel"]


def test_a_wrong_name_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=r"there is no case 'cursr'.*did you mean cursor"):
        cli.choose(CASES, ["cursr"])
    with pytest.raises(SystemExit) as ended:
        cli.main(["--list"])
    assert ended.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) == len(CASES)
    for wrong in (["cursr"], ["--repeat", "0"], ["--no-such-option"]):
        with pytest.raises(SystemExit) as ended:
            cli.main(wrong)
        assert ended.value.code == 2
        assert capsys.readouterr().err.startswith("error: ")


def test_our_playbooks_and_the_chain_compile() -> None:
    for path in sorted((Path(cli.__file__).parent / "playbooks").glob("*.yaml")):
        assert read_playbook(path).compiled.plan.path == f"bench/{path.stem}"
    plan = read_playbook("chain.yaml", text=chain_text(3)).compiled.plan
    assert list(plan.steps) == ["step_1", "step_2", "step_3"]


def test_the_stub_answers_page_after_page() -> None:
    token, seen = "", []
    while token is not None:
        head, _, body = respond(f"/patients/7/type_1?size=10&next={token}").partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK")
        page = json.loads(body)
        seen += page["records"]
        token = page["next"]
    assert len(seen) == page["total"] == 10 * pages_of(7)
    assert respond("/elsewhere").startswith(b"HTTP/1.1 404")


def test_summaries_leave_out_who_was_not_run(result: CaseResult) -> None:
    assert list(figures.summary(result)) == [OURS, "them"]
    assert figures.spread(result.samples[OURS], "rate") == (25, 100)


# -- the page


def test_the_page_has_the_goals_and_a_table_for_each_case(result: CaseResult) -> None:
    document = report.document([result], {"repeat": 3, "quick": True, "date": "2026-01-02T03:04:05Z"})
    text = page.tables([{"about": document["about"], "cases": []}, document])
    assert "| draining [a] table | ≥ 2 × them | 5.00 | ✓ |" in text
    assert "| draining [a] table | ≥ 1 × nobody |  | – |" in text
    assert '`make bench ARGS="--quick --repeat 3 drain"`, 3 runs of each, 2026-01-02' in text
    assert "| them | 100 | 10.0 |  | 5.00 × |" in text
    found = page.PAGE.replaced(f"before {page.PAGE.begin} old {page.PAGE.end} after", text)
    assert found.startswith(f"before {page.PAGE.begin}\n\n| case |")
    assert found.endswith(f"\n{page.PAGE.end} after")
    with pytest.raises(ValueError, match="lacks"):
        page.PAGE.replaced("nothing", text)


def test_the_page_is_there_to_be_written() -> None:
    assert page.PAGE.begin in page.PAGE.path.read_text()
    assert page.PAGE.end in page.PAGE.path.read_text()
