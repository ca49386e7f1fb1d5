"""`tidemark query`: what it asks, what it prints, and how it fails. Here by HTTP; the system tests ask a home too."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from serving_layer.query.parse import PARAMETERS
from tests.process.serving_server import Served, serving
from tidemark.commands.query import QueryFailed, bars, command

app = typer.Typer()
app.command()(command)
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("query") / "home") as running:
        yield running


def query(served: Served, *arguments: str, key: tuple[str, str] | None = None) -> Result:
    name, secret = key or served.key(f"k{next(NUMBERS)}", ["query"])
    served.engine.asked.clear()
    given = ["page_hits", "--url", served.address, *arguments]
    return CliRunner().invoke(app, given, env={"TIDEMARK_CLI_KEY": f"{name}:{secret}", "COLUMNS": "200"})


def test_every_parameter_has_an_option() -> None:
    options = {parameter.name for parameter in typer.main.get_command(app).params}
    assert {*PARAMETERS} - {"from", "format"} <= options
    assert {"from_", "where", "output"} <= options


def test_options_become_the_question(served: Served) -> None:
    done = query(
        served, "--from", "2026-03-01", "--to", "2026-03-08", "--grain", "day", "--tz", "UTC", "--by", "url",
        "--where", "url=/a=b", "--where", "url.not=/c", "--answers", "hits", "--having", "hits > 0", "--order=-hits",
        "--limit", "5", "--compare", "previous_period", "--window", "7d", "--fill", "--explain", "--min-cut", "0:1",
        "--max-staleness", "5s", "--wait", "1s", "-o", "json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    (question,) = served.engine.asked
    assert (question.grain, question.by, question.answers, question.limit) == ("day", ("url",), ("hits",), 5)
    assert [(each.kind, each.values) for each in question.filters] == [("is", ("/a=b",)), ("not", ("/c",))]
    assert question.order[0] == ("hits", True)
    assert question.having is not None
    assert question.previous is not None
    assert (question.fill, question.explain) == (True, True)
    assert question.windows[0].end - question.windows[0].start == 7 * 86400
    assert question.freshness == (5.0, {0: 1}, 1.0)


def test_table_shows_rows_bars_and_what_the_answer_is_made_of(served: Served) -> None:
    done = query(served, "--from", "2026-03-01", "--to", "2026-03-04", "--grain", "day", "--by", "url")
    assert done.exit_code == 0, done.output
    assert "2026-03-02T00:00:00Z" in done.stdout
    assert "x  hits      ███" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("page_hits 2026-03-01T00:00:00Z to 2026-03-04T00:00:00Z; run 3, published 2026-03-01")
    assert last.endswith("cut 0:17; approximate: visitors (usually within 1.6%)")


def test_degraded_answer_says_so_first(served: Served) -> None:
    served.engine.is_degraded = True
    try:
        done = query(served, "--from", "2026-03-01", "--to", "2026-03-02")
    finally:
        served.engine.is_degraded = False
    assert "DEGRADED: No Redis." in done.stdout.splitlines()


@pytest.mark.parametrize("output", ["json", "ndjson", "csv"])
def test_other_outputs_are_those_of_the_server_and_the_rest_goes_to_stderr(served: Served, output: str) -> None:
    done = query(served, "--from", "2026-03-01", "--to", "2026-03-02", "--output", output)
    answer = served.client.get(
        "/views/page_hits/query", params={"from": "2026-03-01", "to": "2026-03-02", "format": output}
    )
    assert done.stdout_bytes == answer.content
    assert "run 3" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--grain", "tomorrow"), 2, "grain"),
        (("--where", "nothing=1"), 2, "nothing"),
        (("--url", "http://127.0.0.1:1"), 1, "does not reply"),
    ],
)
def test_failure_is_a_sentence_and_an_exit_code(
    served: Served, arguments: tuple[str, ...], code: int, said: str
) -> None:
    failure: Any = query(served, *arguments).exception
    assert isinstance(failure, QueryFailed)
    assert (failure.exit_code, said in str(failure)) == (code, True)


def test_key_that_is_not_valid_is_told(served: Served) -> None:
    failure: Any = query(served, key=("nobody", "wrong")).exception
    assert (failure.exit_code, "not a valid one" in str(failure)) == (1, True)


@pytest.mark.parametrize(("option", "value"), [("--where", "url"), ("--url", "127.0.0.1:8090"), ("--url", "ftp://x")])
def test_wrong_usage_is_refused_before_anything_is_asked(served: Served, option: str, value: str) -> None:
    done = query(served, option, value)
    assert (done.exit_code, served.engine.asked) == (2, [])
    assert value in done.stderr.replace("\n", "")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], ""),
        ([0, 0], "▁▁"),
        ([1, 4, 7], "▂▅█"),
        ([7, None, 7], "█ █"),
        ([-7, 0, 7], "▁▅█"),
        ([1.5, "text", True], "█  "),
    ],
)
def test_bars_go_from_nothing_to_the_most(values: list[Any], expected: str) -> None:
    assert bars(values) == expected


def test_json_is_one_document(served: Served) -> None:
    assert json.loads(query(served, "-o", "json").stdout)["meta"]["view"] == "page_hits"


def test_name_of_a_view_is_part_of_the_path_and_nothing_else(served: Served) -> None:
    name, secret = served.key("odd", ["query"])
    given = ["nothing?limit=1#x", "--url", served.address, "--key", f"{name}:{secret}"]
    failure: Any = CliRunner().invoke(app, given).exception
    assert isinstance(failure, QueryFailed)
    assert (failure.exit_code, "'nothing?limit=1#x'" in str(failure)) == (2, True)
